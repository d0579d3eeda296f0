//! Turns records into samples and samples into batches: a [`Collator`](crate::Collator) for each task, with its samples
//! and its batches.
//!
//! ```text
//! causal_lm                next tokens of texts or completions
//! ├── causal_sample           tokens, and which of them count
//! ├── chat                    conversations, of which the answers count
//! └── packing                 several samples in one row
//! preferences              pairs of a better and a worse answer
//! ├── preference_record       records as pairs
//! └── preference_batch        padded pairs, and how they are learned
//! masked_lm                hidden tokens, or whole words
//! └── masking                 how many tokens are hidden, and what replaces them
//! seq2seq                  one text into another
//! token_classification     a label for each word
//! sequence_classification  a label for each text or pair
//! labels                   class names and ids
//! └── collected_labels        the names in some data
//! inputs                   rows for an encoder: ids, mask, segments
//! └── labeled_batch           inputs with a label for each token or row
//! ```

mod causal_lm;
mod causal_sample;
mod chat;
mod collected_labels;
mod inputs;
#[cfg(test)]
mod keeping_tests;
mod labeled_batch;
mod labels;
mod masked_lm;
mod masking;
mod packing;
mod preference_batch;
mod preference_record;
mod preferences;
mod seq2seq;
mod sequence_classification;
#[cfg(test)]
pub(crate) mod testing;
mod token_classification;

pub use causal_lm::CausalLm;
pub use causal_sample::CausalSample;
pub use chat::{Chat, Learned};
pub use inputs::{Inputs, Tokens};
pub use labeled_batch::{LabeledBatch, SequenceBatch};
pub use labels::{Labels, Numbers};
pub use masked_lm::{MaskableTokens, MaskedLm};
pub use masking::Masking;
pub use packing::{Pack, Packing};
pub use preference_batch::{Dpo, PreferenceBatch, PreferenceSample};
pub use preference_record::PreferenceFields;
pub use preferences::{KeptEnd, Preferences};
pub use seq2seq::{Seq2Seq, Seq2SeqBatch, Seq2SeqSample};
pub use sequence_classification::{ClassifiedTokens, Label, SequenceClassification, Target};
pub use token_classification::{LabeledTokens, Subwords, TokenClassification};

use crate::{DataError, TokenizerError};

/// Returns the token of a role. `setting` names the option that sets it.
fn role(
    given: Option<u32>,
    of_tokenizer: Option<u32>,
    role: &'static str,
    setting: &'static str,
) -> Result<u32, DataError> {
    given.or(of_tokenizer).ok_or(DataError::Tokenizer(TokenizerError::NoToken { role, setting }))
}

/// Returns the padding token.
fn pad(given: Option<u32>, tokenizer: &crate::Tokenizer) -> Result<u32, DataError> {
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
