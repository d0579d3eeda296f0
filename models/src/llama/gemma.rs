//! The settings of a Gemma.

use serde_json::{Map, Value};

use super::kind::{LlamaLine, number};
use crate::pretrained::PretrainedError;

/// What a Gemma computes in its own way (Gemma Team, 2024, arXiv:2408.00118, and 2025, arXiv:2503.19786).
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Gemma {
    /// The factor of the products of queries and keys.
    pub score_scale: f64,
    /// The bound of attention scores.
    pub score_cap: Option<f64>,
    /// The bound of logits.
    pub logit_cap: Option<f64>,
}

impl Gemma {
    /// Reads the fields of `config.json`.
    ///
    /// # Errors
    ///
    /// A number is not above 0, attention is not causal, or a Gemma 3 caps its scores.
    pub fn read(kind: LlamaLine, fields: &Map<String, Value>) -> Result<Self, PretrainedError> {
        const BOTH_WAYS: &str = "use_bidirectional_attention";
        if let Some(found) =
            fields.get(BOTH_WAYS).filter(|value| !matches!(value, Value::Null | Value::Bool(false)))
        {
            return Err(PretrainedError::setting(BOTH_WAYS, "false", found));
        }
        let above_zero = |name| match number(kind, fields, name)? {
            Some(number) if !(number > 0.0 && number.is_finite()) => {
                Err(PretrainedError::setting(name, "a number above 0", number))
            }
            number => Ok(number),
        };
        const SCALE: &str = "query_pre_attn_scalar";
        let Some(size) = above_zero(SCALE)? else {
            return Err(PretrainedError::setting(SCALE, "a number above 0", Value::Null));
        };
        const CAP: &str = "attn_logit_softcapping";
        let score_cap = above_zero(CAP)?;
        if let Some(cap) = score_cap.filter(|_| kind == LlamaLine::Gemma3) {
            // transformers reads the field and does not use it.
            return Err(PretrainedError::setting(CAP, "null: Gemma 3 does not cap its scores", cap));
        }
        Ok(Self {
            score_scale: size.powf(-0.5),
            score_cap,
            logit_cap: above_zero("final_logit_softcapping")?,
        })
    }
}

/// Returns what `rope_parameters` says of the blocks of a type, `full_attention` or `sliding_attention`.
///
/// # Errors
///
/// It does not have a field of settings for each type.
pub(super) fn rope_of<'a>(
    parameters: Option<&'a Map<String, Value>>,
    blocks: &str,
) -> Result<Option<&'a Map<String, Value>>, PretrainedError> {
    let Some(all) = parameters else { return Ok(None) };
    let is_known = |name: &String| ["full_attention", "sliding_attention"].contains(&name.as_str());
    match all.get(blocks) {
        Some(Value::Object(fields)) => Ok(Some(fields)),
        None | Some(Value::Null) if all.keys().all(is_known) => Ok(None),
        _ => {
            let expected = "settings for full_attention and sliding_attention";
            Err(PretrainedError::setting("rope_parameters", expected, Value::Object(all.clone())))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(fields: &str) -> Result<Gemma, PretrainedError> {
        Gemma::read(LlamaLine::Gemma2, &serde_json::from_str(fields).unwrap())
    }

    #[test]
    fn absent_fields_have_defaults_and_null_means_no_cap() {
        let gemma = read("{}").unwrap();
        assert_eq!(gemma, Gemma { score_scale: 1.0 / 16.0, score_cap: Some(50.0), logit_cap: Some(30.0) });
        let gemma = read(
            r#"{"query_pre_attn_scalar": 4, "attn_logit_softcapping": null, "final_logit_softcapping": 2.5,
                "use_bidirectional_attention": null}"#,
        );
        assert_eq!(gemma.unwrap(), Gemma { score_scale: 0.5, score_cap: None, logit_cap: Some(2.5) });
    }

    #[test]
    fn invalid_settings_are_named() {
        for (fields, field) in [
            (r#"{"query_pre_attn_scalar": null}"#, "query_pre_attn_scalar"),
            (r#"{"query_pre_attn_scalar": 0}"#, "query_pre_attn_scalar"),
            (r#"{"attn_logit_softcapping": -50.0}"#, "attn_logit_softcapping"),
            (r#"{"final_logit_softcapping": "30"}"#, "final_logit_softcapping"),
            (r#"{"use_bidirectional_attention": true}"#, "use_bidirectional_attention"),
        ] {
            let error = read(fields).unwrap_err().to_string();
            assert!(error.contains(&format!("`{field}`")), "{error}");
        }
        let of_gemma3 = |fields| Gemma::read(LlamaLine::Gemma3, &serde_json::from_str(fields).unwrap());
        let error = of_gemma3(r#"{"attn_logit_softcapping": 50.0}"#).unwrap_err().to_string();
        assert!(error.contains("`attn_logit_softcapping`: expected null"), "{error}");
        let gemma = of_gemma3(r#"{"attn_logit_softcapping": null}"#).unwrap();
        assert_eq!((gemma.score_cap, gemma.logit_cap), (None, None));
    }
}
