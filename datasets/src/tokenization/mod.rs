//! Converts text to token ids and back.

mod added_tokens;
mod bpe;
mod characters;
mod chunks;
mod encoder;
mod encoding;
mod fast;
#[cfg(test)]
mod fast_equals_crate;
mod finish;
mod framed;
mod json;
mod missing;
mod pieces;
mod pipeline;
mod plain_words;
mod special_tokens;
mod tokenizer;
mod tokenizer_check;
mod tokenizer_config;
mod tokenizer_file;
mod transformers_class;
mod word_cache;

pub use encoder::Encoder;
pub use encoding::{Encoding, Input, Side, Truncation};
pub(crate) use pieces::final_pieces;
pub use special_tokens::{SpecialNames, SpecialTokens};
pub use tokenizer::{ForModel, Tokenizer};
