//! Reads how many ranks share layers, blocks and tokens.

use super::draft::Item;
use super::inputs::Inputs;
use super::source::Setting;
use super::{ImportError, Outcome};

/// The axes of a [`Mesh`](firebrick::Mesh).
pub(super) struct Axes {
    /// The field `mesh`, if there are any.
    pub mesh: Option<Item>,
    /// The ranks that train on the same samples.
    pub per_batch: u64,
}

/// Reads the axes, each of a field of the ds_config.
///
/// # Errors
///
/// A field has no number of ranks, or one that does not divide the ranks of the run.
pub(super) fn read(inputs: &mut Inputs) -> Result<Axes, ImportError> {
    const FIELDS: [(&str, &str); 3] = [
        ("tensor_parallel.autotp_size", "tensor"),
        ("pipeline.stages", "pipeline"),
        ("sequence_parallel_size", "context"),
    ];
    let (mut per_batch, mut axes) = (1, Vec::new());
    for (path, axis) in FIELDS {
        let Setting::Is(ranks @ 2..) = inputs.ds.count(path, 0, 1 << 10)? else {
            inputs.ds.settle(path, Outcome::no_effect("this value changes nothing"));
            continue;
        };
        per_batch *= ranks;
        if inputs.ranks.is_some_and(|all| !all.is_multiple_of(per_batch)) {
            let all = inputs.ranks.unwrap_or_default();
            return Err(inputs
                .ds
                .wrong(path, &format!("a number of ranks that divides the {all} of the run")));
        }
        inputs.ds.settle(path, Outcome::Taken(format!("mesh: ({axis}: {ranks})")));
        axes.push(format!("{axis}: {ranks}"));
    }
    // The batch is divided among the ranks that have samples of their own.
    inputs.ranks = inputs.ranks.map(|all| all / per_batch);
    let mesh = (!axes.is_empty()).then(|| Item::certain(format!("({})", axes.join(", "))));
    Ok(Axes { mesh, per_batch })
}
