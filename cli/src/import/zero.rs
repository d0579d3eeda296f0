//! Reads `zero_optimization` as `Zero` and `Offload`.

use super::draft::Item;
use super::inputs::Inputs;
use super::source::{Given, Source};
use super::{ImportError, Outcome};

const STAGE: &str = "zero_optimization.stage";

/// What the ranks shard, and what is kept on the host.
#[derive(Debug, Default)]
pub(super) struct Sharing {
    pub stage: u64,
    pub zero: Option<Item>,
    pub offload: Option<Item>,
}

/// Reads `Zero`, unless it is not needed, and `Offload`.
///
/// # Errors
///
/// A setting is invalid.
pub(super) fn read(inputs: &mut Inputs) -> Result<Sharing, ImportError> {
    let ds = &mut inputs.ds;
    let stage = stage(ds)?;
    let mut settings = String::new();
    if let Some(dtype) = sum_in(ds)? {
        settings += &format!(", sum_in: {dtype}");
    }
    if let Some(elements) = replicate_below(ds, stage)? {
        settings += &format!(", replicate_below: {elements}");
    }
    if let Some(ranks) = within(ds, stage)? {
        settings += &format!(", within: {ranks}");
    }
    let zero = match (stage, settings.is_empty()) {
        (0, true) => None,
        _ => Some(Item::certain(format!("Zero(stage: {stage}{settings})"))),
    };
    Ok(Sharing { stage, zero, offload: offload(ds, stage)? })
}

/// Reads the stage of ZeRO.
///
/// # Errors
///
/// There is no such stage.
pub(super) fn stage(ds: &mut Source) -> Result<u64, ImportError> {
    // In older versions, `true` meant stage 1.
    if let Given::Is(on) = ds.flag("zero_optimization").unwrap_or(Given::Missing) {
        let note = if on { "strategies: Zero(stage: 1)" } else { "no `Zero` in `strategies`" };
        ds.settle("zero_optimization", Outcome::taken(note));
        return Ok(u64::from(on));
    }
    let stage = ds.count(STAGE, 0, 3)?;
    let to = |stage: &u64| match stage {
        0 => "ranks share nothing: without `Zero` in `strategies`, or with it in stage 0".into(),
        stage => format!("strategies: Zero(stage: {stage})"),
    };
    Ok(ds.taken(STAGE, stage, to)?.unwrap_or(0))
}

/// Reads the dtype in which gradients are sent.
fn sum_in(ds: &mut Source) -> Result<Option<&'static str>, ImportError> {
    const PATH: &str = "communication_data_type";
    let given = dtype(ds, PATH)?;
    ds.taken(PATH, given, |dtype| format!("Zero(sum_in: {dtype})"))
}

/// Converts DeepSpeed's name of a dtype to that of a run file.
pub(super) fn dtype_of(name: &str) -> Option<&'static str> {
    Some(match name.to_ascii_lowercase().as_str() {
        "fp32" | "float32" | "float" | "torch.float32" => "f32",
        "bf16" | "bfloat16" | "torch.bfloat16" => "bf16",
        "fp16" | "float16" | "half" | "torch.float16" => "f16",
        _ => return None,
    })
}

/// Reads the name of a dtype.
pub(super) fn dtype(source: &Source, path: &str) -> Result<Given<&'static str>, ImportError> {
    source.read(path, "\"fp32\", \"bf16\" or \"fp16\"", |value| dtype_of(value.as_str()?))
}

fn replicate_below(ds: &mut Source, stage: u64) -> Result<Option<u64>, ImportError> {
    const PATH: &str = "zero_optimization.stage3_param_persistence_threshold";
    let (outcome, elements) = match ds.count(PATH, 0, 1 << 53)? {
        _ if stage != 3 => (Outcome::no_effect("it is for stage 3"), None),
        Given::Is(elements) => (Outcome::Taken(format!("Zero(replicate_below: {elements})")), Some(elements)),
        _ => (
            Outcome::no_effect(
                "there it is 10 x the hidden size; 1024 here, unless `replicate_below` says otherwise",
            ),
            None,
        ),
    };
    ds.settle(PATH, outcome);
    Ok(elements)
}

/// Reads the number of ranks that share a copy of the state (MiCS).
fn within(ds: &mut Source, stage: u64) -> Result<Option<u64>, ImportError> {
    const PATH: &str = "zero_optimization.mics_shard_size";
    let given = ds.read(PATH, "a number of ranks, or -1", |value| match value.as_i64() {
        Some(-1 | 0) => Some(None),
        ranks => Some(Some(u64::try_from(ranks?).ok()?)),
    })?;
    let (outcome, ranks) = match given.or(None) {
        Some(_) if stage != 3 => (Outcome::no_effect("it is for stage 3"), None),
        Some(ranks) => (Outcome::Taken(format!("Zero(within: {ranks})")), Some(ranks)),
        None => (Outcome::no_effect("this value changes nothing"), None),
    };
    ds.settle(PATH, outcome);
    Ok(ranks)
}

/// Reads what the host keeps. A run has a single `Offload`; that of parameters includes the optimizer's state.
fn offload(ds: &mut Source, stage: u64) -> Result<Option<Item>, ImportError> {
    let optimizer = device(ds, "offload_optimizer", "cpu_offload", (1, stage), "Offload(optimizer)")?;
    let parameters = device(ds, "offload_param", "cpu_offload_param", (3, stage), "Offload(parameters)")?;
    let old = device(ds, "offload_param", "cpu_offload_params", (3, stage), "Offload(parameters)")?;
    for name in ["ratio", "nvme_path"] {
        let path = format!("zero_optimization.offload_optimizer.{name}");
        let all = match (name, ds.get(&path).map(|field| field.value.to_string()).as_deref()) {
            (_, None | Some("1" | "1.0")) => Outcome::no_effect("all of it is on the host"),
            ("ratio", _) if optimizer => Outcome::omitted("all of it on the host"),
            _ => Outcome::no_effect("nothing is kept on disks"),
        };
        ds.settle(&path, all);
    }
    Ok(match (parameters || old, optimizer) {
        (true, _) => Some(Item::certain("Offload(parameters)")),
        (false, true) => Some(Item::certain("Offload(optimizer)")),
        (false, false) => None,
    })
}

/// Reads whether a part of the state is kept on the host. `old` is the name of the flag that preceded the block.
fn device(
    ds: &mut Source,
    block: &str,
    old: &str,
    (least, stage): (u64, u64),
    strategy: &str,
) -> Result<bool, ImportError> {
    let (path, old) = (format!("zero_optimization.{block}.device"), format!("zero_optimization.{old}"));
    let note = Outcome::Taken(format!("strategies: {strategy}"));
    let too_low = Outcome::no_effect(format!("DeepSpeed heeds it from stage {least} on"));
    let flag = ds.flag(&old)? == Given::Is(true);
    ds.settle(
        &old,
        match flag {
            true if stage >= least => note.clone(),
            true => too_low.clone(),
            false => Outcome::no_effect("nothing is offloaded"),
        },
    );
    let on_disk = Outcome::omitted(format!("{strategy}, in the host's memory: nothing is kept on disks"));
    let (outcome, on) = match ds.text(&path)? {
        Given::Missing => return Ok(flag && stage >= least),
        Given::Is(device) => match device.to_ascii_lowercase().as_str() {
            "none" => (Outcome::no_effect("nothing is offloaded"), false),
            "cpu" | "nvme" if stage < least => (too_low, false),
            "cpu" => (note, true),
            "nvme" => (on_disk, true),
            _ => return Err(ds.wrong(&path, "\"cpu\", \"nvme\" or \"none\"")),
        },
        Given::Auto => return Err(ds.wrong(&path, "\"cpu\", \"nvme\" or \"none\"")),
    };
    ds.settle(&path, outcome);
    Ok(on || flag && stage >= least)
}
