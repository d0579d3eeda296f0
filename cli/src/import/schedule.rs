//! `scheduler`: DeepSpeed's schedules, under the names of run files.

use super::draft::Item;
use super::inputs::{Inputs, Known, shown};
use super::length::Length;
use super::optimizer::{AT_LEAST_ZERO, Optimizer, RATE, Range, SHARE};
use super::source::{Setting, Source};
use super::{ImportError, Outcome, hugging_face_schedule};

const TYPE: &str = "scheduler.type";

/// Reads the schedule of the ds_config, otherwise that of the training arguments, otherwise a constant rate.
///
/// # Errors
///
/// A setting is invalid, or the files contradict each other.
pub(super) fn read(inputs: &mut Inputs, optimizer: &Optimizer, length: &Length) -> Result<Item, ImportError> {
    let item = match (inputs.ds.has_below("scheduler"), inputs.args.is_some()) {
        (true, _) => of_deepspeed(inputs, optimizer, length)?,
        (false, true) => hugging_face_schedule::read(inputs, optimizer)?,
        (false, false) => match optimizer.rate {
            Some(rate) => Item::of(rate.map(|rate| format!("Constant(lr: {})", shown(rate))))
                .noted("the ds_config has no scheduler"),
            None => Item::suggested("Constant(lr: 1e-3)").noted("the ds_config has no scheduler"),
        },
    };
    let own = Outcome::no_effect("the schedule of the ds_config takes precedence");
    for name in ["learning_rate", "lr_scheduler_type", "warmup_steps", "warmup_ratio", "lr_scheduler_kwargs"]
    {
        inputs.settle_argument(name, own.clone());
    }
    if let Some(args) = &mut inputs.args {
        args.settle_below("lr_scheduler_kwargs", &own);
    }
    Ok(item)
}

fn of_deepspeed(inputs: &mut Inputs, optimizer: &Optimizer, length: &Length) -> Result<Item, ImportError> {
    let Setting::Is(name) = inputs.ds.text(TYPE)? else {
        return Err(inputs.ds.wrong(TYPE, "the name of a schedule"));
    };
    // All but one have their own highest rate instead of the optimizer's.
    let (item, has_rate) = match name.as_str() {
        "WarmupLR" => (warmup(inputs, "WarmupLr", None)?, true),
        "WarmupDecayLR" => (warmup(inputs, "WarmupDecayLr", Some(length))?, true),
        "WarmupCosineLR" => (cosine(inputs, optimizer, length)?, false),
        "OneCycle" => (one_cycle(inputs, optimizer)?, true),
        "LRRangeTest" => (range_test(inputs)?, true),
        _ => {
            let known = "WarmupLR, WarmupDecayLR, WarmupCosineLR, OneCycle, LRRangeTest, or any `schedule` of a run file";
            inputs.ds.settle(TYPE, Outcome::refused(known));
            inputs.ds.settle_below(
                "scheduler.params",
                &Outcome::refused("what `scheduler.type` is replaced with"),
            );
            let rate = optimizer.rate.map_or(1e-3, |rate| rate.value);
            let instead = Item::suggested(format!("Constant(lr: {})", shown(rate)));
            (instead.noted(format!("instead of {name}")), false)
        }
    };
    inputs.ds.settle(
        TYPE,
        Outcome::Taken(format!("schedule: {}", item.ron.split('(').next().unwrap_or_default())),
    );
    let begun = match inputs.ds.get(&param("last_batch_iteration")).map(|field| field.value.to_string()) {
        Some(update) if update != "-1" => {
            Outcome::refused("a schedule from its start; `--resume` continues one")
        }
        _ => Outcome::no_effect("schedules start with the run"),
    };
    inputs.ds.settle(&param("last_batch_iteration"), begun);
    if has_rate {
        inputs.ds.correct("optimizer.params.lr", Outcome::no_effect("the schedule has its own highest rate"));
    }
    Ok(item)
}

/// Reads `WarmupLR`, or `WarmupDecayLR` with its own length.
fn warmup(inputs: &mut Inputs, name: &str, decay: Option<&Length>) -> Result<Item, ImportError> {
    let (warmup, kind) = (warmup_updates(inputs)?, warmup_type(&mut inputs.ds)?);
    let highest = inputs.number(&param("warmup_max_lr"), ("learning_rate", 5e-5), RATE, "schedule.lr: {}")?;
    let highest = highest.unwrap_or(Known::certain(1e-3));
    // No training argument sets the lowest rate: Trainer fills in 0.
    let path = param("warmup_min_lr");
    let within = |rate| (0.0..=highest.value).contains(&rate);
    let lowest = inputs.ds.number(&path, "at least 0 and at most warmup_max_lr", within)?.or(0.0);
    inputs.ds.settle(&path, Outcome::Taken(format!("schedule.min_lr: {}", shown(lowest))));
    let total = decay.map(|length| total(inputs, length)).transpose()?.unwrap_or_default();
    let text = format!(
        "{name}(lr: {}, min_lr: {}, warmup: {}, warmup_type: {kind}{total})",
        shown(highest.value),
        shown(lowest),
        warmup.value,
    );
    Ok(Item::certain(text).left_open_if(highest.suggested || warmup.suggested))
}

fn cosine(inputs: &mut Inputs, optimizer: &Optimizer, length: &Length) -> Result<Item, ImportError> {
    let (warmup, kind) = (warmup_updates(inputs)?, warmup_type(&mut inputs.ds)?);
    let rate = optimizer.rate.unwrap_or(Known::suggested(1e-3));
    let mut text =
        format!("WarmupCosineLr(lr: {}, warmup: {}, warmup_type: {kind}", shown(rate.value), warmup.value);
    for name in ["warmup_min_ratio", "cos_min_ratio"] {
        if let Some(ratio) = taken(&mut inputs.ds, name, name, SHARE)? {
            text += &format!(", {name}: {ratio}");
        }
    }
    let text = format!("{text}{})", total(inputs, length)?);
    Ok(Item::certain(text).left_open_if(rate.suggested || warmup.suggested))
}

fn one_cycle(inputs: &mut Inputs, optimizer: &Optimizer) -> Result<Item, ImportError> {
    let ds = &mut inputs.ds;
    let turned_off = ds.flag(&param("cycle_momentum"))? == Setting::Is(false) || !optimizer.has_betas;
    let momentum = match turned_off {
        true => Outcome::no_effect("no momentum moves"),
        false => Outcome::refused("momentum that stays, as with cycle_momentum: false"),
    };
    let highest =
        taken(ds, "cycle_max_lr", "lr", RATE)?.ok_or_else(|| ds.wrong(&param("cycle_max_lr"), "given"))?;
    let lowest = taken(ds, "cycle_min_lr", "min_lr", AT_LEAST_ZERO)?;
    let lowest = lowest.ok_or_else(|| ds.wrong(&param("cycle_min_lr"), "given"))?;
    let mut text = format!("OneCycle(lr: {highest}, min_lr: {lowest}");
    if let Some(rate) = taken(ds, "decay_lr_rate", "decay_lr_rate", AT_LEAST_ZERO)? {
        text += &format!(", decay_lr_rate: {rate}");
    }
    for (name, here, least) in [
        ("cycle_first_step_size", "first_step_size", 1),
        ("cycle_second_step_size", "second_step_size", 0),
        ("cycle_first_stair_count", "first_stair_count", 0),
        ("cycle_second_stair_count", "second_stair_count", 0),
        ("decay_step_size", "decay_step_size", 0),
    ] {
        if let Some(count) = counted(ds, name, here, least)? {
            text += &format!(", {here}: {count}");
        }
    }
    // Momentum cycles unless it is turned off. Without the field, the type alone records this.
    if ds.get(&param("cycle_momentum")).is_none() && !turned_off {
        let half = "OneCycle of the rate alone: momentum cycles there, unless cycle_momentum is false";
        ds.settle(TYPE, Outcome::refused(half));
    }
    for name in ["cycle_momentum", "cycle_min_mom", "cycle_max_mom", "decay_mom_rate"] {
        ds.settle(&param(name), momentum.clone());
    }
    Ok(Item::certain(text + ")"))
}

fn range_test(inputs: &mut Inputs) -> Result<Item, ImportError> {
    let (ds, old) = (&mut inputs.ds, "lr_range_test_");
    let mut fields = Vec::new();
    for here in ["min_lr", "step_rate"] {
        fields.extend(taken(ds, &format!("{old}{here}"), here, RATE)?.map(|rate| format!("{here}: {rate}")));
    }
    fields.extend(
        counted(ds, &format!("{old}step_size"), "step_size", 1)?.map(|size| format!("step_size: {size}")),
    );
    let stairs = param(&format!("{old}staircase"));
    let stays = ds.flag(&stairs)?;
    let stays = ds.taken(&stairs, stays, |stays| format!("schedule.staircase: {stays}"))?;
    fields.extend(stays.map(|stays| format!("staircase: {stays}")));
    Ok(Item::certain(format!("LrRangeTest({})", fields.join(", "))))
}

/// Returns the path of a setting.
fn param(name: &str) -> String {
    format!("scheduler.params.{name}")
}

/// Reads a number for a field of the schedule, formatted as in a run file.
fn taken(
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
fn counted(ds: &mut Source, name: &str, here: &str, least: u64) -> Result<Option<u64>, ImportError> {
    let path = param(name);
    let count = ds.count(&path, least, 1 << 53)?;
    ds.taken(&path, count, |count| format!("schedule.{here}: {count}"))
}

/// Reads `log` or `linear`.
fn warmup_type(ds: &mut Source) -> Result<&'static str, ImportError> {
    let path = param("warmup_type");
    let kind = ds.choice(&path, &[("log", "Log"), ("linear", "Linear")])?;
    Ok(ds.taken(&path, kind, |kind| format!("schedule.warmup_type: {kind}"))?.unwrap_or("Log"))
}

/// Reads the warmup in updates, or as a share of the run if the training arguments give one.
fn warmup_updates(inputs: &mut Inputs) -> Result<Known<String>, ImportError> {
    let path = param("warmup_num_steps");
    match inputs.ds.count(&path, 0, 1 << 53)? {
        Setting::Missing => Ok(Known::certain("1000".into())),
        Setting::Is(updates) => {
            if let Some(args) = &inputs.args
                && let Setting::Is(other) = args.count("warmup_steps", 0, 1 << 53).unwrap_or(Setting::Missing)
                && other > 0
                && other != updates
            {
                return Err(inputs.differ(&path, "warmup_steps"));
            }
            inputs.ds.settle(&path, Outcome::Taken(format!("schedule.warmup: {updates}")));
            Ok(Known::certain(updates.to_string()))
        }
        Setting::Auto => {
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
fn total(inputs: &mut Inputs, length: &Length) -> Result<String, ImportError> {
    let path = param("total_num_steps");
    let own = match inputs.ds.count(&path, 1, 1 << 53)? {
        Setting::Is(updates) if length.steps != Some(updates) => Some(updates),
        _ => None,
    };
    let note = own.map_or("the length of the run".into(), |updates| format!("schedule.total: {updates}"));
    inputs.ds.settle(&path, Outcome::Taken(note));
    Ok(own.map(|updates| format!(", total: {updates}")).unwrap_or_default())
}
