//! Tokens that the files next to a `tokenizer.json` add to it.

use std::path::Path;

use serde_json::Value;
use tokenizers::{AddedToken, Tokenizer};

use super::{
    SpecialNames, TokenizerWarning,
    tokenizer_config::{CONFIG, File},
};
use crate::DataError;

/// The field with the added tokens by their ids.
const FIELD: &str = "added_tokens_decoder";

/// The older file, which transformers reads only if the field is missing.
const OLDER: &str = "added_tokens.json";

/// Adds the tokens of a folder's configuration, as all classes of transformers do: those that the `tokenizer.json`
/// lacks get the next free ids, in the order of their own, and the others get the settings of the configuration.
///
/// # Errors
///
/// [`DataError::Io`], [`TokenizerError::TokenizerConfig`](crate::TokenizerError::TokenizerConfig) if a file is broken,
/// and [`TokenizerError::TokenizerFailed`](crate::TokenizerError::TokenizerFailed) if a token cannot be added.
pub(super) fn add(folder: &Path, tokenizer: &mut Tokenizer) -> Result<Vec<TokenizerWarning>, DataError> {
    let (config, older) = (folder.join(CONFIG), folder.join(OLDER));
    let config = File::read(&config)?;
    let mut tokens = match config.field(FIELD, "an object of tokens by their ids", Value::as_object)? {
        Some(entries) => entries.iter().map(|(id, token)| of_config(&config, id, token)).collect(),
        None => of_older(&File::read(&older)?, &config),
    }?;
    tokens.sort_by_key(|&(id, _)| id);
    let added = tokens.iter().map(|(_, token)| token.clone());
    tokenizer.add_tokens(added).map_err(DataError::tokenizer(format!("add the tokens of `{FIELD}`")))?;
    let mut warnings = Vec::new();
    for (id, token) in tokens {
        if let Some(known) = tokenizer.token_to_id(&token.content).filter(|&known| u64::from(known) != id) {
            let message = format!(
                "the token {:?} has the id {known}, as in transformers, not {id}; correct the field, or the \
                 tokenizer.json next to it",
                token.content
            );
            warnings.push(config.warning(FIELD, message));
        }
    }
    Ok(warnings)
}

/// Returns warnings about tokens with a role that the `tokenizer.json` has among its ordinary tokens only: transformers
/// finds them within texts, and this crate does not.
pub(super) fn ordinary(folder: &Path, names: &SpecialNames, tokenizer: &Tokenizer) -> Vec<TokenizerWarning> {
    let additional = names.additional.iter().map(|name| ("additional_special_tokens".to_owned(), name));
    let roles =
        names.roles().into_iter().filter_map(|(role, name)| Some((format!("{role}_token"), name.as_ref()?)));
    let added = tokenizer.get_added_vocabulary().get_vocab();
    let lost = |name: &String| {
        let id = tokenizer.token_to_id(name);
        let found = tokenizer.encode_fast(name.as_str(), false);
        !added.contains_key(name.as_str()) && found.is_ok_and(|found| found.get_ids() != id.as_slice())
    };
    let warning = |(field, name): (String, &String)| {
        let message = format!(
            "transformers encodes {name:?} within a text as one token; here it is split like other text, since the \
             tokenizer.json next to it does not list it in `added_tokens`; add it there"
        );
        TokenizerWarning::new(&folder.join(CONFIG), field, message)
    };
    roles.chain(additional).filter(|(_, name)| lost(name)).map(warning).collect()
}

type Numbered = (u64, AddedToken);

fn of_config(config: &File<'_>, id: &str, token: &Value) -> Result<Numbered, DataError> {
    let expected =
        "whole numbers as ids, and tokens with a text as `content` and true or false as their settings";
    let broken = || config.error(FIELD, expected, &serde_json::json!({ id: token }));
    let flag = |name: &str| match token.get(name) {
        None => Ok(None),
        Some(value) => value.as_bool().map(Some).ok_or_else(broken),
    };
    let content = token.get("content").and_then(Value::as_str).ok_or_else(broken)?;
    let special = flag("special")?.unwrap_or(false);
    let settings = AddedToken::from(content, special)
        .single_word(flag("single_word")?.unwrap_or(false))
        .lstrip(flag("lstrip")?.unwrap_or(false))
        .rstrip(flag("rstrip")?.unwrap_or(false))
        .normalized(flag("normalized")?.unwrap_or(!special));
    Ok((id.parse().map_err(|_| broken())?, settings))
}

fn of_older(older: &File<'_>, config: &File<'_>) -> Result<Vec<Numbered>, DataError> {
    let special = config.special_texts();
    let token = |(text, id): (&String, &Value)| {
        let id = id.as_u64().ok_or_else(|| older.error(text, "a whole number, the id of the token", id))?;
        Ok((id, AddedToken::from(text.clone(), special.contains(&text.as_str()))))
    };
    older.fields().map(token).collect()
}
