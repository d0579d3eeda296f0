//! `config.json` of T5 and mT5.

use burn::nn::Initializer;
use burn::tensor::Device;
use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::{Map, Value, json};

use crate::pretrained::{
    Folder, HubConfig, PretrainedError, check_dropouts, check_layers, check_sizes, one_spelling,
    with_defaults,
};
use crate::{Activation, Linear, RmsNorm};

/// `config.json` of T5 and related models (v1.1, Flan, mT5), with transformers' names.
///
/// An absent field has the default of the class of the `model_type`.
///
/// ```
/// use firebrick_models::T5Config;
///
/// let config: T5Config = serde_json::from_str(r#"{"feed_forward_proj": "gated-gelu", "num_layers": 8}"#)?;
/// assert_eq!(config.decoder_layers(), 8);
/// # Ok::<(), serde_json::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, remote = "Self")]
pub struct T5Config {
    /// `t5` or `mt5`.
    pub model_type: String,
    /// Size of the vocabulary.
    pub vocab_size: usize,
    /// Size of the hidden state.
    pub d_model: usize,
    /// Size of an attention head; `num_heads * d_kv` need not equal `d_model`.
    pub d_kv: usize,
    /// The width inside a feed-forward layer.
    pub d_ff: usize,
    /// Number of encoder blocks.
    pub num_layers: usize,
    /// Number of decoder blocks; `num_layers` if absent.
    pub num_decoder_layers: Option<usize>,
    /// Number of attention heads.
    pub num_heads: usize,
    /// Number of groups of distances that relative positions distinguish.
    pub relative_attention_num_buckets: usize,
    /// All distances from here on share one group.
    pub relative_attention_max_distance: usize,
    /// Every dropout probability.
    pub dropout_rate: f64,
    /// Added to the mean square in norms.
    pub layer_norm_epsilon: f64,
    /// Scales the standard deviation of the initial weights.
    pub initializer_factor: f64,
    /// An activation, such as `relu`, or a gated one, such as `gated-gelu`, whose activation is the tanh
    /// approximation of GELU.
    pub feed_forward_proj: String,
    /// Whether the output head shares the token embedding's weights.
    pub tie_word_embeddings: bool,
    /// Whether the head's input is divided by √d_model; the value of `tie_word_embeddings` if absent. In mT5, it never
    /// is.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub scale_decoder_outputs: Option<bool>,
    /// All other fields, unchanged.
    #[serde(flatten)]
    pub rest: Map<String, Value>,
}

impl Default for T5Config {
    fn default() -> Self {
        Self {
            model_type: "t5".into(),
            vocab_size: 32128,
            d_model: 512,
            d_kv: 64,
            d_ff: 2048,
            num_layers: 6,
            num_decoder_layers: None,
            num_heads: 8,
            relative_attention_num_buckets: 32,
            relative_attention_max_distance: 128,
            dropout_rate: 0.1,
            layer_norm_epsilon: 1e-6,
            initializer_factor: 1.0,
            feed_forward_proj: "relu".into(),
            tie_word_embeddings: true,
            scale_decoder_outputs: None,
            rest: Map::new(),
        }
    }
}

/// The `model_type` of mT5 (Xue et al., 2021, arXiv:2010.11934).
const MULTILINGUAL: &str = "mt5";

/// The defaults that differ from T5's.
fn defaults(model_type: &str) -> Vec<(&'static str, Value)> {
    match model_type {
        MULTILINGUAL => vec![
            ("vocab_size", json!(250_112)),
            ("d_ff", json!(1024)),
            ("num_layers", json!(8)),
            ("num_heads", json!(6)),
            ("feed_forward_proj", json!("gated-gelu")),
            ("decoder_start_token_id", json!(0)),
        ],
        _ => Vec::new(),
    }
}

impl T5Config {
    /// The number of decoder blocks.
    pub fn decoder_layers(&self) -> usize {
        self.num_decoder_layers.unwrap_or(self.num_layers)
    }

    /// The activation of feed-forward layers, and whether they are gated, according to `feed_forward_proj`. As in
    /// transformers, `dense_act_fn` and `is_gated_act` take precedence.
    pub(super) fn feed_forward(&self) -> Result<(Activation, bool), PretrainedError> {
        let given = |name| self.rest.get(name).filter(|value| !value.is_null());
        let wrong = |name, expected: &str, found: &Value| PretrainedError::setting(name, expected, found);
        let (of_projection, is_gated) = self.feed_forward_projection()?;
        let activation = match given("dense_act_fn") {
            Some(name) => serde_json::from_value(name.clone())
                .map_err(|_| wrong("dense_act_fn", "relu, gelu_new or the like", name))?,
            None => of_projection,
        };
        let is_gated = match given("is_gated_act") {
            Some(gated) => gated.as_bool().ok_or_else(|| wrong("is_gated_act", "true or false", gated))?,
            None => is_gated,
        };
        Ok((activation, is_gated))
    }

    /// Parses `feed_forward_proj`.
    fn feed_forward_projection(&self) -> Result<(Activation, bool), PretrainedError> {
        let projection = &*self.feed_forward_proj;
        let (gated, name) = match projection.strip_prefix("gated-") {
            Some(name) => (true, name),
            None => (false, projection),
        };
        let name = if (gated, name) == (true, "gelu") { "gelu_new" } else { name };
        let activation = serde_json::from_value(Value::String(name.into()));
        let known =
            |_| PretrainedError::setting("feed_forward_proj", "relu, gated-gelu or the like", projection);
        Ok((activation.map_err(known)?, gated))
    }

    pub(super) fn is_multilingual(&self) -> bool {
        self.model_type == MULTILINGUAL
    }

    pub(super) fn is_scaled(&self) -> bool {
        !self.is_multilingual() && self.scale_decoder_outputs.unwrap_or(self.tie_word_embeddings)
    }

    /// Weights with standard deviation `initializer_factor / √size`.
    pub(super) fn normal(&self, size: usize) -> Initializer {
        Initializer::Normal { mean: 0.0, std: self.initializer_factor / (size as f64).sqrt() }
    }

    /// A linear layer without bias whose weights have the standard deviation of [`normal`](Self::normal).
    pub(super) fn linear(&self, [from, to]: [usize; 2], size: usize, device: &Device) -> Linear {
        Linear::new(from, to, false, self.normal(size), device)
    }

    pub(super) fn norm(&self, device: &Device) -> RmsNorm {
        RmsNorm::new(self.d_model, self.layer_norm_epsilon, device)
    }
}

impl HubConfig for T5Config {
    const MODEL_TYPES: &'static [&'static str] = &["t5", MULTILINGUAL];

    fn check(&self) -> Result<(), PretrainedError> {
        check_sizes(&[
            ("vocab_size", self.vocab_size),
            ("d_model", self.d_model),
            ("d_kv", self.d_kv),
            ("d_ff", self.d_ff),
            ("num_heads", self.num_heads),
        ])?;
        check_layers("num_layers", self.num_layers)?;
        check_layers("num_decoder_layers", self.decoder_layers())?;
        crate::pretrained::check_epsilon("layer_norm_epsilon", self.layer_norm_epsilon)?;
        check_dropouts(&[("dropout_rate", self.dropout_rate)])?;
        // The encoder halves the buckets, and half of those are single distances.
        let buckets = self.relative_attention_num_buckets;
        if !(4..1 << 16).contains(&buckets) {
            return Err(PretrainedError::setting("relative_attention_num_buckets", "4 to 65535", buckets));
        }
        let distance = self.relative_attention_max_distance;
        if distance <= buckets / 2 {
            let expected = format!("more than {}, half the buckets", buckets / 2);
            return Err(PretrainedError::setting("relative_attention_max_distance", expected, distance));
        }
        if let Some(start) = self.rest.get("decoder_start_token_id").filter(|start| !start.is_null())
            && start.as_u64().is_none_or(|start| start >= self.vocab_size as u64)
        {
            let expected = format!("a token below vocab_size, which is {}", self.vocab_size);
            return Err(PretrainedError::setting("decoder_start_token_id", expected, start));
        }
        self.feed_forward().map(|_| ())
    }

    /// A folder with a separate head is loaded with it whatever the field says, as in transformers. The original
    /// field still decides whether the head's input is scaled. In mT5, the field says nothing.
    fn settle(&mut self, folder: &Folder) -> Result<(), PretrainedError> {
        let is_separate = folder.differ(&["lm_head.weight"], &["shared.weight"])?;
        if self.is_multilingual() {
            self.tie_word_embeddings = !is_separate;
        } else {
            self.scale_decoder_outputs = Some(self.is_scaled());
            self.tie_word_embeddings &= !is_separate;
        }
        Ok(())
    }
}

/// Further names of fields in transformers.
const NAMES: [(&str, &str); 4] = [
    ("hidden_size", "d_model"),
    ("num_attention_heads", "num_heads"),
    ("num_hidden_layers", "num_layers"),
    ("head_dim", "d_kv"),
];

impl<'de> Deserialize<'de> for T5Config {
    fn deserialize<D: Deserializer<'de>>(fields: D) -> Result<Self, D::Error> {
        let mut fields = Map::deserialize(fields)?;
        one_spelling(&mut fields, &NAMES).map_err(D::Error::custom)?;
        let fields = with_defaults(fields, defaults);
        Self::deserialize(Value::Object(fields)).map_err(D::Error::custom)
    }
}

impl Serialize for T5Config {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        Self::serialize(self, to)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::family::Family;
    use crate::testing::has_defaults_of_class;

    fn config(fields: &str) -> T5Config {
        serde_json::from_str(fields).unwrap()
    }

    #[test]
    fn absent_fields_have_the_defaults_of_transformers() {
        let meaning = |config: &T5Config| {
            let plain = T5Config {
                num_decoder_layers: None,
                scale_decoder_outputs: None,
                rest: Map::new(),
                ..config.clone()
            };
            config.check().unwrap();
            let read = (config.decoder_layers(), config.feed_forward().unwrap(), config.is_scaled());
            format!("{plain:?} {read:?} {:?}", config.start())
        };
        has_defaults_of_class("t5", &json!({}), &[], meaning);
        // The versions differ, and the weights decide.
        has_defaults_of_class("mt5", &json!({}), &["tie_word_embeddings"], meaning);
    }

    #[test]
    fn feed_forward_layers_by_name() {
        for (name, expected) in [
            ("relu", (Activation::Relu, false)),
            ("gated-gelu", (Activation::GeluNew, true)),
            ("gated-silu", (Activation::Silu, true)),
            ("gelu", (Activation::Gelu, false)),
        ] {
            let config = T5Config { feed_forward_proj: name.into(), ..T5Config::default() };
            assert_eq!(config.feed_forward().unwrap(), expected);
        }
    }

    /// As in transformers, where these fields override the values from `feed_forward_proj`.
    #[test]
    fn the_activation_itself_counts_more_than_the_projection() {
        let of = |fields: &str| config(fields).feed_forward().unwrap();
        let both = r#"{"feed_forward_proj": "gated-gelu", "dense_act_fn": "gelu_new", "is_gated_act": true}"#;
        assert_eq!(of(both), (Activation::GeluNew, true));
        assert_eq!(
            of(r#"{"feed_forward_proj": "gated-gelu", "dense_act_fn": "gelu"}"#),
            (Activation::Gelu, true)
        );
        assert_eq!(of(r#"{"dense_act_fn": "silu", "is_gated_act": true}"#), (Activation::Silu, true));
        assert_eq!(
            of(r#"{"feed_forward_proj": "gated-gelu", "dense_act_fn": null}"#),
            (Activation::GeluNew, true)
        );
    }

    #[test]
    fn mt5_has_defaults_of_its_own() {
        let read = config(r#"{"model_type": "mt5", "d_model": 64}"#);
        let sizes = (read.vocab_size, read.d_model, read.d_ff, read.num_layers, read.num_heads);
        assert_eq!(sizes, (250_112, 64, 1024, 8, 6));
        assert_eq!(read.feed_forward().unwrap(), (Activation::GeluNew, true));
        assert!(read.tie_word_embeddings && !read.is_scaled());
        let written = serde_json::to_value(&read).unwrap();
        assert_eq!((&written["decoder_start_token_id"], &written["model_type"]), (&json!(0), &json!("mt5")));
        assert_eq!(serde_json::from_value::<T5Config>(written).unwrap(), read);
        assert_eq!(config("{}"), T5Config::default());
    }

    #[test]
    fn invalid_settings_are_named() {
        for (fields, field) in [
            (r#"{"model_type": "mt5", "decoder_start_token_id": 250112}"#, "decoder_start_token_id"),
            (r#"{"model_type": "mt5", "feed_forward_proj": "gated-mish"}"#, "feed_forward_proj"),
            (r#"{"feed_forward_proj": "gated-mish"}"#, "feed_forward_proj"),
            (r#"{"dense_act_fn": "mish"}"#, "dense_act_fn"),
            (r#"{"is_gated_act": "yes"}"#, "is_gated_act"),
            (r#"{"relative_attention_num_buckets": 2}"#, "relative_attention_num_buckets"),
            (r#"{"relative_attention_max_distance": 16}"#, "relative_attention_max_distance"),
            (r#"{"d_kv": 0}"#, "d_kv"),
            (r#"{"vocab_size": 9, "decoder_start_token_id": 9}"#, "decoder_start_token_id"),
            (r#"{"num_decoder_layers": 9999999}"#, "num_decoder_layers"),
        ] {
            let error = config(fields).check().unwrap_err().to_string();
            assert!(error.contains(&format!("`{field}`")), "{error}");
        }
    }
}
