//! Metrics for language tasks, with the same results as the field's standard implementations.
//!
//! The interface resembles Hugging Face's `evaluate`. You create a metric, pass it batches with `add`, predictions
//! first, and read the result with [`score`](Metric::score). Tests compare each metric with the implementation that
//! papers cite.
//!
//! | metric | for | same as | range | default |
//! |---|---|---|---|---|
//! | [`Entities`] | named entities, chunks | `seqeval` 1.2.2, [strict IOB2 or conlleval](EntityScheme) | 0 to 1 | none: you name the scheme |
//! | [`Classification`] | classes of texts, pairs or words | scikit-learn 1.9, `zero_division=0` | 0 to 1 | |
//! | [`Confusion`] | classes | scikit-learn 1.9 | counts | |
//! | [`Perplexity`] | language models | e to the mean loss | 1 to infinity | |
//! | [`MaskedAccuracy`] | masked and next tokens | correct / items | 0 to 1 | |
//! | [`Bleu`] | translation | `sacrebleu` 2.6 | 0 to 100 | 13a, smoothing exp, cased |
//! | [`ChrF`] | translation | `sacrebleu` 2.6 | 0 to 100 | chrF; [`ChrF::plus_plus`] is chrF++ |
//! | [`Rouge`] | summaries | `rouge_score` 0.1.2, mean | 0 to 1 | no stemmer |
//! | [`ExactMatch`] | short answers | SQuAD 2.0's script | 0 to 100 | |
//!
//! The crate omits sacrebleu's other tokenizers (`intl`, `zh` and so on), its `eps_smoothing` for chrF, and the stemmer
//! of `rouge_score`. That stemmer is NLTK's own variant of Porter's; `rust-stemmers` implements Porter's later one,
//! which gives other stems for about 2 words in 100.
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
//! A metric consists of counts, and [`counts`](Metric::counts) returns them as whole numbers in f64. Ranks that
//! evaluate shards sum theirs element by element, and [`from_counts`](Metric::from_counts) builds the metric of the
//! whole from the sums. For the same batches, the score has the same bits on any number of ranks. Within one process,
//! [`merge`](Metric::merge) does both.
//!
//! If nothing was added, mean scores are `None`, and the others are 0, as in the field's implementations.
//!
//! # The files
//!
//! ```text
//! metric              the trait of all metrics
//! entities            precision, recall and F1 over exact spans
//! └── spans              extracts entities from tags, strictly or like conlleval
//! classification      the same scores over classes, and which class was taken for which
//! report              scores per class and their averages
//! perplexity          e to the mean loss
//! masked_accuracy     the share of correct items
//! bleu                n-grams of words
//! chrf                n-grams of characters and words
//! rouge               n-grams and common subsequences of words
//! exact_match         short answers, whole and word by word
//! pairs               pairs predictions with references and checks them
//! words               Python's definition of white space, sacrebleu's tokenizer 13a, and n-grams
//! counts              parses counts from plain numbers, and a sum that does not depend on the order
//! error               the errors
//! ```

mod bleu;
mod chrf;
mod classification;
mod counts;
mod entities;
mod error;
mod exact_match;
mod masked_accuracy;
mod metric;
mod pairs;
mod perplexity;
mod report;
mod rouge;
mod spans;
mod words;

pub use bleu::{Bleu, BleuScore, BleuTokens, Smoothing};
pub use chrf::ChrF;
pub use classification::{Classification, Confusion};
pub use entities::Entities;
pub use error::{MetricError, Side, TagFault};
pub use exact_match::{AnswerScore, ExactMatch, normalize_answer};
pub use masked_accuracy::MaskedAccuracy;
pub use metric::Metric;
pub use perplexity::Perplexity;
pub use report::{ClassScore, PrecisionRecallF1, Report};
pub use rouge::{Rouge, RougeScore};
pub use spans::{EntityScheme, Span};
