//! Properties of all metrics: shards add up to the whole, order does not matter, scores stay in range.

use std::fmt::Debug;

use firebrick_metrics::*;
use proptest::prelude::*;

/// A prediction and its references.
type Segment = (String, Vec<String>);

fn text() -> impl Strategy<Value = String> {
    prop_oneof![
        4 => proptest::collection::vec(
            proptest::sample::select(vec!["the", "cat", "sat", "a", "mat.", "1,5", "é", "\"x\"", "\n", "Cat"]), 0..12
        ).prop_map(|words| words.join(" ")),
        1 => any::<String>(),
    ]
}

fn segments() -> impl Strategy<Value = Vec<Segment>> {
    proptest::collection::vec((text(), proptest::collection::vec(text(), 1..3)), 0..8)
}

fn tags() -> impl Strategy<Value = Vec<(Vec<&'static str>, Vec<&'static str>)>> {
    let tag = || proptest::sample::select(vec!["O", "B-A", "I-A", "B-B", "I-B"]);
    let pair = proptest::collection::vec((tag(), tag()), 0..8);
    proptest::collection::vec(pair.prop_map(|tags| tags.into_iter().unzip()), 0..8)
}

fn split<P: Clone, R: Clone>(items: &[(P, R)]) -> (Vec<P>, Vec<R>) {
    items.iter().cloned().unzip()
}

/// Checks that merged shards, shards with summed counts, and the items in reverse give the bits of the whole.
fn check<M, T>(empty: M, items: &[T], cut: usize, add: impl Fn(&mut M, &[T])) -> Result<M, TestCaseError>
where
    M: Metric + Clone + PartialEq + Debug,
    M::Score: PartialEq + Debug,
    T: Clone,
{
    let of = |items: &[T]| {
        let mut metric = empty.clone();
        add(&mut metric, items);
        metric
    };
    let whole = of(items);
    let (first, second) = items.split_at(cut.min(items.len()));
    let (mut first, second) = (of(first), of(second));

    let summed: Vec<f64> = first.counts().iter().zip(second.counts()).map(|(a, b)| a + b).collect();
    let exchanged =
        M::from_counts(&empty, &summed).map_err(|error| TestCaseError::fail(error.to_string()))?;
    prop_assert_eq!(exchanged.score(), whole.score());
    prop_assert_eq!(&exchanged, &whole);

    first.merge(&second).map_err(|error| TestCaseError::fail(error.to_string()))?;
    prop_assert_eq!(&first, &whole);

    let backwards: Vec<T> = items.iter().rev().cloned().collect();
    prop_assert_eq!(of(&backwards), whole.clone());
    Ok(whole)
}

/// Makes each text its own reference.
fn perfect(segments: &[Segment]) -> Vec<Segment> {
    segments.iter().map(|(text, _)| (text.clone(), vec![text.clone()])).collect()
}

fn in_range(value: f64, highest: f64) -> bool {
    // Powers and logarithms may round beyond the range.
    (0.0..=highest * (1.0 + 1e-12)).contains(&value)
}

fn rates(report: &Report) -> Vec<f64> {
    let classes = report.classes.iter().map(|class| class.scores);
    let averages = [report.micro_average, report.macro_average, report.weighted_average];
    let scores = classes.chain(averages).flat_map(|scores| [scores.precision, scores.recall, scores.f1]);
    scores.chain([report.accuracy]).collect()
}

proptest! {
    #[test]
    fn bleu(segments in segments(), cut in 0..8_usize) {
        let add = |bleu: &mut Bleu, items: &[Segment]| {
            let (predictions, references) = split(items);
            bleu.add(&predictions, &references).unwrap();
        };
        let add_k = Bleu::new().smoothing(Smoothing::AddK(1.0)).unwrap();
        for empty in [Bleu::new(), add_k, Bleu::new().lowercase().effective_order()] {
            let score = check(empty.clone(), &segments, cut, add)?.score();
            prop_assert!(in_range(score.score, 100.0) && in_range(score.brevity_penalty, 1.0), "{:?}", score);
            let mut same = empty.effective_order();
            add(&mut same, &perfect(&segments));
            let best = if same.score().predicted_length > 0 { 100.0 } else { 0.0 };
            prop_assert!((same.score().score - best).abs() < 1e-9, "{:?}", same.score());
        }
    }

    #[test]
    fn chrf(segments in segments(), cut in 0..8_usize) {
        let add = |chrf: &mut ChrF, items: &[Segment]| {
            let (predictions, references) = split(items);
            chrf.add(&predictions, &references).unwrap();
        };
        for empty in [ChrF::new(), ChrF::plus_plus(), ChrF::new().whitespace().lowercase()] {
            let score = check(empty.clone(), &segments, cut, add)?.score();
            prop_assert!(in_range(score, 100.0), "{}", score);
            let mut same = empty;
            add(&mut same, &perfect(&segments));
            let best = if same.counts().iter().any(|&count| count > 0.0) { 100.0 } else { 0.0 };
            prop_assert!((same.score() - best).abs() < 1e-9, "{:?}", same);
        }
    }

    #[test]
    fn rouge(segments in segments(), cut in 0..8_usize) {
        let whole = check(Rouge::new(), &segments, cut, |rouge: &mut Rouge, items| {
            let (predictions, references) = split(items);
            rouge.add(&predictions, &references).unwrap();
        })?;
        prop_assert_eq!(whole.score().is_some(), !segments.is_empty());
        if let Some(score) = whole.score() {
            for scores in [score.rouge1, score.rouge2, score.rouge_l, score.rouge_lsum] {
                prop_assert!([scores.precision, scores.recall, scores.f1].iter().all(|&rate| in_range(rate, 1.0)));
            }
        }
        for (text, _) in &segments {
            let score = RougeScore::of(text, text);
            let best = if text.to_lowercase().contains(|c: char| c.is_ascii_alphanumeric()) { 1.0 } else { 0.0 };
            prop_assert_eq!((score.rouge1.f1, score.rouge_l.f1, score.rouge_lsum.f1), (best, best, best));
        }
    }

    #[test]
    fn answers(segments in segments(), cut in 0..8_usize) {
        let add = |answers: &mut ExactMatch, items: &[Segment]| {
            let (predictions, references) = split(items);
            answers.add(&predictions, &references).unwrap();
        };
        if let Some(score) = check(ExactMatch::new(), &segments, cut, add)?.score() {
            prop_assert!(in_range(score.f1, 100.0) && score.f1 >= score.exact_match - 1e-9, "{:?}", score);
            let mut same = ExactMatch::new();
            add(&mut same, &perfect(&segments));
            prop_assert_eq!(same.score(), Some(AnswerScore { exact_match: 100.0, f1: 100.0 }));
        }
    }

    #[test]
    fn entities(sequences in tags(), cut in 0..8_usize) {
        let add = |entities: &mut Entities, items: &[(Vec<&str>, Vec<&str>)]| {
            let (predictions, references) = split(items);
            entities.add(&predictions, &references).unwrap();
        };
        for scheme in [EntityScheme::StrictIob2, EntityScheme::Conlleval] {
            let empty = Entities::new(scheme, ["A", "B"]);
            let report = check(empty.clone(), &sequences, cut, add)?.score();
            prop_assert!(rates(&report).iter().all(|&rate| in_range(rate, 1.0)), "{}", report);
            let mut same = empty;
            let perfect: Vec<_> = sequences.iter().map(|(tags, _)| (tags.clone(), tags.clone())).collect();
            add(&mut same, &perfect);
            let best = if same.score().support > 0 { 1.0 } else { 0.0 };
            prop_assert_eq!(same.score().micro_average.f1, best);
        }
    }

    #[test]
    fn classification(items in proptest::collection::vec((0..4_usize, 0..4_usize), 0..30), cut in 0..30_usize) {
        let empty = Classification::new(["a", "b", "c", "d"]);
        let whole = check(empty, &items, cut, |classification: &mut Classification, items| {
            let (predictions, references) = split(items);
            classification.add(&predictions, &references).unwrap();
        })?;
        let report = whole.score();
        prop_assert!(rates(&report).iter().all(|&rate| in_range(rate, 1.0)), "{}", report);
        prop_assert!((report.micro_average.f1 - report.accuracy).abs() < 1e-12);
        prop_assert_eq!(report.support, items.len() as u64);
        check(Confusion::new(4), &items, cut, |confusion: &mut Confusion, items| {
            let (predictions, references) = split(items);
            confusion.add(&predictions, &references).unwrap();
        })?;
    }

    #[test]
    fn losses_and_masked_items(
        batches in proptest::collection::vec((0.0..1e7_f64, 0..1000_u64, 0..1000_u64), 0..20),
        cut in 0..20_usize,
    ) {
        let perplexity = check(Perplexity::new(), &batches, cut, |perplexity: &mut Perplexity, items| {
            items.iter().for_each(|&(losses, count, _)| perplexity.add(losses, count));
        })?;
        prop_assert!(perplexity.score().is_none_or(|score| score >= 1.0));
        let accuracy = check(MaskedAccuracy::new(), &batches, cut, |accuracy: &mut MaskedAccuracy, items| {
            items.iter().for_each(|&(_, a, b)| accuracy.add(a.min(b), a.max(b)).unwrap());
        })?;
        prop_assert!(accuracy.score().is_none_or(|score| in_range(score, 1.0)));
    }
}
