//! Reads data settings, seed and output from the training arguments, and adds placeholders for what no file states.

use super::draft::Item;
use super::inputs::{Inputs, shown};
use super::source::{Setting, Source};
use super::{ImportError, Outcome};

/// Reads the seed of the training arguments.
///
/// # Errors
///
/// The seed is invalid.
pub(super) fn seed(inputs: &mut Inputs) -> Result<Option<Item>, ImportError> {
    let Some(args) = &mut inputs.args else { return Ok(None) };
    let seed = match args.count("seed", 0, u64::MAX)? {
        Setting::Is(seed) => seed,
        Setting::Missing | Setting::Auto => {
            return Ok(Some(Item::certain("42").noted("Transformers' default")));
        }
    };
    args.settle("seed", Outcome::Taken(format!("seed: {seed}")));
    let of_data = match args.count("data_seed", 0, u64::MAX)? {
        Setting::Is(other) if other != seed => Outcome::refused("one seed for weights, order and dropout"),
        _ => Outcome::taken("seed"),
    };
    args.settle("data_seed", of_data);
    Ok(Some(Item::certain(seed.to_string())))
}

/// Reads the label smoothing, if there is any.
///
/// # Errors
///
/// The value is invalid.
pub(super) fn label_smoothing(inputs: &mut Inputs) -> Result<Option<Item>, ImportError> {
    const NAME: &str = "label_smoothing_factor";
    let Some(args) = &mut inputs.args else { return Ok(None) };
    let within = |share: f64| (0.0..1.0).contains(&share);
    let share = args.number(NAME, "at least 0 and below 1", within)?;
    if share == Setting::Is(0.0) {
        return Ok(None);
    }
    let share = args.taken(NAME, share.map(shown), |share| format!("label_smoothing: {share}"))?;
    Ok(share.map(Item::certain))
}

/// Reads the output folder, or returns a placeholder for it.
///
/// # Errors
///
/// The value is not text.
pub(super) fn output(inputs: &mut Inputs) -> Result<Item, ImportError> {
    let suggested = Item::suggested("\"runs/imported\"");
    let Some(args) = &mut inputs.args else { return Ok(suggested) };
    let folder = args.text("output_dir")?;
    if folder == Setting::Is(String::new()) {
        return Err(args.wrong("output_dir", "the path of a folder"));
    }
    let folder = folder.map(|folder| ron::to_string(&folder).unwrap_or_default());
    let folder = args.taken("output_dir", folder, |folder| format!("output: {folder}"))?;
    Ok(folder.map_or(suggested, Item::certain))
}

/// Reads how long ranks wait for one another.
///
/// # Errors
///
/// The value is invalid.
pub(super) fn deadline(inputs: &mut Inputs) -> Result<Option<Item>, ImportError> {
    let Some(args) = &mut inputs.args else { return Ok(None) };
    let seconds = args.count("ddp_timeout", 1, 10_000_000)?;
    let seconds = args.taken("ddp_timeout", seconds, |seconds| format!("deadline: {seconds}"))?;
    Ok(seconds.map(|seconds| Item::certain(seconds.to_string())))
}

/// Returns placeholders for task, data and model, with the settings that are known.
///
/// # Errors
///
/// A training argument is invalid.
pub(super) fn places(
    inputs: &mut Inputs,
    evaluates: Option<bool>,
) -> Result<Vec<(&'static str, Item)>, ImportError> {
    let (mut settings, mut grouped) = (String::new(), false);
    if let Some(args) = &mut inputs.args {
        grouped = grouped_by_length(args)?;
        if let Setting::Is(workers @ 0..) = args.count("dataloader_num_workers", 0, 1_000_000)? {
            // With 0 workers, Trainer loads data in the main process; here one thread loads it beside the computing
            // one.
            let workers = workers.clamp(1, 256);
            settings += &format!(", workers: {workers}");
            args.settle("dataloader_num_workers", Outcome::Taken(format!("data.workers: {workers}")));
        }
    }
    let held_out = if evaluates == Some(false) { "valid_fraction: 0.0" } else { "valid: \"valid.txt\"" };
    let tokenizer = "tokenizer: File(\"path/of/a/model/folder\")";
    let (task, length) = match grouped {
        // Windows of one long text all have the same length.
        true => (Some("CausalLm(rows: Samples)"), "max_length: 1024, group_by_length: true"),
        false => (None, "block: 1024"),
    };
    let data = format!("(path: \"train.txt\", {held_out}, {tokenizer}, {length}{settings})");
    let task = task.map(|task| ("task", Item::suggested(task)));
    let rest = [
        ("data", Item::suggested(data)),
        ("model", Item::suggested("Gpt(layers: 12, heads: 12, width: 768)")),
    ];
    Ok(task.into_iter().chain(rest).collect())
}

/// Reads `group_by_length`, or in newer versions the sampling strategy of that name.
fn grouped_by_length(args: &mut Source) -> Result<bool, ImportError> {
    const FLAG: &str = "group_by_length";
    const SAMPLER: &str = "train_sampling_strategy";
    let (flag, sampler) = (args.flag(FLAG)?, args.text(SAMPLER)?);
    let by_sampler = sampler == Setting::Is(FLAG.into());
    let grouped = flag == Setting::Is(true) || by_sampler;
    let note =
        if grouped { Outcome::taken("data.group_by_length: true") } else { Outcome::no_effect("as here") };
    args.settle(FLAG, note.clone());
    let known = by_sampler || sampler == Setting::Is("random".into());
    args.settle(
        SAMPLER,
        if known { note } else { Outcome::refused("samples in random order, or of about one length") },
    );
    Ok(grouped)
}

#[cfg(test)]
mod tests {
    use crate::import::testing::{field, outcome, refused};

    #[test]
    fn labels_are_smoothed_as_the_arguments_say() {
        let smoothed = Some("{\"label_smoothing_factor\": 0.1}");
        assert_eq!(field("label_smoothing", "{}", smoothed), "0.1");
        assert_eq!(outcome("label_smoothing_factor", "{}", smoothed), ("taken", false));
        for plain in [Some("{\"label_smoothing_factor\": 0}"), Some("{}"), None] {
            assert_eq!(field("label_smoothing", "{}", plain), "", "{plain:?}");
        }
        let error = refused("{}", Some("{\"label_smoothing_factor\": 1.5}"));
        assert!(error.contains("at least 0 and below 1"), "{error}");
    }
}
