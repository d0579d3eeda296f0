//! Scores of the texts that a model generates in evaluation.

use std::sync::Arc;

use firebrick_datasets::Tokenizer;
use firebrick_metrics::{Bleu, ChrF, ExactMatch, Metric, MetricError, Rouge};

use crate::decoding::Decoding;
use firebrick::{Score, TrainError};

/// How to generate texts in evaluation, and the tokenizer that decodes them, for the scores `bleu` and `chrf` (0 to
/// 100, as in sacrebleu), `rouge1`, `rouge2` and `rougeL` (F1, 0 to 1, as in rouge_score without stemming) and
/// `exact_match` and `f1` (0 to 100, as in SQuAD).
///
/// The scores compare with the [target texts](firebrick_datasets::collators::Seq2SeqBatch::host_targets) themselves, not with
/// their decoded labels.
///
/// Transformers calls this `predict_with_generate`. Each evaluation generates the text of each source token by token,
/// so it takes far longer than the loss alone.
///
/// ```
/// use std::sync::Arc;
/// use burn::tensor::Device;
/// use firebrick::datasets::Tokenizer;
/// use firebrick_models::decoding::Decoding;
/// use firebrick_models::{T5, T5Config, WrittenScores};
/// use firebrick_models::pretrained::Pretrained;
/// use firebrick::Objective;
///
/// let tokenizer = Arc::new(Tokenizer::characters("the words")?);
/// let config = T5Config { vocab_size: 30, d_model: 16, d_kv: 4, d_ff: 32, num_layers: 1, num_heads: 4, ..Default::default() };
/// let decoding = Decoding { max_new_tokens: 32, ..Decoding::default() };
/// let model = T5::init(&config, &Device::flex()).scoring(WrittenScores::new(tokenizer, decoding));
/// let names: Vec<_> = model.scores(&[]).iter().map(|score| score.name).collect();
/// assert_eq!(names, ["perplexity", "bleu", "chrf", "rouge1", "rouge2", "rougeL", "exact_match", "f1"]);
/// # Ok::<(), firebrick::datasets::DataError>(())
/// ```
#[derive(Clone, Debug)]
pub struct WrittenScores {
    tokenizer: Arc<Tokenizer>,
    decoding: Decoding,
}

/// The metrics, whose counts are concatenated.
#[derive(Default)]
struct Metrics {
    bleu: Bleu,
    chrf: ChrF,
    rouge: Rouge,
    exact: ExactMatch,
}

impl WrittenScores {
    /// Scores texts generated with `decoding`. If `decoding` names no end tokens, texts end at the tokenizer's end
    /// token.
    pub fn new(tokenizer: Arc<Tokenizer>, mut decoding: Decoding) -> Self {
        if decoding.end_tokens.is_empty() {
            decoding.end_tokens.extend(tokenizer.special().eos);
        }
        Self { tokenizer, decoding }
    }

    /// How to generate texts.
    pub(super) fn decoding(&self) -> &Decoding {
        &self.decoding
    }

    /// The counts of generated texts, compared with the wanted ones. The wanted texts come from the records, since
    /// their tokens lose text that is cut or that the tokenizer cannot encode.
    pub(super) fn counts<T: AsRef<str>>(
        &self,
        written: &[Vec<u32>],
        wanted: &[T],
    ) -> Result<Vec<f64>, TrainError> {
        let written = written.iter().map(|row| self.tokenizer.written(row)).collect::<Result<Vec<_>, _>>()?;
        let wanted: Vec<_> = wanted.iter().map(|text| [text.as_ref().to_string()]).collect();
        Ok(Metrics::of(&written, &wanted).expect("there is one text for each target").counts())
    }

    /// NaN counts, as many as a batch has, for a batch that cannot be scored.
    pub(super) fn unknown() -> Vec<f64> {
        vec![f64::NAN; Metrics::default().counts().len()]
    }

    /// The scores of [counts](Self::counts); NaN without counts.
    pub(super) fn scores(counts: &[f64]) -> Vec<Score> {
        Metrics::scores(Metrics::from_counts(counts).ok().as_ref())
    }

    /// The same scores of texts, each compared with one or several wanted ones, of which the best counts; BLEU counts
    /// the n-grams of all.
    ///
    /// ```
    /// use firebrick_models::WrittenScores;
    ///
    /// let scores = WrittenScores::of_texts(&["The Eiffel Tower"], &[["Eiffel tower", "tour Eiffel"]])?;
    /// assert!(scores.iter().any(|score| score.name == "exact_match" && score.value == 100.0));
    /// # Ok::<(), firebrick_metrics::MetricError>(())
    /// ```
    ///
    /// # Errors
    ///
    /// The numbers of texts differ, or a text has no wanted one.
    pub fn of_texts<W, R, S>(written: &[W], wanted: &[R]) -> Result<Vec<Score>, MetricError>
    where
        W: AsRef<str>,
        R: AsRef<[S]>,
        S: AsRef<str>,
    {
        Ok(Metrics::scores(Some(&Metrics::of(written, wanted)?)))
    }
}

impl Metrics {
    fn of<W, R, S>(written: &[W], wanted: &[R]) -> Result<Self, MetricError>
    where
        W: AsRef<str>,
        R: AsRef<[S]>,
        S: AsRef<str>,
    {
        let mut metrics = Self::default();
        metrics.bleu.add(written, wanted)?;
        metrics.chrf.add(written, wanted)?;
        metrics.rouge.add(written, wanted)?;
        metrics.exact.add(written, wanted)?;
        Ok(metrics)
    }

    /// The scores; NaN where they are not known.
    fn scores(metrics: Option<&Self>) -> Vec<Score> {
        let of = |score: fn(&Metrics) -> Option<f64>| metrics.and_then(score).unwrap_or(f64::NAN);
        vec![
            Score::higher("bleu", of(|of| Some(of.bleu.score().score))),
            Score::higher("chrf", of(|of| Some(of.chrf.score()))),
            Score::higher("rouge1", of(|of| Some(of.rouge.score()?.rouge1.f1))),
            Score::higher("rouge2", of(|of| Some(of.rouge.score()?.rouge2.f1))),
            Score::higher("rougeL", of(|of| Some(of.rouge.score()?.rouge_l.f1))),
            Score::higher("exact_match", of(|of| Some(of.exact.score()?.exact_match))),
            Score::higher("f1", of(|of| Some(of.exact.score()?.f1))),
        ]
    }

    fn counts(&self) -> Vec<f64> {
        [self.bleu.counts(), self.chrf.counts(), self.rouge.counts(), self.exact.counts()].concat()
    }

    fn from_counts(counts: &[f64]) -> Result<Self, MetricError> {
        let none = Self::default();
        let mut rest = counts;
        let mut next = |length: usize| {
            let (own, after) = rest.split_at(length.min(rest.len()));
            rest = after;
            own
        };
        Ok(Self {
            bleu: Bleu::from_counts(&none.bleu, next(none.bleu.counts().len()))?,
            chrf: ChrF::from_counts(&none.chrf, next(none.chrf.counts().len()))?,
            rouge: Rouge::from_counts(&none.rouge, next(none.rouge.counts().len()))?,
            exact: ExactMatch::from_counts(&none.exact, next(none.exact.counts().len()))?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_of_batches_add_up_to_the_scores_of_all() {
        let text = "a small dog sleeps on the mat. ";
        let tokenizer = Arc::new(Tokenizer::characters(text).unwrap());
        let ids = |text: &str| tokenizer.encode(text).unwrap();
        let scores = WrittenScores::new(tokenizer.clone(), Decoding::default());
        let wanted = ["a small dog sleeps on the mat."];
        let [right, wrong] = [[ids(wanted[0])], [ids("the dog sleeps on a mat.")]];
        let first = scores.counts(&right, &wanted).unwrap();
        let second = scores.counts(&wrong, &wanted).unwrap();
        let both: Vec<f64> = first.iter().zip(&second).map(|(a, b)| a + b).collect();
        let all = scores.counts(&[right, wrong].concat(), &[wanted, wanted].concat()).unwrap();
        assert_eq!(both, all);
        let value = |counts: &[f64], name: &str| {
            WrittenScores::scores(counts).into_iter().find(|score| score.name == name).unwrap().value
        };
        assert_eq!(value(&both, "exact_match"), 50.0);
        assert!((value(&first, "bleu") - 100.0).abs() < 1e-9 && value(&first, "rougeL") == 1.0);
        // sacrebleu 2.6.0, corpus_bleu and corpus_chrf of the two texts; rouge_score 0.1.2, the mean of both.
        for (name, expected) in [
            ("bleu", 67.55685273015294),
            ("chrf", 77.49672350809752),
            ("rouge1", 0.9615384615384615),
            ("rouge2", 0.6818181818181818),
            ("rougeL", 0.8076923076923077),
        ] {
            assert!((value(&both, name) - expected).abs() < 1e-6, "{name} {}", value(&both, name));
        }
        let unknown = WrittenScores::scores(&WrittenScores::unknown());
        assert!(unknown.iter().all(|score| score.value.is_nan() && score.higher_is_better));
    }
}
