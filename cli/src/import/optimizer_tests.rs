//! Tests optimizers and schedules of both libraries: their results and their errors.

use super::testing::{field, outcome, refused};

#[test]
fn optimizers() {
    let of = |name: &str, params: &str| {
        field("optimizer", &format!(r#"{{"optimizer": {{"type": "{name}", "params": {{{params}}}}}}}"#), None)
    };
    assert_eq!(of("Adam", ""), "AdamW(betas: (0.9, 0.999), epsilon: 1e-8, weight_decay: 0.0)");
    assert_eq!(
        of("AdamW", r#""torch_adam": true"#),
        "AdamW(betas: (0.9, 0.999), epsilon: 1e-8, weight_decay: 0.01)"
    );
    assert_eq!(of("lion", r#""weight_decay": 0.5"#), "Lion(betas: (0.9, 0.99), weight_decay: 0.5)");
    let sgd = r#""momentum": 0.9, "dampening": 0.1"#;
    assert_eq!(of("SGD", sgd), "Sgd(momentum: 0.9, nesterov: false, dampening: 0.1, weight_decay: 0.0)");
    assert_eq!(of("Lamb", ""), "Lamb(betas: (0.9, 0.999), epsilon: 1e-8, weight_decay: 0.0)");
    let lamb =
        r#""weight_decay": 0.01, "eps": 1e-6, "max_coeff": 5, "min_coeff": 0.1, "bias_correction": false"#;
    assert_eq!(
        of("lamb", lamb),
        "Lamb(betas: (0.9, 0.999), epsilon: 1e-6, weight_decay: 0.01, max_coeff: 5.0, min_coeff: 0.1, \
         bias_correction: false)"
    );
    let lamb = |rest: &str| {
        format!(
            r#"{{"optimizer": {{"type": "Lamb", "params": {{"max_coeff": 1, "eps_inside_sqrt": true}}}}{rest}}}"#
        )
    };
    assert_eq!(outcome("optimizer.params.max_coeff", &lamb(""), None), ("taken", false));
    assert_eq!(outcome("optimizer.params.eps_inside_sqrt", &lamb(""), None), ("not supported", true));
    let sharded = lamb(r#", "zero_optimization": {"stage": 1}"#);
    assert_eq!(outcome("optimizer.type", &sharded, None), ("not supported", true));
    assert_eq!(
        outcome("optimizer.type", &lamb(r#", "zero_optimization": {"stage": 0}"#), None),
        ("taken", false)
    );
    assert_eq!(of("Muon", ""), "", "to be looked at");
    let coupled = |decay: &str| {
        format!(
            r#"{{"optimizer": {{"type": "Adam", "params": {{"adam_w_mode": false, "weight_decay": {decay}}}}}}}"#
        )
    };
    assert_eq!(outcome("optimizer.params.adam_w_mode", &coupled("0.1"), None), ("not supported", true));
    assert_eq!(outcome("optimizer.params.adam_w_mode", &coupled("0"), None), ("taken", false));
    let amsgrad = r#"{"optimizer": {"type": "Adam", "params": {"amsgrad": true, "bias_correction": true}}}"#;
    assert_eq!(outcome("optimizer.params.amsgrad", amsgrad, None), ("not supported", true));
    assert_eq!(outcome("optimizer.params.bias_correction", amsgrad, None), ("no effect", false));
    for (params, note) in [
        (r#""betas": [0.9]"#, "must be two numbers of at least 0 and below 1, found [0.9]"),
        (r#""betas": [0.9, 0.99999999999]"#, "must be two numbers"),
        (r#""eps": 1e-60"#, "`optimizer.params.eps` must be above 0"),
        (r#""weight_decay": 1e300"#, "`optimizer.params.weight_decay` must be at least 0"),
        (r#""lr": "0.1""#, "`optimizer.params.lr` must be above 0, found \"0.1\""),
    ] {
        let said = refused(&format!(r#"{{"optimizer": {{"type": "AdamW", "params": {{{params}}}}}}}"#), None);
        assert!(said.contains(note), "{params}: {said}");
    }
    let bounds = r#"{"optimizer": {"type": "Lamb", "params": {"max_coeff": 0.1, "min_coeff": 0.2}}}"#;
    assert!(
        refused(bounds, None).contains("`optimizer.params.max_coeff` must be at least min_coeff, found 0.1")
    );
    assert!(
        refused(r#"{"optimizer": {"params": {"lr": 1}}}"#, None)
            .contains("`optimizer.type` must be the name")
    );
}

#[test]
fn optimizers_of_the_training_arguments() {
    let args =
        r#"{"optim": "sgd", "weight_decay": 0.1, "learning_rate": 0.5, "lr_scheduler_type": "constant"}"#;
    assert_eq!(field("optimizer", "{}", Some(args)), "Sgd(weight_decay: 0.1)");
    assert_eq!(field("schedule", "{}", Some(args)), "Constant(lr: 0.5)");
    assert_eq!(outcome("optim", "{}", Some(r#"{"optim": "lion_8bit"}"#)), ("not supported", true));
    let bits = r#"{"optim": "adamw_bnb_8bit", "adam_beta2": 0.95, "weight_decay": 0.1}"#;
    assert_eq!(
        field("optimizer", "{}", Some(bits)),
        "AdamW8bit(betas: (0.9, 0.95), epsilon: 1e-8, weight_decay: 0.1)"
    );
    assert_eq!(outcome("adam_beta2", "{}", Some(bits)), ("taken", false));
    let adafactor = r#"{"optim": "adafactor", "weight_decay": 0.1, "adam_beta1": 0.8}"#;
    assert_eq!(field("optimizer", "{}", Some(adafactor)), "Adafactor(weight_decay: 0.1)");
    assert_eq!(outcome("adam_beta1", "{}", Some(adafactor)), ("no effect", false));
    let sharded = r#"{"zero_optimization": {"stage": 2}}"#;
    assert_eq!(outcome("optim", sharded, Some(adafactor)), ("not supported", true));
    assert_eq!(outcome("adafactor", "{}", Some(r#"{"adafactor": true}"#)), ("taken", false));
    assert_eq!(field("optimizer", "{}", Some(r#"{"adafactor": true}"#)), "Adafactor(weight_decay: 0.0)");
    assert_eq!(outcome("adafactor", "{}", Some(r#"{"adafactor": false}"#)), ("no effect", false));
    let own = r#"{"optimizer": {"type": "AdamW", "params": {"lr": 1e-3}}}"#;
    assert_eq!(outcome("optim", own, Some(r#"{"optim": "sgd"}"#)), ("no effect", false));
    let betas = r#"{"optimizer": {"type": "AdamW", "params": {"betas": [0.9, 0.95]}}}"#;
    let differ = refused(betas, Some(r#"{"adam_beta1": 0.9, "adam_beta2": 0.99}"#));
    assert!(differ.contains("`optimizer.params.betas` is [0.9,0.95], but `adam_beta2`"), "{differ}");
}

#[test]
fn schedules() {
    let config = |name: &str, params: &str| {
        format!(
            r#"{{"optimizer": {{"type": "AdamW", "params": {{"lr": 0.5}}}}, "scheduler": {{"type": "{name}", "params": {{{params}}}}}}}"#
        )
    };
    let of = |name: &str, params: &str| field("schedule", &config(name, params), None);
    assert_eq!(of("WarmupLR", ""), "WarmupLr(lr: 0.001, min_lr: 0.0, warmup: 1000, warmup_type: Log)");
    let decay =
        r#""total_num_steps": 500, "warmup_num_steps": 50, "warmup_max_lr": 0.1, "warmup_type": "linear""#;
    assert_eq!(
        of("WarmupDecayLR", decay),
        "WarmupDecayLr(lr: 0.1, min_lr: 0.0, warmup: 50, warmup_type: Linear, total: 500)"
    );
    assert_eq!(
        of("WarmupCosineLR", r#""warmup_num_steps": 5"#),
        "WarmupCosineLr(lr: 0.5, warmup: 5, warmup_type: Log)"
    );
    let cycle = r#""cycle_min_lr": 0.1, "cycle_max_lr": 1"#;
    assert_eq!(of("OneCycle", cycle), "OneCycle(lr: 1.0, min_lr: 0.1)");
    assert_eq!(of("LRRangeTest", ""), "LrRangeTest()");
    // AdamW's betas cycle there by default.
    assert_eq!(outcome("scheduler.type", &config("OneCycle", cycle), None), ("not supported", true));
    let still = config("OneCycle", &format!(r#"{cycle}, "cycle_momentum": false"#));
    assert_eq!(outcome("scheduler.type", &still, None), ("taken", false));
    assert_eq!(outcome("optimizer.params.lr", &still, None), ("no effect", false));
    assert_eq!(
        outcome(
            "scheduler.params.last_batch_iteration",
            &config("WarmupLR", r#""last_batch_iteration": 9"#),
            None
        ),
        ("not supported", true)
    );
    // A total that equals the run's length is omitted.
    let total = config("WarmupDecayLR", r#""total_num_steps": 70, "warmup_num_steps": 0"#);
    assert!(!field("schedule", &total, Some(r#"{"max_steps": 70}"#)).contains("total"));
    assert!(
        refused(&config("WarmupLR", r#""warmup_min_lr": 0.5"#), None)
            .contains("at most warmup_max_lr, found 0.5")
    );
    assert!(
        refused(&config("WarmupLR", r#""warmup_type": "cosine""#), None).contains("\"log\" or \"linear\"")
    );
    assert!(refused(&config("OneCycle", ""), None).contains("`scheduler.params.cycle_max_lr` must be given"));
}

#[test]
fn schedules_of_the_training_arguments() {
    let of = |args: &str| field("schedule", "{}", Some(&format!(r#"{{"learning_rate": 0.1, {args}}}"#)));
    assert_eq!(of(r#""warmup_steps": 10"#), "Linear(lr: 0.1, warmup: 10, from_zero: true)");
    assert_eq!(of(r#""warmup_steps": 0.25"#), "Linear(lr: 0.1, warmup: Ratio(0.25), from_zero: true)");
    assert_eq!(
        of(r#""warmup_steps": 10, "warmup_ratio": 0.1"#),
        "Linear(lr: 0.1, warmup: 10, from_zero: true)"
    );
    let kind = |name: &str, options: &str| {
        of(&format!(r#""lr_scheduler_type": "{name}", "lr_scheduler_kwargs": {{{options}}}"#))
    };
    for (name, options, expected) in [
        ("cosine", r#""num_cycles": 0.5"#, "Cosine(lr: 0.1, warmup: 0, from_zero: true)"),
        (
            "cosine_with_restarts",
            r#""num_cycles": 4"#,
            "CosineRestarts(lr: 0.1, cycles: 4, warmup: 0, from_zero: true)",
        ),
        (
            "cosine_with_min_lr",
            r#""min_lr_rate": 0.5"#,
            "Cosine(lr: 0.1, min_lr: 0.05, warmup: 0, from_zero: true)",
        ),
        (
            "polynomial",
            r#""power": 2"#,
            "Polynomial(lr: 0.1, min_lr: 1e-7, power: 2.0, warmup: 0, from_zero: true)",
        ),
        ("constant", "", "Constant(lr: 0.1)"),
        ("constant_with_warmup", "", "Constant(lr: 0.1, warmup: 0, from_zero: true)"),
        ("inverse_sqrt", "", "InverseSqrt(lr: 0.1, warmup: 0, from_zero: true)"),
        (
            "warmup_stable_decay",
            r#""num_decay_steps": 9"#,
            "Wsd(lr: 0.1, decay: 9, warmup: 0, from_zero: true)",
        ),
        ("reduce_lr_on_plateau", "", ""),
    ] {
        assert_eq!(kind(name, options), expected);
    }
    let waves = r#"{"lr_scheduler_type": "cosine", "lr_scheduler_kwargs": {"num_cycles": 2.5}}"#;
    assert_eq!(outcome("lr_scheduler_kwargs.num_cycles", "{}", Some(waves)), ("not supported", true));
    let no_decay = r#"{"lr_scheduler_type": "warmup_stable_decay"}"#;
    assert!(refused("{}", Some(no_decay)).contains("`lr_scheduler_kwargs.num_decay_steps` must be given"));
}
