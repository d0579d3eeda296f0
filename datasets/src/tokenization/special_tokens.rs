//! The tokens that have a role.

use std::collections::BTreeSet;

/// The ids of the tokens that have a role, as far as the tokenizer has them.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SpecialTokens {
    /// Fills short rows.
    pub pad: Option<u32>,
    /// Stands for what is not in the vocabulary.
    pub unk: Option<u32>,
    /// Begins a text.
    pub bos: Option<u32>,
    /// Ends a text.
    pub eos: Option<u32>,
    /// Stands for the whole sequence, at its beginning.
    pub cls: Option<u32>,
    /// Stands between two sequences.
    pub sep: Option<u32>,
    /// Hides a token.
    pub mask: Option<u32>,
    /// All special tokens, those without a role included.
    pub all: BTreeSet<u32>,
}
