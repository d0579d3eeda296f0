//! Values of a run that parse but cannot be.

use super::{ModelConfig, OptimizerConfig, Run, RunError, StrategyConfig, TokenizerConfig, ron_path};
use crate::Schedule;

/// Refuses what is impossible or contradictory, before anything is read or allocated.
pub(super) fn check(run: &Run, file: &str, text: &str) -> Result<(), RunError> {
    match first_problem(run) {
        None => Ok(()),
        Some(Problem { field, expected, found }) => Err(RunError::Value {
            file: file.into(),
            line: ron_path::line_of(text, &field),
            field,
            expected,
            found,
        }),
    }
}

struct Problem {
    field: String,
    expected: String,
    found: String,
}

/// A problem where `holds` is false.
fn require(holds: bool, field: &str, expected: &str, found: impl ToString) -> Option<Problem> {
    (!holds).then(|| Problem { field: field.into(), expected: expected.into(), found: found.to_string() })
}

/// Sizes far above any use, so that a slip is told and not tried.
const MOST: usize = 1_000_000_000;

fn positive(field: &str, value: usize) -> Option<Problem> {
    require((1..=MOST).contains(&value), field, "at least 1 and at most a billion", value)
}

fn first_problem(run: &Run) -> Option<Problem> {
    length(run)
        .or_else(|| batch(run))
        .or_else(|| data(run))
        .or_else(|| model(run))
        .or_else(|| optimizer(run))
        .or_else(|| schedule(run))
        .or_else(|| strategies(run))
        .or_else(|| sample(run))
        .or_else(|| require(!run.output.as_os_str().is_empty(), "output", "a folder", "\"\""))
}

fn length(run: &Run) -> Option<Problem> {
    let both = "given, or else `epochs`, and not both (`None` takes one away)";
    match (run.steps, run.epochs) {
        (Some(_), Some(_)) => return require(false, "steps", both, "both"),
        (None, None) => return require(false, "steps", both, "neither"),
        (Some(steps), None) => require(steps > 0, "steps", "at least 1", steps),
        (None, Some(epochs)) => require(epochs > 0, "epochs", "at least 1", epochs),
    }
    .or_else(|| require(run.evaluate_every != Some(0), "evaluate_every", "at least 1", 0))
    .or_else(|| require(run.early_stopping != Some(0), "early_stopping", "at least 1", 0))
    .or_else(|| {
        let evaluated = run.early_stopping.is_none() || run.data.valid_fraction > 0.0;
        require(evaluated, "data.valid_fraction", "above 0 where `early_stopping` is given", 0)
    })
}

fn batch(run: &Run) -> Option<Problem> {
    positive("batch.micro", run.batch.micro)
        .or_else(|| positive("batch.accumulate", run.batch.accumulate.unwrap_or(1)))
}

fn data(run: &Run) -> Option<Problem> {
    let data = &run.data;
    let fraction = data.valid_fraction;
    positive("data.block", data.block)
        .or_else(|| {
            let within = (0.0..1.0).contains(&fraction);
            require(within, "data.valid_fraction", "at least 0 and below 1", fraction)
        })
        .or_else(|| require(data.workers <= 256, "data.workers", "at most 256 threads", data.workers))
        .or_else(|| match data.tokenizer {
            TokenizerConfig::Bpe { vocabulary } => {
                let expected = "at least 257: 256 bytes and a merge";
                require(vocabulary > 256, "data.tokenizer.vocabulary", expected, vocabulary)
            }
            TokenizerConfig::Characters | TokenizerConfig::File(_) => None,
        })
}

fn model(run: &Run) -> Option<Problem> {
    let ModelConfig::Gpt(gpt) = &run.model;
    positive("model.layers", gpt.layers)
        .or_else(|| positive("model.heads", gpt.heads))
        .or_else(|| positive("model.width", gpt.width))
        .or_else(|| {
            let expected = format!("a multiple of `model.heads`, which is {}", gpt.heads);
            require(gpt.width.is_multiple_of(gpt.heads), "model.width", &expected, gpt.width)
        })
        .or_else(|| {
            let within = (0.0..1.0).contains(&gpt.dropout);
            require(within, "model.dropout", "at least 0 and below 1", gpt.dropout)
        })
}

fn optimizer(run: &Run) -> Option<Problem> {
    let OptimizerConfig::AdamW { betas, epsilon, weight_decay } = &run.optimizer;
    let within = |beta| (0.0..1.0).contains(&beta);
    let shown = format!("({}, {})", betas.0, betas.1);
    require(within(betas.0) && within(betas.1), "optimizer.betas", "at least 0 and below 1", shown)
        .or_else(|| {
            require(
                *epsilon > 0.0 && epsilon.is_finite(),
                "optimizer.epsilon",
                "finite, above 0 and at least 1e-45",
                epsilon,
            )
        })
        .or_else(|| {
            let possible = *weight_decay >= 0.0 && weight_decay.is_finite();
            require(possible, "optimizer.weight_decay", "at least 0", weight_decay)
        })
}

fn schedule(run: &Run) -> Option<Problem> {
    let (lr, floor, warmup) = match run.schedule {
        Schedule::Constant { lr, warmup } => (lr, 0.0, warmup),
        Schedule::Linear { lr, min_lr, warmup } | Schedule::Cosine { lr, min_lr, warmup } => {
            (lr, min_lr, warmup)
        }
    };
    require(lr > 0.0 && lr.is_finite(), "schedule.lr", "finite and above 0", lr)
        .or_else(|| {
            let expected = format!("at least 0 and at most `schedule.lr`, which is {lr}");
            require((0.0..=lr).contains(&floor), "schedule.min_lr", &expected, floor)
        })
        .or_else(|| {
            let steps = run.steps?;
            let expected = format!("below `steps`, which is {steps}");
            require(warmup < steps, "schedule.warmup", &expected, warmup)
        })
}

fn strategies(run: &Run) -> Option<Problem> {
    let mut problems = run.strategies.iter().enumerate().map(|(index, strategy)| {
        let field = format!("strategies.{index}");
        match strategy {
            StrategyConfig::Amp(_) => None,
            StrategyConfig::Accumulate(count) => {
                let expected = "left out where `batch.accumulate` is given: they are the same";
                positive(&field, *count).or_else(|| {
                    require(run.batch.accumulate.is_none(), &field, expected, format!("Accumulate({count})"))
                })
            }
            StrategyConfig::Clip(clip) => match (clip.norm, clip.value) {
                (Some(bound), None) | (None, Some(bound)) => require(
                    bound > 0.0 && bound.is_finite(),
                    &field,
                    "a bound that is finite and above 0",
                    bound,
                ),
                (norm, _) => {
                    let found = if norm.is_some() { "both" } else { "neither" };
                    require(false, &field, "Clip(norm: ..) or Clip(value: ..)", found)
                }
            },
        }
    });
    problems.find_map(|problem| problem)
}

fn sample(run: &Run) -> Option<Problem> {
    let sample = run.sample.as_ref()?;
    positive("sample.tokens", sample.tokens).or_else(|| {
        let possible = sample.temperature >= 0.0 && sample.temperature.is_finite();
        require(possible, "sample.temperature", "at least 0", sample.temperature)
    })
}
