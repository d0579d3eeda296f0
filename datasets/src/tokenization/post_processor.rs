//! What a post-processor puts around a text.

use tokenizers::{Encoding, Token, Tokenizer, processors::template::TemplateProcessing};

use crate::DataError;

/// The tokens that a post-processor adds before and after a text.
pub(super) struct Framing {
    pub(super) before: Vec<u32>,
    pub(super) after: Vec<u32>,
}

/// Detects what a tokenizer adds by giving it a token that no vocabulary has.
///
/// # Errors
///
/// [`TokenizerError::TokenizerFailed`](crate::TokenizerError::TokenizerFailed) if the post-processor fails.
pub(super) fn added_around(tokenizer: &Tokenizer) -> Result<Framing, DataError> {
    const MARK: u32 = u32::MAX;
    let text = Encoding::from_tokens(vec![Token::new(MARK, "x".to_owned(), (0, 1))], 0);
    let framed =
        tokenizer.post_process(text, None, true).map_err(DataError::tokenizer("add special tokens"))?;
    let mut parts = framed.get_ids().split(|id| *id == MARK);
    let mut next = || parts.next().unwrap_or_default().to_vec();
    Ok(Framing { before: next(), after: next() })
}

/// Replaces a post-processor that adds tokens by one that adds none.
///
/// # Errors
///
/// [`TokenizerError::TokenizerFailed`](crate::TokenizerError::TokenizerFailed) if the post-processor fails.
pub(super) fn add_nothing(tokenizer: &mut Tokenizer) -> Result<(), DataError> {
    let Framing { before, after } = added_around(tokenizer)?;
    if !before.is_empty() || !after.is_empty() {
        let build = || {
            TemplateProcessing::builder()
                .try_single("$A:0")?
                .try_pair("$A:0 $B:1")?
                .build()
                .map_err(|error| error.to_string())
        };
        tokenizer.with_post_processor(Some(build().map_err(DataError::tokenizer("frame texts"))?));
    }
    Ok(())
}
