//! Tokens with a role.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};
use serde_json::Value;
use tokenizers::Tokenizer;

use crate::{DataError, TokenizerError};

/// The ids of the tokens with a role, as far as the tokenizer has them.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SpecialTokens {
    /// Fills short rows.
    pub pad: Option<u32>,
    /// Replaces text that is not in the vocabulary.
    pub unk: Option<u32>,
    /// Begins a text.
    pub bos: Option<u32>,
    /// Ends a text.
    pub eos: Option<u32>,
    /// Represents the whole sequence, at its beginning.
    pub cls: Option<u32>,
    /// Separates two sequences.
    pub sep: Option<u32>,
    /// Hides a token.
    pub mask: Option<u32>,
    /// All special tokens, including those without a role.
    pub all: BTreeSet<u32>,
}

/// The names of the tokens with a role. Omitted roles keep their token.
///
/// # Example
///
/// ```
/// use firebrick_datasets::{SpecialNames, Tokenizer};
///
/// let tokenizer = Tokenizer::characters("some text with _")?;
/// let names = SpecialNames { pad: Some("_".to_owned()), ..SpecialNames::default() };
/// let tokenizer = tokenizer.with_special(names)?;
/// assert_eq!(tokenizer.special().pad, Some(tokenizer.encode("_")?[0]));
/// # Ok::<(), firebrick_datasets::DataError>(())
/// ```
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct SpecialNames {
    /// Fills short rows.
    pub pad: Option<String>,
    /// Replaces text that is not in the vocabulary.
    pub unk: Option<String>,
    /// Begins a text.
    pub bos: Option<String>,
    /// Ends a text.
    pub eos: Option<String>,
    /// Represents the whole sequence, at its beginning.
    pub cls: Option<String>,
    /// Separates two sequences.
    pub sep: Option<String>,
    /// Hides a token.
    pub mask: Option<String>,
    /// Special tokens without one of these roles.
    pub additional: Vec<String>,
}

/// The well-known names of special tokens, used if no file defines their role.
const WELL_KNOWN: [(&str, &[&str]); 7] = [
    ("pad", &["[PAD]", "<pad>", "<|pad|>", "<|padding|>", "<|finetune_right_pad_id|>"]),
    ("unk", &["[UNK]", "<unk>", "<|unk|>"]),
    ("bos", &["[BOS]", "<s>", "<bos>", "<|begin_of_text|>", "<|startoftext|>"]),
    ("eos", &["[EOS]", "</s>", "<eos>", "<|end_of_text|>", "<|endoftext|>"]),
    ("cls", &["[CLS]", "<cls>"]),
    ("sep", &["[SEP]", "<sep>"]),
    ("mask", &["[MASK]", "<mask>", "<|mask|>"]),
];

impl SpecialNames {
    /// Returns the roles and their names.
    pub(super) fn roles(&self) -> [(&'static str, &Option<String>); 7] {
        let Self { pad, unk, bos, eos, cls, sep, mask, .. } = self;
        [("pad", pad), ("unk", unk), ("bos", bos), ("eos", eos), ("cls", cls), ("sep", sep), ("mask", mask)]
    }

    /// Returns the roles and mutable references to their names.
    pub(super) fn roles_mut(&mut self) -> [(&'static str, &mut Option<String>); 7] {
        let Self { pad, unk, bos, eos, cls, sep, mask, .. } = self;
        [("pad", pad), ("unk", unk), ("bos", bos), ("eos", eos), ("cls", cls), ("sep", sep), ("mask", mask)]
    }

    /// Fills missing names from `other`.
    pub(super) fn or(mut self, other: Self) -> Self {
        for ((_, role), (_, further)) in self.roles_mut().into_iter().zip(other.roles()) {
            if role.is_none() {
                role.clone_from(further);
            }
        }
        for token in other.additional {
            if !self.additional.contains(&token) {
                self.additional.push(token);
            }
        }
        self
    }

    /// Reads the names from a `tokenizer.json`: its padding, its post-processor and its model.
    pub(super) fn of_json(json: &Value) -> Self {
        let text = |value: &Value| value.as_str().map(str::to_owned);
        let mut names = Self { pad: text(&json["padding"]["pad_token"]), ..Self::default() };
        let processor = &json["post_processor"];
        if matches!(processor["type"].as_str(), Some("BertProcessing" | "RobertaProcessing")) {
            names.cls = text(&processor["cls"][0]);
            names.sep = text(&processor["sep"][0]);
        }
        let model = &json["model"];
        names.unk = text(&model["unk_token"]).or_else(|| {
            let id = usize::try_from(model["unk_id"].as_u64()?).ok()?;
            text(&model["vocab"][id][0])
        });
        names
    }

    /// Finds well-known names among the special tokens added to the tokenizer.
    pub(super) fn well_known(tokenizer: &Tokenizer) -> Self {
        let added = tokenizer.get_added_vocabulary();
        let mut names = Self::default();
        for ((_, role), (_, known)) in names.roles_mut().into_iter().zip(WELL_KNOWN) {
            *role = known.iter().find(|name| added.is_special_token(name)).map(|&name| name.to_owned());
        }
        names
    }

    /// Removes tokens that the tokenizer lacks.
    pub(super) fn known_to(mut self, tokenizer: &Tokenizer) -> Self {
        for (_, role) in self.roles_mut() {
            role.take_if(|name| tokenizer.token_to_id(name).is_none());
        }
        self.additional.retain(|name| tokenizer.token_to_id(name).is_some());
        self
    }

    /// Returns the role and the name of the first token that the tokenizer lacks.
    pub(super) fn first_unknown(&self, tokenizer: &Tokenizer) -> Option<(&'static str, &str)> {
        let roles = self.roles().into_iter().filter_map(|(role, name)| Some((role, name.as_deref()?)));
        let additional = self.additional.iter().map(|name| ("additional", name.as_str()));
        roles.chain(additional).find(|(_, name)| tokenizer.token_to_id(name).is_none())
    }

    /// Resolves the names to ids.
    ///
    /// # Errors
    ///
    /// [`TokenizerError::UnknownToken`] for a name that is not in the vocabulary.
    pub(super) fn resolve(&self, tokenizer: &Tokenizer) -> Result<SpecialTokens, DataError> {
        let added = tokenizer.get_added_vocabulary().get_added_tokens_decoder();
        let special = added.iter().filter(|(_, token)| token.special);
        if let Some((role, token)) = self.first_unknown(tokenizer) {
            let mut known: Vec<String> = special.map(|(_, token)| token.content.clone()).collect();
            known.sort_unstable();
            return Err(TokenizerError::UnknownToken { role, token: token.to_owned(), known }.into());
        }
        let id = |name: &str| tokenizer.token_to_id(name);
        let roles = self.roles().map(|(_, name)| name.as_deref().and_then(id));
        let additional = self.additional.iter().filter_map(|name| id(name));
        let all = special.map(|(&id, _)| id).chain(roles.into_iter().flatten()).chain(additional).collect();
        let [pad, unk, bos, eos, cls, sep, mask] = roles;
        Ok(SpecialTokens { pad, unk, bos, eos, cls, sep, mask, all })
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::Tokenizer;

    #[test]
    fn roles_by_file_and_by_name() {
        let added = |id: u32, content: &str| {
            format!(
                r#"{{"id": {id}, "content": "{content}", "single_word": false, "lstrip": false,
                    "rstrip": false, "normalized": false, "special": true}}"#
            )
        };
        let json = format!(
            r#"{{"version": "1.0", "added_tokens": [{}, {}, {}, {}],
                "post_processor": {{"type": "RobertaProcessing", "cls": ["<s>", 3], "sep": ["</s>", 2],
                    "trim_offsets": true, "add_prefix_space": false}},
                "model": {{"type": "WordLevel", "vocab": {{"a": 0, "<un>": 1}}, "unk_token": "<un>"}}}}"#,
            added(2, "</s>"),
            added(3, "<s>"),
            added(4, "<mask>"),
            added(5, "<x>")
        );
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("tokenizer.json");
        fs::write(&path, &json).unwrap();
        let special = Tokenizer::from_file(folder.path()).unwrap().special().clone();
        let expected = SpecialTokens {
            pad: None,
            unk: Some(1),
            bos: Some(3),
            eos: Some(2),
            cls: Some(3),
            sep: Some(2),
            mask: Some(4),
            all: (1..6).collect(),
        };
        assert_eq!(special, expected);

        fs::write(
            folder.path().join("tokenizer_config.json"),
            r#"{"eos_token": "<x>", "model_max_length": 9}"#,
        )
        .unwrap();
        let tokenizer = Tokenizer::from_file(&path).unwrap();
        assert_eq!(tokenizer.special(), &SpecialTokens { eos: Some(5), ..expected.clone() });
        assert_eq!(tokenizer.model_max_length(), Some(9));

        let names = SpecialNames { pad: Some("a".to_owned()), ..SpecialNames::default() };
        let tokenizer = tokenizer.with_special(names).unwrap();
        let elsewhere = tempfile::tempdir().unwrap();
        tokenizer.save(elsewhere.path().join("tokenizer.json")).unwrap();
        let read = Tokenizer::from_file(elsewhere.path()).unwrap();
        assert_eq!(read.special(), tokenizer.special());
        assert_eq!((read.special().pad, read.model_max_length()), (Some(0), Some(9)));

        let names = SpecialNames { mask: Some("[MASK]".to_owned()), ..SpecialNames::default() };
        let error = tokenizer.with_special(names).unwrap_err().to_string();
        assert!(error.contains("mask token \"[MASK]\"") && error.contains("\"<mask>\""), "{error}");
    }
}
