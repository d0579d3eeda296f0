//! Fields of `config.json` whose defaults depend on the model type.

use serde_json::{Map, Value};

/// Adds the fields of a `config.json` that are absent and in `defaults` of its `model_type`.
pub(crate) fn with_defaults(
    mut fields: Map<String, Value>,
    defaults: fn(&str) -> Vec<(&'static str, Value)>,
) -> Map<String, Value> {
    let model_type = fields.get("model_type").and_then(Value::as_str).unwrap_or_default();
    for (name, value) in defaults(model_type) {
        fields.entry(name).or_insert(value);
    }
    fields
}

/// The token that a model's class in transformers has in a field that `config.json` lacks, if any: the class of text
/// generators alone.
pub(super) fn token_of_class(model_type: &str, field: &str) -> Option<u32> {
    match (field, model_type) {
        ("eos_token_id", "llama" | "mistral" | "bart") => Some(2),
        ("eos_token_id", "gemma2" | "gemma3_text" | "t5" | "mt5") => Some(1),
        ("eos_token_id", "phi3") => Some(32_000),
        ("eos_token_id", "gpt2") => Some(50_256),
        ("forced_eos_token_id", "bart") => Some(2),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::defaults_of_class;

    #[test]
    fn tokens_are_those_of_the_classes() {
        for model_type in [
            "llama",
            "mistral",
            "qwen2",
            "qwen3",
            "phi3",
            "gemma2",
            "gemma3_text",
            "gpt2",
            "bart",
            "t5",
            "mt5",
        ] {
            for (version, field, value) in defaults_of_class(model_type) {
                if ["eos_token_id", "forced_bos_token_id", "forced_eos_token_id"].contains(&&*field) {
                    let found = token_of_class(model_type, &field).map_or(Value::Null, Value::from);
                    assert_eq!(found, value, "{model_type}, `{field}` of transformers {version}");
                }
            }
        }
    }
}
