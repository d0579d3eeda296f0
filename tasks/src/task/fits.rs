//! Checks that a model can read the rows that a tokenizer makes of the data.

use firebrick_datasets::Tokenizer;
use firebrick_models::AnyConfig;

use super::TaskConfig;
use crate::LoadError;

impl TaskConfig {
    /// Returns how many of a row's tokens the model reads: the last token of a causal row is only a label.
    pub fn read_of(&self, row: usize) -> usize {
        row.saturating_sub(self.unread()).max(1)
    }

    /// Rejects tokens and rows that the model cannot read, before it is trained, evaluated or asked. `rows` is the most
    /// tokens of a row, padding included; `Some(None)` if there is no limit, and `None` if the model truncates long
    /// rows by itself.
    ///
    /// # Errors
    ///
    /// The tokenizer has more tokens than the model, or rows may be longer than the model reads.
    pub fn require_fit(
        &self,
        config: &AnyConfig,
        tokenizer: &Tokenizer,
        rows: Option<Option<usize>>,
    ) -> Result<(), LoadError> {
        let (tokens, known) = (tokenizer.vocab_size(), config.vocabulary());
        if known < tokens {
            return Err(LoadError::Vocabulary { tokenizer: tokens, model: known });
        }
        let (Some(rows), Some(most)) = (rows, config.positions()) else { return Ok(()) };
        let longest = rows.map(|row| self.read_of(row));
        match (longest, most) {
            (Some(longest), most) if longest <= most => Ok(()),
            // A fresh model, which has as many positions as the data needs.
            (None, 0) => Err(LoadError::Rows { longest: None, most: None }),
            (longest, most) => {
                let whole = longest.map(|longest| longest + self.unread());
                Err(LoadError::Rows { longest: whole, most: Some(most + self.unread()) })
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::MaskedLmTask;
    use firebrick_models::{BertConfig, BertMaskedLm, Gpt, Gpt2Config, Llama, LlamaConfig};

    #[test]
    fn what_a_model_cannot_read_is_refused() {
        let tokenizer = Tokenizer::characters("abcdef").unwrap();
        let bert = BertConfig { vocab_size: 6, max_position_embeddings: 8, ..Default::default() };
        let bert = AnyConfig::of::<BertMaskedLm>(bert);
        let gpt = AnyConfig::of::<Gpt>(Gpt2Config { vocab_size: 6, n_positions: 8, ..Default::default() });
        let masked = MaskedLmTask { text: "text".into(), masking: Default::default() };
        let words = TaskConfig::new("MaskedLm", masked);
        let causal = TaskConfig::default();
        let text = |result: Result<(), LoadError>| result.unwrap_err().to_string();
        assert!(words.require_fit(&bert, &tokenizer, Some(Some(8))).is_ok());
        let error = text(words.require_fit(&bert, &tokenizer, Some(Some(9))));
        assert!(error.contains("rows may have 9 tokens, but the model reads at most 8"), "{error}");
        let error = text(words.require_fit(&bert, &tokenizer, Some(None)));
        assert!(error.contains("any number of tokens"), "{error}");
        // The model does not read the last token of a causal row, and it truncates prompts.
        assert!(causal.require_fit(&gpt, &tokenizer, Some(Some(9))).is_ok());
        let error = text(causal.require_fit(&gpt, &tokenizer, Some(Some(10))));
        assert!(error.contains("rows may have 10 tokens, but the model reads at most 9"), "{error}");
        assert!(causal.require_fit(&gpt, &tokenizer, None).is_ok());
        let llama = AnyConfig::of::<Llama>(LlamaConfig { vocab_size: 5, ..Default::default() });
        let error = text(causal.require_fit(&llama, &tokenizer, None));
        assert!(error.contains("the tokenizer has 6 tokens, but the model knows 5"), "{error}");
    }
}
