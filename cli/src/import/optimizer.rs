//! `optimizer` of the ds_config, or that of the training arguments.

use super::draft::Item;
use super::inputs::{Inputs, Known, shown};
use super::optimizer_settings::{
    DECAY, EPSILON, MOMENTUM, Optimizer, RATE, Range, SHARDED, SHARE, pair, unknown, within_one,
};
use super::source::{Given, Source};
use super::{ImportError, Outcome, hugging_face_optimizer, zero};

/// The optimizers of run files.
#[derive(Clone, Copy, PartialEq)]
enum Kind {
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
        false if inputs.args.is_some() => hugging_face_optimizer::read(inputs)?,
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
    let Given::Is(name) = inputs.ds.text(TYPE)? else {
        return Err(inputs.ds.wrong(TYPE, "the name of an optimizer"));
    };
    let lower = name.to_ascii_lowercase();
    let is_sharded = zero::stage(&mut inputs.ds)? > 0;
    // DeepSpeed's Adam is AdamW by default.
    let coupled = lower == "adam" && inputs.ds.flag("optimizer.params.adam_w_mode")? == Given::Is(false);
    let (kind, outcome) = match lower.as_str() {
        "adam" | "adamw" => (Kind::AdamW, Outcome::taken("optimizer: AdamW")),
        "lion" => (Kind::Lion, Outcome::taken("optimizer: Lion")),
        "sgd" => (Kind::Sgd, Outcome::taken("optimizer: Sgd")),
        "lamb" if is_sharded => (Kind::AdamW, Outcome::refused(SHARDED)),
        "lamb" => (Kind::Lamb, Outcome::taken("optimizer: Lamb")),
        "onebitadam" | "zerooneadam" | "onebitlamb" => (
            Kind::AdamW,
            Outcome::refused("AdamW; `Zero(sum_in: bf16)` halves what gradients take on the wire"),
        ),
        _ => (Kind::AdamW, unknown()),
    };
    let is_known = !outcome.may_change_the_result();
    inputs.ds.settle(TYPE, outcome);
    // Torch's AdamW has its own default.
    let of_torch = inputs.ds.flag("optimizer.params.torch_adam")? == Given::Is(true);
    let decay = if kind == Kind::AdamW && of_torch && !coupled { 0.01 } else { 0.0 };
    let rate = inputs.number("optimizer.params.lr", ("learning_rate", 5e-5), RATE, "schedule.lr: {}")?;
    let item = match kind {
        Kind::AdamW => adam_w(inputs, decay, coupled)?,
        Kind::Lion => lion(inputs)?,
        Kind::Lamb => lamb(inputs)?,
        Kind::Sgd => sgd(inputs)?,
    };
    let item = if is_known { item } else { item.left_open_if(true).noted(format!("instead of {name}")) };
    if !is_known {
        inputs
            .ds
            .settle_below("optimizer.params", &Outcome::refused("what `optimizer.type` is replaced with"));
    }
    // The default rate of all DeepSpeed optimizers.
    Ok(Optimizer { item, rate: rate.or(Some(Known::certain(1e-3))), has_betas: kind != Kind::Sgd })
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
            Given::Is(set) if set != usual => Outcome::refused(instead),
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
    let nesterov = ds.flag(&path)? == Given::Is(true);
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
    if let Given::Is(both) = given {
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
    let open = given == Given::Auto && inputs.args.is_none();
    let note = format!("optimizer.betas: {}", pair(halves));
    match (given, open) {
        (Given::Auto, true) => {
            inputs.ds.correct(PATH, Outcome::FillIn(format!("{note}, Transformers' defaults")))
        }
        (Given::Auto, false) => {
            inputs.ds.correct(PATH, Outcome::Taken(format!("{note}, by `adam_beta1` and `adam_beta2`")))
        }
        (Given::Is(_) | Given::Missing, _) => {}
    }
    Ok(Known { value: halves, suggested: open })
}
