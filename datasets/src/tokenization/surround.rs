//! The tokens around a text.

use super::framed::{Framing, added_around};
use crate::{DataError, Tokenizer};

/// The tokens around a text: those that the tokenizer's post-processor adds, and perhaps an end token.
///
/// Training on long texts, token files and perplexity put texts together with it, so that they have the tokens that an
/// [`Encoder`](crate::Encoder) gives samples and prompts.
///
/// ```
/// use firebrick_datasets::{SpecialNames, Tokenizer};
///
/// let names = SpecialNames { bos: Some("<s>".into()), ..SpecialNames::default() };
/// let tokenizer = Tokenizer::train_bpe_with("to be or not to be", 260, names)?;
/// let (begin, end) = (tokenizer.special().bos.unwrap(), 9);
///
/// let surround = tokenizer.surround(Some(end))?;
/// assert_eq!(surround.put(vec![1, 2]), [begin, 1, 2, end]);
/// assert_eq!(surround.put(vec![1, end]), [begin, 1, end]);
/// # Ok::<(), firebrick_datasets::DataError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Surround {
    before: Vec<u32>,
    after: Vec<u32>,
    end: Option<u32>,
}

impl Tokenizer {
    /// Returns what stands around a text, with this end token if one is wanted.
    ///
    /// # Errors
    ///
    /// [`TokenizerError::TokenizerFailed`](crate::TokenizerError::TokenizerFailed) if the post-processor fails.
    pub fn surround(&self, end: Option<u32>) -> Result<Surround, DataError> {
        let Framing { before, after } = added_around(self.inner())?;
        Ok(Surround { before, after, end })
    }
}

impl Surround {
    /// Returns the tokens before a text.
    pub fn before(&self) -> &[u32] {
        &self.before
    }

    /// Returns the tokens after a text whose last token is `last`. A text that ends in the end token gets no second one.
    pub fn after(&self, last: Option<u32>) -> Vec<u32> {
        let last = self.after.last().copied().or(last);
        let end = self.end.filter(|end| last != Some(*end));
        self.after.iter().copied().chain(end).collect()
    }

    /// Returns the tokens of a text with those around it.
    pub fn put(&self, mut ids: Vec<u32>) -> Vec<u32> {
        let after = self.after(ids.last().copied().or(self.before.last().copied()));
        ids.splice(..0, self.before.iter().copied());
        ids.extend(after);
        ids
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::collators::CausalLm;
    use crate::collators::testing::{record, text};
    use crate::{Collator, Encoder, SpecialNames};

    /// For each way of framing, the ids of a text put together are those of a sample.
    #[test]
    fn long_texts_and_samples_are_surrounded_alike() {
        let name = |name: &str| Some(name.to_owned());
        let names = |bos, eos| SpecialNames { bos, eos, ..SpecialNames::default() };
        let plain = || Tokenizer::train_bpe("to be or not to be", 260).unwrap();
        let framed = |names| Tokenizer::train_bpe_with("to be or not to be", 260, names).unwrap();
        for tokenizer in [
            plain(),
            framed(names(name("<s>"), None)),
            framed(names(None, name("</s>"))),
            framed(names(name("<s>"), name("</s>"))),
        ] {
            let tokenizer = Arc::new(tokenizer);
            // Without an end token of its own, one that is a letter.
            let eos = tokenizer.special().eos.unwrap_or(tokenizer.encode("e").unwrap()[0]);
            for (end, of) in
                [(true, "to be or"), (false, "to be"), (true, "be</s>"), (false, "be</s>"), (true, "or")]
            {
                let task = CausalLm::new(Encoder::new(tokenizer.clone())).end(end).end_id(eos);
                let sample = task.encode(&record(vec![("text", text(of))])).unwrap().remove(0);
                let surround = tokenizer.surround(end.then_some(eos)).unwrap();
                assert_eq!(surround.put(tokenizer.encode(of).unwrap()), sample.ids, "{of} {end}");
            }
        }
    }
}
