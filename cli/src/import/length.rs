//! The length of the run: `max_steps` or `num_train_epochs`.

use super::draft::Item;
use super::inputs::Inputs;
use super::source::{Setting, Source};
use super::{ImportError, Outcome};

/// The length of a run.
#[derive(Debug)]
pub(super) struct Length {
    /// Number of updates, if given.
    pub steps: Option<u64>,
    /// `steps` or `epochs`, with its value.
    pub field: (&'static str, Item),
}

/// Reads the length, which a ds_config alone does not contain.
///
/// # Errors
///
/// A value is invalid.
pub(super) fn read(inputs: &mut Inputs) -> Result<Length, ImportError> {
    const STEPS: &str = "max_steps";
    const EPOCHS: &str = "num_train_epochs";
    let Some(args) = &mut inputs.args else { return open(&inputs.ds) };
    let steps = args.number(STEPS, "a number of updates, or -1", |steps| {
        steps.fract() == 0.0 && (-1.0..=2f64.powi(53)).contains(&steps)
    })?;
    let epochs =
        args.number(EPOCHS, "above 0, and at most a billion", |epochs| epochs > 0.0 && epochs <= 1e9)?;
    if let Setting::Is(steps) = steps
        && steps > 0.0
    {
        let steps = steps as u64;
        args.settle(STEPS, Outcome::Taken(format!("steps: {steps}")));
        args.settle(EPOCHS, Outcome::no_effect("`max_steps` takes precedence"));
        return Ok(Length { steps: Some(steps), field: ("steps", Item::certain(steps.to_string())) });
    }
    args.settle(STEPS, Outcome::no_effect("the length is that of `num_train_epochs`"));
    let item = match epochs {
        Setting::Is(epochs) if epochs.fract() == 0.0 => {
            args.settle(EPOCHS, Outcome::Taken(format!("epochs: {epochs}")));
            Item::certain(epochs.to_string())
        }
        Setting::Is(epochs) => {
            args.settle(EPOCHS, Outcome::refused("whole epochs: give `max_steps` for a part of one"));
            Item::suggested(epochs.ceil().to_string()).noted(format!("instead of {epochs}"))
        }
        Setting::Missing | Setting::Auto => Item::certain("3").noted("Transformers' default"),
    };
    Ok(Length { steps: None, field: ("epochs", item) })
}

/// Suggests a length: that of the schedule, if the schedule has its own.
fn open(ds: &Source) -> Result<Length, ImportError> {
    let field = match ds.count("scheduler.params.total_num_steps", 1, 1 << 53)? {
        Setting::Is(total) => {
            ("steps", Item::suggested(total.to_string()).noted("the length of its schedule"))
        }
        Setting::Missing | Setting::Auto => {
            ("epochs", Item::suggested("3").noted("or `steps: 1000`, in updates"))
        }
    };
    Ok(Length { steps: None, field })
}
