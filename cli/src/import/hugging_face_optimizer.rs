//! `optim`: the optimizer of the training arguments.

use super::draft::Item;
use super::inputs::{Inputs, Known, shown};
use super::optimizer_settings::{DECAY, EPSILON, MOMENTUM, Optimizer, RATE, Range, SHARDED, pair, unknown};
use super::{ImportError, Outcome, zero};

/// Reads Trainer's own optimizer, which an argument names.
///
/// # Errors
///
/// A setting is invalid.
pub(super) fn read(inputs: &mut Inputs) -> Result<Optimizer, ImportError> {
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
