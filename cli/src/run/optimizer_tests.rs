//! Optimizers in a run file: their defaults, their ranges, and what they are written as.

use burn::nn::LinearConfig;
use burn::optim::GradientsParams;
use burn::tensor::Device;

use crate::Run;
use firebrick_strategies::optim::{AdamW, BoxedOptimizer, Groups, Lion, Sgd};

fn run(optimizer: &str) -> Result<Run, String> {
    let text = format!(
        r#"(
            data: (path: "input.txt", tokenizer: Characters, block: 8),
            model: Gpt(layers: 1, heads: 1, width: 8),
            optimizer: {optimizer},
            schedule: Constant(lr: 1e-3),
            batch: (micro: 1),
            steps: 10,
            output: "out",
        )"#
    );
    Run::parse("run.ron", &text, &[] as &[&str]).map_err(|error| error.to_string())
}

#[test]
fn what_is_left_out_has_the_papers_values() {
    let adamw = AdamW { betas: (0.9, 0.999), epsilon: 1e-8, weight_decay: 0.0 };
    let adamw = BoxedOptimizer::new("AdamW", adamw);
    assert_eq!(run("AdamW()").unwrap().optimizer, adamw);
    let lion = BoxedOptimizer::new("Lion", Lion { betas: (0.9, 0.99), weight_decay: 0.5 });
    assert_eq!(run("Lion(weight_decay: 0.5)").unwrap().optimizer, lion);
    let sgd = Sgd { momentum: 0.9, nesterov: true, weight_decay: 0.0, dampening: 0.0 };
    let sgd = BoxedOptimizer::new("Sgd", sgd);
    let parsed = run("Sgd(momentum: 0.9, nesterov: true)").unwrap();
    assert_eq!(parsed.optimizer, sgd);
    for given in [
        "Adafactor()",
        "Adafactor(beta1: 0.9, decay_rate: -0.5, epsilons: (1e-10, 1e-2), scale_parameter: true)",
        "Lamb(max_coeff: 5.0, bias_correction: false)",
        "AdamW8bit(betas: (0.9, 0.95), weight_decay: 0.1, min_8bit_size: 64)",
    ] {
        let parsed = run(given).unwrap();
        assert_eq!(Run::parse("saved", &parsed.to_ron(), &[] as &[&str]).unwrap(), parsed, "{given}");
    }
    assert_eq!(Run::parse("saved", &parsed.to_ron(), &[] as &[&str]).unwrap(), parsed);
}

#[test]
fn impossible_settings_are_refused_by_name() {
    for (optimizer, expected) in [
        ("AdamW(betas: (1.0, 0.9))", "`optimizer.betas` must be at least 0 and below 1"),
        ("AdamW(epsilon: 0.0)", "`optimizer.epsilon` must be finite, above 0"),
        ("AdamW(weight_decay: -0.1)", "`optimizer.weight_decay` must be at least 0"),
        ("AdamW(momentum: 0.9)", "unknown name `momentum`"),
        ("Adam()", "did you mean `AdamW`?"),
        ("Lion(betas: (0.9, -0.1))", "`optimizer.betas` must be at least 0 and below 1"),
        ("Lion(weight_decay: inf)", "`optimizer.weight_decay` must be at least 0"),
        ("Lion(epsilon: 1e-8)", "unknown name `epsilon`"),
        ("Sgd(momentum: 1.0)", "`optimizer.momentum` must be at least 0 and below 1"),
        ("Sgd(momentum: 0.9, dampening: 1.5)", "`optimizer.dampening` must be at least 0 and at most 1"),
        ("Sgd(dampening: 0.5)", "`optimizer.dampening` must be 0 where `optimizer.momentum` is"),
        ("Sgd(nesterov: true)", "`optimizer.nesterov` must be false where `optimizer.momentum` is 0"),
        ("Sgd(weight_decay: NaN)", "`optimizer.weight_decay` must be at least 0"),
        ("Adafactor(epsilons: (0.0, 1e-3))", "`optimizer.epsilons` must be finite and above 0"),
        ("Adafactor(clip_threshold: 0.0)", "`optimizer.clip_threshold` must be finite and above 0"),
        ("Adafactor(decay_rate: 0.8)", "`optimizer.decay_rate` must be finite and below 0"),
        ("Adafactor(beta1: 1.0)", "`optimizer.beta1` must be at least 0 and below 1"),
        ("Adafactor(weight_decay: -1.0)", "`optimizer.weight_decay` must be at least 0"),
        (
            "Adafactor(warmup_init: true)",
            "`optimizer.warmup_init` must be false where `optimizer.relative_step` is",
        ),
        ("Adafactor(relative_step: true)", "`schedule.lr` must be 1 where `optimizer.relative_step` is true"),
        ("Adafactor(epsilon: 1e-8)", "did you mean `epsilons`?"),
        ("AdamW8bit(betas: (-0.1, 0.9))", "`optimizer.betas` must be at least 0 and below 1"),
        ("AdamW8bit(epsilon: 0.0)", "`optimizer.epsilon` must be finite, above 0"),
        ("AdamW8bit(weight_decay: -0.1)", "`optimizer.weight_decay` must be at least 0"),
        ("Lamb(betas: (0.9, 1.0))", "`optimizer.betas` must be at least 0 and below 1"),
        ("Lamb(epsilon: -1.0)", "`optimizer.epsilon` must be finite, above 0"),
        ("Lamb(weight_decay: inf)", "`optimizer.weight_decay` must be at least 0"),
        ("Lamb(max_coeff: inf)", "`optimizer.max_coeff` must be finite and at least `optimizer.min_coeff`"),
        ("Lamb(min_coeff: 20.0)", "`optimizer.max_coeff` must be finite and at least `optimizer.min_coeff`"),
        ("Lamb(min_coeff: -1.0)", "`optimizer.min_coeff` must be at least 0"),
    ] {
        let said = run(optimizer).unwrap_err();
        assert!(said.contains(expected), "{optimizer}: {said}");
    }
}

/// Without a gradient, only weight decay changes a weight.
#[test]
fn matrices_alone_decay() {
    let decays = [
        "AdamW(weight_decay: 0.5)",
        "Lion(weight_decay: 0.5)",
        "Sgd(weight_decay: 0.5)",
        "Adafactor(weight_decay: 0.5)",
        "AdamW8bit(weight_decay: 0.5, min_8bit_size: 1)",
    ];
    for optimizer in decays {
        let mut model = LinearConfig::new(2, 2).init(&Device::flex().autodiff());
        model.bias = model.bias.map(|bias| bias.map(|bias| (bias.inner() + 1.0).autodiff().require_grad()));
        let before = model.clone();
        let grads = (model.weight.val().sum() + model.bias.as_ref().unwrap().val().sum()) * 0.0;
        let grads = GradientsParams::from_grads(grads.backward(), &model);
        let mut built = Groups::new().build(&model, &*run(optimizer).unwrap().optimizer).unwrap();
        let model = built.step(0.1, model, grads);
        let change = model.weight.val() - before.weight.val() * 0.95;
        assert!(change.abs().max().into_scalar::<f32>() < 1e-7, "{optimizer}");
        let [bias, old] = [model, before].map(|model| model.bias.unwrap().val().into_data());
        assert_eq!(bias, old, "{optimizer}");
    }
}

/// The error names the line of the mistake, although the registry reads settings without knowing the file's format.
#[test]
fn mistakes_are_found_where_they_stand() {
    for (optimizer, expected) in [
        (
            "AdamW(\n weight_decy: 0.1)",
            "run.ron:5: unknown name `weight_decy` (did you mean `weight_decay`?); expected one of betas, epsilon, weight_decay",
        ),
        (
            "Lin()",
            "run.ron:4: unknown name `Lin` (did you mean `Lion`?); expected one of AdamW, AdamW8bit, Lion, Sgd, Adafactor, Lamb",
        ),
        ("AdamW(\n weight_decay: \"x\")", "run.ron:5: Expected float, in `weight_decay: \"x\")"),
        ("AdamW8bit(\n min_8bit_size: 3.5)", "run.ron:5: expected a whole number, found `3.5`: write one"),
        ("Sgd(momentum: 0.9,\n momentum: 0.8)", "run.ron:5: the field `momentum` is given twice"),
    ] {
        let said = run(optimizer).unwrap_err();
        assert!(said.contains(expected), "{said}");
    }
}

#[test]
fn a_warmup_that_is_neither_a_count_nor_a_share_is_told_as_such() {
    let file = include_str!("../../../examples/tinyshakespeare.ron");
    let run = Run::parse("run.ron", file, &["schedule=Constant(lr: 1e-3, warmup: 0.5)"]);
    let said = run.unwrap_err().to_string();
    assert!(
        said.contains("expected a warmup, as a number of updates such as 50, or a share of the run"),
        "{said}"
    );
}

#[test]
fn every_setting_is_written() {
    let written = run("Adafactor(beta1: 0.9)").unwrap().to_ron();
    let expected = "
    optimizer: Adafactor(
        epsilons: (1e-30, 0.001),
        clip_threshold: 1.0,
        decay_rate: -0.8,
        beta1: 0.9,
        weight_decay: 0.0,
        scale_parameter: false,
        relative_step: false,
        warmup_init: false,
    ),
";
    assert!(written.contains(expected), "{written}");
}
