//! Text to token ids and back.

mod bpe;
mod characters;
mod encoding;
mod pieces;
mod special_tokens;
mod tokenizer;
mod tokenizer_file;

pub use encoding::{Encoder, Encoding, Input, Side, Truncation};
pub use special_tokens::SpecialTokens;
pub use tokenizer::Tokenizer;
