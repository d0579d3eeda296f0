//! A test model whose logits are a table.

use super::{DecodingError, Prompt, Rereading, Row};

/// The logits of the token after two others, `[vocabulary, vocabulary, vocabulary]`.
#[derive(Clone, Debug)]
pub struct Table {
    pub vocabulary: usize,
    pub logits: Vec<f32>,
}

impl Table {
    /// The logits after these tokens; missing tokens count as token 0.
    pub fn after(&self, tokens: &[u32]) -> &[f32] {
        let token = |back: usize| tokens.len().checked_sub(back).map_or(0, |at| tokens[at] as usize);
        let place = token(2) * self.vocabulary + token(1);
        &self.logits[place * self.vocabulary..][..self.vocabulary]
    }

    /// The logits after each row.
    pub fn read(&self, rows: &[Row]) -> Result<Vec<f32>, DecodingError> {
        Ok(rows.iter().flat_map(|row| self.after(&row.tokens)).copied().collect())
    }

    /// The model with these prompts.
    pub fn model<'a>(
        &'a self,
        prompts: &[Prompt],
    ) -> Rereading<'a, impl FnMut(&[Row]) -> Result<Vec<f32>, DecodingError>, DecodingError> {
        Rereading::new(prompts, self.vocabulary, |rows| self.read(rows))
    }
}
