//! Special tokens around a text: adds them to a vocabulary without any, and reads what a post-processor adds.

use tokenizers::{
    AddedToken, Encoding, Token, Tokenizer,
    processors::template::{TemplateProcessing, TemplateProcessingBuilder},
};

use super::SpecialNames;
use crate::DataError;

/// Adds the tokens with a role to a vocabulary, and frames texts with them as is usual for such models: `cls` or `bos`
/// begins a text, `sep` or `eos` ends it, and a second text has type 1. Roles without a name are skipped.
pub(super) fn framed(mut tokenizer: Tokenizer, names: &SpecialNames) -> Result<Tokenizer, DataError> {
    let named =
        names.roles().into_iter().filter_map(|(_, name)| name.clone()).chain(names.additional.clone());
    let tokens: Vec<AddedToken> = named.map(|name| AddedToken::from(name, true)).collect();
    let failed = |reason: tokenizers::Error| DataError::tokenizer("add special tokens")(reason);
    tokenizer.add_special_tokens(tokens).map_err(failed)?;
    if let Some(template) = template(&tokenizer, names)? {
        tokenizer.with_post_processor(Some(template));
    }
    Ok(tokenizer)
}

fn template(tokenizer: &Tokenizer, names: &SpecialNames) -> Result<Option<TemplateProcessing>, DataError> {
    let begin = names.cls.as_deref().or(names.bos.as_deref());
    let end = names.sep.as_deref().or(names.eos.as_deref());
    if begin.is_none() && end.is_none() {
        return Ok(None);
    }
    let piece = |name: Option<&str>, kind: u32| name.map(|name| format!("{name}:{kind}"));
    let first = [piece(begin, 0), Some("$A:0".to_owned()), piece(end, 0)];
    let second = [Some("$B:1".to_owned()), piece(end, 1)];
    let single: Vec<String> = first.iter().flatten().cloned().collect();
    let pair: Vec<String> = first.into_iter().chain(second).flatten().collect();
    let id = |name: &str| tokenizer.token_to_id(name).unwrap_or_default();
    let special: Vec<(String, u32)> =
        begin.into_iter().chain(end).map(|name| (name.to_owned(), id(name))).collect();
    let build = || {
        TemplateProcessingBuilder::default()
            .try_single(single)?
            .try_pair(pair)?
            .special_tokens(special)
            .build()
            .map_err(|error| error.to_string())
    };
    build().map(Some).map_err(DataError::tokenizer("frame texts with special tokens"))
}

/// The tokens that a post-processor adds before and after a text.
pub(super) struct Framing {
    pub(super) before: Vec<u32>,
    pub(super) after: Vec<u32>,
}

/// Detects what a tokenizer adds by giving it a token that no vocabulary has.
///
/// # Errors
///
/// [`TokenizerError::TokenizerFailed`](crate::TokenizerError::TokenizerFailed) if the post-processor fails.
pub(super) fn added_around(tokenizer: &Tokenizer) -> Result<Framing, DataError> {
    const MARK: u32 = u32::MAX;
    let text = Encoding::from_tokens(vec![Token::new(MARK, "x".to_owned(), (0, 1))], 0);
    let framed =
        tokenizer.post_process(text, None, true).map_err(DataError::tokenizer("add special tokens"))?;
    let mut parts = framed.get_ids().split(|id| *id == MARK);
    let mut next = || parts.next().unwrap_or_default().to_vec();
    Ok(Framing { before: next(), after: next() })
}

/// Replaces a post-processor that adds tokens by one that adds none.
///
/// # Errors
///
/// [`TokenizerError::TokenizerFailed`](crate::TokenizerError::TokenizerFailed) if the post-processor fails.
pub(super) fn add_nothing(tokenizer: &mut Tokenizer) -> Result<(), DataError> {
    let Framing { before, after } = added_around(tokenizer)?;
    if !before.is_empty() || !after.is_empty() {
        let build = || {
            TemplateProcessing::builder()
                .try_single("$A:0")?
                .try_pair("$A:0 $B:1")?
                .build()
                .map_err(|error| error.to_string())
        };
        tokenizer.with_post_processor(Some(build().map_err(DataError::tokenizer("frame texts"))?));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use crate::{Encoder, Input, SpecialNames, Tokenizer};

    fn trained(names: SpecialNames) -> Arc<Tokenizer> {
        Arc::new(Tokenizer::train_bpe_with("to be or not to be", 260, names).unwrap())
    }

    #[test]
    fn texts_are_framed() {
        let name = |name: &str| Some(name.to_owned());
        let names =
            SpecialNames { pad: name("<pad>"), bos: name("<s>"), eos: name("</s>"), ..Default::default() };
        let tokenizer = trained(names);
        let special = tokenizer.special();
        let (bos, eos) = (special.bos.unwrap(), special.eos.unwrap());
        assert!(special.pad.is_some() && special.mask.is_none());

        let encoder = Encoder::new(tokenizer.clone());
        let pair = encoder.encode(Input::Text("be"), Some(Input::Text("or"))).unwrap().remove(0);
        let (first, second) = (tokenizer.encode("be").unwrap(), tokenizer.encode("or").unwrap());
        assert_eq!(pair.ids, [vec![bos], first.clone(), vec![eos], second, vec![eos]].concat());
        assert_eq!(pair.type_ids.iter().sum::<u32>() as usize, pair.ids.len() - first.len() - 2);
        // A special token in the text becomes the token itself.
        assert_eq!(tokenizer.encode("be</s>").unwrap(), [first, vec![eos]].concat());
    }

    #[test]
    fn without_names_nothing_is_added() {
        let plain = Tokenizer::train_bpe("to be or not to be", 260).unwrap();
        assert_eq!(trained(SpecialNames::default()).fingerprint().unwrap(), plain.fingerprint().unwrap());
    }
}
