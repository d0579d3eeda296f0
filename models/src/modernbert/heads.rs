//! What the heads of ModernBERT have of their own.

use burn::nn::Initializer;
use burn::tensor::Device;

use super::{ModernBert, ModernBertConfig, keys};
use crate::Linear;
use crate::class_names::ClassNames;
use crate::heads::{HeadOf, Heads, MaskedLm, Pooling, SequenceClassifier, TokenClassifier, Transform};
use crate::pretrained::KeyMap;

/// A ModernBERT that predicts a label for each token.
pub type ModernBertTokenClassifier = TokenClassifier<ModernBert>;

/// A ModernBERT that predicts a label for each text.
pub type ModernBertSequenceClassifier = SequenceClassifier<ModernBert>;

/// A ModernBERT that predicts masked tokens.
pub type ModernBertMaskedLm = MaskedLm<ModernBert>;

impl Heads for ModernBert {
    fn architecture(_: &ModernBertConfig, head: HeadOf) -> &'static str {
        match head {
            HeadOf::Tokens => "ModernBertForTokenClassification",
            HeadOf::Texts => "ModernBertForSequenceClassification",
            HeadOf::Masked => "ModernBertForMaskedLM",
        }
    }

    fn keys(config: &ModernBertConfig, head: HeadOf) -> KeyMap {
        match head {
            HeadOf::Tokens | HeadOf::Texts => keys::classifier(config),
            HeadOf::Masked => keys::masked_lm(config),
        }
    }

    fn transform(config: &ModernBertConfig, _: HeadOf, device: &Device) -> Option<Transform> {
        Some(Transform {
            dense: config.ending(config.hidden_size, config.classifier_bias, device),
            norm: Some(config.norm(device)),
            activation: config.classifier_activation,
        })
    }

    fn classifier(config: &ModernBertConfig, device: &Device) -> Linear {
        let normal = Initializer::Normal { mean: 0.0, std: (config.hidden_size as f64).powf(-0.5) };
        Linear::new(config.hidden_size, config.classes.count(), true, normal, device)
    }

    fn dropout(config: &ModernBertConfig, _: HeadOf) -> f64 {
        config.classifier_dropout
    }

    fn classes(config: &ModernBertConfig) -> &ClassNames {
        &config.classes
    }

    fn pooling(config: &ModernBertConfig) -> Pooling {
        config.classifier_pooling
    }

    fn has_output_bias(config: &ModernBertConfig) -> bool {
        config.decoder_bias
    }

    fn is_tied(config: &ModernBertConfig) -> bool {
        config.tie_word_embeddings
    }
}
