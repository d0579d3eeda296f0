//! `lr_scheduler_type`: the schedules of Transformers, under the names of run files.

use super::draft::Item;
use super::inputs::{Inputs, shown};
use super::optimizer::{AT_LEAST_ZERO, Optimizer, Range, SHARE};
use super::source::{Setting, Source};
use super::{ImportError, Outcome};

const TYPE: &str = "lr_scheduler_type";

/// Reads the schedule of the training arguments.
///
/// # Errors
///
/// A setting is invalid.
pub(super) fn read(inputs: &mut Inputs, optimizer: &Optimizer) -> Result<Item, ImportError> {
    let name = inputs.argument(|args| args.text(TYPE), TYPE, "linear".into())?.unwrap_or_default();
    // The rate comes from the optimizer of the ds_config, or from Trainer's.
    let rate = optimizer.rate.map_or(5e-5, |rate| rate.value);
    let lr = shown(rate);
    let learning_rate = match inputs.ds.has_below("optimizer") {
        true => Outcome::no_effect(
            "the ds_config's optimizer has no `lr`, so that DeepSpeed takes its own default",
        ),
        false => Outcome::Taken(format!("schedule.lr: {lr}")),
    };
    inputs.settle_argument("learning_rate", learning_rate);
    if name == "constant" {
        let none = Outcome::no_effect("`constant` has no warmup; `constant_with_warmup` has");
        inputs.settle_argument("warmup_steps", none.clone());
        inputs.settle_argument("warmup_ratio", none);
        inputs.settle_argument(TYPE, Outcome::taken("schedule: Constant"));
        return Ok(Item::certain(format!("Constant(lr: {lr})")));
    }
    let rise = format!("warmup: {}, from_zero: true", warmup(inputs)?);
    let Some(args) = &mut inputs.args else { return Ok(Item::certain(format!("Constant(lr: {lr})"))) };
    let text = match name.as_str() {
        "linear" => Some(format!("Linear(lr: {lr}, {rise})")),
        "cosine" => Some(format!("Cosine(lr: {lr}, {rise})")),
        "constant_with_warmup" => Some(format!("Constant(lr: {lr}, {rise})")),
        "inverse_sqrt" => {
            let timescale = counted(args, "timescale", "timescale", 1)?;
            let timescale = timescale.map(|updates| format!("timescale: {updates}, ")).unwrap_or_default();
            Some(format!("InverseSqrt(lr: {lr}, {timescale}{rise})"))
        }
        "cosine_with_restarts" => {
            let cycles = counted(args, "num_cycles", "cycles", 1)?.unwrap_or(1);
            Some(format!("CosineRestarts(lr: {lr}, cycles: {cycles}, {rise})"))
        }
        "polynomial" => {
            let lowest = taken(args, "lr_end", ("min_lr", 1.0), AT_LEAST_ZERO)?.unwrap_or(1e-7);
            let power =
                taken(args, "power", ("power", 1.0), ("above 0", |power| power > 0.0))?.unwrap_or(1.0);
            Some(format!("Polynomial(lr: {lr}, min_lr: {}, power: {}, {rise})", shown(lowest), shown(power)))
        }
        "cosine_with_min_lr" => {
            let lowest = taken(args, "min_lr", ("min_lr", 1.0), AT_LEAST_ZERO)?;
            let lowest = lowest.or(taken(args, "min_lr_rate", ("min_lr", rate), SHARE)?);
            Some(format!("Cosine(lr: {lr}, min_lr: {}, {rise})", shown(lowest.unwrap_or(0.0))))
        }
        "warmup_stable_decay" => Some(stable(args, rate, &rise)?),
        _ => None,
    };
    // Transformers' cosines are half a wave long by default.
    let waves = option("num_cycles");
    if args.number(&waves, "a number", |_| true)? == Setting::Is(0.5) {
        args.settle(&waves, Outcome::no_effect("a cosine is half a wave here too"));
    }
    let known = "linear, cosine, cosine_with_restarts, cosine_with_min_lr, polynomial, constant, \
                 constant_with_warmup, inverse_sqrt or warmup_stable_decay";
    let Some(text) = text else {
        args.settle_below(
            "lr_scheduler_kwargs",
            &Outcome::refused("what `lr_scheduler_type` is replaced with"),
        );
        args.settle(TYPE, Outcome::refused(known));
        return Ok(Item::suggested(format!("Linear(lr: {lr}, {rise})")).noted(format!("instead of {name}")));
    };
    args.settle(TYPE, Outcome::Taken(format!("schedule: {}", text.split('(').next().unwrap_or_default())));
    args.settle_below("lr_scheduler_kwargs", &Outcome::refused("this schedule without the setting"));
    Ok(Item::certain(text))
}

/// Reads `Wsd`, whose decay is required.
fn stable(args: &mut Source, rate: f64, rise: &str) -> Result<String, ImportError> {
    let decay = counted(args, "num_decay_steps", "decay", 1)?;
    let decay = decay.ok_or_else(|| args.wrong("lr_scheduler_kwargs.num_decay_steps", "given"))?;
    let mut text = format!("Wsd(lr: {}, decay: {decay}, {rise}", shown(rate));
    if let Some(stable) = counted(args, "num_stable_steps", "stable", 0)? {
        text += &format!(", stable: {stable}");
    }
    if let Some(lowest) = taken(args, "min_lr_ratio", ("min_lr", rate), SHARE)? {
        text += &format!(", min_lr: {}", shown(lowest));
    }
    for name in ["warmup_type", "decay_type"] {
        let path = option(name);
        let known = [("linear", "Linear"), ("cosine", "Cosine"), ("1-sqrt", "OneMinusSqrt")];
        let shape = args.choice(&path, &known)?;
        if let Some(shape) = args.taken(&path, shape, |shape| format!("schedule.{name}: {shape}"))? {
            text += &format!(", {name}: {shape}");
        }
    }
    Ok(text + ")")
}

/// Reads the length of Trainer's warmup: a number of updates, otherwise a share of the run. In newer versions, a number
/// of updates below 1 is that share.
///
/// # Errors
///
/// A value is invalid.
pub(super) fn warmup(inputs: &mut Inputs) -> Result<String, ImportError> {
    const UPDATES: &str = "warmup_steps";
    const RATIO: &str = "warmup_ratio";
    let (updates, ratio) = match &inputs.args {
        Some(args) => (
            args.number(UPDATES, "a number of updates, or a share of the run below 1", |updates| {
                (0.0..=2f64.powi(53)).contains(&updates) && (updates < 1.0 || updates.fract() == 0.0)
            })?,
            args.number(RATIO, "at least 0 and below 1", |ratio| (0.0..1.0).contains(&ratio))?,
        ),
        None => (Setting::Missing, Setting::Missing),
    };
    let (text, note, other) = match (updates, ratio) {
        (Setting::Is(updates), _) if updates >= 1.0 => ((updates as u64).to_string(), UPDATES, RATIO),
        (Setting::Is(share), _) if share > 0.0 => (format!("Ratio({})", shown(share)), UPDATES, RATIO),
        (_, Setting::Is(share)) if share > 0.0 => (format!("Ratio({})", shown(share)), RATIO, UPDATES),
        _ => ("0".into(), UPDATES, RATIO),
    };
    inputs.settle_argument(note, Outcome::Taken(format!("schedule.warmup: {text}")));
    inputs.settle_argument(other, Outcome::no_effect(format!("the warmup is {text}, by `{note}`")));
    Ok(text)
}

fn option(name: &str) -> String {
    format!("lr_scheduler_kwargs.{name}")
}

/// Reads a number for a field of the schedule and multiplies it by `times`.
fn taken(
    args: &mut Source,
    name: &str,
    (here, times): (&str, f64),
    (expected, holds): Range,
) -> Result<Option<f64>, ImportError> {
    let path = option(name);
    let number = args.number(&path, expected, holds)?.map(|number| number * times);
    args.taken(&path, number, |number| format!("schedule.{here}: {}", shown(*number)))
}

fn counted(args: &mut Source, name: &str, here: &str, least: u64) -> Result<Option<u64>, ImportError> {
    let path = option(name);
    let count = args.count(&path, least, 1 << 53)?;
    args.taken(&path, count, |count| format!("schedule.{here}: {count}"))
}
