//! What distinguishes the models of the family.

use serde_json::{Map, Value, json};

use crate::Activation;
use crate::pretrained::one_spelling;

/// A line of models that share names and details.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum BertLine {
    Bert,
    /// RoBERTa, XLM-R and CamemBERT.
    Roberta,
    DistilBert,
    Electra,
    /// The second and third versions.
    Deberta,
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

const DEBERTA: [(&str, &str); 1] = [("cls_dropout", "classifier_dropout")];
const NOT_OF_DEBERTA: [&str; 1] = ["is_decoder"];

impl BertLine {
    pub fn of(model_type: &str) -> Self {
        match model_type {
            "bert" => Self::Bert,
            "distilbert" => Self::DistilBert,
            "electra" => Self::Electra,
            "deberta-v2" => Self::Deberta,
            _ => Self::Roberta,
        }
    }

    /// The names of fields that BERT calls otherwise, with BERT's names.
    fn renamed(self) -> &'static [(&'static str, &'static str)] {
        match self {
            Self::DistilBert => &DISTILBERT,
            Self::Deberta => &DEBERTA,
            Self::Bert | Self::Roberta | Self::Electra => &[],
        }
    }

    /// Fields of BERT that the model lacks.
    fn lacks(self) -> &'static [&'static str] {
        match self {
            Self::DistilBert => &NOT_OF_DISTILBERT,
            Self::Deberta => &NOT_OF_DEBERTA,
            Self::Bert | Self::Roberta | Self::Electra => &[],
        }
    }

    /// Returns the fields of `config.json` under BERT's names, with the defaults that differ from BERT's.
    ///
    /// # Errors
    ///
    /// A field has different values under two names.
    pub fn read(mut fields: Map<String, Value>) -> Result<Map<String, Value>, String> {
        let model_type = fields.get("model_type").and_then(Value::as_str).unwrap_or("bert").to_owned();
        let kind = Self::of(&model_type);
        one_spelling(&mut fields, kind.renamed())?;
        kind.lacks().iter().for_each(|name| drop(fields.remove(*name)));
        for (name, value) in kind.defaults(&model_type) {
            fields.entry(name).or_insert(value);
        }
        Ok(fields)
    }

    /// The defaults that differ from BERT's.
    fn defaults(self, model_type: &str) -> Vec<(&'static str, Value)> {
        match self {
            Self::Roberta if model_type == "roberta" => vec![("vocab_size", json!(50_265))],
            Self::Bert | Self::Roberta => Vec::new(),
            Self::DistilBert => vec![("num_hidden_layers", json!(6)), ("classifier_dropout", json!(0.2))],
            Self::Electra => vec![
                ("embedding_size", json!(128)),
                ("hidden_size", json!(256)),
                ("num_attention_heads", json!(4)),
                ("intermediate_size", json!(1024)),
            ],
            Self::Deberta => vec![
                ("vocab_size", json!(128_100)),
                ("hidden_size", json!(1536)),
                ("num_hidden_layers", json!(24)),
                ("num_attention_heads", json!(24)),
                ("intermediate_size", json!(6144)),
                ("type_vocab_size", json!(0)),
                ("layer_norm_eps", json!(1e-7)),
            ],
        }
    }

    /// Returns the fields under their names in `config.json`.
    pub fn written(self, mut fields: Map<String, Value>) -> Map<String, Value> {
        self.lacks().iter().for_each(|name| drop(fields.remove(*name)));
        for (own, name) in self.renamed() {
            if let Some(value) = fields.remove(*name) {
                fields.insert((*own).into(), value);
            }
        }
        fields
    }

    /// The name of a field in `config.json`.
    pub fn own_name(self, field: &'static str) -> &'static str {
        let own = self.renamed().iter().find(|(_, name)| *name == field);
        own.map_or(field, |(own, _)| own)
    }

    /// The activation between the two layers of a classifier of texts; of a DeBERTa, `config.json` says it.
    pub fn pooler_activation(self) -> Activation {
        match self {
            Self::Bert | Self::Roberta => Activation::Tanh,
            Self::DistilBert => Activation::Relu,
            Self::Electra | Self::Deberta => Activation::Gelu,
        }
    }
}
