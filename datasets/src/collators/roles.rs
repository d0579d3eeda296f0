//! Resolves the token of a role: the one that you set, or the tokenizer's.

use crate::{DataError, TokenizerError};

/// Returns the token of a role. `setting` names the option that sets it.
pub(super) fn role(
    given: Option<u32>,
    of_tokenizer: Option<u32>,
    role: &'static str,
    setting: &'static str,
) -> Result<u32, DataError> {
    given.or(of_tokenizer).ok_or(DataError::Tokenizer(TokenizerError::NoToken { role, setting }))
}

/// Returns the padding token.
pub(super) fn pad(given: Option<u32>, tokenizer: &crate::Tokenizer) -> Result<u32, DataError> {
    role(given, tokenizer.special().pad, "padding", "pad_id")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_given_token_takes_precedence() {
        assert_eq!(role(Some(3), Some(4), "padding", "pad_id").unwrap(), 3);
        assert_eq!(role(None, Some(4), "padding", "pad_id").unwrap(), 4);
        let error = role(None, None, "padding", "pad_id").unwrap_err().to_string();
        assert!(
            error.starts_with("the tokenizer has no padding token; specify which of its tokens"),
            "{error}"
        );
    }
}
