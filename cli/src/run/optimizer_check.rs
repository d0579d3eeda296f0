//! Checks settings of optimizers and parameter groups that parse but are invalid.

use super::check::{Problem, require};
use super::{OptimizerConfig, Run};

/// Returns the first invalid setting.
pub(super) fn optimizer(run: &Run) -> Option<Problem> {
    of_optimizer(run).or_else(|| param_groups(run))
}

fn of_optimizer(run: &Run) -> Option<Problem> {
    match run.optimizer {
        OptimizerConfig::AdamW { betas: both, epsilon: small, weight_decay }
        | OptimizerConfig::AdamW8bit { betas: both, epsilon: small, weight_decay, .. } => {
            betas(both).or_else(|| epsilon(small)).or_else(|| decay(weight_decay))
        }
        OptimizerConfig::Lion { betas: both, weight_decay } => betas(both).or_else(|| decay(weight_decay)),
        OptimizerConfig::Sgd { momentum, nesterov, weight_decay, dampening } => {
            share("optimizer.momentum", momentum)
                .or_else(|| {
                    let possible = (0.0..=1.0).contains(&dampening);
                    require(possible, "optimizer.dampening", "at least 0 and at most 1", dampening)
                })
                .or_else(|| {
                    let expected = "0 where `optimizer.momentum` is";
                    require(momentum > 0.0 || dampening == 0.0, "optimizer.dampening", expected, dampening)
                })
                .or_else(|| {
                    let expected = "false where `optimizer.momentum` is 0";
                    require(momentum > 0.0 || !nesterov, "optimizer.nesterov", expected, nesterov)
                })
                .or_else(|| decay(weight_decay))
        }
        OptimizerConfig::Adafactor { .. } => adafactor(run),
        OptimizerConfig::Lamb { betas: both, epsilon: small, weight_decay, max_coeff, min_coeff, .. } => {
            betas(both)
                .or_else(|| epsilon(small))
                .or_else(|| decay(weight_decay))
                .or_else(|| require(min_coeff >= 0.0, "optimizer.min_coeff", "at least 0", min_coeff))
                .or_else(|| {
                    let expected = "finite and at least `optimizer.min_coeff`";
                    let possible = max_coeff.is_finite() && max_coeff >= min_coeff;
                    require(possible, "optimizer.max_coeff", expected, max_coeff)
                })
        }
    }
}

fn adafactor(run: &Run) -> Option<Problem> {
    let OptimizerConfig::Adafactor {
        epsilons,
        clip_threshold,
        decay_rate,
        beta1,
        weight_decay,
        relative_step,
        warmup_init,
        ..
    } = run.optimizer
    else {
        return None;
    };
    let above = |value: f32| value > 0.0 && value.is_finite();
    let (of_squares, of_parameters) = epsilons;
    let shown = format!("({of_squares:e}, {of_parameters:e})");
    let possible = above(of_squares) && above(of_parameters);
    require(possible, "optimizer.epsilons", "finite and above 0", shown)
        .or_else(|| {
            require(above(clip_threshold), "optimizer.clip_threshold", "finite and above 0", clip_threshold)
        })
        .or_else(|| {
            let possible = decay_rate < 0.0 && decay_rate.is_finite();
            require(possible, "optimizer.decay_rate", "finite and below 0", decay_rate)
        })
        .or_else(|| share("optimizer.beta1", beta1.unwrap_or(0.0)))
        .or_else(|| decay(weight_decay))
        .or_else(|| {
            let expected = "false where `optimizer.relative_step` is";
            require(relative_step || !warmup_init, "optimizer.warmup_init", expected, warmup_init)
        })
        .or_else(|| {
            let expected =
                "1 where `optimizer.relative_step` is true: it multiplies the optimizer's own rate";
            let peak = run.schedule.peak();
            require(!relative_step || peak == 1.0, "schedule.lr", expected, peak)
        })
}

fn share(field: &str, value: f32) -> Option<Problem> {
    require((0.0..1.0).contains(&value), field, "at least 0 and below 1", value)
}

fn betas((beta_1, beta_2): (f32, f32)) -> Option<Problem> {
    let within = |beta| (0.0..1.0).contains(&beta);
    let shown = format!("({beta_1}, {beta_2})");
    require(within(beta_1) && within(beta_2), "optimizer.betas", "at least 0 and below 1", shown)
}

fn epsilon(epsilon: f32) -> Option<Problem> {
    let possible = epsilon > 0.0 && epsilon.is_finite();
    require(possible, "optimizer.epsilon", "finite, above 0 and at least 1e-45", epsilon)
}

fn decay(weight_decay: f32) -> Option<Problem> {
    let possible = weight_decay >= 0.0 && weight_decay.is_finite();
    require(possible, "optimizer.weight_decay", "at least 0", weight_decay)
}

fn param_groups(run: &Run) -> Option<Problem> {
    let mut problems = run.param_groups.iter().enumerate().map(|(index, group)| {
        let field = |name: &str| format!("param_groups.{index}.{name}");
        let possible = |value: f64| value >= 0.0 && value.is_finite();
        let decay = group.weight_decay.unwrap_or(0.0);
        require(!group.paths.is_empty(), &field("paths"), "at least one path", "[]")
            .or_else(|| require(possible(group.lr_scale), &field("lr_scale"), "at least 0", group.lr_scale))
            .or_else(|| require(possible(decay.into()), &field("weight_decay"), "at least 0", decay))
    });
    problems.find_map(|problem| problem).or_else(|| {
        let decay = run.layer_decay.unwrap_or(1.0);
        require(decay > 0.0 && decay <= 1.0, "layer_decay", "above 0 and at most 1", decay)
    })
}
