//! The settings of a Gemma.

use serde_json::{Map, Value};

use super::kind::Kind;
use super::numbers::number;
use crate::pretrained::PretrainedError;

/// What a Gemma computes in its own way (Gemma Team, 2024, arXiv:2408.00118).
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
    /// A number is not above 0, or attention is not causal.
    pub fn read(kind: Kind, fields: &Map<String, Value>) -> Result<Self, PretrainedError> {
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
        Ok(Self {
            score_scale: size.powf(-0.5),
            score_cap: above_zero("attn_logit_softcapping")?,
            logit_cap: above_zero("final_logit_softcapping")?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(fields: &str) -> Result<Gemma, PretrainedError> {
        Gemma::read(Kind::Gemma2, &serde_json::from_str(fields).unwrap())
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
    }
}
