//! The settings of DeepSpeed's schedules.

use super::inputs::{Inputs, Known, shown};
use super::length::Length;
use super::optimizer_settings::Range;
use super::source::{Given, Source};
use super::{ImportError, Outcome, hugging_face_schedule};

/// Returns the path of a setting.
pub(super) fn param(name: &str) -> String {
    format!("scheduler.params.{name}")
}

/// Reads a number for a field of the schedule, formatted as in a run file.
pub(super) fn taken(
    ds: &mut Source,
    name: &str,
    here: &str,
    (expected, holds): Range,
) -> Result<Option<String>, ImportError> {
    let path = param(name);
    let number = ds.number(&path, expected, holds)?;
    ds.taken(&path, number.map(shown), |number| format!("schedule.{here}: {number}"))
}

/// Like `taken`, for integers of at least `least`.
pub(super) fn counted(
    ds: &mut Source,
    name: &str,
    here: &str,
    least: u64,
) -> Result<Option<u64>, ImportError> {
    let path = param(name);
    let count = ds.count(&path, least, 1 << 53)?;
    ds.taken(&path, count, |count| format!("schedule.{here}: {count}"))
}

/// Reads `log` or `linear`.
pub(super) fn warmup_type(ds: &mut Source) -> Result<&'static str, ImportError> {
    let path = param("warmup_type");
    let kind = ds.choice(&path, &[("log", "Log"), ("linear", "Linear")])?;
    Ok(ds.taken(&path, kind, |kind| format!("schedule.warmup_type: {kind}"))?.unwrap_or("Log"))
}

/// Reads the warmup in updates, or as a share of the run if the training arguments give one.
pub(super) fn warmup_updates(inputs: &mut Inputs) -> Result<Known<String>, ImportError> {
    let path = param("warmup_num_steps");
    match inputs.ds.count(&path, 0, 1 << 53)? {
        Given::Missing => Ok(Known::certain("1000".into())),
        Given::Is(updates) => {
            if let Some(args) = &inputs.args
                && let Given::Is(other) = args.count("warmup_steps", 0, 1 << 53).unwrap_or(Given::Missing)
                && other > 0
                && other != updates
            {
                return Err(inputs.differ(&path, "warmup_steps"));
            }
            inputs.ds.settle(&path, Outcome::Taken(format!("schedule.warmup: {updates}")));
            Ok(Known::certain(updates.to_string()))
        }
        Given::Auto => {
            let warmup = match inputs.args {
                Some(_) => Known::certain(hugging_face_schedule::warmup(inputs)?),
                None => Known::suggested("0".into()),
            };
            let note = format!("schedule.warmup: {}", warmup.value);
            inputs.ds.settle(
                &path,
                match warmup.suggested {
                    true => Outcome::FillIn(format!("{note}, Transformers' default of `warmup_steps`")),
                    false => Outcome::Taken(note),
                },
            );
            Ok(warmup)
        }
    }
}

/// Reads the schedule's own length; empty if it is the run's.
pub(super) fn total(inputs: &mut Inputs, length: &Length) -> Result<String, ImportError> {
    let path = param("total_num_steps");
    let own = match inputs.ds.count(&path, 1, 1 << 53)? {
        Given::Is(updates) if length.steps != Some(updates) => Some(updates),
        _ => None,
    };
    let note = own.map_or("the length of the run".into(), |updates| format!("schedule.total: {updates}"));
    inputs.ds.settle(&path, Outcome::Taken(note));
    Ok(own.map(|updates| format!(", total: {updates}")).unwrap_or_default())
}
