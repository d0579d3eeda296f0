//! `config.json` of BART.

use burn::nn::Initializer;
use burn::tensor::Device;
use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::{Map, Value};

use crate::pretrained::{
    Folder, HubConfig, PretrainedError, check_dropouts, check_heads, check_layers, check_sizes, one_spelling,
};
use crate::{Activation, Linear};

/// `config.json` of BART, with transformers' names. An absent field has the default of its class there.
///
/// ```
/// use firebrick_models::BartConfig;
///
/// let config: BartConfig = serde_json::from_str(r#"{"encoder_layers": 6, "decoder_layers": 3}"#)?;
/// assert_eq!((config.d_model, config.decoder_start_token_id), (1024, 2));
/// # Ok::<(), serde_json::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, remote = "Self")]
pub struct BartConfig {
    /// `bart`.
    pub model_type: String,
    /// Size of the vocabulary.
    pub vocab_size: usize,
    /// The most tokens of a source, and of a target.
    pub max_position_embeddings: usize,
    /// Size of the hidden state.
    pub d_model: usize,
    /// Number of encoder blocks.
    pub encoder_layers: usize,
    /// The width inside a feed-forward layer of the encoder.
    pub encoder_ffn_dim: usize,
    /// Number of the encoder's attention heads, a divisor of `d_model`.
    pub encoder_attention_heads: usize,
    /// Probability with which transformers skips an encoder block in training: must be 0.
    pub encoder_layerdrop: f64,
    /// Number of decoder blocks.
    pub decoder_layers: usize,
    /// The width inside a feed-forward layer of the decoder.
    pub decoder_ffn_dim: usize,
    /// Number of the decoder's attention heads, a divisor of `d_model`.
    pub decoder_attention_heads: usize,
    /// Probability with which transformers skips a decoder block in training: must be 0.
    pub decoder_layerdrop: f64,
    /// The activation of feed-forward layers.
    pub activation_function: Activation,
    /// Dropout probability of embeddings, and of what a layer adds to its input.
    pub dropout: f64,
    /// Dropout probability of attention weights.
    pub attention_dropout: f64,
    /// Dropout probability inside feed-forward layers.
    pub activation_dropout: f64,
    /// Standard deviation of the initial weights.
    pub init_std: f64,
    /// Whether the embeddings of tokens are multiplied by √d_model.
    pub scale_embedding: bool,
    /// The token that the decoder starts from.
    pub decoder_start_token_id: u32,
    /// Whether the head and both stacks share the weights of the token embedding: must be true.
    pub tie_word_embeddings: bool,
    /// All other fields, unchanged.
    #[serde(flatten)]
    pub rest: Map<String, Value>,
}

impl Default for BartConfig {
    fn default() -> Self {
        Self {
            model_type: Self::MODEL_TYPES[0].into(),
            vocab_size: 50265,
            max_position_embeddings: 1024,
            d_model: 1024,
            encoder_layers: 12,
            encoder_ffn_dim: 4096,
            encoder_attention_heads: 16,
            encoder_layerdrop: 0.0,
            decoder_layers: 12,
            decoder_ffn_dim: 4096,
            decoder_attention_heads: 16,
            decoder_layerdrop: 0.0,
            activation_function: Activation::Gelu,
            dropout: 0.1,
            attention_dropout: 0.0,
            activation_dropout: 0.0,
            init_std: 0.02,
            scale_embedding: false,
            decoder_start_token_id: 2,
            tie_word_embeddings: true,
            rest: Map::new(),
        }
    }
}

impl BartConfig {
    /// The class of the model in transformers.
    pub(super) const ARCHITECTURE: &'static str = "BartForConditionalGeneration";

    pub(super) fn normal(&self) -> Initializer {
        Initializer::Normal { mean: 0.0, std: self.init_std }
    }

    pub(super) fn linear(&self, from: usize, to: usize, device: &Device) -> Linear {
        Linear::new(from, to, true, self.normal(), device)
    }
}

/// Further names of fields in transformers.
const NAMES: [(&str, &str); 3] = [
    ("hidden_size", "d_model"),
    ("num_attention_heads", "encoder_attention_heads"),
    ("num_hidden_layers", "encoder_layers"),
];

impl<'de> Deserialize<'de> for BartConfig {
    fn deserialize<D: Deserializer<'de>>(fields: D) -> Result<Self, D::Error> {
        let mut fields = Map::deserialize(fields)?;
        one_spelling(&mut fields, &NAMES).map_err(D::Error::custom)?;
        Self::deserialize(Value::Object(fields)).map_err(D::Error::custom)
    }
}

impl Serialize for BartConfig {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        Self::serialize(self, to)
    }
}

impl HubConfig for BartConfig {
    const MODEL_TYPES: &'static [&'static str] = &["bart"];

    fn check(&self) -> Result<(), PretrainedError> {
        check_sizes(&[
            ("vocab_size", self.vocab_size),
            ("max_position_embeddings", self.max_position_embeddings),
            ("d_model", self.d_model),
            ("encoder_ffn_dim", self.encoder_ffn_dim),
            ("decoder_ffn_dim", self.decoder_ffn_dim),
        ])?;
        check_layers("encoder_layers", self.encoder_layers)?;
        check_layers("decoder_layers", self.decoder_layers)?;
        check_heads("encoder_attention_heads", self.encoder_attention_heads, self.d_model)?;
        check_heads("decoder_attention_heads", self.decoder_attention_heads, self.d_model)?;
        check_dropouts(&[
            ("dropout", self.dropout),
            ("attention_dropout", self.attention_dropout),
            ("activation_dropout", self.activation_dropout),
        ])?;
        let skipped =
            [("encoder_layerdrop", self.encoder_layerdrop), ("decoder_layerdrop", self.decoder_layerdrop)];
        if let Some((field, share)) = skipped.into_iter().find(|(_, share)| *share != 0.0) {
            return Err(PretrainedError::setting(field, "0, since all layers are trained", share));
        }
        if self.decoder_start_token_id as usize >= self.vocab_size {
            let expected = format!("a token below vocab_size, which is {}", self.vocab_size);
            return Err(PretrainedError::setting(
                "decoder_start_token_id",
                expected,
                self.decoder_start_token_id,
            ));
        }
        match self.tie_word_embeddings {
            true => Ok(()),
            false => Err(PretrainedError::setting("tie_word_embeddings", "true", false)),
        }
    }

    /// Other heads are not opened: their tensors would be missing or left over.
    fn settle(&mut self, folder: &Folder) -> Result<(), PretrainedError> {
        let known = [Self::ARCHITECTURE, "BartModel"];
        match folder.architectures().into_iter().find(|name| !known.contains(name)) {
            Some(other) => Err(PretrainedError::setting("architectures", known.join(" or "), other)),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::has_defaults_of_class;

    #[test]
    fn absent_fields_have_the_defaults_of_transformers() {
        let meaning = |config: &BartConfig| {
            config.check().unwrap();
            format!("{:?}", BartConfig { rest: Map::new(), ..config.clone() })
        };
        has_defaults_of_class("bart", &serde_json::json!({}), &[], meaning);
    }

    #[test]
    fn invalid_settings_are_named() {
        for (fields, field) in [
            (r#"{"d_model": 0}"#, "d_model"),
            (r#"{"max_position_embeddings": 0}"#, "max_position_embeddings"),
            (r#"{"encoder_attention_heads": 7}"#, "encoder_attention_heads"),
            (r#"{"decoder_attention_heads": 0}"#, "decoder_attention_heads"),
            (r#"{"decoder_layers": 9999999}"#, "decoder_layers"),
            (r#"{"activation_dropout": 1.0}"#, "activation_dropout"),
            (r#"{"encoder_layerdrop": 0.1}"#, "encoder_layerdrop"),
            (r#"{"decoder_layerdrop": 0.1}"#, "decoder_layerdrop"),
            (r#"{"vocab_size": 9, "decoder_start_token_id": 9}"#, "decoder_start_token_id"),
            (r#"{"tie_word_embeddings": false}"#, "tie_word_embeddings"),
        ] {
            let config: BartConfig = serde_json::from_str(fields).unwrap();
            let error = config.check().unwrap_err().to_string();
            assert!(error.contains(&format!("`{field}`")), "{error}");
        }
        assert!(BartConfig::default().check().is_ok());
    }
}
