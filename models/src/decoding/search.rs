//! The search for the texts of a prompt, token by token.

use super::{DecodingError, Text};

/// The search for the texts of one prompt.
pub(super) trait Search {
    /// Advances by one token. `rows` holds the logits after each of the last steps, or after the prompt at first.
    /// Returns the steps to continue with; empty if all texts have ended.
    fn advance(&mut self, rows: &[&[f32]]) -> Result<Vec<Step>, DecodingError>;

    /// The texts found, best first.
    fn texts(self: Box<Self>) -> Vec<Text>;
}

/// A row's next token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Step {
    /// The index of the row that it continues, among the prompt's rows of the last call.
    pub from: usize,
    /// The token to append.
    pub token: u32,
}
