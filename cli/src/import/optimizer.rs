//! The optimizer: that of the ds_config, or that of the training arguments.

use firebrick_strategies::optim::Optimizers;

use super::draft::Item;
use super::inputs::{Inputs, Known, shown};
use super::source::{Setting, Source};
use super::{ImportError, Outcome, zero};

/// An optimizer and its learning rate.
#[derive(Debug)]
pub(super) struct Optimizer {
    pub item: Item,
    /// The rate, if it is given. A schedule may have its own.
    pub rate: Option<Known<f64>>,
    /// Whether the optimizer has `betas`, which DeepSpeed's `OneCycle` changes.
    pub has_betas: bool,
}

pub(super) type Range = (&'static str, fn(f64) -> bool);

pub(super) const RATE: Range = ("above 0", |rate| rate > 0.0);
// Run files store these as f32.
const DECAY: Range = ("at least 0", |decay| decay >= 0.0 && (decay as f32).is_finite());
const EPSILON: Range = ("above 0", |epsilon| epsilon as f32 > 0.0 && (epsilon as f32).is_finite());
pub(super) const AT_LEAST_ZERO: Range = ("at least 0", |number| number >= 0.0);
/// A share.
pub(super) const SHARE: Range = ("at least 0 and at most 1", |share| (0.0..=1.0).contains(&share));
const MOMENTUM: Range = ("at least 0 and below 1", within_one);

fn within_one(beta: f64) -> bool {
    beta >= 0.0 && (beta as f32) < 1.0
}

/// The message for an optimizer that cannot update shards, although ZeRO would require it.
const SHARDED: &str =
    "AdamW, or no stage of ZeRO: an update depends on the whole parameter, of which ranks would have shards";

/// Formats two numbers as in a run file.
fn pair([first, second]: [f64; 2]) -> String {
    format!("({}, {})", shown(first), shown(second))
}

/// Returns the outcome of an optimizer that run files do not know.
fn unknown() -> Outcome {
    let names = Optimizers::built_in().names().join(", ");
    Outcome::refused(format!("one of {names}, with its own learning rate"))
}

/// The optimizers of run files.
#[derive(Clone, Copy, PartialEq)]
enum OptimizerKind {
    AdamW,
    Lion,
    Lamb,
    Sgd,
}

/// Reads the optimizer of the ds_config, or that of the training arguments if the ds_config has none.
///
/// # Errors
///
/// A setting is invalid, or the files contradict each other.
pub(super) fn read(inputs: &mut Inputs) -> Result<Optimizer, ImportError> {
    let optimizer = match inputs.ds.has_below("optimizer") {
        true => of_deepspeed(inputs)?,
        false if inputs.args.is_some() => of_training_arguments(inputs)?,
        false => Optimizer {
            item: Item::suggested("AdamW(weight_decay: 0.01)").noted("the ds_config has no optimizer"),
            rate: None,
            has_betas: true,
        },
    };
    for name in
        ["adam_beta1", "adam_beta2", "adam_epsilon", "weight_decay", "optim", "optim_args", "adafactor"]
    {
        inputs.settle_argument(name, Outcome::no_effect("the optimizer does not ask for it"));
    }
    Ok(optimizer)
}

fn of_deepspeed(inputs: &mut Inputs) -> Result<Optimizer, ImportError> {
    const TYPE: &str = "optimizer.type";
    let Setting::Is(name) = inputs.ds.text(TYPE)? else {
        return Err(inputs.ds.wrong(TYPE, "the name of an optimizer"));
    };
    let lower = name.to_ascii_lowercase();
    let is_sharded = zero::stage(&mut inputs.ds)? > 0;
    // DeepSpeed's Adam is AdamW by default.
    let coupled = lower == "adam" && inputs.ds.flag("optimizer.params.adam_w_mode")? == Setting::Is(false);
    let (kind, outcome) = match lower.as_str() {
        "adam" | "adamw" => (OptimizerKind::AdamW, Outcome::taken("optimizer: AdamW")),
        "lion" => (OptimizerKind::Lion, Outcome::taken("optimizer: Lion")),
        "sgd" => (OptimizerKind::Sgd, Outcome::taken("optimizer: Sgd")),
        "lamb" if is_sharded => (OptimizerKind::AdamW, Outcome::refused(SHARDED)),
        "lamb" => (OptimizerKind::Lamb, Outcome::taken("optimizer: Lamb")),
        "onebitadam" | "zerooneadam" | "onebitlamb" => (
            OptimizerKind::AdamW,
            Outcome::refused("AdamW; `Zero(sum_in: bf16)` halves what gradients take on the wire"),
        ),
        _ => (OptimizerKind::AdamW, unknown()),
    };
    let is_known = !outcome.may_change_the_result();
    inputs.ds.settle(TYPE, outcome);
    // Torch's AdamW has its own default.
    let of_torch = inputs.ds.flag("optimizer.params.torch_adam")? == Setting::Is(true);
    let decay = if kind == OptimizerKind::AdamW && of_torch && !coupled { 0.01 } else { 0.0 };
    let rate = inputs.number("optimizer.params.lr", ("learning_rate", 5e-5), RATE, "schedule.lr: {}")?;
    let item = match kind {
        OptimizerKind::AdamW => adam_w(inputs, decay, coupled)?,
        OptimizerKind::Lion => lion(inputs)?,
        OptimizerKind::Lamb => lamb(inputs)?,
        OptimizerKind::Sgd => sgd(inputs)?,
    };
    let item = if is_known { item } else { item.left_open_if(true).noted(format!("instead of {name}")) };
    if !is_known {
        inputs
            .ds
            .settle_below("optimizer.params", &Outcome::refused("what `optimizer.type` is replaced with"));
    }
    // The default rate of all DeepSpeed optimizers.
    Ok(Optimizer { item, rate: rate.or(Some(Known::certain(1e-3))), has_betas: kind != OptimizerKind::Sgd })
}

/// Reads betas, epsilon and weight decay, formatted as settings of an optimizer.
fn moments(inputs: &mut Inputs, default_decay: f64) -> Result<(Item, f64), ImportError> {
    let betas = betas(inputs, [0.9, 0.999])?;
    let epsilon = inputs.number(&param("eps"), ("adam_epsilon", 1e-8), EPSILON, "optimizer.epsilon: {}")?;
    let epsilon = epsilon.unwrap_or(Known::certain(1e-8));
    let decay = weight_decay(inputs, default_decay)?;
    let (betas_here, epsilon_here, decay_here) =
        (pair(betas.value), shown(epsilon.value), shown(decay.value));
    let text = format!("betas: {betas_here}, epsilon: {epsilon_here}, weight_decay: {decay_here}");
    let item = Item::certain(text).left_open_if(betas.suggested || epsilon.suggested || decay.suggested);
    Ok((item, decay.value))
}

fn adam_w(inputs: &mut Inputs, decay: f64, coupled: bool) -> Result<Item, ImportError> {
    let (settings, decay) = moments(inputs, decay)?;
    let ds = &mut inputs.ds;
    let mode = match coupled && decay > 0.0 {
        true => Outcome::refused(
            "decay that is added to gradients: AdamW decays the weights, or set weight_decay to 0",
        ),
        false => Outcome::taken("optimizer: AdamW"),
    };
    ds.settle(&param("adam_w_mode"), mode);
    for (name, usual, instead) in [
        ("bias_correction", true, "the moments are always corrected for their start at 0"),
        ("amsgrad", false, "AdamW without AMSGrad"),
    ] {
        let outcome = match ds.flag(&param(name))? {
            Setting::Is(set) if set != usual => Outcome::refused(instead),
            _ => Outcome::no_effect("as here"),
        };
        ds.settle(&param(name), outcome);
    }
    Ok(Item { ron: format!("AdamW({})", settings.ron), ..settings })
}

fn lion(inputs: &mut Inputs) -> Result<Item, ImportError> {
    let (betas, decay) = (betas(inputs, [0.9, 0.99])?, weight_decay(inputs, 0.0)?);
    let text = format!("Lion(betas: {}, weight_decay: {})", pair(betas.value), shown(decay.value));
    Ok(Item::certain(text).left_open_if(betas.suggested || decay.suggested))
}

fn lamb(inputs: &mut Inputs) -> Result<Item, ImportError> {
    let (settings, _) = moments(inputs, 0.0)?;
    let ds = &mut inputs.ds;
    let mut text = settings.ron.clone();
    let mut bounds = [10.0, 0.01];
    for (bound, name) in bounds.iter_mut().zip(["max_coeff", "min_coeff"]) {
        if let Some(given) = taken(ds, name, DECAY)? {
            *bound = given;
            text += &format!(", {name}: {}", shown(given));
        }
    }
    if bounds[0] < bounds[1] {
        return Err(ds.wrong(&param("max_coeff"), "at least min_coeff"));
    }
    let path = param("bias_correction");
    let corrected = ds.flag(&path)?;
    let corrected = ds.taken(&path, corrected, |is| format!("optimizer.bias_correction: {is}"))?;
    if let Some(corrected) = corrected {
        text += &format!(", bias_correction: {corrected}");
    }
    Ok(Item { ron: format!("Lamb({text})"), ..settings })
}

fn sgd(inputs: &mut Inputs) -> Result<Item, ImportError> {
    let ds = &mut inputs.ds;
    let momentum = taken(ds, "momentum", MOMENTUM)?.unwrap_or(0.0);
    let dampening = taken(ds, "dampening", SHARE)?.unwrap_or(0.0);
    let path = param("nesterov");
    let nesterov = ds.flag(&path)? == Setting::Is(true);
    ds.settle(&path, Outcome::Taken(format!("optimizer.nesterov: {nesterov}")));
    let decay = weight_decay(inputs, 0.0)?;
    let mut text = format!("Sgd(momentum: {}, nesterov: {nesterov}", shown(momentum));
    // Without momentum there is no velocity to dampen, as in torch.
    if momentum > 0.0 && dampening > 0.0 {
        text += &format!(", dampening: {}", shown(dampening));
    }
    Ok(Item::certain(format!("{text}, weight_decay: {})", shown(decay.value))).left_open_if(decay.suggested))
}

/// Returns the path of a setting.
fn param(name: &str) -> String {
    format!("optimizer.params.{name}")
}

/// Reads a number that has the same name here.
fn taken(ds: &mut Source, name: &str, (expected, holds): Range) -> Result<Option<f64>, ImportError> {
    let path = param(name);
    let number = ds.number(&path, expected, holds)?;
    ds.taken(&path, number, |number| format!("optimizer.{name}: {}", shown(*number)))
}

fn weight_decay(inputs: &mut Inputs, default: f64) -> Result<Known<f64>, ImportError> {
    let to = "optimizer.weight_decay: {}, of matrices";
    let decay = inputs.number("optimizer.params.weight_decay", ("weight_decay", 0.0), DECAY, to)?;
    Ok(decay.unwrap_or(Known::certain(default)))
}

fn betas(inputs: &mut Inputs, default: [f64; 2]) -> Result<Known<[f64; 2]>, ImportError> {
    const PATH: &str = "optimizer.params.betas";
    let expected = "two numbers of at least 0 and below 1";
    let given = inputs.ds.read(PATH, expected, |value| {
        let [first, second] = value.as_array()?.as_slice() else { return None };
        let both = [first.as_f64()?, second.as_f64()?];
        both.into_iter().all(within_one).then_some(both)
    })?;
    if let Setting::Is(both) = given {
        inputs.ds.settle(PATH, Outcome::Taken(format!("optimizer.betas: {}", pair(both))));
    }
    // Compare each half of the pair with its argument.
    let mut halves = [0.9, 0.999];
    for (index, argument) in ["adam_beta1", "adam_beta2"].into_iter().enumerate() {
        let usual = halves[index];
        let half = given.map(|betas| betas[index]);
        let read = |args: &Source| args.number(argument, MOMENTUM.0, MOMENTUM.1);
        let half = inputs
            .merged(PATH, half, argument, usual, read, |half| format!("optimizer.betas: {}", shown(*half)))?;
        halves[index] = half.map_or(default[index], |half| half.value);
    }
    let open = given == Setting::Auto && inputs.args.is_none();
    let note = format!("optimizer.betas: {}", pair(halves));
    match (given, open) {
        (Setting::Auto, true) => {
            inputs.ds.correct(PATH, Outcome::FillIn(format!("{note}, Transformers' defaults")))
        }
        (Setting::Auto, false) => {
            inputs.ds.correct(PATH, Outcome::Taken(format!("{note}, by `adam_beta1` and `adam_beta2`")))
        }
        (Setting::Is(_) | Setting::Missing, _) => {}
    }
    Ok(Known { value: halves, suggested: open })
}

/// Reads Trainer's own optimizer, which an argument names.
///
/// # Errors
///
/// A setting is invalid.
fn of_training_arguments(inputs: &mut Inputs) -> Result<Optimizer, ImportError> {
    const NAME: &str = "optim";
    let name = inputs.argument(|args| args.text(NAME), NAME, "adamw_torch".into())?.unwrap_or_default();
    // Older versions have a separate flag.
    const OLD: &str = "adafactor";
    let name = match inputs.argument(|args| args.flag(OLD), OLD, false)? {
        Some(true) => OLD.into(),
        _ => name,
    };
    let is_sharded = zero::stage(&mut inputs.ds)? > 0;
    let number = |name: &str, (expected, holds): Range, default| {
        let value = inputs.argument(|args| args.number(name, expected, holds), name, default)?;
        Ok(value.unwrap_or(default))
    };
    let decay = number("weight_decay", DECAY, 0.0)?;
    let betas = [number("adam_beta1", MOMENTUM, 0.9)?, number("adam_beta2", MOMENTUM, 0.999)?];
    let epsilon = number("adam_epsilon", EPSILON, 1e-8)?;
    let rate = number("learning_rate", RATE, 5e-5)?;
    let settings =
        format!("(betas: {}, epsilon: {}, weight_decay: {})", pair(betas), shown(epsilon), shown(decay));
    let adam = format!("AdamW{settings}");
    let (text, outcome) = match name.as_str() {
        "adamw_torch"
        | "adamw_torch_fused"
        | "adamw_hf"
        | "adamw_apex_fused"
        | "adamw_torch_xla"
        | "adamw_torch_npu_fused"
        | "paged_adamw_32bit"
        | "paged_adamw" => (adam, Outcome::taken("optimizer: AdamW")),
        "lion_32bit" | "paged_lion_32bit" => (
            format!("Lion(betas: {}, weight_decay: {})", pair(betas), shown(decay)),
            Outcome::taken("optimizer: Lion"),
        ),
        "adamw_bnb_8bit" | "adamw_8bit" | "paged_adamw_8bit" => {
            (format!("AdamW8bit{settings}"), Outcome::taken("optimizer: AdamW8bit"))
        }
        OLD if is_sharded => (adam, Outcome::refused(SHARDED)),
        OLD => (
            format!("Adafactor(weight_decay: {})", shown(decay)),
            Outcome::taken("optimizer: Adafactor, at the schedule's rate, as Trainer has it"),
        ),
        "sgd" => (format!("Sgd(weight_decay: {})", shown(decay)), Outcome::taken("optimizer: Sgd")),
        _ => (adam, unknown()),
    };
    let is_known = !outcome.may_change_the_result();
    let note = |field: &str| Outcome::Taken(format!("optimizer.{field}"));
    let pair = format!("betas: {}", pair(betas));
    let epsilon = format!("epsilon: {}", shown(epsilon));
    for (argument, field) in [("adam_beta1", &pair), ("adam_beta2", &pair), ("adam_epsilon", &epsilon)] {
        if text.contains(field) {
            inputs.settle_argument(argument, note(field));
        }
    }
    inputs.settle_argument("weight_decay", note(&format!("weight_decay: {}, of matrices", shown(decay))));
    if name == OLD {
        inputs.settle_argument(OLD, outcome.clone());
    }
    inputs.settle_argument(NAME, outcome);
    let item = if is_known {
        Item::certain(text.as_str())
    } else {
        Item::suggested(text.as_str()).noted(format!("instead of {name}"))
    };
    Ok(Optimizer { has_betas: text.contains("betas"), item, rate: Some(Known::certain(rate)) })
}
