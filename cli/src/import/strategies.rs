//! Reads the strategies, in a valid order.

use super::batch::Batch;
use super::draft::Item;
use super::inputs::{Inputs, shown};
use super::source::{Setting, Source};
use super::zero::{Sharing, dtype};
use super::{ImportError, Outcome};

/// Returns all strategies. Those that reduce gradients in the backward pass or copy to the host come first, `Clip`
/// comes last.
///
/// `Zero` with stages 0 and 1 follows `Accumulate`, so that ranks sum once per update.
///
/// # Errors
///
/// A setting is invalid, or the files contradict each other.
pub(super) fn composed(
    inputs: &mut Inputs,
    sharing: Sharing,
    amp: Option<Item>,
    batch: &Batch,
) -> Result<Vec<Item>, ImportError> {
    let Sharing { stage, zero, offload } = sharing;
    let (first, last) = if stage >= 2 { (zero, None) } else { (None, zero) };
    let recompute = recompute(inputs)?;
    let accumulate = accumulate(inputs, batch)?;
    let clip = clip(inputs)?;
    Ok([first, offload, amp, recompute, accumulate, last, clip].into_iter().flatten().collect())
}

/// Reads whether blocks are recomputed in the backward pass.
///
/// DeepSpeed recomputes if the model's code asks for it, and its settings only configure it. If some of them are on,
/// the import assumes that the code asks for it.
fn recompute(inputs: &mut Inputs) -> Result<Option<Item>, ImportError> {
    let name = |name: &str| format!("activation_checkpointing.{name}");
    let asked = inputs.args.as_ref().map(CheckpointingArgs::read).transpose()?.flatten();
    let ds = &mut inputs.ds;
    let offloaded = ds.flag(&name("cpu_checkpointing"))? == Setting::Is(true);
    let split = ds.flag(&name("partition_activations"))? == Setting::Is(true);
    let counted = matches!(ds.count(&name("number_checkpoints"), 0, u64::MAX)?, Setting::Is(1..));
    let text = (asked.is_some() || offloaded || split || counted).then(|| {
        let every = asked.as_ref().map_or(1, |asked| asked.every);
        let is_offloaded = offloaded || asked.as_ref().is_some_and(|asked| asked.offloaded);
        format!("Recompute(every: {every}{})", if is_offloaded { ", offloaded: true" } else { "" })
    });
    let note = |text: &str| Outcome::Taken(format!("strategies: {text}"));
    if let Some(text) = &text {
        for (is_on, field) in [
            (offloaded, "cpu_checkpointing"),
            (split, "partition_activations"),
            (counted, "number_checkpoints"),
        ] {
            if is_on {
                ds.settle(&name(field), note(text));
            }
        }
    }
    let argued = match &text {
        Some(text) if asked.is_some() => note(text),
        _ => Outcome::no_effect("nothing is recomputed"),
    };
    for argument in RECOMPUTES {
        inputs.settle_argument(argument, argued.clone());
        for setting in [EVERY, OFFLOADS] {
            inputs.settle_argument(&format!("{argument}_kwargs.{setting}"), argued.clone());
        }
    }
    Ok(text.map(Item::certain))
}

/// The names of the training argument that recomputes blocks: that of newer versions of Transformers, which wins, and that
/// of older ones. The settings of both have `_kwargs` behind it.
const RECOMPUTES: [&str; 2] = ["activation_checkpointing", "gradient_checkpointing"];
const EVERY: &str = "every_n_layers";
const OFFLOADS: &str = "offload";

/// What the training arguments say about recomputing.
struct CheckpointingArgs {
    /// One of so many blocks runs again.
    every: u64,
    /// Whether what is kept waits in the host's memory.
    offloaded: bool,
}

impl CheckpointingArgs {
    /// Reads the arguments; `None` if nothing is recomputed.
    fn read(args: &Source) -> Result<Option<Self>, ImportError> {
        let given = |ending: &str| {
            let mut names = RECOMPUTES.iter().map(|name| format!("{name}{ending}"));
            names.find(|name| args.get(name).is_some()).unwrap_or_default()
        };
        let every = args.count(&given(&format!("_kwargs.{EVERY}")), 1, 1 << 20)?.or(1_u64);
        let offloaded = args.flag(&given(&format!("_kwargs.{OFFLOADS}")))? == Setting::Is(true);
        let is_on = args.flag(&given(""))? == Setting::Is(true);
        Ok(is_on.then_some(Self { every, offloaded }))
    }
}

fn accumulate(inputs: &mut Inputs, batch: &Batch) -> Result<Option<Item>, ImportError> {
    const PATH: &str = "data_types.grad_accum_dtype";
    let ds = &mut inputs.ds;
    let (dtype, count) = (dtype(ds, PATH)?, batch.accumulate.value);
    if count == 1 && !batch.accumulate.suggested {
        ds.settle(PATH, Outcome::no_effect("nothing is accumulated"));
        return Ok(None);
    }
    let text = |dtype: &&str| match *dtype {
        "f32" => format!("Accumulate({count})"),
        dtype => format!("AccumulateIn({count}, {dtype})"),
    };
    let dtype = ds.taken(PATH, dtype, |dtype| format!("strategies: {}", text(dtype)))?;
    Ok(Some(Item::certain(text(&dtype.unwrap_or("f32"))).left_open_if(batch.accumulate.suggested)))
}

fn clip(inputs: &mut Inputs) -> Result<Option<Item>, ImportError> {
    const PATH: &str = "gradient_clipping";
    let argument = ("max_grad_norm", 1.0);
    let range = ("0 or the largest norm, above 0", (|norm| norm >= 0.0) as fn(f64) -> bool);
    let norm = inputs.number(PATH, argument, range, "strategies: Clip(norm: {})")?;
    let nothing = "the ds_config has no `gradient_clipping`, so nothing is clipped there either";
    inputs.settle_argument(argument.0, Outcome::no_effect(nothing));
    if norm.as_ref().is_some_and(|norm| norm.value == 0.0 && !norm.suggested) {
        inputs.ds.correct(PATH, Outcome::no_effect("0 clips nothing"));
    }
    Ok(norm
        .filter(|norm| norm.value > 0.0 || norm.suggested)
        .map(|norm| Item::of(norm.map(|norm| format!("Clip(norm: {})", shown(norm))))))
}
