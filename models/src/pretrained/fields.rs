//! Fields of `config.json` that transformers reads under several names, or whose defaults depend on the model type.

use serde_json::{Map, Value};

/// Puts fields under one of their names: for each pair, the second one.
///
/// # Errors
///
/// A field has different values under its names, of which one would be dropped.
pub(crate) fn one_spelling(
    fields: &mut Map<String, Value>,
    names: &[(&'static str, &'static str)],
) -> Result<(), String> {
    for &(other, name) in names {
        let Some(value) = fields.remove(other) else { continue };
        match fields.get(name) {
            Some(found) if !are_equal(found, &value) => {
                return Err(format!(
                    "expected one value for `{other}` and `{name}`, which are the same, found {value} and {found}; \
                     remove the wrong one"
                ));
            }
            Some(_) => {}
            None => drop(fields.insert(name.into(), value)),
        }
    }
    Ok(())
}

/// Whether values are equal, whichever way numbers are written.
fn are_equal(one: &Value, other: &Value) -> bool {
    one == other || one.as_f64().zip(other.as_f64()).is_some_and(|(one, other)| one == other)
}

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
    use serde_json::json;

    use super::*;
    use crate::pretrained::HubConfig;
    use crate::testing::defaults_of_class;
    use crate::{BartConfig, BertConfig, Gpt2Config, T5Config};

    const NAMES: [(&str, &str); 1] = [("width", "size")];

    #[test]
    fn one_name_stays() {
        let read = |fields: Value| {
            let Value::Object(mut fields) = fields else { panic!("{fields}") };
            one_spelling(&mut fields, &NAMES).map(|()| Value::Object(fields))
        };
        assert_eq!(read(json!({"width": 3, "x": 1})).unwrap(), json!({"size": 3, "x": 1}));
        assert_eq!(read(json!({"width": 3.0, "size": 3})).unwrap(), json!({"size": 3}));
        let error = read(json!({"width": 3, "size": 4})).unwrap_err();
        assert!(error.contains("`width` and `size`") && error.contains("found 3 and 4"), "{error}");
    }

    /// The `attribute_map` of the classes of transformers 4.57 and 5.24: either name sets the field, and the last one wins
    /// there.
    #[test]
    fn families_read_each_name_of_a_field() {
        fn holds<C: HubConfig + PartialEq + std::fmt::Debug>(model_type: &str, names: &[(&str, &str)]) {
            let read = |fields: &[(&str, u64)]| {
                let mut all = json!({"model_type": model_type});
                fields.iter().for_each(|(name, value)| all[*name] = (*value).into());
                serde_json::from_value::<C>(all)
            };
            for &(other, name) in names {
                let own = read(&[(name, 48)]).unwrap();
                assert_ne!(own, read(&[]).unwrap(), "{model_type} {name}");
                assert_eq!(read(&[(other, 48)]).unwrap(), own, "{model_type} {other}");
                assert_eq!(read(&[(other, 48), (name, 48)]).unwrap(), own, "{model_type} {other}");
                let error = read(&[(other, 24), (name, 48)]).unwrap_err().to_string();
                assert!(
                    error.contains(&format!("`{other}`")) && error.contains(&format!("`{name}`")),
                    "{error}"
                );
            }
        }
        holds::<Gpt2Config>(
            "gpt2",
            &[
                ("hidden_size", "n_embd"),
                ("max_position_embeddings", "n_positions"),
                ("num_attention_heads", "n_head"),
                ("num_hidden_layers", "n_layer"),
            ],
        );
        holds::<BartConfig>(
            "bart",
            &[
                ("hidden_size", "d_model"),
                ("num_attention_heads", "encoder_attention_heads"),
                ("num_hidden_layers", "encoder_layers"),
            ],
        );
        for model_type in ["t5", "mt5"] {
            holds::<T5Config>(
                model_type,
                &[
                    ("hidden_size", "d_model"),
                    ("num_attention_heads", "num_heads"),
                    ("num_hidden_layers", "num_layers"),
                    ("head_dim", "d_kv"),
                ],
            );
        }
        holds::<BertConfig>(
            "distilbert",
            &[("hidden_size", "dim"), ("num_attention_heads", "n_heads"), ("num_hidden_layers", "n_layers")],
        );
    }

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
