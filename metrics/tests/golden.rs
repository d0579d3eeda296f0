//! Compares our scores with those of the standard implementations, which `golden/make.py` recorded.

use std::fmt::Debug;

use firebrick_metrics::*;
use serde::Deserialize;
use serde::de::DeserializeOwned;

fn read<T: DeserializeOwned>(json: &str) -> T {
    serde_json::from_str(json).unwrap()
}

/// Checks equality up to the rounding of a few operations.
#[track_caller]
fn assert_close(found: &[f64], expected: &[f64], what: impl Debug) {
    let close = |(found, expected): (&f64, &f64)| (found - expected).abs() <= 1e-12 * expected.abs().max(1.0);
    assert_eq!(found.len(), expected.len(), "{what:?}");
    assert!(found.iter().zip(expected).all(close), "{what:?}: found {found:?}, expected {expected:?}");
}

fn rates(scores: PrecisionRecallF1) -> [f64; 3] {
    [scores.precision, scores.recall, scores.f1]
}

#[derive(Debug, Deserialize)]
struct Averages {
    micro: [f64; 3],
    #[serde(rename = "macro")]
    macro_average: [f64; 3],
    weighted: [f64; 3],
}

/// Precision, recall, F1 and support per class, and averages of the first three.
#[derive(Debug, Deserialize)]
struct GoldenReport {
    classes: Vec<[f64; 4]>,
    averages: Averages,
}

impl GoldenReport {
    #[track_caller]
    fn check(&self, report: &Report) {
        let classes = report.classes.iter().map(|class| {
            let [precision, recall, f1] = rates(class.scores);
            [precision, recall, f1, class.support as f64]
        });
        assert_close(&classes.flatten().collect::<Vec<_>>(), self.classes.as_flattened(), report);
        assert_close(&rates(report.micro_average), &self.averages.micro, report);
        assert_close(&rates(report.macro_average), &self.averages.macro_average, report);
        assert_close(&rates(report.weighted_average), &self.averages.weighted, report);
    }
}

#[derive(Deserialize)]
struct Spans {
    strict: Vec<Vec<(usize, usize, String)>>,
    conlleval: Vec<Vec<(usize, usize, String)>>,
}

#[derive(Deserialize)]
struct TagCase {
    predictions: Vec<Vec<String>>,
    references: Vec<Vec<String>>,
    spans: Spans,
    strict: GoldenReport,
    conlleval: GoldenReport,
    accuracy: f64,
}

#[test]
fn entities_are_those_of_seqeval() {
    let cases: Vec<TagCase> = read(include_str!("golden/entities.json"));
    assert!(cases.len() >= 5);
    for case in cases {
        for (scheme, spans, expected) in [
            (EntityScheme::StrictIob2, &case.spans.strict, &case.strict),
            (EntityScheme::Conlleval, &case.spans.conlleval, &case.conlleval),
        ] {
            for (tags, expected) in case.predictions.iter().zip(spans) {
                let found = scheme.spans(tags).unwrap();
                let found: Vec<_> = found.into_iter().map(|span| (span.start, span.end, span.kind)).collect();
                assert_eq!(&found, expected, "{scheme:?}, {tags:?}");
            }
            let mut entities = Entities::new(scheme, ["PER", "LOC", "a-b", "_"]);
            entities.add(&case.predictions, &case.references).unwrap();
            expected.check(&entities.score());
            assert_close(&[entities.score().accuracy], &[case.accuracy], scheme);
        }
    }
}

#[derive(Deserialize)]
struct ClassCase {
    names: Vec<String>,
    predictions: Vec<usize>,
    references: Vec<usize>,
    report: GoldenReport,
    accuracy: f64,
    confusion: Vec<Vec<u64>>,
}

#[test]
fn classification_is_that_of_scikit_learn() {
    let cases: Vec<ClassCase> = read(include_str!("golden/classification.json"));
    assert!(cases.len() >= 5);
    for case in cases {
        let mut classification = Classification::new(case.names);
        classification.add(&case.predictions, &case.references).unwrap();
        case.report.check(&classification.score());
        assert_close(&[classification.score().accuracy], &[case.accuracy], &classification);
        let mut confusion = Confusion::new(case.confusion.len());
        confusion.add(&case.predictions, &case.references).unwrap();
        assert_eq!(confusion.score(), case.confusion);
    }
}

#[derive(Deserialize)]
struct BleuSetting {
    smooth_method: String,
    smooth_value: Option<f64>,
    lowercase: bool,
    tokenize: String,
    effective_order: bool,
}

impl BleuSetting {
    fn build(&self) -> Bleu {
        let smoothing = match (self.smooth_method.as_str(), self.smooth_value) {
            ("floor", Some(value)) => Smoothing::Floor(value),
            ("add-k", Some(value)) => Smoothing::AddK(value),
            ("none", None) => Smoothing::None,
            _ => Smoothing::Exp,
        };
        let tokens = if self.tokenize == "none" { BleuTokens::Whitespace } else { BleuTokens::Mteval13a };
        let bleu = Bleu::new().smoothing(smoothing).unwrap().tokens(tokens);
        let bleu = if self.lowercase { bleu.lowercase() } else { bleu };
        if self.effective_order { bleu.effective_order() } else { bleu }
    }
}

#[derive(Deserialize)]
struct GoldenBleu {
    score: f64,
    precisions: [f64; 4],
    brevity_penalty: f64,
    lengths: [u64; 2],
}

impl GoldenBleu {
    #[track_caller]
    fn check(&self, found: BleuScore) {
        let numbers = [found.score, found.brevity_penalty];
        assert_close(&numbers, &[self.score, self.brevity_penalty], found);
        assert_close(&found.precisions, &self.precisions, found);
        assert_eq!([found.predicted_length, found.reference_length], self.lengths);
    }
}

/// Predictions and references of a corpus, and its expected scores.
#[derive(Deserialize)]
struct TextCase<C, S = ()> {
    predictions: Vec<String>,
    references: Vec<Vec<String>>,
    scores: Vec<C>,
    #[serde(default = "Vec::new")]
    sentences: Vec<S>,
}

#[derive(Deserialize)]
struct TextCases<T, C, S> {
    settings: Vec<T>,
    cases: Vec<TextCase<C, S>>,
}

#[test]
fn bleu_is_that_of_sacrebleu() {
    let golden: TextCases<BleuSetting, GoldenBleu, GoldenBleu> = read(include_str!("golden/bleu.json"));
    assert!(golden.cases.len() >= 9 && golden.settings.len() >= 9);
    for case in golden.cases {
        for (setting, expected) in golden.settings.iter().zip(&case.scores) {
            let mut bleu = setting.build();
            bleu.add(&case.predictions, &case.references).unwrap();
            expected.check(bleu.score());
        }
        for ((prediction, references), expected) in
            case.predictions.iter().zip(&case.references).zip(&case.sentences)
        {
            expected.check(Bleu::new().sentence(prediction, references).unwrap());
        }
    }
}

#[test]
fn tokens_are_those_of_13a() {
    #[derive(Deserialize)]
    struct Golden {
        tokens: Vec<(String, String)>,
    }
    let golden: Golden = read(include_str!("golden/bleu.json"));
    assert!(golden.tokens.len() >= 80);
    for (line, tokens) in golden.tokens {
        assert_eq!(BleuTokens::Mteval13a.split(&line).join(" "), tokens, "{line:?}");
    }
}

#[derive(Deserialize)]
struct ChrFSetting {
    char_order: u8,
    word_order: u8,
    beta: u8,
    lowercase: bool,
    whitespace: bool,
}

#[test]
fn chrf_is_that_of_sacrebleu() {
    let golden: TextCases<ChrFSetting, f64, f64> = read(include_str!("golden/chrf.json"));
    assert!(golden.cases.len() >= 4 && golden.settings.len() >= 5);
    for case in golden.cases {
        for (setting, &expected) in golden.settings.iter().zip(&case.scores) {
            let mut chrf = ChrF::new().orders(setting.char_order, setting.word_order).beta(setting.beta);
            chrf = if setting.lowercase { chrf.lowercase() } else { chrf };
            chrf = if setting.whitespace { chrf.whitespace() } else { chrf };
            chrf.add(&case.predictions, &case.references).unwrap();
            assert_close(&[chrf.score()], &[expected], &chrf);
        }
        for ((prediction, references), &expected) in
            case.predictions.iter().zip(&case.references).zip(&case.sentences)
        {
            let found = ChrF::plus_plus().sentence(prediction, references).unwrap();
            assert_close(&[found], &[expected], (prediction, references));
        }
    }
}

#[test]
fn rouge_is_that_of_rouge_score() {
    let golden: TextCase<[[f64; 3]; 4]> = read(include_str!("golden/rouge.json"));
    assert!(golden.scores.len() >= 90);
    let mut corpus = Rouge::new();
    corpus.add(&golden.predictions, &golden.references).unwrap();
    let flat = |score: RougeScore| -> Vec<f64> {
        [score.rouge1, score.rouge2, score.rouge_l, score.rouge_lsum].into_iter().flat_map(rates).collect()
    };
    let mut means = vec![0.0; 12];
    for ((prediction, references), expected) in
        golden.predictions.iter().zip(&golden.references).zip(&golden.scores)
    {
        let mut rouge = Rouge::new();
        rouge.add(&[prediction], &[references]).unwrap();
        let expected = expected.as_flattened();
        assert_close(&flat(rouge.score().unwrap()), expected, (prediction, references));
        for (mean, value) in means.iter_mut().zip(expected) {
            *mean += value / golden.scores.len() as f64;
        }
    }
    assert_close(&flat(corpus.score().unwrap()), &means, "means");
}

#[test]
fn answers_are_those_of_squad() {
    #[derive(Deserialize)]
    struct Golden {
        #[serde(flatten)]
        case: TextCase<[f64; 2]>,
        normalized: Vec<String>,
    }
    let Golden { case, normalized } = read(include_str!("golden/answers.json"));
    assert!(case.scores.len() >= 60);
    for (((prediction, references), expected), normalized) in
        case.predictions.iter().zip(&case.references).zip(&case.scores).zip(&normalized)
    {
        assert_eq!(&normalize_answer(prediction), normalized);
        let mut answers = ExactMatch::new();
        answers.add(&[prediction], &[references]).unwrap();
        let AnswerScore { exact_match, f1 } = answers.score().unwrap();
        assert_close(&[exact_match / 100.0, f1 / 100.0], expected, (prediction, references));
    }
}
