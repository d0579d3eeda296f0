//! What a post-processor puts around a text.

use tokenizers::{Encoding, Token, Tokenizer, processors::template::TemplateProcessing};

use crate::DataError;

/// Whether a post-processor adds tokens before and after a text.
pub(super) struct Framing {
    pub(super) before: bool,
    pub(super) after: bool,
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
    let ids = framed.get_ids();
    Ok(Framing { before: ids.first() != Some(&MARK), after: ids.last() != Some(&MARK) })
}

/// Replaces a post-processor that adds tokens by one that adds none.
///
/// # Errors
///
/// [`TokenizerError::TokenizerFailed`](crate::TokenizerError::TokenizerFailed) if the post-processor fails.
pub(super) fn add_nothing(tokenizer: &mut Tokenizer) -> Result<(), DataError> {
    let Framing { before, after } = added_around(tokenizer)?;
    if before || after {
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
