//! The text of ids that a model wrote.

use super::Tokenizer;
use crate::DataError;

impl Tokenizer {
    /// Returns the text of ids that a model wrote, without special tokens, as transformers' `decode` does with
    /// `skip_special_tokens`. Ids that the tokenizer lacks have no text, as in [`decode`](Self::decode).
    ///
    /// Everything that shows or scores a written text reads it in this way.
    ///
    /// # Errors
    ///
    /// [`TokenizerError::TokenizerFailed`](crate::TokenizerError::TokenizerFailed) if the ids cannot be decoded.
    pub fn written(&self, ids: &[u32]) -> Result<String, DataError> {
        let special = &self.special().all;
        let ids: Vec<u32> = ids.iter().copied().filter(|id| !special.contains(id)).collect();
        self.decode(&ids)
    }

    /// Returns the text by which the ids that a model wrote continue a prompt: the [text](Self::written) of both, without
    /// the prompt's at its beginning.
    ///
    /// The ids alone may have another text. Llama's decoder removes the space at the beginning of a text, which would be
    /// the one between the prompt and its continuation.
    ///
    /// # Errors
    ///
    /// Those of [`written`](Self::written).
    pub fn continuation(&self, prompt: &[u32], ids: &[u32]) -> Result<String, DataError> {
        let before = self.written(prompt)?;
        let whole = self.written(&[prompt, ids].concat())?;
        Ok(match whole.strip_prefix(&*before) {
            Some(continuation) => continuation.to_owned(),
            // A prompt that was cut within a character ends in another one.
            None => whole.chars().skip(before.chars().count()).collect(),
        })
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use crate::{SpecialNames, Tokenizer};

    /// Llama 2's kind: a space before each word, and a decoder that removes the first one.
    fn metaspace() -> Tokenizer {
        let special = |id: u32, content: &str| {
            json!({"id": id, "content": content, "single_word": false, "lstrip": false, "rstrip": false,
                   "normalized": false, "special": true})
        };
        let replaced =
            |from: &str, to: &str| json!({"type": "Replace", "pattern": {"String": from}, "content": to});
        let file = json!({
            "version": "1.0", "truncation": null, "padding": null, "post_processor": null,
            "added_tokens": [special(0, "<s>"), special(1, "</s>"), special(2, "<unk>")],
            "normalizer": {"type": "Sequence", "normalizers": [
                {"type": "Prepend", "prepend": "▁"}, replaced(" ", "▁")]},
            "pre_tokenizer": {"type": "Split", "pattern": {"String": "▁"}, "behavior": "MergedWithNext", "invert": false},
            "decoder": {"type": "Sequence", "decoders": [
                replaced("▁", " "), {"type": "Fuse"}, {"type": "Strip", "content": " ", "start": 1, "stop": 0}]},
            "model": {"type": "WordLevel", "unk_token": "<unk>",
                      "vocab": {"<s>": 0, "</s>": 1, "<unk>": 2, "▁w1": 3, "▁w2": 4, "▁w3": 5, ".": 6}},
        });
        let names = SpecialNames {
            bos: Some("<s>".to_owned()),
            eos: Some("</s>".to_owned()),
            ..SpecialNames::default()
        };
        Tokenizer::from_json(&file.to_string(), names).unwrap()
    }

    /// Each pair is what `decode(ids, skip_special_tokens=True)` returns in transformers.
    #[test]
    fn special_tokens_and_rows_beyond_the_tokenizer_are_left_out() {
        let tokenizer = metaspace();
        for (ids, expected) in [
            (vec![0, 3, 4, 1], "w1 w2"),
            (vec![1, 0, 3, 1, 4], "w1 w2"),
            (vec![3, 7, 999, 4], "w1 w2"),
            (vec![0], ""),
        ] {
            assert_eq!(tokenizer.written(&ids).unwrap(), expected, "{ids:?}");
        }
    }

    #[test]
    fn a_continuation_keeps_the_space_before_it() {
        let tokenizer = metaspace();
        for (prompt, ids, expected) in [
            (vec![0, 3, 4], vec![5, 3, 1], " w3 w1"),
            (vec![3], vec![6], "."),
            (vec![0], vec![3, 4], "w1 w2"),
            (vec![], vec![3], "w1"),
            (vec![3], vec![1], ""),
        ] {
            assert_eq!(tokenizer.continuation(&prompt, &ids).unwrap(), expected, "{prompt:?} {ids:?}");
        }
    }
}
