//! Trains a byte-level BPE vocabulary.

use std::collections::HashMap;

use rayon::prelude::*;
use tokenizers::{
    OffsetReferential, OffsetType, PreTokenizedString, PreTokenizer, Tokenizer,
    models::bpe::{BPE, BpeTrainer},
    pre_tokenizers::byte_level::ByteLevel,
};

use super::chunks;
use super::pieces::pieces_of_short_words;
use crate::{DataError, TokenizerError};

/// The smallest vocabulary: all bytes and one merge.
const LEAST_SIZE: usize = 257;

/// A merge of a pair that occurs only once would shorten no other text.
const LEAST_COUNT: u64 = 2;

/// Trains on `text`, which is cut as for encoding, and within words of more than 4 KiB.
pub(crate) fn train(text: &str, vocab_size: usize) -> Result<Tokenizer, DataError> {
    if vocab_size < LEAST_SIZE {
        return Err(TokenizerError::VocabularySize { asked: vocab_size, least: LEAST_SIZE }.into());
    }
    // Each merge makes the text at least one symbol shorter, which limits their number. The trainer reserves memory for
    // the full vocabulary size.
    let vocab_size = vocab_size.min(LEAST_SIZE + text.len());
    let trainer = BpeTrainer::builder()
        .vocab_size(vocab_size)
        .min_frequency(LEAST_COUNT)
        .initial_alphabet(ByteLevel::alphabet().into_iter().collect())
        .show_progress(false)
        .build();
    let bytes = ByteLevel::default().add_prefix_space(false);
    let mut model = BPE::default();
    let words = words(text, &bytes).map_err(DataError::tokenizer("split the text into words"))?;
    let words = words.iter().map(|(word, count)| (word.as_str().into(), *count)).collect();
    trainer.do_train(&words, &mut model).map_err(DataError::tokenizer("train on the text"))?;
    let mut tokenizer = Tokenizer::new(model);
    tokenizer.with_pre_tokenizer(Some(bytes)).with_decoder(Some(bytes));
    Ok(tokenizer)
}

/// Counts the words of `text`, as the pre-tokenizer writes them. It is slow and a text repeats most of its words, so it
/// sees each [piece](ascii_words) of the text once.
fn words(text: &str, bytes: &ByteLevel) -> tokenizers::Result<HashMap<String, u64>> {
    let pieces = pieces_of_short_words(text)
        .into_par_iter()
        .fold(HashMap::new, |counts, piece| with_pieces_of(piece, counts))
        .reduce(HashMap::new, sum);
    let mut words = HashMap::new();
    for (piece, count) in pieces {
        let mut splits = PreTokenizedString::from(piece);
        bytes.pre_tokenize(&mut splits)?;
        for (word, ..) in splits.get_splits(OffsetReferential::Original, OffsetType::None) {
            match words.get_mut(word) {
                Some(known) => *known += count,
                None => drop(words.insert(word.to_owned(), count)),
            }
        }
    }
    Ok(words)
}

/// Adds the pieces of a text to their counts.
fn with_pieces_of<'a>(mut text: &'a str, mut counts: HashMap<&'a str, u64>) -> HashMap<&'a str, u64> {
    while !text.is_empty() {
        let end = (1..text.len()).find(|&at| chunks::is_cut(text, at)).unwrap_or(text.len());
        let (piece, rest) = text.split_at(end);
        *counts.entry(piece).or_default() += 1;
        text = rest;
    }
    counts
}

fn sum<'a>(one: HashMap<&'a str, u64>, other: HashMap<&'a str, u64>) -> HashMap<&'a str, u64> {
    let (mut more, fewer) = if one.len() < other.len() { (other, one) } else { (one, other) };
    for (piece, count) in fewer {
        *more.entry(piece).or_default() += count;
    }
    more
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use tokenizers::models::TrainerWrapper;

    use super::*;

    #[test]
    fn training_is_deterministic() {
        let text: String = (0..20_000).map(|line| format!("line {line}\n")).collect();
        let train = || train(&text, 400).unwrap().to_string(false).unwrap();
        assert_eq!(train(), train());
    }

    /// Trains with the crate's own count of words.
    fn of_the_crate(text: &str, vocab_size: usize) -> String {
        let mut trainer: TrainerWrapper = BpeTrainer::builder()
            .vocab_size(vocab_size)
            .min_frequency(LEAST_COUNT)
            .initial_alphabet(ByteLevel::alphabet().into_iter().collect())
            .show_progress(false)
            .build()
            .into();
        let bytes = ByteLevel::default().add_prefix_space(false);
        let mut tokenizer = Tokenizer::new(BPE::default());
        tokenizer.with_pre_tokenizer(Some(bytes)).with_decoder(Some(bytes));
        tokenizer.train(&mut trainer, pieces_of_short_words(text).into_iter()).unwrap();
        tokenizer.to_string(false).unwrap()
    }

    #[test]
    fn the_vocabulary_is_that_of_the_crate() {
        let code = include_str!("bpe.rs");
        let prose =
            "It's what the crate's own training learns: 1,000 words, twice 1,000 words.\n\n".repeat(900);
        let other = "« où » — naïve café, 東京 १२३ \u{a0}\t it\u{301}, 'll 's\r\n".repeat(3);
        for text in [code, &prose, &other, &format!("{other}{code}{prose}{other}")] {
            assert_eq!(train(text, 600).unwrap().to_string(false).unwrap(), of_the_crate(text, 600));
        }
    }

    #[test]
    fn impossible_sizes() {
        assert!(matches!(
            train("text", 256).unwrap_err(),
            DataError::Tokenizer(TokenizerError::VocabularySize { asked: 256, least: 257 })
        ));
        let all = train("aaaa", usize::MAX).unwrap();
        assert!((257..=260).contains(&all.get_vocab_size(true)));
    }

    #[test]
    fn one_long_word() {
        // Without cuts, this takes minutes.
        let word: String =
            (0..300_000_u64).map(|at| char::from(b'a' + (at * at % 23 + at / 977 % 3) as u8)).collect();
        let tokenizer = train(&word, 300).unwrap();
        assert_eq!(tokenizer.get_vocab_size(true), 300);
    }

    proptest! {
        #[test]
        fn bytes_encode_anything(text: String) {
            let tokenizer = train("to be or not to be", 260).unwrap();
            let encoding = tokenizer.encode_fast(text.as_str(), false).unwrap();
            prop_assert_eq!(tokenizer.decode(encoding.get_ids(), false).unwrap(), text);
        }
    }
}
