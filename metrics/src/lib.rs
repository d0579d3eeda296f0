//! Scores of language tasks.

mod bleu;
mod chrf;
mod classification;
mod common_subsequence;
mod counts;
mod entities;
mod error;
mod exact_match;
mod exact_sum;
mod masked_accuracy;
mod metric;
mod ngrams;
mod pairs;
mod perplexity;
mod report;
mod rouge;
mod spans;
mod tokens_13a;
mod whitespace;

pub use bleu::{Bleu, BleuScore, BleuTokens, Smoothing};
pub use chrf::ChrF;
pub use classification::Classification;
pub use entities::Entities;
pub use error::{MetricError, Side, TagFault};
pub use exact_match::{AnswerScore, ExactMatch, normalize_answer};
pub use masked_accuracy::MaskedAccuracy;
pub use metric::Metric;
pub use perplexity::Perplexity;
pub use report::{ClassScore, PrecisionRecallF1, Report};
pub use rouge::{Rouge, RougeScore};
pub use spans::{EntityScheme, Span};
