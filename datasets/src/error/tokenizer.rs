//! The errors of tokenizers.

use std::path::PathBuf;

use crate::counted;

/// An error of a tokenizer or its files.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TokenizerError {
    /// A `tokenizer.json` is unusable.
    #[error(
        "`{}` is not a usable tokenizer.json: {reason}; save it again with the tool that made it",
        path.display()
    )]
    TokenizerFile {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },

    /// There is no `tokenizer.json`.
    #[error("`{}` is not a tokenizer.json: {fix}", path.display())]
    NoTokenizerFile {
        /// The given path, or the file that the given folder lacks.
        path: PathBuf,
        /// What was found instead, and how to get the file.
        fix: String,
    },

    /// A file next to a `tokenizer.json` is unusable.
    #[error(
        "`{}`{}: expected {expected}, found {found}; correct the file, or remove it",
        path.display(),
        field.as_ref().map(|field| format!(", field `{field}`")).unwrap_or_default()
    )]
    TokenizerConfig {
        /// The file.
        path: PathBuf,
        /// The field, if the error is about one.
        field: Option<String>,
        /// What was expected.
        expected: String,
        /// What was found.
        found: String,
    },

    /// The token named for a role is not in the vocabulary.
    #[error(
        "the {role} token {token:?} is not in the vocabulary; choose one that is{}",
        if known.is_empty() { String::new() } else { format!(", for example one of the special tokens {}", listed(known)) }
    )]
    UnknownToken {
        /// The role.
        role: &'static str,
        /// The named token.
        token: String,
        /// The tokenizer's special tokens.
        known: Vec<String>,
    },

    /// A byte-level vocabulary is too small for the 256 bytes and one merge.
    #[error(
        "a byte-level BPE vocabulary cannot have {asked} tokens: the single bytes alone take 256; set at least \
         {least}"
    )]
    VocabularySize {
        /// The requested size.
        asked: usize,
        /// The smallest size possible.
        least: usize,
    },

    /// The text to encode contains a character that the vocabulary lacks.
    #[error(
        "line {line}, column {column} of the text: the character {character:?} is not in the vocabulary{}, \
         which has only the characters of the text that it was built from; remove the character, build the \
         vocabulary from text that contains it, or use BPE, which encodes any text",
        origin.as_ref().map_or_else(String::new, |path| format!(" of {}", path.display()))
    )]
    UnknownCharacter {
        /// The character.
        character: char,
        /// Its line in the text, from 1.
        line: usize,
        /// Its column, in characters, from 1.
        column: usize,
        /// The file of the vocabulary, if it was read from one.
        origin: Option<PathBuf>,
    },

    /// An id is outside the vocabulary.
    #[error("token id {id} is not in the vocabulary of {vocab_size}; use the tokenizer that made the ids")]
    UnknownId {
        /// The id.
        id: u32,
        /// The size of the vocabulary.
        vocab_size: usize,
    },

    /// A maximum length leaves no room for text.
    #[error(
        "a maximum of {} leaves no room for text next to {} and a stride of {stride}; raise `max_length` or lower \
         `stride`",
        counted(*max_length, "token"),
        counted(*special, "special token")
    )]
    TooFewTokens {
        /// The maximum number of tokens in a sample.
        max_length: usize,
        /// The number of special tokens among them.
        special: usize,
        /// The number of repeated tokens.
        stride: usize,
    },

    /// A tokenizer failed on a text or on ids.
    #[error("the tokenizer cannot {action}: {reason}; check its tokenizer.json")]
    TokenizerFailed {
        /// The action that failed.
        action: String,
        /// The tokenizer's message.
        reason: String,
    },

    /// A token id does not fit in a signed 32-bit integer.
    #[error("token id {id} is too large; ids must be below 2147483648")]
    IdTooLarge {
        /// The id.
        id: u32,
    },

    /// A collator needs a token for a role, and neither the settings nor the tokenizer define it.
    #[error(
        "the tokenizer has no {role} token; specify which of its tokens to use (`special` in a run file, \
         `{setting}` in Rust), or read the tokenizer from a folder whose configuration names it"
    )]
    NoToken {
        /// The role.
        role: &'static str,
        /// The setting that defines it.
        setting: &'static str,
    },
}

/// Lists the first few of many tokens.
fn listed(tokens: &[String]) -> String {
    let few: Vec<String> = tokens.iter().take(12).map(|token| format!("{token:?}")).collect();
    let more = tokens.len() - few.len();
    few.join(", ") + &if more > 0 { format!(" and {more} more") } else { String::new() }
}
