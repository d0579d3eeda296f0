//! Losses and scores of an encoder's heads, which are the same in all families.
//!
//! ```text
//! tokens.rs   a label for each token
//! texts.rs    a label for each text
//! masked.rs   the masked tokens
//! ```

pub(crate) mod masked;
pub(crate) mod texts;
pub(crate) mod tokens;

#[cfg(test)]
mod tests;
