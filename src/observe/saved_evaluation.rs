//! An evaluation in a checkpoint.
//!
//! A checkpoint keeps infinity and NaN apart, which a line of the log has as `null`: the best evaluation so far, and
//! whether a run diverged, depend on them.

use std::collections::BTreeMap;

use firebrick_strategies::SavedNumber;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::observe::numbers::EvaluationNumbers;

#[derive(Serialize, Deserialize)]
struct SavedEvaluation {
    step: u64,
    #[serde(default = "nan")]
    loss: SavedNumber,
    #[serde(default)]
    items: usize,
    #[serde(default)]
    seconds: SavedNumber,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    scores: BTreeMap<String, SavedNumber>,
}

fn nan() -> SavedNumber {
    SavedNumber(f64::NAN)
}

pub(super) fn serialize<S: Serializer>(
    evaluation: &Option<EvaluationNumbers>,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    let saved = evaluation.clone().map(|EvaluationNumbers { step, loss, items, seconds, scores }| {
        let scores = scores.into_iter().map(|(name, score)| (name, SavedNumber(score))).collect();
        SavedEvaluation { step, loss: SavedNumber(loss), items, seconds: SavedNumber(seconds), scores }
    });
    saved.serialize(serializer)
}

pub(super) fn deserialize<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Option<EvaluationNumbers>, D::Error> {
    let saved = Option::<SavedEvaluation>::deserialize(deserializer)?;
    Ok(saved.map(|SavedEvaluation { step, loss, items, seconds, scores }| {
        let scores = scores.into_iter().map(|(name, score)| (name, score.0)).collect();
        EvaluationNumbers { step, loss: loss.0, items, seconds: seconds.0, scores }
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Serialize, Deserialize)]
    struct Saved {
        #[serde(with = "super")]
        best: Option<EvaluationNumbers>,
    }

    #[test]
    fn an_evaluation_comes_back_as_it_was() {
        let numbers = |loss, score| {
            let scores = [("f1".into(), score)].into();
            Some(EvaluationNumbers { step: 3, loss, items: 7, seconds: 0.5, scores })
        };
        let infinite = f64::INFINITY;
        for best in
            [None, numbers(0.1 + 0.2, -infinite), numbers(infinite, f64::NAN), numbers(f64::NAN, -0.0)]
        {
            let expected = format!("{best:?}");
            let saved = Saved { best };
            let json = serde_json::to_string(&saved).unwrap();
            let read: Saved = serde_json::from_str(&json).unwrap();
            assert_eq!(format!("{:?}", read.best), expected, "{json}");
        }
    }

    #[cfg(feature = "ron")]
    #[test]
    fn an_evaluation_of_an_older_checkpoint_is_read() {
        let read: Saved = ron::from_str(
            "(best: Some((step: 3, loss: inf, items: 7, scores: {\"f1\": NaN, \"bleu\": 2.0})))",
        )
        .unwrap();
        let best = read.best.unwrap();
        assert_eq!((best.loss, best.items, best.scores["bleu"]), (f64::INFINITY, 7, 2.0));
        assert!(best.scores["f1"].is_nan());
    }
}
