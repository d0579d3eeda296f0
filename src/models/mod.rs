//! Models that Firebrick trains: from a run file, or out of a Hugging Face folder.
//!
//! ```text
//! pretrained/        Hugging Face folders: which families and heads, and how they are read and written
//! gpt.rs             GPT-2, and decoders like it
//! ├── gpt2.rs           as Hugging Face folders hold it
//! └── causal.rs         what a causal model reads of a batch, and its loss
//! bert/              BERT, RoBERTa and models like them, with heads
//! llama/             Llama, Mistral and Qwen2
//! t5/                T5: an encoder and a decoder
//! writing/           texts that trained models write
//! └── key_value.rs      what a decoder has read, so that it need not read it again
//! written_scores.rs  how good texts are that a model writes in evaluation
//! attention.rs       scaled dot-product attention, and what is masked in it
//! linear.rs          an affine map that is fast in half precision on the CPU
//! norm.rs            layer normalisation that is right in half precision
//! rms_norm.rs        the same without a mean
//! activation.rs      the functions between two linear layers
//! cross_entropy.rs   the loss of tokens
//! sequence_loss.rs   the loss of texts
//! perplexity.rs      how surprised a model is by a token
//! token_scores.rs    how good labels of tokens are
//! sequence_scores.rs how good classes of texts are
//! ```

mod activation;
mod attention;
mod bert;
mod causal;
mod cross_entropy;
mod gpt;
mod gpt2;
mod key_value;
mod linear;
mod llama;
mod norm;
mod perplexity;
pub mod pretrained;
mod rms_norm;
mod sequence_loss;
mod sequence_scores;
mod t5;
mod token_scores;
mod writing;
mod written_scores;

pub use activation::Activation;
pub use bert::{Bert, BertConfig, BertMaskedLm, BertSequenceClassifier, BertTokenClassifier};
pub use cross_entropy::{cross_entropy, smoothed_cross_entropy};
pub(crate) use gpt::drawn_now;
pub use gpt::{Gpt, GptConfig};
pub use gpt2::Gpt2Config;
pub use linear::Linear;
pub use llama::{Llama, LlamaConfig};
pub use norm::Norm;
pub use rms_norm::RmsNorm;
pub use sequence_loss::sequence_loss;
pub use sequence_scores::SequenceScores;
pub use t5::{Encoded, T5, T5Config};
pub use token_scores::TokenScores;
pub use writing::Continues;
pub use written_scores::WrittenScores;
