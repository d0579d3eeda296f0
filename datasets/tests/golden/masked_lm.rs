//! Masks without random choices, and word boundaries.

use firebrick_datasets::collators::{MaskableTokens, MaskedLm, Masking, Tokens};
use firebrick_datasets::{Collator, Encoder, Input};
use serde::Deserialize;

use crate::{Pad, Sided, drawn, encoder, flat, golden, numbers, pad_id, record, text};

#[derive(Deserialize)]
struct All {
    texts: Vec<String>,
    cases: Vec<Case>,
    literal: Vec<Literal>,
    groups: Vec<Groups>,
}

#[derive(Deserialize)]
struct Case {
    tokenizer: String,
    whole_words: bool,
    probability: f64,
    max_length: Option<usize>,
    cut: Sided,
    pad: Pad,
    input_ids: Vec<Vec<i32>>,
    attention_mask: Option<Vec<Vec<i32>>>,
    labels: Vec<Vec<i32>>,
}

#[derive(Deserialize)]
struct Literal {
    tokenizer: String,
    text: String,
    input_ids: Vec<Vec<i32>>,
    labels: Vec<Vec<i32>>,
}

#[derive(Deserialize)]
struct Groups {
    tokenizer: String,
    max_length: Option<usize>,
    cut: Sided,
    text: String,
    /// Word numbers of `transformers`: from 1, with -1 for special tokens.
    words: Vec<i32>,
}

/// The mask token. T5's kind has none, so both sides use another token.
fn mask_id(name: &str) -> u32 {
    match name {
        "wordpiece" => 4,
        "bytebpe" => 1,
        _ => 233,
    }
}

fn task(name: &str, encoder: &Encoder, probability: f64, whole_words: bool) -> MaskedLm {
    let masking = Masking::default().probability(probability).unwrap().replaced(1.0, 0.0).unwrap();
    MaskedLm::new(encoder.clone(), masking.whole_words(whole_words))
        .mask_id(mask_id(name))
        .pad_id(pad_id(name))
}

/// Returns the sample of a text. A text without anything to predict has no sample, so one is made by hand.
fn sample(task: &MaskedLm, encoder: &Encoder, of: &str) -> MaskableTokens {
    let mut samples = task.encode(&record([("text", text(of))])).unwrap();
    assert_eq!(samples.is_empty(), of.is_empty());
    samples.pop().unwrap_or_else(|| {
        let encoding = encoder.encode(Input::Text(of), None).unwrap().remove(0);
        MaskableTokens {
            words: vec![None; encoding.len()],
            tokens: Tokens::of(encoding, encoder.tokenizer()),
        }
    })
}

#[test]
fn all_or_nothing() {
    let all: All = golden("collators", "masked_lm");
    assert_eq!(all.cases.len(), 3 * 3 * (4 + 1 + 2));
    for case in &all.cases {
        let Case { tokenizer, whole_words, probability, max_length, cut, pad, .. } = case;
        let what = format!("{tokenizer} {whole_words} {probability} {max_length:?} {cut:?} {pad:?}");
        let encoder = encoder(tokenizer, *max_length, None).cut((*cut).into());
        let task = task(tokenizer, &encoder, *probability, *whole_words).padding(pad.padding());
        let samples = all.texts.iter().map(|text| sample(&task, &encoder, text));
        if case.whole_words {
            // `transformers` cannot pad these, so each text is a batch, and empty ones are skipped.
            let samples: Vec<_> = samples.filter(|sample| !sample.tokens.is_empty()).collect();
            assert_eq!(samples.len(), case.input_ids.len(), "{what}");
            for ((sample, ids), labels) in samples.into_iter().zip(&case.input_ids).zip(&case.labels) {
                let batch = task.collate(&drawn([sample])).unwrap();
                assert_eq!(batch.inputs().host_ids(), ids, "{what}");
                assert_eq!(batch.host_labels(), labels, "{what}");
            }
        } else {
            let batch = task.collate(&drawn(samples)).unwrap();
            assert_eq!(batch.inputs().host_ids(), flat(&case.input_ids), "{what}");
            assert_eq!(batch.host_labels(), flat(&case.labels), "{what}");
            let mask = flat(case.attention_mask.as_ref().unwrap());
            assert_eq!(numbers(batch.inputs().host_mask()), mask, "{what}");
        }
    }
}

/// A deliberate difference: special tokens within the text are not predicted.
#[test]
fn special_tokens_in_the_text() {
    let all: All = golden("collators", "masked_lm");
    for Literal { tokenizer, text, input_ids, labels } in &all.literal {
        let encoder = encoder(tokenizer, None, None);
        let task = task(tokenizer, &encoder, 1.0, false);
        let batch = task.collate(&drawn([sample(&task, &encoder, text)])).unwrap();
        // The mask token, and `[SEP]` or the end token.
        let end = match tokenizer.as_str() {
            "wordpiece" => 3,
            "bytebpe" => 0,
            _ => 1,
        };
        let special = [mask_id(tokenizer) as i32, end];
        let mut differences = vec![];
        for (place, (&ours, &theirs)) in batch.host_labels().iter().zip(&labels[0]).enumerate() {
            if ours != theirs {
                assert_eq!(ours, -100, "{text}");
                assert_eq!(input_ids[0][place], special[0], "{text}");
                assert_eq!(batch.inputs().host_ids()[place], theirs, "{text}");
                differences.push(theirs);
            }
        }
        assert_eq!(differences, special, "{text}");
    }
}

/// Renumbers words from 0.
fn renumbered(words: &[i32]) -> Vec<Option<u32>> {
    words.iter().map(|&word| u32::try_from(word - 1).ok()).collect()
}

#[test]
fn words() {
    let all: All = golden("collators", "masked_lm");
    let mut differences = vec![];
    for Groups { tokenizer, max_length, cut, text, words } in &all.groups {
        let encoder = encoder(tokenizer, *max_length, None).cut((*cut).into());
        let task = task(tokenizer, &encoder, 1.0, true);
        let samples = task.encode(&record([("text", crate::text(text))])).unwrap();
        let Some(ours) = samples.first().map(|sample| &sample.words) else { continue };
        let difference = (tokenizer.as_str(), text.as_str());
        if *ours != renumbered(words) && !differences.contains(&difference) {
            differences.push(difference);
        }
    }
    // Deliberate differences: punctuation is not part of the word before it, if the tokenizer says so; the bytes of one
    // character stay together; `▁` begins a word.
    assert_eq!(
        differences,
        [
            ("wordpiece", "Zürich, Maria's 日本"),
            ("bytebpe", "Zürich, Maria's 日本"),
            ("unigram", "the unbelievable river rereads"),
            ("unigram", "children swim in the summer"),
            ("unigram", "Zürich, Maria's 日本"),
        ]
    );
}
