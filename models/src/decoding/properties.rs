//! Properties that hold for all settings, prompts and models.

use proptest::prelude::*;

use super::beam_search::BeamSearch;
use super::table_model::Table;
use super::write::{Longest, run};
use super::{Decoding, EarlyStopping, End, Prompt, Search, Text};

/// Models with few tokens, so that every path is taken.
fn tables(vocabulary: usize) -> impl Strategy<Value = Table> {
    let logits = prop::collection::vec(-4f32..4.0, vocabulary.pow(3));
    logits.prop_map(move |logits| Table { vocabulary, logits })
}

/// Prompts with tokens of a five-token model, with row numbers in any order.
fn prompts() -> impl Strategy<Value = Vec<Prompt>> {
    let tokens = prop::collection::vec(0u32..5, 0..6);
    let all = prop::collection::btree_map(any::<u64>(), tokens, 1..5);
    all.prop_map(|all| all.into_iter().map(|(row, tokens)| Prompt::new(row, tokens)).collect())
}

/// Settings shared by greedy decoding, sampling and beam search.
fn shared() -> impl Strategy<Value = Decoding> {
    let ends = prop::collection::vec(0u32..6, 0..3);
    let penalties = prop_oneof![Just(1.0), 0.5..2.0];
    (1usize..7, 0usize..7, ends, penalties, prop_oneof![Just(0usize), 3..5usize]).prop_map(
        |(max_new_tokens, least, end_tokens, repetition_penalty, no_repeat_ngram)| Decoding {
            max_new_tokens,
            min_new_tokens: least.min(max_new_tokens),
            end_tokens,
            repetition_penalty,
            no_repeat_ngram,
            ..Decoding::default()
        },
    )
}

fn sampling() -> impl Strategy<Value = Decoding> {
    (shared(), 0.1..3.0, 0usize..7, 0.0..=1.0, 0.0..=1.0, 1usize..4, any::<u64>()).prop_map(
        |(shared, temperature, top_k, top_p, min_p, returned, seed)| Decoding {
            temperature,
            top_k,
            top_p,
            min_p,
            returned,
            seed,
            ..shared
        },
    )
}

fn stops() -> impl Strategy<Value = EarlyStopping> {
    prop_oneof![Just(EarlyStopping::Full), Just(EarlyStopping::Unlikely), Just(EarlyStopping::Impossible)]
}

fn searching() -> impl Strategy<Value = Decoding> {
    (shared(), 2usize..6, -1.0..3.0, stops()).prop_map(|(shared, beams, length_penalty, early_stopping)| {
        Decoding { beams, length_penalty, early_stopping, returned: beams, ..shared }
    })
}

fn decodings() -> impl Strategy<Value = Decoding> {
    prop_oneof![shared(), sampling(), searching()]
}

fn texts(decoding: &Decoding, table: &Table, prompts: &[Prompt]) -> Vec<Vec<Text>> {
    decoding.write(&mut table.model(prompts), prompts).unwrap()
}

/// Every text of a model without end tokens, and its log probability from multiplied probabilities.
fn all_texts(table: &Table, length: usize) -> Vec<(Vec<u32>, f64)> {
    let mut all = vec![(Vec::new(), 1.0)];
    for _ in 0..length {
        let longer = |(tokens, probability): &(Vec<u32>, f64)| {
            let exponentials: Vec<_> = table.after(tokens).iter().map(|x| f64::from(*x).exp()).collect();
            let sum: f64 = exponentials.iter().sum();
            let next = (0u32..).zip(exponentials).map(|(token, exponential)| {
                let tokens = tokens.iter().copied().chain([token]).collect();
                (tokens, probability * exponential / sum)
            });
            next.collect::<Vec<_>>()
        };
        all = all.iter().flat_map(longer).collect();
    }
    all.sort_by(|one, other| other.1.total_cmp(&one.1));
    all.into_iter().map(|(tokens, probability)| (tokens, probability.ln())).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    #[test]
    fn distributions_sum_to_one(
        decoding in sampling(),
        scores in prop::collection::vec(prop_oneof![4 => -1e3..1e3, 1 => Just(f64::NEG_INFINITY)], 1..20),
    ) {
        prop_assume!(scores.iter().any(|score: &f64| score.is_finite()));
        let found = decoding.distribution(scores.clone());
        prop_assert_eq!(found.len(), scores.len());
        prop_assert!((found.iter().sum::<f64>() - 1.0).abs() < 1e-12);
        prop_assert!(found.iter().all(|probability| (0.0..=1.0).contains(probability)));
        // The most likely token always stays.
        let highest = (0..scores.len()).max_by(|one, other| scores[*one].total_cmp(&scores[*other])).unwrap();
        prop_assert!(found[highest] > 0.0);
    }

    #[test]
    fn filters_that_keep_all_change_nothing(
        scores in prop::collection::vec(-30.0..30.0, 1..20),
        temperature in 0.1..3.0,
    ) {
        let decoding = Decoding { temperature, top_k: 0, top_p: 1.0, min_p: 0.0, ..Decoding::default() };
        let exponentials: Vec<f64> = scores.iter().map(|score: &f64| (score / temperature).exp()).collect();
        let sum: f64 = exponentials.iter().sum();
        for (found, exponential) in decoding.distribution(scores).into_iter().zip(exponentials) {
            prop_assert!((found - exponential / sum).abs() < 1e-12);
        }
    }

    #[test]
    fn a_single_beam_is_greedy(decoding in shared(), table in tables(5), prompts in prompts()) {
        // Beam search penalizes log probabilities, so another token may become the highest.
        let greedy = Decoding { repetition_penalty: 1.0, ..decoding };
        let searching =
            Decoding { early_stopping: EarlyStopping::Full, length_penalty: 0.0, ..greedy.clone() };
        let search = |prompt| -> Box<dyn Search + '_> { Box::new(BeamSearch::new(&searching, prompt)) };
        let found = run(&mut table.model(&prompts), prompts.iter().map(search).collect(), Longest { rows: 1, tokens: 1 }).unwrap();
        let expected = texts(&greedy, &table, &prompts);
        prop_assert_eq!(found.len(), expected.len());
        for (found, expected) in found.into_iter().flatten().zip(expected.into_iter().flatten()) {
            prop_assert_eq!(found.tokens, expected.tokens);
            prop_assert_eq!(found.end, expected.end);
            prop_assert!((found.score - expected.score).abs() < 1e-9);
        }
    }

    #[test]
    fn a_row_is_the_same_alone_and_in_any_batch(
        decoding in decodings(),
        table in tables(5),
        prompts in prompts(),
    ) {
        let together = texts(&decoding, &table, &prompts);
        let turned: Vec<_> = prompts.iter().rev().cloned().collect();
        let mut again = texts(&decoding, &table, &turned);
        again.reverse();
        prop_assert_eq!(&again, &together);
        for (prompt, expected) in prompts.into_iter().zip(together) {
            prop_assert_eq!(texts(&decoding, &table, &[prompt]), vec![expected]);
        }
    }

    #[test]
    fn texts_keep_to_the_settings(decoding in decodings(), table in tables(5), prompts in prompts()) {
        for (prompt, texts) in prompts.iter().zip(texts(&decoding, &table, &prompts)) {
            prop_assert!(texts.len() == decoding.returned || decoding.beams > 1);
            prop_assert!((1..=decoding.returned).contains(&texts.len()));
            prop_assert!(decoding.beams == 1 || texts.is_sorted_by(|one, other| one.score >= other.score));
            for text in texts {
                let is_end = |token: &u32| decoding.end_tokens.contains(token);
                let (last, before) = text.tokens.split_last().unwrap();
                prop_assert!(!before.iter().any(is_end));
                prop_assert_eq!(text.end == End::Token, is_end(last));
                prop_assert!(is_end(last) || text.tokens.len() == decoding.max_new_tokens);
                prop_assert!(text.tokens.len() <= decoding.max_new_tokens);
                // The end token itself counts, and is the first that may end the text.
                prop_assert!(!is_end(last) || text.tokens.len() > decoding.min_new_tokens);
                let (mut tokens, mut sum) = (prompt.tokens.clone(), 0.0);
                for token in text.tokens {
                    let logits = table.after(&tokens);
                    let all: f64 = logits.iter().map(|logit| f64::from(*logit).exp()).sum();
                    sum += f64::from(logits[token as usize]) - all.ln();
                    tokens.push(token);
                }
                prop_assert!((text.log_probability - sum).abs() < 1e-9);
            }
        }
    }

    #[test]
    fn with_a_beam_for_each_text_the_search_finds_all_in_order(table in tables(3), stop in stops()) {
        let decoding = Decoding {
            max_new_tokens: 3,
            beams: 27,
            returned: 27,
            early_stopping: stop,
            length_penalty: 0.0,
            ..Decoding::default()
        };
        // Users may not set more beams than there are tokens, so this runs the search directly.
        let prompts = [Prompt::new(0, [])];
        let search = Box::new(BeamSearch::new(&decoding, &prompts[0]));
        let longest = Longest { rows: 27, tokens: 3 };
        let found = run(&mut table.model(&prompts), vec![search], longest).unwrap().swap_remove(0);
        let expected = all_texts(&table, 3);
        prop_assert_eq!(found.len(), expected.len());
        for (found, (_, log_probability)) in found.iter().zip(expected) {
            prop_assert!((found.score - log_probability).abs() < 1e-9);
        }
    }

    #[test]
    fn no_logits_cause_a_panic(
        decoding in decodings(),
        prompts in prompts(),
        logits in prop::collection::vec(
            prop_oneof![
                8 => any::<f32>(),
                4 => Just(f32::NEG_INFINITY),
                1 => Just(f32::NAN),
                1 => Just(f32::INFINITY),
            ],
            125,
        ),
    ) {
        let table = Table { vocabulary: 5, logits };
        if let Ok(texts) = decoding.write(&mut table.model(&prompts), &prompts) {
            let is_finite = |text: &Text| text.log_probability.is_finite() && text.score.is_finite();
            prop_assert!(texts.iter().flatten().all(is_finite));
        }
    }
}
