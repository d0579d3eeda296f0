//! Compares texts and distributions with Transformers; see `tests/golden/decoding/decoding.py`.

use serde::Deserialize;

use super::table_model::Table;
use super::{Decoding, End, Prompt};

#[derive(Deserialize)]
struct Golden {
    vocabulary: usize,
    prompts: Vec<Vec<u32>>,
    table: Vec<f32>,
    cases: Vec<Case>,
    distributions: Vec<Distribution>,
}

#[derive(Deserialize)]
struct Case {
    decoding: Decoding,
    /// The texts of each prompt.
    texts: Vec<Vec<Expected>>,
}

#[derive(Deserialize)]
struct Expected {
    tokens: Vec<u32>,
    log_probability: f64,
    /// Present for beam search only.
    score: Option<f64>,
}

#[derive(Deserialize)]
struct Distribution {
    decoding: Decoding,
    /// `None` is minus infinity, which JSON cannot express.
    logits: Vec<Option<f64>>,
    probabilities: Vec<f64>,
}

fn golden() -> Golden {
    serde_json::from_str(include_str!("../../../tests/golden/decoding/decoding.json")).unwrap()
}

#[test]
fn texts_are_those_of_transformers() {
    let Golden { vocabulary, prompts, table, cases, .. } = golden();
    let table = Table { vocabulary, logits: table };
    let prompts: Vec<_> = (0..).zip(prompts).map(|(row, tokens)| Prompt::new(row, tokens)).collect();
    let (mut greedy, mut searched, mut ended) = (0, 0, 0);
    for Case { decoding, texts } in cases {
        let found = decoding.write(&mut table.model(&prompts), &prompts).unwrap();
        assert_eq!(found.len(), texts.len());
        for (prompt, (found, texts)) in found.iter().zip(&texts).enumerate() {
            let place = format!("{decoding:?}, prompt {prompt}: {found:?}");
            assert_eq!(found.len(), texts.len(), "{place}");
            for (found, expected) in found.iter().zip(texts) {
                assert_eq!(found.tokens, expected.tokens, "{place}");
                assert!((found.log_probability - expected.log_probability).abs() < 2e-6, "{place}");
                // Transformers sums in f32.
                let score = expected.score.unwrap_or(found.log_probability);
                assert!((found.score - score).abs() < 1e-6 * score.abs().max(1.0), "{place} {score}");
                let is_ended = decoding.end_tokens.contains(found.tokens.last().unwrap());
                assert_eq!(found.end, if is_ended { End::Token } else { End::Length }, "{place}");
                ended += usize::from(is_ended);
                *(if expected.score.is_some() { &mut searched } else { &mut greedy }) += 1;
            }
        }
    }
    assert_eq!((greedy, searched), (54, 2268));
    assert!((500..2000).contains(&ended), "{ended}");
}

#[test]
fn distributions_are_those_of_transformers_to_1e_6() {
    let distributions = golden().distributions;
    assert_eq!(distributions.len(), 52);
    for Distribution { decoding, logits, probabilities } in distributions {
        let scores = logits.iter().map(|logit| logit.unwrap_or(f64::NEG_INFINITY)).collect();
        let found = decoding.distribution(scores);
        let is_close = |(found, expected): (&f64, &f64)| (found - expected).abs() < 1e-6;
        assert!(
            found.len() == probabilities.len() && found.iter().zip(&probabilities).all(is_close),
            "{decoding:?} {logits:?}: {found:?} {probabilities:?}"
        );
    }
}
