//! Runs the steps of the `tokenizers` crate one by one.

use tokenizers::{
    Encoding, Model, OffsetReferential, OffsetType, PostProcessor, PreTokenizer, Result, Tokenizer,
};

/// An encoded piece of text, before truncation and special tokens.
pub(super) struct Raw {
    /// The tokens.
    pub(super) encoding: Encoding,
    /// The number of words in the piece, including those without a token.
    pub(super) words: usize,
    /// The piece after normalization, unless added tokens were cut out of it.
    pub(super) normalized: Option<String>,
}

/// Encodes `text` like [`Tokenizer::encode`], up to the post-processor.
///
/// It does not call that function, which also truncates: it stops at the maximum length, and tokens that should
/// overflow are lost.
pub(super) fn raw(tokenizer: &Tokenizer, text: &str) -> Result<Raw> {
    let added = tokenizer.get_added_vocabulary();
    let mut pieces = added.extract_and_normalize(tokenizer.get_normalizer(), text);
    let normalized = match pieces.get_splits(OffsetReferential::Original, OffsetType::None)[..] {
        [(normalized, _, None)] => Some(normalized.to_owned()),
        [] => Some(String::new()),
        _ => None,
    };
    if let Some(pre_tokenizer) = tokenizer.get_pre_tokenizer() {
        pre_tokenizer.pre_tokenize(&mut pieces)?;
    }
    tokenizer.get_model().tokenize_in_pretokenized(&mut pieces, None)?;
    let words = pieces.get_splits(OffsetReferential::Original, OffsetType::None).len();
    let encoding = pieces.into_encoding(None, 0, OffsetType::Byte)?;
    Ok(Raw { encoding, words, normalized })
}

/// Returns the number of special tokens added to one sequence or to a pair.
pub(super) fn added_tokens(tokenizer: &Tokenizer, pair: bool) -> usize {
    tokenizer.get_post_processor().map_or(0, |processor| processor.added_tokens(pair))
}
