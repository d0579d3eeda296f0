//! Tests of the masked language model's collator.

use std::sync::Arc;

use super::*;
use crate::{
    Batch, Encoder, Input, Tokenizer, TokenizerError,
    collators::testing::{bytebpe, drawn, record, text, unigram, wordpiece},
};

fn task(masking: Masking) -> MaskedLm {
    MaskedLm::new(Encoder::new(wordpiece()), masking).pad_id(0).mask_id(4)
}

/// A sample of the ids 10, 11 and so on, in words of `word` tokens.
fn sample(tokens: usize, word: usize) -> MaskableTokens {
    let ids = (0..tokens as u32).map(|token| 10 + token % 300).collect();
    let words = (0..tokens).map(|token| Some((token / word) as u32)).collect();
    MaskableTokens { tokens: Tokens { ids, type_ids: vec![0; tokens] }, words }
}

/// Asserts that `count` of `of` matches independent draws within three standard deviations.
#[track_caller]
fn assert_fraction(what: &str, count: usize, of: usize, probability: f64) {
    let (count, of) = (count as f64, of as f64);
    let sigma = (of * probability * (1.0 - probability)).sqrt();
    assert!((count - of * probability).abs() < 3.0 * sigma, "{what}: {count} of {of}, not {probability}");
}

/// Counts selected, masked, random and kept tokens over a million tokens, also for whole words.
#[test]
fn fractions() {
    for (whole_words, word) in [(false, 1), (true, 4)] {
        let task = task(Masking::default().whole_words(whole_words).seed(7));
        let (mut tokens, mut selected, mut masked, mut kept) = (0, 0, 0, 0);
        let (mut words, mut random_ids) = (0, [0; 320]);
        for samples in 0..1000 {
            let sample = Arc::new(sample(1000, word));
            let one = Drawn { epoch: samples % 10, index: samples / 10, sample: sample.clone() };
            let batch = task.collate(&[one]).unwrap();
            let labels = batch.host_labels();
            tokens += labels.len();
            for (&id, &label) in batch.inputs().host_ids().iter().zip(labels) {
                selected += usize::from(label != IGNORE);
                masked += usize::from(label != IGNORE && id == 4);
                kept += usize::from(id == label);
                if label != IGNORE && id != 4 && id != label {
                    random_ids[id as usize] += 1;
                }
            }
            for word in labels.chunks(word) {
                let any = word.iter().any(|&label| label != IGNORE);
                assert_eq!(any, word.iter().all(|&label| label != IGNORE), "a word is split");
                words += usize::from(any);
            }
        }
        let random: usize = random_ids.iter().sum();
        assert_fraction("selected", words, tokens / word, 0.15);
        assert_fraction("masked", masked, selected, 0.8);
        // One of the 315 ordinary ids is the token itself, which then looks kept.
        assert_fraction("random", random, selected, 0.1 * 314.0 / 315.0);
        assert_fraction("kept", kept, selected, 0.1 + 0.1 / 315.0);
        assert_eq!(random_ids[..5], [0; 5], "a special token is a replacement");
        let ordinary = random_ids.iter().filter(|&&count| count > 0).count();
        assert_eq!(ordinary, 315, "some ids are never drawn");
    }
}

#[test]
fn chance_depends_on_epoch_and_index_only() {
    let task = task(Masking::default());
    let sample = Arc::new(sample(200, 1));
    let one = |epoch, index| Drawn { epoch, index, sample: sample.clone() };
    let alone = task.collate(&[one(1, 5)]).unwrap();
    let among = task.collate(&[one(0, 5), one(1, 5), one(1, 6)]).unwrap();
    let rows: Vec<_> = among.host_labels().chunks(200).collect();
    assert_eq!(rows[1], alone.host_labels());
    assert!(rows[0] != rows[1] && rows[1] != rows[2]);
    let seeded = MaskedLm { masking: Masking::default().seed(1), ..task.clone() };
    assert_ne!(seeded.collate(&[one(1, 5)]).unwrap().host_labels(), alone.host_labels());

    let left = task.clone().padding(Padding::default().side(crate::Side::Left).multiple_of(64).unwrap());
    assert_eq!(&left.collate(&[one(1, 5)]).unwrap().host_labels()[56..], alone.host_labels());
}

/// Runs depend on the masks of a seed to be reproducible.
#[test]
fn pinned() {
    let batch = task(Masking::default()).collate(&drawn([sample(40, 1)])).unwrap();
    let places = |of: &dyn Fn(i32, i32) -> bool| -> Vec<usize> {
        let both = batch.inputs().host_ids().iter().zip(batch.host_labels());
        both.enumerate().filter(|(_, (id, label))| of(**id, **label)).map(|(place, _)| place).collect()
    };
    assert_eq!(places(&|_, label| label != IGNORE), PINNED_LABELS);
    assert_eq!(places(&|id, _| id == 4), PINNED_MASKS);
}

const PINNED_LABELS: [usize; 8] = [1, 5, 6, 9, 26, 27, 36, 38];
const PINNED_MASKS: [usize; 6] = [1, 5, 6, 9, 26, 27];

#[test]
fn special_tokens_and_padding_are_left_alone() {
    let all = Masking::default().probability(1.0).unwrap().replaced(1.0, 0.0).unwrap();
    let task = task(all);
    // The unknown token may be predicted; a mask token in the text may not.
    let encoded = ["the 日 river", "the [MASK]", "", "[MASK]"].map(|each| {
        let mut samples = task.encode(&record(vec![("text", text(each))])).unwrap();
        samples.pop()
    });
    assert!(encoded[2].is_none() && encoded[3].is_none(), "nothing to predict");
    let batch = task.collate(&drawn(encoded.into_iter().flatten())).unwrap();
    let labels: Vec<_> = batch.host_labels().chunks(5).map(|row| row.iter().map(|&l| l != IGNORE)).collect();
    assert!(labels[0].clone().eq([false, true, true, true, false]));
    assert!(labels[1].clone().eq([false, true, false, false, false]));
    assert_eq!(batch.inputs().host_ids()[9], 0);
    assert_eq!((batch.items(), batch.tokens()), (4, 9));
}

#[test]
fn empty_batches_and_no_masked_tokens() {
    let task = task(Masking::default());
    assert_eq!(task.collate(&[]).unwrap().items(), 0);
    let batch = task.collate(&drawn([sample(0, 1)])).unwrap();
    assert_eq!((batch.samples(), batch.items()), (1, 0));
    let none = MaskedLm { masking: Masking::default().probability(0.0).unwrap(), ..task };
    assert_eq!(none.collate(&drawn([sample(100, 1)])).unwrap().items(), 0);
}

#[test]
fn a_missing_mask_token_is_named() {
    let tokenizer = Arc::new(crate::Tokenizer::characters("ab").unwrap());
    let task = MaskedLm::new(Encoder::new(tokenizer), Masking::default()).pad_id(0);
    let error = task.encode(&record(vec![("text", text("a"))])).unwrap_err();
    assert!(matches!(
        error,
        DataError::Tokenizer(TokenizerError::NoToken { role: "mask", setting: "mask_id" })
    ));
}

#[test]
fn each_argument_matters() {
    let counter = Counter::new(1, 2, 3);
    assert_eq!(counter.bits(4, 5), Counter::new(1, 2, 3).bits(4, 5));
    let neighbours = [
        Counter::new(0, 2, 3).bits(4, 5),
        Counter::new(1, 3, 3).bits(4, 5),
        Counter::new(1, 2, 4).bits(4, 5),
        counter.bits(5, 5),
        counter.bits(4, 6),
    ];
    assert!(!neighbours.contains(&counter.bits(4, 5)));
}

/// Numbers fill sixteen buckets equally, whichever argument is counted up.
#[test]
fn uniform_in_every_direction() {
    type At = fn(u64) -> f64;
    let directions: [At; 5] = [
        |n| Counter::new(n, 0, 0).uniform(0, 0),
        |n| Counter::new(0, n, 0).uniform(0, 0),
        |n| Counter::new(0, 0, n).uniform(0, 0),
        |n| Counter::new(0, 0, 0).uniform(n, 0),
        |n| Counter::new(0, 0, 0).uniform(0, n),
    ];
    for (direction, at) in directions.into_iter().enumerate() {
        let mut counts = [0_i32; 16];
        for n in 0..160_000 {
            counts[(at(n) * 16.0) as usize] += 1;
        }
        let chi_square: f64 = counts.iter().map(|&count| f64::from(count - 10_000).powi(2) / 1e4).sum();
        // With 15 degrees of freedom, chi-square exceeds 44.3 once in 10 000 times.
        assert!(chi_square < 44.3, "direction {direction}: {chi_square}");
    }
}

#[test]
fn below_an_end() {
    let counter = Counter::new(0, 0, 0);
    assert_eq!(counter.below(0, 0, 0), None);
    assert_eq!(counter.below(1, 0, 0), Some(0));
    let mut seen = [false; 5];
    for position in 0..100 {
        seen[counter.below(5, position, 0).unwrap() as usize] = true;
    }
    assert_eq!(seen, [true; 5]);
}

/// The text of each word, as far as the offsets cover it.
fn words(tokenizer: &Arc<Tokenizer>, text: &str) -> Vec<String> {
    let encoding = Encoder::new(tokenizer.clone()).encode(Input::Text(text), None).unwrap().remove(0);
    let words = word_of_each_token(&encoding, text, |_| false);
    let mut found: Vec<(u32, u32, u32)> = vec![];
    for (word, &(start, end)) in words.iter().zip(&encoding.offsets) {
        match (found.last_mut(), word) {
            (_, None) => {}
            (Some(last), &Some(word)) if last.0 == word => last.2 = end,
            (_, &Some(word)) => found.push((word, start, end)),
        }
    }
    assert!(found.iter().map(|word| word.0).eq(0..found.len() as u32));
    found.iter().map(|&(_, start, end)| text[start as usize..end as usize].trim().to_owned()).collect()
}

#[test]
fn of_every_kind_of_tokenizer() {
    let text = "Maria rereads New York, Zürich 日本 🙂 today";
    let of_bert = ["Maria", "rereads", "New", "York", ",", "Zürich", "日", "本", "🙂", "today"];
    assert_eq!(words(&wordpiece(), text), of_bert);
    let of_gpt2 = ["Maria", "rereads", "New", "York", ",", "Zürich", "日本", "🙂", "today"];
    assert_eq!(words(&bytebpe(), text), of_gpt2);
    let of_t5 = ["Maria", "rereads", "New", "York,", "Zürich", "日本", "🙂", "today"];
    assert_eq!(words(&unigram(), text), of_t5);
}

/// Covers a tokenizer like Llama's, which treats the text as one word and writes spaces as `▁`, and a byte-level
/// tokenizer that leaves spaces out of the offsets.
#[test]
fn of_tokenizers_that_do_not_split() {
    for (name, splits, does_not) in [
        ("unigram", r#""split":true"#, r#""split":false"#),
        ("bytebpe", r#""use_regex":true"#, r#""use_regex":false"#),
    ] {
        let json = std::fs::read_to_string(format!("tests/golden/{name}/tokenizer.json")).unwrap();
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), json.replace(splits, does_not)).unwrap();
        let tokenizer = Arc::new(Tokenizer::from_file(file.path()).unwrap());
        let text = "the new wheel turned";
        let encoding = Encoder::new(tokenizer.clone()).encode(Input::Text(text), None).unwrap().remove(0);
        assert!(encoding.words.iter().flatten().all(|&word| word == 0), "{name} splits");
        assert_eq!(words(&tokenizer, text), ["the", "new", "wheel", "turned"]);
    }
}

#[test]
fn excluded_tokens_end_a_word() {
    let encoding = Encoder::new(wordpiece()).encode(Input::Text("maria"), None).unwrap().remove(0);
    let middle = encoding.ids[2];
    let words = word_of_each_token(&encoding, "maria", |id| id == middle);
    assert_eq!(words, [None, Some(0), None, Some(1), None]);
}
