//! Scores of language tasks, as the field's own implementations compute them.
//!
//! For those who know `evaluate` of Hugging Face. Each metric is made once, is given batches with
//! `add`, predictions first, and answers with [`score`](Metric::score). Tests hold each to the values
//! of the implementation that papers cite.
//!
//! | metric | for | same as | range | default |
//! |---|---|---|---|---|
//! | [`Entities`] | named entities, chunks | `seqeval` 1.2.2, [strict IOB2 or conlleval](EntityScheme) | 0 to 1 | none: the scheme is named |
//! | [`Classification`] | classes of texts, pairs or words | scikit-learn 1.9, `zero_division=0` | 0 to 1 | |
//! | [`Perplexity`] | language models | e to the mean loss | 1 to infinity | |
//! | [`MaskedAccuracy`] | masked and next tokens | correct / items | 0 to 1 | |
//! | [`Bleu`] | translation | `sacrebleu` 2.6 | 0 to 100 | 13a, smoothing exp, cased |
//! | [`ChrF`] | translation | `sacrebleu` 2.6 | 0 to 100 | chrF; [`ChrF::plus_plus`] is chrF++ |
//! | [`Rouge`] | summaries | `rouge_score` 0.1.2, mean | 0 to 1 | no stemmer |
//! | [`ExactMatch`] | short answers | SQuAD 2.0's script | 0 to 100 | |
//!
//! What is left out: the tokenizers `intl`, `zh` and others of sacrebleu, its `eps_smoothing` of chrF,
//! and the stemmer of `rouge_score`: it is NLTK's own variant of Porter's, and `rust-stemmers`, which has
//! Porter's later one, gives other stems for about 2 words in 100.
//!
//! # Example
//!
//! ```
//! use firebrick_metrics::{Bleu, ChrF, Metric};
//!
//! let (mut bleu, mut chrf) = (Bleu::new(), ChrF::new());
//! for (predictions, references) in [
//!     (vec!["Two men play football."], vec![vec!["Two men are playing football."]]),
//!     (vec!["A dog runs through the snow."], vec![vec!["A dog runs in the snow."]]),
//! ] {
//!     bleu.add(&predictions, &references)?;
//!     chrf.add(&predictions, &references)?;
//! }
//! assert_eq!(format!("{:.1}", bleu.score().score), "29.4");
//! assert_eq!(format!("{:.1}", chrf.score()), "58.5");
//! # Ok::<(), firebrick_metrics::MetricError>(())
//! ```
//!
//! # Ranks
//!
//! A metric is counts, and [`counts`](Metric::counts) are whole numbers in f64. Ranks that evaluate
//! shards sum theirs place by place, and [`from_counts`](Metric::from_counts) makes the metric of the
//! whole. For the same batches, its score has the same bits on any number of ranks. Within one process,
//! [`merge`](Metric::merge) does both.
//!
//! What has no score, because nothing was added, is `None` where the score is a mean, and 0 where the
//! field's implementation says so.
//!
//! # The files
//!
//! ```text
//! metric              what all metrics can do
//! entities            precision, recall and F1 over exact spans
//! └── spans              entities out of tags, strictly or as conlleval
//! classification      the same over classes, and which is taken for which
//! report              scores per class and their averages
//! perplexity          e to the mean loss
//! masked_accuracy     the share of items that are right
//! bleu                n-grams of words
//! └── tokens_13a         what a word is
//! chrf                n-grams of characters, and of words
//! rouge               n-grams and common subsequences of words
//! └── common_subsequence  the longest ones
//! exact_match         short answers, whole and word by word
//! pairs               predictions with their references, checked
//! ngrams              how often each n-gram occurs
//! whitespace          as Python has it
//! counts              counts out of plain numbers
//! └── exact_sum          a sum that does not depend on the order
//! error               what can go wrong
//! ```

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
