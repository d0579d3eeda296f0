//! The language models that Firebrick trains, from a configuration or from a Hugging Face folder.
//!
//! ```text
//! pretrained/        Hugging Face folders: supported families and heads, reading and writing
//! gpt.rs             GPT-2 and related decoders
//! ├── gpt_shape.rs      its settings and layers
//! ├── gpt2.rs           its Hugging Face format, its entry in a run file, and predictions
//! └── causal.rs         the inputs of a causal model, and its loss
//! family.rs          what a run needs to know about a family of models
//! bert/              BERT, RoBERTa, DistilBERT, ELECTRA, DeBERTa and related models, with heads
//! modernbert/        ModernBERT, with heads
//! heads/             an encoder's heads: classifiers and the masked LM
//! llama/             Llama, Mistral, Qwen2, Qwen3, Phi-3, Gemma 2 and 3
//! preference.rs      models that learn to prefer the better of two answers
//! t5/                T5 and mT5: an encoder and a decoder
//! bart/              BART: an encoder and a decoder
//! encoder_decoder.rs models with an encoder and a decoder
//! inference/         predictions of a trained model for new texts
//! decoding/          from logits to texts: greedy, sampling, beam search
//! writing/           text generation with trained models
//! └── key_value.rs      the cache of keys and values of tokens that a decoder has read, and the columns of real tokens
//! written_scores.rs  scores of texts that a model generates in evaluation
//! attention.rs       scaled dot-product attention, and what its positions read, with and without a window
//! rope/              rotary position embedding
//! ragged.rs          which tokens of a padded batch are computed, and where they stand
//! linear.rs          an affine map that is fast in half precision on the CPU
//! vocabulary.rs      lookup in an embedding; logits and their loss, through a head or tied embeddings; perplexity
//! norm.rs            layer normalisation that is correct in half precision, with and without a mean
//! activation.rs      activation functions
//! cross_entropy.rs   the loss of tokens and of texts
//! label_scores.rs    scores of token labels and text classes
//! class_names.rs     the classes of a classifier, in config.json
//! ```

mod activation;
mod any_config;
mod attention;
mod bart;
mod bert;
mod causal;
mod class_names;
mod cross_entropy;
pub mod decoding;
mod encoder_decoder;
pub mod family;
mod gpt;
mod gpt2;
mod gpt_shape;
mod heads;
pub mod inference;
mod key_value;
mod label_scores;
mod linear;
mod llama;
mod modernbert;
mod norm;
mod preference;
pub mod pretrained;
mod ragged;
mod rope;
mod t5;
#[cfg(test)]
mod testing;
mod vocabulary;
mod writing;
mod written_scores;

pub use label_scores::{SequenceScores, TokenScores};

pub use activation::Activation;
pub use any_config::{AnyConfig, ModelType};
pub use bart::{Bart, BartConfig, BartShape};
pub use bert::{Bert, BertConfig, BertMaskedLm, BertSequenceClassifier, BertShape, BertTokenClassifier};
pub use class_names::ClassNames;
pub use cross_entropy::{cross_entropy, sequence_loss, smoothed_cross_entropy};
pub use encoder_decoder::{Encoded, EncoderDecoder};
pub use gpt::drawn_now;
pub use gpt::{Gpt, GptConfig};
pub use gpt2::Gpt2Config;
pub use heads::{MaskedLm, Pooling, SequenceClassifier, TokenClassifier};
pub use linear::Linear;
pub use llama::{Llama, LlamaConfig, LlamaShape};
pub use modernbert::{
    LayerType, ModernBert, ModernBertConfig, ModernBertMaskedLm, ModernBertSequenceClassifier,
    ModernBertShape, ModernBertTokenClassifier, RopeParameters,
};
pub use norm::{Norm, RmsNorm};
pub use preference::{Likelihood, Preferring, dpo_losses};
pub use t5::{T5, T5Config, T5Shape};
pub use writing::{Continues, Writes};
pub use written_scores::WrittenScores;
