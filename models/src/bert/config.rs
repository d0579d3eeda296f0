//! `config.json` of BERT and related models.

use burn::nn::Initializer;
use burn::tensor::Device;
use serde::de::Error as _;
use serde::ser::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::{Map, Value};

use super::kind::BertLine;
use crate::pretrained::{HubConfig, PretrainedError, check_dropouts, check_heads, check_layers, check_sizes};
use crate::{Activation, ClassNames, Linear, Norm};

/// `config.json` of BERT, RoBERTa, DistilBERT, ELECTRA, DeBERTa and related models.
///
/// Fields have the names of transformers' `BertConfig`; DistilBERT's own names, such as `n_layers`, are read and written
/// in their place. Fields that only a DeBERTa has, such as `pos_att_type`, are among the [other](Self::rest) ones. An
/// absent field has the default of the class of the `model_type`.
///
/// ```
/// use firebrick_models::BertConfig;
///
/// let config: BertConfig = serde_json::from_str(r#"{"model_type": "bert", "hidden_size": 384}"#)?;
/// let config = config.with_labels(["negative", "positive"]);
/// assert_eq!((config.num_hidden_layers, config.labels()), (12, 2));
/// # Ok::<(), serde_json::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, remote = "Self")]
pub struct BertConfig {
    /// `bert`; `roberta`, `xlm-roberta` or `camembert`, whose positions start after the padding token's id;
    /// `distilbert`, which has no segments; `electra`; or `deberta-v2`, the second and third versions of DeBERTa.
    pub model_type: String,
    /// Size of the vocabulary.
    pub vocab_size: usize,
    /// Size of the embeddings of an ELECTRA, which are projected to `hidden_size` if they differ. Other models have
    /// embeddings of `hidden_size` whatever it says.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub embedding_size: Option<usize>,
    /// Size of the hidden state.
    pub hidden_size: usize,
    /// Number of transformer blocks.
    pub num_hidden_layers: usize,
    /// Number of attention heads; must divide `hidden_size`.
    pub num_attention_heads: usize,
    /// The width inside a feed-forward layer.
    pub intermediate_size: usize,
    /// The activation of a feed-forward layer, and of the masked LM head of BERT and DistilBERT.
    pub hidden_act: Activation,
    /// Dropout of embeddings and at the end of each residual branch.
    pub hidden_dropout_prob: f64,
    /// Dropout of attention weights.
    pub attention_probs_dropout_prob: f64,
    /// Dropout before a classifier; `hidden_dropout_prob` if absent. A DistilBERT has it before a classifier of texts
    /// only, under the name `seq_classif_dropout`, and a DeBERTa under the name `cls_dropout`.
    pub classifier_dropout: Option<f64>,
    /// Rows of the position embedding; see [`max_length`](Self::max_length).
    pub max_position_embeddings: usize,
    /// Number of segments; with 1, a text's segments are ignored. DistilBERT has none, and DeBERTa may have none.
    pub type_vocab_size: usize,
    /// Standard deviation of the initial weights.
    pub initializer_range: f64,
    /// Added to the variance in layer norms.
    pub layer_norm_eps: f64,
    /// The padding token; if absent, 0 for BERT and 1 for the other models.
    pub pad_token_id: Option<usize>,
    /// The classes of a classifier.
    #[serde(flatten)]
    pub classes: ClassNames,
    /// Must be `absolute`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub position_embedding_type: Option<String>,
    /// Must be false.
    pub is_decoder: bool,
    /// Must be true for a masked LM.
    pub tie_word_embeddings: bool,
    /// All other fields, unchanged.
    #[serde(flatten)]
    pub rest: Map<String, Value>,
}

impl Default for BertConfig {
    fn default() -> Self {
        Self {
            model_type: "bert".into(),
            vocab_size: 30522,
            embedding_size: None,
            hidden_size: 768,
            num_hidden_layers: 12,
            num_attention_heads: 12,
            intermediate_size: 3072,
            hidden_act: Activation::Gelu,
            hidden_dropout_prob: 0.1,
            attention_probs_dropout_prob: 0.1,
            classifier_dropout: None,
            max_position_embeddings: 512,
            type_vocab_size: 2,
            initializer_range: 0.02,
            layer_norm_eps: 1e-12,
            pad_token_id: None,
            classes: ClassNames::default(),
            position_embedding_type: None,
            is_decoder: false,
            tie_word_embeddings: true,
            rest: Map::new(),
        }
    }
}

impl BertConfig {
    /// Names the classes, in order of their numbers.
    pub fn with_labels<N: Into<String>>(mut self, names: impl IntoIterator<Item = N>) -> Self {
        self.classes = self.classes.renamed(names);
        self
    }

    /// The number of classes of a classifier: the number of class names, or else `num_labels`, or else 2.
    pub fn labels(&self) -> usize {
        self.classes.count()
    }

    /// The class names in order of their numbers; a class without a name gets one like `LABEL_3`, as in transformers.
    pub fn label_names(&self) -> Vec<String> {
        self.classes.names()
    }

    /// The maximum sequence length. A RoBERTa's positions start after the padding token's id.
    pub fn max_length(&self) -> usize {
        let before = if self.kind() == BertLine::Roberta { self.pad() + 1 } else { 0 };
        self.max_position_embeddings.saturating_sub(before)
    }

    pub(super) fn kind(&self) -> BertLine {
        BertLine::of(&self.model_type)
    }

    pub(super) fn pad(&self) -> usize {
        self.pad_token_id.unwrap_or(usize::from(self.kind() == BertLine::Roberta))
    }

    /// The number of segments that are embedded.
    pub(super) fn segments(&self) -> usize {
        if self.kind() == BertLine::DistilBert { 0 } else { self.type_vocab_size }
    }

    /// The width of the embeddings.
    pub(super) fn embedding_width(&self) -> usize {
        let own = self.embedding_size.filter(|_| self.kind() == BertLine::Electra);
        own.unwrap_or(self.hidden_size)
    }

    /// Dropout before a classifier of texts.
    pub(super) fn classifier_dropout(&self) -> f64 {
        self.classifier_dropout.unwrap_or(self.hidden_dropout_prob)
    }

    /// Dropout before a classifier of tokens.
    pub(super) fn token_dropout(&self) -> f64 {
        match self.kind() {
            BertLine::DistilBert | BertLine::Deberta => self.hidden_dropout_prob,
            BertLine::Bert | BertLine::Roberta | BertLine::Electra => self.classifier_dropout(),
        }
    }

    pub(super) fn normal(&self) -> Initializer {
        Initializer::Normal { mean: 0.0, std: self.initializer_range }
    }

    pub(super) fn linear(&self, from: usize, to: usize, device: &Device) -> Linear {
        Linear::new(from, to, true, self.normal(), device)
    }

    /// A norm of the hidden state, or of embeddings.
    pub(super) fn norm(&self, width: usize, device: &Device) -> Norm {
        Norm::new(width, true, device).with_epsilon(self.layer_norm_eps)
    }
}

impl HubConfig for BertConfig {
    const MODEL_TYPES: &'static [&'static str] =
        &["bert", "roberta", "xlm-roberta", "camembert", "distilbert", "electra", "deberta-v2"];

    fn check(&self) -> Result<(), PretrainedError> {
        let name = |field| self.kind().own_name(field);
        check_sizes(&[
            ("vocab_size", self.vocab_size),
            (name("hidden_size"), self.hidden_size),
            ("embedding_size", self.embedding_width()),
            (name("intermediate_size"), self.intermediate_size),
            ("max_position_embeddings", self.max_position_embeddings),
            ("num_labels", self.labels()),
        ])?;
        if self.segments() > 0 || !matches!(self.kind(), BertLine::DistilBert | BertLine::Deberta) {
            check_sizes(&[("type_vocab_size", self.type_vocab_size)])?;
        }
        check_layers(name("num_hidden_layers"), self.num_hidden_layers)?;
        check_heads(name("num_attention_heads"), self.num_attention_heads, self.hidden_size)?;
        crate::pretrained::check_epsilon("layer_norm_eps", self.layer_norm_eps)?;
        check_dropouts(&[
            (name("hidden_dropout_prob"), self.hidden_dropout_prob),
            (name("attention_probs_dropout_prob"), self.attention_probs_dropout_prob),
            (name("classifier_dropout"), self.classifier_dropout()),
        ])?;
        let positions = self.position_embedding_type.as_deref().unwrap_or("absolute");
        if positions != "absolute" {
            return Err(PretrainedError::setting("position_embedding_type", "absolute", positions));
        }
        if self.is_decoder {
            return Err(PretrainedError::setting("is_decoder", "false", true));
        }
        if self.max_length() == 0 {
            let expected = format!("more than pad_token_id + 1 = {}", self.pad() + 1);
            return Err(PretrainedError::setting(
                "max_position_embeddings",
                expected,
                self.max_position_embeddings,
            ));
        }
        self.deberta().map(drop)
    }
}

impl<'de> Deserialize<'de> for BertConfig {
    fn deserialize<D: Deserializer<'de>>(fields: D) -> Result<Self, D::Error> {
        let fields = BertLine::read(Map::deserialize(fields)?).map_err(D::Error::custom)?;
        Self::deserialize(Value::Object(fields)).map_err(D::Error::custom)
    }
}

impl Serialize for BertConfig {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        let fields = Self::serialize(self, serde_json::value::Serializer).map_err(S::Error::custom)?;
        match fields {
            Value::Object(fields) => self.kind().written(fields).serialize(to),
            other => other.serialize(to),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::testing::has_defaults_of_class;

    fn config(fields: &str) -> BertConfig {
        serde_json::from_str(fields).unwrap()
    }

    #[test]
    fn unknown_fields_are_written_back() {
        let read = config(r#"{"model_type": "bert", "torch_dtype": "float32", "odd": {"a": [1]}}"#);
        let written = serde_json::to_value(&read).unwrap();
        assert_eq!(written["odd"], json!({"a": [1]}));
        assert_eq!(serde_json::from_value::<BertConfig>(written).unwrap(), read);
    }

    #[test]
    fn absent_fields_have_the_defaults_of_transformers() {
        let meaning = |config: &BertConfig| {
            let plain = BertConfig {
                embedding_size: None,
                classifier_dropout: None,
                pad_token_id: None,
                position_embedding_type: None,
                rest: Map::new(),
                ..config.clone()
            };
            config.check().unwrap();
            let sizes = (config.embedding_width(), config.segments(), config.max_length(), config.pad());
            let dropouts = (config.classifier_dropout(), config.token_dropout());
            format!("{plain:?} {sizes:?} {dropouts:?} {:?}", config.deberta().unwrap())
        };
        for model_type in BertConfig::MODEL_TYPES {
            has_defaults_of_class(model_type, &json!({}), &[], meaning);
        }
        has_defaults_of_class("deberta-v2", &json!({"relative_attention": true}), &[], meaning);
    }

    #[test]
    fn positions_by_family() {
        let roberta = config(r#"{"model_type": "roberta", "max_position_embeddings": 514}"#);
        assert_eq!((roberta.pad(), roberta.max_length()), (1, 512));
        assert_eq!((config("{}").pad(), config("{}").max_length()), (0, 512));
    }

    #[test]
    fn distilbert_has_names_of_its_own() {
        let read = config(
            r#"{"model_type": "distilbert", "dim": 64, "n_heads": 4, "dropout": 0.3, "qa_dropout": 0.1,
                "seq_classif_dropout": 0.4, "activation": "gelu_new"}"#,
        );
        let sizes = (read.hidden_size, read.num_attention_heads, read.num_hidden_layers);
        assert_eq!((sizes, read.hidden_act), ((64, 4, 6), Activation::GeluNew));
        assert_eq!((read.token_dropout(), read.classifier_dropout(), read.pad()), (0.3, 0.4, 0));
        assert_eq!(config(r#"{"model_type": "distilbert"}"#).classifier_dropout(), 0.2);
        let written = serde_json::to_value(&read).unwrap();
        assert_eq!((&written["dim"], &written["qa_dropout"]), (&json!(64), &json!(0.1)));
        for absent in ["hidden_size", "type_vocab_size", "layer_norm_eps", "is_decoder", "classifier_dropout"]
        {
            assert_eq!(written.get(absent), None, "{absent}");
        }
        assert_eq!(serde_json::from_value::<BertConfig>(written).unwrap(), read);
    }

    #[test]
    fn electra_has_defaults_of_its_own() {
        let read = config(r#"{"model_type": "electra"}"#);
        assert_eq!((read.embedding_width(), read.hidden_size, read.num_attention_heads), (128, 256, 4));
        assert_eq!((read.intermediate_size, read.pad()), (1024, 0));
        // Some files of BERT have the field too.
        assert_eq!(config(r#"{"embedding_size": 5}"#).embedding_width(), 768);
    }

    #[test]
    fn invalid_settings_are_named() {
        for (fields, field, found) in [
            (r#"{"model_type": "distilbert", "n_heads": 7}"#, "n_heads", "7"),
            (r#"{"model_type": "distilbert", "dropout": 1.5}"#, "dropout", "1.5"),
            (r#"{"model_type": "electra", "embedding_size": 0}"#, "embedding_size", "0"),
            (r#"{"num_attention_heads": 7}"#, "num_attention_heads", "7"),
            (r#"{"num_attention_heads": 0}"#, "num_attention_heads", "0"),
            (r#"{"hidden_size": 0}"#, "hidden_size", "0"),
            (r#"{"vocab_size": 99999999999}"#, "vocab_size", "99999999999"),
            (r#"{"num_hidden_layers": 99999999999}"#, "num_hidden_layers", "99999999999"),
            (r#"{"hidden_dropout_prob": 1.0}"#, "hidden_dropout_prob", "1"),
            (r#"{"position_embedding_type": "relative_key"}"#, "position_embedding_type", "relative_key"),
            (r#"{"is_decoder": true}"#, "is_decoder", "true"),
            (r#"{"model_type": "roberta", "max_position_embeddings": 2}"#, "max_position_embeddings", "2"),
        ] {
            let error = config(fields).check().unwrap_err().to_string();
            assert!(
                error.contains(&format!("`{field}`")) && error.contains(&format!("found {found}")),
                "{error}"
            );
        }
    }
}
