//! What the heads of BERT and its relatives have of their own.

use burn::tensor::Device;

use super::kind::BertLine;
use super::{Bert, BertConfig, keys};
use crate::class_names::ClassNames;
use crate::heads::{HeadOf, Heads, MaskedLm, Pooling, SequenceClassifier, TokenClassifier, Transform};
use crate::pretrained::{HubConfig, KeyMap};
use crate::{Activation, Linear};

/// A BERT, or one of its relatives, that predicts a label for each token.
pub type BertTokenClassifier = TokenClassifier<Bert>;

/// A BERT, or one of its relatives, that predicts a label for each text.
pub type BertSequenceClassifier = SequenceClassifier<Bert>;

/// A BERT, or one of its relatives, that predicts masked tokens.
pub type BertMaskedLm = MaskedLm<Bert>;

impl Heads for Bert {
    fn architecture(config: &BertConfig, head: HeadOf) -> &'static str {
        let family = BertConfig::MODEL_TYPES.iter().position(|family| *family == config.model_type);
        classes_of(head)[family.unwrap_or(0)]
    }

    fn keys(config: &BertConfig, head: HeadOf) -> KeyMap {
        match head {
            HeadOf::Tokens => keys::token_classifier(config),
            HeadOf::Texts => keys::sequence_classifier(config),
            HeadOf::Masked => keys::masked_lm(config),
        }
    }

    fn transform(config: &BertConfig, head: HeadOf, device: &Device) -> Option<Transform> {
        let width = config.hidden_size;
        match head {
            HeadOf::Tokens => None,
            HeadOf::Texts => {
                let deberta = config.deberta().unwrap_or_else(|error| panic!("{error}"));
                let activation = deberta.map(|deberta| deberta.pooler_activation);
                Some(Transform {
                    dense: config.linear(width, width, device),
                    norm: None,
                    activation: activation.unwrap_or(config.kind().pooler_activation()),
                })
            }
            HeadOf::Masked => Some(Transform {
                dense: config.linear(width, config.embedding_width(), device),
                norm: Some(config.norm(config.embedding_width(), device)),
                activation: match config.kind() {
                    BertLine::Bert | BertLine::DistilBert | BertLine::Deberta => config.hidden_act,
                    BertLine::Roberta | BertLine::Electra => Activation::Gelu,
                },
            }),
        }
    }

    fn classifier(config: &BertConfig, device: &Device) -> Linear {
        config.linear(config.hidden_size, config.labels(), device)
    }

    fn dropout(config: &BertConfig, head: HeadOf) -> f64 {
        match head {
            HeadOf::Tokens => config.token_dropout(),
            HeadOf::Texts | HeadOf::Masked => config.classifier_dropout(),
        }
    }

    fn classes(config: &BertConfig) -> &ClassNames {
        &config.classes
    }

    fn pooling(_: &BertConfig) -> Pooling {
        Pooling::Cls
    }

    fn pooled_dropout(config: &BertConfig) -> Option<f64> {
        let deberta = config.deberta().unwrap_or_else(|error| panic!("{error}"));
        let drops = matches!(config.kind(), BertLine::Roberta | BertLine::Electra);
        deberta.map(|deberta| deberta.pooler_dropout).or(drops.then(|| config.classifier_dropout()))
    }

    fn is_tied(config: &BertConfig) -> bool {
        config.tie_word_embeddings
    }

    fn divides_tokens(config: &BertConfig) -> bool {
        config.kind() != BertLine::Deberta
    }
}

/// The transformers classes of a head, in the order of [`MODEL_TYPES`](HubConfig::MODEL_TYPES).
fn classes_of(head: HeadOf) -> [&'static str; 7] {
    match head {
        HeadOf::Tokens => [
            "BertForTokenClassification",
            "RobertaForTokenClassification",
            "XLMRobertaForTokenClassification",
            "CamembertForTokenClassification",
            "DistilBertForTokenClassification",
            "ElectraForTokenClassification",
            "DebertaV2ForTokenClassification",
        ],
        HeadOf::Texts => [
            "BertForSequenceClassification",
            "RobertaForSequenceClassification",
            "XLMRobertaForSequenceClassification",
            "CamembertForSequenceClassification",
            "DistilBertForSequenceClassification",
            "ElectraForSequenceClassification",
            "DebertaV2ForSequenceClassification",
        ],
        HeadOf::Masked => [
            "BertForMaskedLM",
            "RobertaForMaskedLM",
            "XLMRobertaForMaskedLM",
            "CamembertForMaskedLM",
            "DistilBertForMaskedLM",
            "ElectraForMaskedLM",
            "DebertaV2ForMaskedLM",
        ],
    }
}
