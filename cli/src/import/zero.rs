//! Reads `zero_optimization` as `Zero` and `Offload`.

use super::draft::Item;
use super::inputs::Inputs;
use super::source::{Setting, Source};
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
    let ranks = inputs.ranks;
    let ds = &mut inputs.ds;
    let stage = stage(ds)?;
    let mut settings = String::new();
    if let Some(dtype) = sum_in(ds)? {
        settings += &format!(", sum_in: {dtype}");
    }
    if let Some(elements) = replicate_below(ds, stage)? {
        settings += &format!(", replicate_below: {elements}");
    }
    if let Some(ranks) = within(ds, stage, ranks)? {
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
    if let Setting::Is(on) = ds.flag("zero_optimization").unwrap_or(Setting::Missing) {
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
pub(super) fn dtype(source: &Source, path: &str) -> Result<Setting<&'static str>, ImportError> {
    source.read(path, "\"fp32\", \"bf16\" or \"fp16\"", |value| dtype_of(value.as_str()?))
}

fn replicate_below(ds: &mut Source, stage: u64) -> Result<Option<u64>, ImportError> {
    const PATH: &str = "zero_optimization.stage3_param_persistence_threshold";
    let (outcome, elements) = match ds.count(PATH, 0, 1 << 53)? {
        _ if stage != 3 => (Outcome::no_effect("it is for stage 3"), None),
        Setting::Is(elements) => {
            (Outcome::Taken(format!("Zero(replicate_below: {elements})")), Some(elements))
        }
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

/// Reads the number of ranks that share a copy of the state (MiCS), which divides that of `all` ranks, if it is known.
fn within(ds: &mut Source, stage: u64, all: Option<u64>) -> Result<Option<u64>, ImportError> {
    const PATH: &str = "zero_optimization.mics_shard_size";
    let all = all.filter(|_| stage == 3);
    let of_all = all.map_or(String::new(), |all| format!(" that divides the {all} of the run"));
    let given =
        ds.read(PATH, &format!("a number of ranks{of_all}, or -1"), |value| match value.as_i64() {
            Some(-1 | 0) => Some(None),
            ranks => {
                let ranks = u64::try_from(ranks?).ok()?;
                all.is_none_or(|all| all.is_multiple_of(ranks)).then_some(Some(ranks))
            }
        })?;
    let (outcome, ranks) = match given.or(None) {
        Some(_) if stage != 3 => (Outcome::no_effect("it is for stage 3"), None),
        Some(ranks) => (Outcome::Taken(format!("Zero(within: {ranks})")), Some(ranks)),
        None => (Outcome::no_effect("this value changes nothing"), None),
    };
    ds.settle(PATH, outcome);
    Ok(ranks)
}

/// Where a part of the state is kept.
#[derive(Clone, PartialEq)]
enum Storage {
    Device,
    Host,
    /// In this folder.
    Disk(String),
}

/// A block about a part of the state.
struct Block {
    name: &'static str,
    /// The flag that preceded the block.
    old: &'static str,
    /// The first stage in which DeepSpeed heeds it.
    least: u64,
    /// What keeps the part on the host.
    strategy: &'static str,
    /// What `Offload` keeps then.
    keep: &'static str,
}

/// Reads what the host and a disk keep. A run has a single `Offload`; that of parameters includes the optimizer's state.
fn offload(ds: &mut Source, stage: u64) -> Result<Option<Item>, ImportError> {
    let (name, strategy) = ("offload_param", "Offload(parameters)");
    let block = |old| Block { name, old, least: 3, strategy, keep: "parameters" };
    let of_parameters = device(ds, &block("cpu_offload_param"), stage)?;
    let old = device(ds, &block("cpu_offload_params"), stage)?;
    let parameters = of_parameters != Storage::Device || old != Storage::Device;
    let keep = if parameters { "parameters" } else { "optimizer" };
    let (name, strategy) = ("offload_optimizer", "Offload(optimizer)");
    let block = Block { name, old: "cpu_offload", least: 1, strategy, keep };
    let optimizer = device(ds, &block, stage)?;
    for name in ["ratio", "nvme_path"] {
        let path = format!("zero_optimization.offload_optimizer.{name}");
        let all = match (name, ds.get(&path).map(|field| field.value.to_string()).as_deref()) {
            ("ratio", None | Some("1" | "1.0")) => Outcome::no_effect("all of it is offloaded"),
            ("ratio", _) if optimizer != Storage::Device => Outcome::omitted("all of it is offloaded"),
            _ => Outcome::no_effect("nothing is kept on disks"),
        };
        ds.settle(&path, all);
    }
    if let (Storage::Disk(one), Storage::Disk(other)) = (&of_parameters, &optimizer)
        && one != other
    {
        let why = format!("{}: a run has one folder", with_disk(keep, other));
        ds.correct("zero_optimization.offload_param.nvme_path", Outcome::omitted(why));
    }
    // One `Offload` has one place for both.
    if let (Storage::Disk(folder), Storage::Host) | (Storage::Host, Storage::Disk(folder)) =
        (&of_parameters, &optimizer)
    {
        for name in ["offload_param", "offload_optimizer"] {
            let taken = Outcome::Taken(format!("strategies: {}", with_disk(keep, folder)));
            ds.correct(&format!("zero_optimization.{name}.device"), taken);
        }
    }
    Ok(match (parameters, optimizer, of_parameters) {
        (_, Storage::Disk(folder), _) | (true, _, Storage::Disk(folder)) => {
            Some(Item::certain(with_disk(keep, &folder)))
        }
        (true, ..) => Some(Item::certain("Offload(parameters)")),
        (false, Storage::Host, _) => Some(Item::certain("Offload(optimizer)")),
        (false, Storage::Device, _) => None,
    })
}

fn with_disk(keep: &str, folder: &str) -> String {
    format!("Offload(keep: {keep}, on: {folder:?})")
}

/// Reads where a part of the state is kept.
fn device(ds: &mut Source, block: &Block, stage: u64) -> Result<Storage, ImportError> {
    let Block { name, old, least, strategy, keep } = block;
    let (least, path, old) =
        (*least, format!("zero_optimization.{name}.device"), format!("zero_optimization.{old}"));
    let note = Outcome::Taken(format!("strategies: {strategy}"));
    let too_low = Outcome::no_effect(format!("DeepSpeed heeds it from stage {least} on"));
    let flag = ds.flag(&old)? == Setting::Is(true);
    ds.settle(
        &old,
        match flag {
            true if stage >= least => note.clone(),
            true => too_low.clone(),
            false => Outcome::no_effect("nothing is offloaded"),
        },
    );
    let by_flag = if flag && stage >= least { Storage::Host } else { Storage::Device };
    let (outcome, kept) = match ds.text(&path)? {
        Setting::Missing => return Ok(by_flag),
        Setting::Is(device) => match device.to_ascii_lowercase().as_str() {
            "none" => (Outcome::no_effect("nothing is offloaded"), by_flag),
            "cpu" | "nvme" if stage < least => (too_low, by_flag),
            "cpu" => (note, Storage::Host),
            "nvme" => nvme(ds, name, strategy, keep)?,
            _ => return Err(ds.wrong(&path, "\"cpu\", \"nvme\" or \"none\"")),
        },
        Setting::Auto => return Err(ds.wrong(&path, "\"cpu\", \"nvme\" or \"none\"")),
    };
    ds.settle(&path, outcome);
    Ok(kept)
}

/// Reads the folder on a disk. Without one, the host keeps this part.
fn nvme(ds: &mut Source, block: &str, strategy: &str, keep: &str) -> Result<(Outcome, Storage), ImportError> {
    let path = format!("zero_optimization.{block}.nvme_path");
    match ds.text(&path)? {
        Setting::Is(folder) if !folder.is_empty() => {
            let taken = Outcome::Taken(format!("strategies: {}", with_disk(keep, &folder)));
            ds.settle(&path, taken.clone());
            Ok((taken, Storage::Disk(folder)))
        }
        _ => {
            let why = "nvme_path names no folder";
            Ok((Outcome::omitted(format!("{strategy}, in the host's memory: {why}")), Storage::Host))
        }
    }
}
