//! Trains a byte-level BPE vocabulary.

use tokenizers::{
    Tokenizer,
    models::{
        TrainerWrapper,
        bpe::{BPE, BpeTrainer},
    },
    pre_tokenizers::byte_level::ByteLevel,
};

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
    let mut trainer: TrainerWrapper = BpeTrainer::builder()
        .vocab_size(vocab_size)
        .min_frequency(LEAST_COUNT)
        .initial_alphabet(ByteLevel::alphabet().into_iter().collect())
        .show_progress(false)
        .build()
        .into();
    let bytes = ByteLevel::default().add_prefix_space(false);
    let mut tokenizer = Tokenizer::new(BPE::default());
    tokenizer
        .with_pre_tokenizer(Some(bytes))
        .with_decoder(Some(bytes))
        .train(&mut trainer, pieces_of_short_words(text).into_iter())
        .map_err(DataError::tokenizer("train on the text"))?;
    Ok(tokenizer)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn training_is_deterministic() {
        let text: String = (0..20_000).map(|line| format!("line {line}\n")).collect();
        let train = || train(&text, 400).unwrap().to_string(false).unwrap();
        assert_eq!(train(), train());
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
