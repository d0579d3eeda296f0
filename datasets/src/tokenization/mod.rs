//! Converts text to token ids and back.

mod bpe;
mod characters;
mod chat_templates;
mod chunks;
mod clean_up;
mod config_tokens;
mod encoder;
mod encoding;
mod fast;
#[cfg(test)]
mod fast_equals_crate;
mod finish;
mod framed;
mod pieces;
mod pipeline;
mod plain_words;
mod save;
mod special_tokens;
mod surround;
mod tokenizer;
mod tokenizer_chat;
mod tokenizer_check;
mod tokenizer_config;
mod tokenizer_file;
mod transformers_class;
mod word_cache;
mod written;

pub use encoder::Encoder;
pub use encoding::{Encoding, Input, Truncated, Truncation};
pub(crate) use pieces::final_pieces;
pub use save::ForModel;
pub use special_tokens::{SpecialNames, SpecialTokens};
pub use surround::Surround;
pub use tokenizer::Tokenizer;
pub use tokenizer_config::TokenizerWarning;

use crate::{DataError, TokenizerError};

impl DataError {
    /// Returns a function that adds the failed action to a tokenizer's error.
    fn tokenizer<E: ToString>(action: impl Into<String>) -> impl FnOnce(E) -> Self {
        move |reason| {
            TokenizerError::TokenizerFailed { action: action.into(), reason: reason.to_string() }.into()
        }
    }
}
