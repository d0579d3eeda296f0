//! The settings of PEFT that Firebrick has.

use std::path::Path;

use firebrick_strategies::LowRank;
use serde_json::{Map, Value};

use super::save::CLASSIFIERS;
use crate::AdapterError;

/// Settings that change what an adapted model computes, in a way that Firebrick does not have, unless they are empty:
/// null, false, `{}` or `[]`.
const EMPTY: [&str; 14] = [
    "rank_pattern",
    "alpha_pattern",
    "lora_bias",
    "layer_replication",
    "target_parameters",
    "trainable_token_indices",
    "alora_invocation_tokens",
    "arrow_config",
    "use_qalora",
    "use_bdlora",
    "kasa_config",
    "monteclora_config",
    "velora_config",
    "megatron_config",
];

/// Initial values of the factors that leave the given model unchanged. Those of PiSSA, OLoRA and CorDA, for example,
/// change its matrices, and their factors belong to the changed ones.
const OUTSIDE: [&str; 3] = ["gaussian", "eva", "orthogonal"];

/// A field that every version of PEFT writes, and [`Adapters::save`](super::Adapters::save) does not.
const BY_PEFT: &str = "layers_to_transform";

/// What `adapter_config.json` says about the factors.
pub(super) struct PeftConfig {
    pub low_rank: LowRank,
    pub dropout: f64,
    /// Whether PEFT wrote it: unlike Firebrick, it may adapt or train a tied matrix at one of its places.
    pub by_peft: bool,
    /// The modules that are trained whole, each by its path or the end of it.
    pub whole: Vec<String>,
}

impl PeftConfig {
    /// Reads the fields of the file at `path`.
    pub fn of(path: &Path, fields: &Map<String, Value>) -> Result<Self, AdapterError> {
        let field = |name: &str| fields.get(name).unwrap_or(&Value::Null);
        let wrong = |setting, expected| {
            let found = field(setting).to_string();
            AdapterError::Setting { path: path.into(), setting, expected, found }
        };
        if field("peft_type") != "LORA" {
            return Err(wrong("peft_type", "\"LORA\""));
        }
        if !is_empty(field("bias")) && field("bias") != "none" {
            return Err(wrong("bias", "\"none\""));
        }
        if let Some(setting) = EMPTY.into_iter().find(|name| !is_empty(field(name))) {
            return Err(wrong(setting, "left out, null, false or empty"));
        }
        let initial = field("init_lora_weights");
        if !(initial.is_null() || initial.is_boolean() || OUTSIDE.iter().any(|name| initial == name)) {
            let expected =
                "true, false, \"gaussian\", \"eva\" or \"orthogonal\", which keep the model's matrices";
            return Err(wrong("init_lora_weights", expected));
        }
        let rank = field("r").as_u64().and_then(|rank| usize::try_from(rank).ok()).filter(|rank| *rank > 0);
        let rank = rank.ok_or_else(|| wrong("r", "a whole number, at least 1"))?;
        let alpha = field("lora_alpha").as_f64().filter(|alpha| *alpha > 0.0);
        let alpha = alpha.ok_or_else(|| wrong("lora_alpha", "a number above 0"))?;
        let is_set = |name| match field(name) {
            Value::Null => Ok(false),
            value => value.as_bool().ok_or_else(|| wrong(name, "true or false")),
        };
        let (rank_stabilized, dora) = (is_set("use_rslora")?, is_set("use_dora")?);
        let dropout = match field("lora_dropout") {
            Value::Null => Some(0.0),
            value => value.as_f64().filter(|dropout| (0.0..1.0).contains(dropout)),
        };
        let dropout = dropout.ok_or_else(|| wrong("lora_dropout", "a number, at least 0 and below 1"))?;
        Ok(Self {
            low_rank: LowRank { rank, alpha, rank_stabilized, dora },
            dropout,
            by_peft: fields.contains_key(BY_PEFT),
            whole: match field("modules_to_save") {
                Value::Array(names) => names.iter().filter_map(Value::as_str).map(String::from).collect(),
                _ => Vec::new(),
            },
        })
    }

    /// Whether a parameter of this name was trained whole. PEFT also saves tables that were not, if the vocabulary was
    /// resized.
    pub fn is_whole(&self, name: &str) -> bool {
        let path = format!(".{name}.");
        let classifiers = CLASSIFIERS.into_iter().filter(|_| self.by_peft);
        let mut modules = self.whole.iter().map(String::as_str).chain(classifiers);
        modules.any(|module| path.contains(&format!(".{module}.")))
    }
}

fn is_empty(value: &Value) -> bool {
    match value {
        Value::Null | Value::Bool(false) => true,
        Value::Array(list) => list.is_empty(),
        Value::Object(map) => map.is_empty(),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn read(change: &str, to: Value) -> Result<PeftConfig, String> {
        let mut fields = json!({
            "peft_type": "LORA", "r": 4, "lora_alpha": 6, "use_rslora": true, "lora_dropout": 0.1, "bias": "none",
            "rank_pattern": {}, "use_dora": true, "layer_replication": null, "init_lora_weights": "gaussian",
        });
        fields[change] = to;
        PeftConfig::of(Path::new("x"), fields.as_object().unwrap()).map_err(|error| error.to_string())
    }

    #[test]
    fn rank_and_scale_are_read() {
        let config = read("fan_in_fan_out", json!(true)).unwrap();
        assert_eq!(config.low_rank, LowRank { rank: 4, alpha: 6.0, rank_stabilized: true, dora: true });
        assert_eq!(config.dropout, 0.1);
    }

    /// All settings of PEFT 0.21.2, as `LoraConfig().save_pretrained` writes them.
    #[test]
    fn the_defaults_of_peft_are_read() {
        let fields = include_str!("../../tests/golden/adapters/defaults/adapter_config.json");
        let fields: Map<String, Value> = serde_json::from_str(fields).unwrap();
        assert!(EMPTY.into_iter().all(|name| fields.contains_key(name)), "{fields:?}");
        let config = PeftConfig::of(Path::new("x"), &fields).unwrap();
        assert_eq!(config.low_rank, LowRank { rank: 8, alpha: 8.0, rank_stabilized: false, dora: false });
        assert!(config.dropout == 0.0 && config.by_peft);
    }

    #[test]
    fn what_has_no_counterpart_is_told() {
        for (setting, to, expected) in [
            ("peft_type", json!("IA3"), "`peft_type` must be \"LORA\", found \"IA3\""),
            ("bias", json!("all"), "`bias` must be \"none\", found \"all\""),
            ("rank_pattern", json!({"q": 8}), "`rank_pattern` must be left out"),
            ("alpha_pattern", json!({"q": 8}), "`alpha_pattern` must be left out"),
            ("use_dora", json!(1), "`use_dora` must be true or false, found 1"),
            ("lora_bias", json!(true), "`lora_bias` must be left out, null, false or empty, found true"),
            ("target_parameters", json!(["x"]), "`target_parameters` must be left out"),
            ("init_lora_weights", json!("pissa"), "found \"pissa\""),
            ("r", json!(0), "`r` must be a whole number, at least 1, found 0"),
            ("lora_alpha", Value::Null, "`lora_alpha` must be a number above 0, found null"),
            ("lora_dropout", json!(1), "`lora_dropout` must be a number, at least 0 and below 1, found 1"),
            ("use_rslora", json!(1), "`use_rslora` must be true or false, found 1"),
        ] {
            let found = read(setting, to).err().unwrap();
            assert!(found.contains(expected), "{found}");
        }
    }
}
