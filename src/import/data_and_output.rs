//! What the training arguments tell of data, seed and output, and places for what no file tells.

use super::draft::Item;
use super::inputs::Inputs;
use super::source::{Given, Source};
use super::{ImportError, Outcome};

/// The seed of the training arguments.
///
/// # Errors
///
/// It cannot be.
pub(super) fn seed(inputs: &mut Inputs) -> Result<Option<Item>, ImportError> {
    let Some(args) = &mut inputs.args else { return Ok(None) };
    let seed = match args.count("seed", 0, u64::MAX)? {
        Given::Is(seed) => seed,
        Given::Missing | Given::Auto => return Ok(Some(Item::certain("42").noted("Transformers' default"))),
    };
    args.settle("seed", Outcome::Taken(format!("seed: {seed}")));
    let of_data = match args.count("data_seed", 0, u64::MAX)? {
        Given::Is(other) if other != seed => Outcome::refused("one seed for weights, order and dropout"),
        _ => Outcome::taken("seed"),
    };
    args.settle("data_seed", of_data);
    Ok(Some(Item::certain(seed.to_string())))
}

/// The folder that the run writes into, or a place for it.
///
/// # Errors
///
/// It is no text.
pub(super) fn output(inputs: &mut Inputs) -> Result<Item, ImportError> {
    let suggested = Item::suggested("\"runs/imported\"");
    let Some(args) = &mut inputs.args else { return Ok(suggested) };
    let Given::Is(folder) = args.text("output_dir")? else { return Ok(suggested) };
    if folder.is_empty() {
        return Err(args.wrong("output_dir", "the path of a folder"));
    }
    let folder = ron::to_string(&folder).unwrap_or_default();
    args.settle("output_dir", Outcome::Taken(format!("output: {folder}")));
    Ok(Item::certain(folder))
}

/// How long ranks wait for one another.
///
/// # Errors
///
/// It cannot be.
pub(super) fn deadline(inputs: &mut Inputs) -> Result<Option<Item>, ImportError> {
    let Some(args) = &mut inputs.args else { return Ok(None) };
    let Given::Is(seconds) = args.count("ddp_timeout", 1, 10_000_000)? else { return Ok(None) };
    args.settle("ddp_timeout", Outcome::Taken(format!("deadline: {seconds}")));
    Ok(Some(Item::certain(seconds.to_string())))
}

/// Places for task, data and model, with what is known of them.
///
/// # Errors
///
/// A training argument cannot be.
pub(super) fn places(
    inputs: &mut Inputs,
    evaluates: Option<bool>,
) -> Result<Vec<(&'static str, Item)>, ImportError> {
    let (mut settings, mut grouped) = (String::new(), false);
    if let Some(args) = &mut inputs.args {
        grouped = grouped_by_length(args)?;
        if let Given::Is(workers @ 0..) = args.count("dataloader_num_workers", 0, 1_000_000)? {
            // In the main process there, which here is the thread beside the one that computes.
            let workers = workers.clamp(1, 256);
            settings += &format!(", workers: {workers}");
            args.settle("dataloader_num_workers", Outcome::Taken(format!("data.workers: {workers}")));
        }
    }
    let held_out = if evaluates == Some(false) { "valid_fraction: 0.0" } else { "valid: \"valid.txt\"" };
    let tokenizer = "tokenizer: File(\"path/of/a/model/folder\")";
    let (task, length) = match grouped {
        // Windows of one long text are all of one length.
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

/// `group_by_length`, or in newer versions the sampler of that name.
fn grouped_by_length(args: &mut Source) -> Result<bool, ImportError> {
    const FLAG: &str = "group_by_length";
    const SAMPLER: &str = "train_sampling_strategy";
    let (flag, sampler) = (args.flag(FLAG)?, args.text(SAMPLER)?);
    let by_sampler = sampler == Given::Is(FLAG.into());
    let grouped = flag == Given::Is(true) || by_sampler;
    let told = if grouped { Outcome::taken("data.group_by_length: true") } else { Outcome::moot("as here") };
    args.settle(FLAG, told.clone());
    let known = by_sampler || sampler == Given::Is("random".into());
    args.settle(
        SAMPLER,
        if known { told } else { Outcome::refused("samples in random order, or of about one length") },
    );
    Ok(grouped)
}
