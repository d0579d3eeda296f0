//! What distinguishes the models of the family.

use serde_json::{Map, Value, json};

use crate::Activation;

/// A line of models that share names and details.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Bert,
    /// RoBERTa, XLM-R and CamemBERT.
    Roberta,
    DistilBert,
    Electra,
}

/// The names of DistilBERT's fields, and those of the same fields in BERT.
const DISTILBERT: [(&str, &str); 8] = [
    ("dim", "hidden_size"),
    ("n_layers", "num_hidden_layers"),
    ("n_heads", "num_attention_heads"),
    ("hidden_dim", "intermediate_size"),
    ("activation", "hidden_act"),
    ("dropout", "hidden_dropout_prob"),
    ("attention_dropout", "attention_probs_dropout_prob"),
    ("seq_classif_dropout", "classifier_dropout"),
];

/// Fields of BERT that DistilBERT lacks.
const NOT_OF_DISTILBERT: [&str; 4] = ["type_vocab_size", "layer_norm_eps", "is_decoder", "embedding_size"];

impl Kind {
    pub fn of(model_type: &str) -> Self {
        match model_type {
            "bert" => Self::Bert,
            "distilbert" => Self::DistilBert,
            "electra" => Self::Electra,
            _ => Self::Roberta,
        }
    }

    /// Returns the fields of `config.json` under BERT's names, with the defaults that differ from BERT's.
    ///
    /// # Errors
    ///
    /// A field occurs under both names.
    pub fn read(mut fields: Map<String, Value>) -> Result<Map<String, Value>, String> {
        let kind = Self::of(fields.get("model_type").and_then(Value::as_str).unwrap_or("bert"));
        if kind == Self::DistilBert {
            for (own, name) in DISTILBERT {
                let Some(value) = fields.remove(own) else { continue };
                if fields.insert(name.into(), value).is_some() {
                    return Err(format!(
                        "expected one of `{own}` and `{name}`, which are the same, found both"
                    ));
                }
            }
            NOT_OF_DISTILBERT.iter().for_each(|name| drop(fields.remove(*name)));
        }
        for (name, value) in kind.defaults() {
            fields.entry(name).or_insert(value);
        }
        Ok(fields)
    }

    /// The defaults that differ from BERT's.
    fn defaults(self) -> Vec<(&'static str, Value)> {
        match self {
            Self::Bert | Self::Roberta => Vec::new(),
            Self::DistilBert => vec![("num_hidden_layers", json!(6)), ("classifier_dropout", json!(0.2))],
            Self::Electra => vec![
                ("embedding_size", json!(128)),
                ("hidden_size", json!(256)),
                ("num_attention_heads", json!(4)),
                ("intermediate_size", json!(1024)),
            ],
        }
    }

    /// Returns the fields under their names in `config.json`.
    pub fn written(self, mut fields: Map<String, Value>) -> Map<String, Value> {
        if self == Self::DistilBert {
            NOT_OF_DISTILBERT.iter().for_each(|name| drop(fields.remove(*name)));
            for (own, name) in DISTILBERT {
                if let Some(value) = fields.remove(name) {
                    fields.insert(own.into(), value);
                }
            }
        }
        fields
    }

    /// The name of a field in `config.json`.
    pub fn own_name(self, field: &'static str) -> &'static str {
        let own = DISTILBERT.iter().find(|(_, name)| self == Self::DistilBert && *name == field);
        own.map_or(field, |(own, _)| own)
    }

    /// The activation between the two layers of a classifier of texts.
    pub fn pooler_activation(self) -> Activation {
        match self {
            Self::Bert | Self::Roberta => Activation::Tanh,
            Self::DistilBert => Activation::Relu,
            Self::Electra => Activation::Gelu,
        }
    }

    /// Whether dropout also applies to the first token of a classifier of texts.
    pub fn drops_first(self) -> bool {
        matches!(self, Self::Roberta | Self::Electra)
    }
}
