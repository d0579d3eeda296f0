//! `optim`: the optimizer of the training arguments.

use super::draft::Item;
use super::inputs::{Inputs, Known, shown};
use super::optimizer::{DECAY, EPSILON, MOMENTUM, Optimizer, RATE, Range, pair};
use super::{ImportError, Outcome};

/// Trainer's own, whose name is an argument.
///
/// # Errors
///
/// A setting cannot be.
pub(super) fn read(inputs: &mut Inputs) -> Result<Optimizer, ImportError> {
    const NAME: &str = "optim";
    let name = inputs.argument(|args| args.text(NAME), NAME, "adamw_torch".into())?.unwrap_or_default();
    let number = |name: &str, (expected, holds): Range, default| {
        let value = inputs.argument(|args| args.number(name, expected, holds), name, default)?;
        Ok(value.unwrap_or(default))
    };
    let decay = number("weight_decay", DECAY, 0.0)?;
    let betas = [number("adam_beta1", MOMENTUM, 0.9)?, number("adam_beta2", MOMENTUM, 0.999)?];
    let epsilon = number("adam_epsilon", EPSILON, 1e-8)?;
    let rate = number("learning_rate", RATE, 5e-5)?;
    let adam =
        format!("AdamW(betas: {}, epsilon: {}, weight_decay: {})", pair(betas), shown(epsilon), shown(decay));
    let is_adam = [
        "adamw_torch",
        "adamw_torch_fused",
        "adamw_hf",
        "adamw_apex_fused",
        "adamw_torch_xla",
        "adamw_torch_npu_fused",
        "paged_adamw_32bit",
        "paged_adamw",
    ];
    let (text, outcome) = match name.as_str() {
        adam_w if is_adam.contains(&adam_w) => (adam, Outcome::taken("optimizer: AdamW")),
        "lion_32bit" | "paged_lion_32bit" => (
            format!("Lion(betas: {}, weight_decay: {})", pair(betas), shown(decay)),
            Outcome::taken("optimizer: Lion"),
        ),
        "sgd" => (format!("Sgd(weight_decay: {})", shown(decay)), Outcome::taken("optimizer: Sgd")),
        _ => (adam, Outcome::refused("AdamW, Lion or Sgd, in f32, with their own learning rates")),
    };
    let is_known = !outcome.may_change_the_result();
    let told = |field: &str| Outcome::Taken(format!("optimizer.{field}"));
    let pair = format!("betas: {}", pair(betas));
    let epsilon = format!("epsilon: {}", shown(epsilon));
    for (argument, field) in [("adam_beta1", &pair), ("adam_beta2", &pair), ("adam_epsilon", &epsilon)] {
        if text.contains(field) {
            inputs.settle_argument(argument, told(field));
        }
    }
    inputs.settle_argument("weight_decay", told(&format!("weight_decay: {}, of matrices", shown(decay))));
    inputs.settle_argument(NAME, outcome);
    let item = if is_known {
        Item::certain(text.as_str())
    } else {
        Item::suggested(text.as_str()).noted(format!("instead of {name}"))
    };
    Ok(Optimizer { has_betas: !text.starts_with("Sgd"), item, rate: Some(Known::certain(rate)) })
}
