//! When the run evaluates and saves.

use super::draft::Item;
use super::inputs::Inputs;
use super::length::Length;
use super::source::{Setting, Source};
use super::{ImportError, Outcome};

/// Evaluation and checkpoints.
#[derive(Debug, Default)]
pub(super) struct Saving {
    /// Whether the run evaluates, if the files say so.
    pub evaluates: Option<bool>,
    pub evaluate_every: Option<Item>,
    pub checkpoints: Option<Item>,
}

/// Reads evaluation and checkpoints from the training arguments.
///
/// # Errors
///
/// A setting is invalid.
pub(super) fn read(inputs: &mut Inputs, length: &Length) -> Result<Saving, ImportError> {
    let Some(args) = &mut inputs.args else { return Ok(Saving::default()) };
    let (evaluates, evaluate_every) = evaluation(args, length)?;
    Ok(Saving { evaluates: Some(evaluates), evaluate_every, checkpoints: checkpoints(args, length)? })
}

fn evaluation(args: &mut Source, length: &Length) -> Result<(bool, Option<Item>), ImportError> {
    const EVERY: &str = "eval_steps";
    // The name in older versions.
    let name = if args.get("eval_strategy").is_some() { "eval_strategy" } else { "evaluation_strategy" };
    let strategy = args.text(name)?.or("no");
    let every = updates(args, EVERY, length)?;
    // Trainer falls back to its logging interval.
    let every = match (strategy.as_str(), every) {
        ("steps", None) if args.get(EVERY).is_none() => updates(args, "logging_steps", length)?.or(Some(500)),
        (_, every) => every,
    };
    let (outcome, evaluates, item) = match strategy.as_str() {
        "no" => (Outcome::taken("data.valid_fraction: 0"), false, None),
        "epoch" => (Outcome::taken("at the end of each epoch, the default of `evaluate_every`"), true, None),
        "steps" => match every {
            Some(updates) => {
                let note = format!("evaluate_every: {updates}");
                args.settle(EVERY, Outcome::taken(note.as_str()));
                (Outcome::Taken(note), true, Some(Item::certain(updates.to_string())))
            }
            None => (Outcome::taken("at the end of each epoch"), true, None),
        },
        _ => return Err(args.wrong(name, "\"no\", \"steps\" or \"epoch\"")),
    };
    args.settle(name, outcome);
    args.settle(EVERY, Outcome::no_effect(format!("evaluation is by `{strategy}`")));
    Ok((evaluates, item))
}

fn checkpoints(args: &mut Source, length: &Length) -> Result<Option<Item>, ImportError> {
    const EVERY: &str = "save_steps";
    let strategy = args.text("save_strategy")?.or("steps");
    let best = "load_best_model_at_end";
    let keeps_best = args.flag(best)? == Setting::Is(true);
    let limit = args.count("save_total_limit", 0, 1_000_000)?;
    let mut fields = Vec::new();
    let outcome = match strategy.as_str() {
        "no" => Outcome::taken("no `checkpoints`: the run is saved where it is interrupted, and at its end"),
        "steps" | "best" | "epoch" => {
            let every = match (strategy.as_str(), updates(args, EVERY, length)?) {
                ("steps", None) if args.get(EVERY).is_none() => Some(500),
                ("steps", every) => every,
                _ => None,
            };
            fields.extend(every.map(|updates| format!("every: {updates}")));
            match every {
                Some(updates) => {
                    args.settle(EVERY, Outcome::Taken(format!("checkpoints.every: {updates}")));
                    Outcome::Taken(format!("checkpoints.every: {updates}"))
                }
                None => Outcome::omitted(
                    "`checkpoints: (every: ..)`, in updates; the best model is best.safetensors",
                ),
            }
        }
        _ => return Err(args.wrong("save_strategy", "\"no\", \"steps\", \"epoch\" or \"best\"")),
    };
    if let Setting::Is(limit @ 1..) = limit {
        fields.push(format!("keep_last: {limit}"));
        args.settle("save_total_limit", Outcome::Taken(format!("checkpoints.keep_last: {limit}")));
    }
    if keeps_best {
        fields.push("keep_best: 1".into());
        args.settle(best, Outcome::taken("checkpoints.keep_best: 1; the best model is best.safetensors"));
    }
    args.settle(best, Outcome::no_effect("the best model is best.safetensors in any case"));
    args.settle("save_total_limit", Outcome::no_effect("the last two are kept: `keep_every` keeps more"));
    args.settle("save_strategy", outcome);
    args.settle(EVERY, Outcome::no_effect(format!("saving is by `{strategy}`")));
    Ok((!fields.is_empty()).then(|| Item::certain(format!("({})", fields.join(", ")))))
}

/// Reads the updates between two events. A value below 1 is a share of the run, if its length in updates is known.
fn updates(args: &mut Source, name: &str, length: &Length) -> Result<Option<u64>, ImportError> {
    let expected = "a number of updates, or a share of the run below 1";
    let given = args.number(name, expected, |updates| {
        (0.0..=2f64.powi(53)).contains(&updates) && (updates < 1.0 || updates.fract() == 0.0)
    })?;
    Ok(match (given, length.steps) {
        (Setting::Is(0.0), _) => None,
        (Setting::Is(share), Some(steps)) if share < 1.0 => {
            Some(((steps as f64 * share).ceil() as u64).max(1))
        }
        (Setting::Is(share), None) if share < 1.0 => {
            args.settle(
                name,
                Outcome::omitted(
                    "a number of updates: how many the run has is known once it has read its data",
                ),
            );
            None
        }
        (Setting::Is(updates), _) => Some(updates as u64),
        _ => None,
    })
}
