//! Compares a run file, field by field, with the one that a checkpoint was saved with.

use std::collections::BTreeMap;

use serde::Serialize;
use serde_json::Value;

use super::{Run, in_order, written};
use firebrick::Change;
use firebrick::checkpoint::Compared;
use firebrick_strategies::effects::OnResult;

/// What a changed field means for a resumed run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Meaning {
    /// The run continues as it would have without the change.
    Free,
    /// The run continues, but its result differs.
    OfResult,
    /// The run cannot continue.
    Impossible,
}

/// Fields, each with those below it; the first match counts. Any other field affects the result.
const MEANINGS: [(&str, Meaning); 31] = [
    ("steps", Meaning::Free),
    ("epochs", Meaning::Free),
    ("evaluate_every", Meaning::Free),
    ("evaluate_samples", Meaning::Free),
    ("early_stopping", Meaning::Free),
    ("best_by", Meaning::Free),
    ("checkpoints", Meaning::Free),
    ("output", Meaning::Free),
    ("mlflow", Meaning::Free),
    ("sample", Meaning::Free),
    ("device", Meaning::Free),
    ("device_budget", Meaning::Free),
    ("peak_flops", Meaning::Free),
    ("tuning", Meaning::Free),
    ("ranks", Meaning::Free),
    ("deadline", Meaning::Free),
    ("nccl", Meaning::Free),
    ("link", Meaning::Free),
    ("timeline", Meaning::Free),
    // The checkpoint has what the factors have become.
    ("adapter", Meaning::Free),
    // How the global batch is cut. The trainer checks that its size is unchanged.
    ("batch", Meaning::Free),
    ("data.cache", Meaning::Free),
    ("data.max_unpacked", Meaning::Free),
    ("data.workers", Meaning::Free),
    ("data.valid", Meaning::Free),
    ("data.malformed", Meaning::OfResult),
    ("model", Meaning::Impossible),
    ("task", Meaning::Impossible),
    ("data.tokenizer", Meaning::Impossible),
    ("optimizer.kind", Meaning::Impossible),
    ("strategies.parameters", Meaning::Impossible),
];

fn meaning(path: &str) -> Meaning {
    let below =
        |field: &str| path.strip_prefix(field).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'));
    MEANINGS.iter().find(|(field, _)| below(field)).map_or(Meaning::OfResult, |(_, meaning)| *meaning)
}

/// Compares the text of a run file, with its overrides applied, with a run.
pub(super) fn compare(saved: &str, now: &Run) -> Compared {
    let parsed = Run::parse_with(&now.registries.0, "the checkpoint's run file", saved, &[] as &[&str]);
    let (free, fixed, changeable, saved, now) = match parsed {
        Ok(saved) => {
            let fixed = [fixed_settings(&saved), fixed_settings(now)].concat();
            let changeable = [changeable_settings(&saved), changeable_settings(now)].concat();
            let free = [free_settings(&saved), free_settings(now)].concat();
            (free, fixed, changeable, fields(&saved), fields(now))
        }
        Err(error) => {
            // The lines after the first one show the place in a text that the user has not written.
            let error = error.to_string();
            let error = error.lines().next().unwrap_or_default();
            let change = Change {
                field: "run".into(),
                saved: format!("a run file that this version cannot read ({error})"),
                now: "another".into(),
            };
            return Compared { of_result: vec![change], impossible: Vec::new() };
        }
    };
    let mut compared = Compared::default();
    let mut paths: Vec<_> = saved.keys().chain(now.keys()).collect();
    paths.sort();
    paths.dedup();
    for path in paths {
        let of =
            |fields: &BTreeMap<String, String>| fields.get(path).cloned().unwrap_or_else(|| "absent".into());
        let change = Change { field: path.clone(), saved: of(&saved), now: of(&now) };
        match meaning(path) {
            _ if change.saved == change.now => {}
            _ if free.contains(path) => {}
            _ if changeable.contains(path) => compared.of_result.push(change),
            _ if fixed.contains(path) => compared.impossible.push(change),
            Meaning::Free => {}
            Meaning::OfResult => compared.of_result.push(change),
            Meaning::Impossible => compared.impossible.push(change),
        }
    }
    compared
}

/// Returns all settings of a run by their paths, as JSON, without those that are not given.
pub(crate) fn settings(run: &Run) -> BTreeMap<String, String> {
    // A text has the digits that were given; a value would have those of 64 bits.
    let text = serde_json::to_string(run).unwrap_or_default();
    let mut settings = BTreeMap::new();
    flatten("", &serde_json::from_str(&text).unwrap_or_default(), &mut settings);
    settings.retain(|_, value| value != "null");
    settings
}

/// The fields of a run file by their paths.
fn fields(run: &Run) -> BTreeMap<String, String> {
    let mut fields = BTreeMap::new();
    let rest = Run { strategies: Vec::new(), ..run.clone() };
    flatten("", &json(&rest), &mut fields);
    // What acts before all others comes first, in any order.
    let anywhere = of_result(run, OnResult::ChangesAnywhere);
    let changes = [anywhere, of_result(run, OnResult::Changes)].concat();
    fields.insert("strategies".into(), format!("[{}]", changes.join(", ")));
    fields.insert("strategies.parameters".into(), of_result(run, OnResult::Parameters).join(", "));
    fields.insert("optimizer.kind".into(), run.optimizer.name().into());
    fields
}

/// Returns the paths of the optimizer's settings that decide which state a parameter has.
fn fixed_settings(run: &Run) -> Vec<String> {
    let settings = run.optimizer.fixed_settings().iter();
    settings.map(|setting| format!("optimizer.{}.{setting}", run.optimizer.name())).collect()
}

/// Returns the paths of the model's settings that may change.
fn changeable_settings(run: &Run) -> Vec<String> {
    let settings = run.model.changeable().iter();
    settings.map(|setting| format!("model.{}.{setting}", run.model.name())).collect()
}

/// Returns the paths of the task's settings that do not affect what the model learns.
fn free_settings(run: &Run) -> Vec<String> {
    let settings = run.task.changeable().iter();
    settings.map(|setting| format!("task.{}.{setting}", run.task.name())).collect()
}

/// Writes out the strategies on which the result depends in this way, in the order in which gradients pass through
/// them, whatever order they are written in.
fn of_result(run: &Run, way: OnResult) -> Vec<String> {
    let strategies = in_order(run.strategies.clone()).into_iter();
    strategies
        .filter(|strategy| strategy.effects().result == way)
        .map(|strategy| written(&strategy))
        .collect()
}

fn json(value: &impl Serialize) -> Value {
    serde_json::to_value(value).unwrap_or_default()
}

fn flatten(path: &str, value: &Value, fields: &mut BTreeMap<String, String>) {
    let below = |name: &str| if path.is_empty() { name.into() } else { format!("{path}.{name}") };
    match value {
        Value::Object(map) if !map.is_empty() => {
            map.iter().for_each(|(name, value)| flatten(&below(name), value, fields));
        }
        Value::Array(list) if !list.is_empty() => {
            let items = list.iter().enumerate();
            items.for_each(|(index, value)| flatten(&below(&index.to_string()), value, fields));
        }
        leaf => {
            fields.insert(path.into(), leaf.to_string());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn compare(saved: &str, now: &str) -> Compared {
        super::compare(saved, &Run::parse("file", now, &[] as &[&str]).unwrap())
    }

    fn changed(overrides: &[&str]) -> [Vec<String>; 2] {
        let file = include_str!("../../../examples/tinyshakespeare.ron");
        let text = |overrides: &[&str]| Run::parse("file", file, overrides).unwrap().to_ron();
        let Compared { of_result, impossible } = compare(&text(&[]), &text(overrides));
        [of_result, impossible].map(|changes| changes.into_iter().map(|change| change.field).collect())
    }

    #[test]
    fn each_field_is_told_by_its_path() {
        assert_eq!(changed(&[]), [vec![], vec![] as Vec<String>]);
        let free = [
            "steps=900",
            "output=\"other\"",
            "ranks=2",
            "device=\"cpu\"",
            "tuning=Full",
            "data.workers=3",
            "batch.micro=3",
        ];
        assert_eq!(changed(&free), [vec![], vec![] as Vec<String>]);
        let found = changed(&["seed=1", "schedule=Constant(lr: 1e-3)", "optimizer=AdamW(weight_decay: 0.5)"]);
        assert!(found[1].is_empty());
        for field in ["seed", "schedule.Constant.lr", "optimizer.AdamW.weight_decay"] {
            assert!(found[0].contains(&field.to_string()), "{field}: {found:?}");
        }
        let found = changed(&["model.layers=3", "optimizer=Lion()", "data.tokenizer=Bpe(vocabulary: 300)"]);
        for field in ["model.Gpt.layers", "optimizer.kind", "data.tokenizer"] {
            assert!(found[1].contains(&field.to_string()), "{field}: {found:?}");
        }
    }

    #[test]
    fn strategies_in_another_order_are_the_same_if_one_must_find_another_s_work_done() {
        let file = include_str!("../../../examples/tinyshakespeare.ron");
        let text = |strategies: &str| Run::parse("file", file, &[strategies]).unwrap().to_ron();
        for (one, other) in [
            ("[Lora(rank: 2), Quantize(nf4)]", "[Quantize(nf4), Lora(rank: 2)]"),
            ("[Clip(norm: 1.0), Accumulate(2)]", "[Accumulate(2), Clip(norm: 1.0)]"),
        ] {
            let [one, other] = [one, other].map(|list| text(&format!("strategies={list}")));
            let Compared { of_result, impossible } = compare(&one, &other);
            assert!(of_result.is_empty() && impossible.is_empty(), "{of_result:?} {impossible:?}");
        }
    }

    #[test]
    fn dropout_may_change_and_the_shape_may_not() {
        for model in ["Gpt", "Llama", "Bert", "ModernBert", "T5", "Bart"] {
            let file = include_str!("../../../examples/tinyshakespeare.ron");
            let text = |layers: usize, dropout: f64| {
                let model =
                    format!("model={model}(layers: {layers}, heads: 2, width: 8, dropout: {dropout})");
                Run::parse("file", file, &[model]).unwrap().to_ron()
            };
            let Compared { of_result, impossible } = compare(&text(1, 0.0), &text(2, 0.5));
            let fields =
                |changes: Vec<Change>| changes.into_iter().map(|change| change.field).collect::<Vec<_>>();
            assert_eq!(fields(of_result), [format!("model.{model}.dropout")]);
            assert_eq!(fields(impossible), [format!("model.{model}.layers")]);
        }
    }

    #[test]
    fn settings_of_the_state_stay() {
        let file = include_str!("../../../examples/tinyshakespeare.ron");
        let text = |optimizer: &str| Run::parse("file", file, &[optimizer]).unwrap().to_ron();
        let saved = text("optimizer=AdamW8bit(min_8bit_size: 64)");
        let Compared { of_result, impossible } =
            compare(&saved, &text("optimizer=AdamW8bit(min_8bit_size: 65, weight_decay: 0.5)"));
        assert_eq!(impossible[0].field, "optimizer.AdamW8bit.min_8bit_size");
        assert_eq!(of_result[0].field, "optimizer.AdamW8bit.weight_decay");
    }

    #[test]
    fn strategies_that_keep_the_result_may_change() {
        let of_result = |strategies: &str| changed(&[&format!("strategies={strategies}")])[0].clone();
        let file = include_str!("../../../examples/tinyshakespeare.ron");
        let run = Run::parse("file", file, &[] as &[&str]).unwrap();
        let clips = run.strategies.iter().any(|strategy| strategy.name() == "Clip");
        let same = if clips {
            "[Zero(stage: 3), Amp(bf16), Clip(norm: 1.0)]"
        } else {
            "[Zero(stage: 3), Amp(bf16)]"
        };
        assert_eq!(of_result(same), [""; 0]);
        for other in ["Clip(norm: 7.0)", "Freeze([\"tokens\"])"] {
            assert_eq!(of_result(&format!("[{other}]")), ["strategies"], "{other}");
        }
    }

    #[test]
    fn factors_stay_what_they_are_and_may_stand_anywhere() {
        let text = |strategies: &str| {
            let file = include_str!("../../../examples/tinyshakespeare.ron");
            Run::parse("file", file, &[format!("strategies={strategies}")]).unwrap().to_ron()
        };
        let saved = text("[Ema(decay: 0.9), Lora(rank: 4), Freeze([\"tokens\", \"norm\"])]");
        let moved = text("[Freeze([\"norm\", \"tokens\"]), Lora(rank: 4, alpha: 4), Ema(decay: 0.9)]");
        let Compared { of_result, impossible } = compare(&saved, &moved);
        assert!(of_result.is_empty() && impossible.is_empty(), "{of_result:?} {impossible:?}");
        let other = text("[Ema(decay: 0.9), Lora(rank: 8), Freeze([\"tokens\", \"norm\"])]");
        let Compared { of_result, impossible } = compare(&saved, &other);
        assert!(of_result.is_empty(), "{of_result:?}");
        assert_eq!(impossible[0].field, "strategies.parameters");
        assert_eq!(impossible[0].saved, "Lora(rank: 4, alpha: 4.0)");
    }

    #[test]
    fn a_text_that_is_no_run_file_is_told() {
        let now = Run::parse("file", include_str!("../../../examples/tinyshakespeare.ron"), &[] as &[&str]);
        let compared = compare("(stpes: 1)", &now.unwrap().to_ron());
        assert_eq!(compared.of_result[0].field, "run");
        let said = &compared.of_result[0].saved;
        assert!(said.contains("cannot read (the checkpoint's run file:1: unknown name `stpes`"), "{said}");
        assert!(said.ends_with(')') && !said.contains('\n'), "{said}");
    }
}
