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

/// Where a degree stands.
#[derive(Clone, Copy, PartialEq)]
enum File {
    DeepSpeed,
    Arguments,
}

/// The degrees of DeepSpeed; of Accelerate, among the training arguments; of Megatron-LM; and of torchtitan.
const DEGREES: [(File, &str, &str); 12] = [
    (File::DeepSpeed, "tensor_parallel.autotp_size", "tensor"),
    (File::Arguments, "parallelism_config.tp_size", "tensor"),
    (File::Arguments, "tensor_model_parallel_size", "tensor"),
    (File::Arguments, "parallelism.tensor_parallel_degree", "tensor"),
    (File::DeepSpeed, "pipeline.stages", "pipeline"),
    (File::Arguments, "pipeline_model_parallel_size", "pipeline"),
    (File::Arguments, "parallelism.pipeline_parallel_degree", "pipeline"),
    (File::DeepSpeed, "sequence_parallel_size", "context"),
    (File::Arguments, "parallelism_config.cp_size", "context"),
    (File::Arguments, "parallelism_config.sp_size", "context"),
    (File::Arguments, "context_parallel_size", "context"),
    (File::Arguments, "parallelism.context_parallel_degree", "context"),
];

/// Reads the axes: each of a field of the ds_config, or of the training arguments.
///
/// # Errors
///
/// A field has no number of ranks, one that does not divide the ranks of the run, or another one than a field that means the same.
pub(super) fn read(inputs: &mut Inputs) -> Result<Axes, ImportError> {
    let (mut per_batch, mut axes) = (1, Vec::<(&str, u64)>::new());
    for (file, path, axis) in DEGREES {
        let all = inputs.ranks;
        let source = match file {
            File::DeepSpeed => Some(&mut inputs.ds),
            File::Arguments => inputs.args.as_mut(),
        };
        let Some(source) = source else { continue };
        let Setting::Is(ranks @ 2..) = source.count(path, 0, 1 << 10)? else {
            source.settle(path, Outcome::no_effect("this value changes nothing"));
            continue;
        };
        match axes.iter().find(|(known, _)| *known == axis) {
            Some((_, known)) if *known != ranks => {
                return Err(source.wrong(path, &format!("{known}, as another field says of the same ranks")));
            }
            Some(_) => (),
            None => {
                per_batch *= ranks;
                axes.push((axis, ranks));
            }
        }
        if let Some(all) = all.filter(|all| !all.is_multiple_of(per_batch)) {
            return Err(source.wrong(path, &format!("a number of ranks that divides the {all} of the run")));
        }
        source.settle(path, Outcome::Taken(format!("mesh: ({axis}: {ranks})")));
    }
    // The batch is divided among the ranks that have samples of their own.
    inputs.ranks = inputs.ranks.map(|all| all / per_batch);
    let mut fields: Vec<_> = axes.iter().map(|(axis, ranks)| format!("{axis}: {ranks}")).collect();
    if let Some((_, stages)) = axes.iter().find(|(axis, _)| *axis == "pipeline") {
        fields.extend(schedule(inputs, *stages)?.map(|schedule| format!("schedule: {schedule}")));
    }
    let mesh = (!fields.is_empty()).then(|| Item::certain(format!("({})", fields.join(", "))));
    Ok(Axes { mesh, per_batch })
}

/// Reads the schedule of a pipeline of so many stages: torchtitan's name of it, or Megatron's number of stages on each rank.
///
/// # Errors
///
/// There is no such schedule, or the number is none.
fn schedule(inputs: &mut Inputs, stages: u64) -> Result<Option<String>, ImportError> {
    const NAME: &str = "parallelism.pipeline_parallel_schedule";
    const CHUNKS: &str = "virtual_pipeline_model_parallel_size";
    let Some(args) = &mut inputs.args else { return Ok(None) };
    if let Setting::Is(chunks @ 2..) = args.count(CHUNKS, 0, 1 << 10)? {
        let schedule = format!("interleaved({chunks})");
        args.settle(CHUNKS, Outcome::Taken(format!("mesh: (pipeline: {stages}, schedule: {schedule})")));
        return Ok(Some(schedule));
    }
    let known = [("1F1B", None), ("GPipe", Some("g_pipe")), ("Interleaved1F1B", Some("interleaved(2)"))];
    let Setting::Is(schedule) = args.choice(NAME, &known)? else { return Ok(None) };
    let taken = schedule.unwrap_or("one_forward_one_backward");
    args.settle(NAME, Outcome::Taken(format!("mesh: (pipeline: {stages}, schedule: {taken})")));
    Ok(schedule.map(str::to_owned))
}
