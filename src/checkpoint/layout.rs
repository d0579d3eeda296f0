//! The tensors of a checkpoint by name, and the part of each that this rank writes, as pieces of files.

use std::collections::{BTreeMap, HashMap};
use std::io;
use std::ops::Range;
use std::sync::Arc;

use burn::module::{Module, ParamId};
use burn::tensor::{Bytes, DType};
use firebrick_checkpoints::{Bytes as FileBytes, Dtype, PackedMatrices, Piece};
use firebrick_kernels::packed::Packed;
use firebrick_strategies::{ModelPart, ModelParts, PackedBase, Paths, Shard, Stages, each_param};
use firebrick_world::Communicator;

use crate::scratch::{Stored, StoredTensor};

/// The field of a parameter's state that has its number of axes.
pub(super) const AXES: &str = "__rank";

/// The float parameters of a master, each once, with the names and parts that checkpoints use.
#[derive(Debug)]
pub(crate) struct Layout {
    parameters: HashMap<ParamId, ParameterPlace>,
    /// The other paths of tied parameters, with the path that each is saved under.
    pub aliases: BTreeMap<String, String>,
    /// The factor that scales the product of an adapted matrix's low-rank factors, if there are any.
    pub lora_scale: Option<f64>,
    /// The values of packed matrices, which are saved in place of their placeholders.
    bases: HashMap<ParamId, PackedBase>,
}

/// The path of a parameter, and which rank writes it.
#[derive(Clone, Debug)]
pub(crate) struct ParameterPlace {
    /// The path; the first one for a tied parameter.
    pub path: String,
    /// The number of axes.
    pub axes: usize,
    /// This rank's part, if ranks that hold the parts of a model divide the parameter, or it is another rank's.
    pub part: Option<ModelPart>,
    /// This rank's shard, if the ranks shard the parameter, or the part.
    pub shard: Option<Shard>,
    /// Whether this rank writes a parameter, or a part, that ranks hold in full.
    pub writes_whole: bool,
}

impl Layout {
    /// Creates the layout of a run's master. Parameters that all ranks hold in full are distributed among the ranks,
    /// so that each rank writes about the same number of bytes.
    pub fn of<M: Module>(
        master: &M,
        stages: &mut Stages<M>,
        world: &Communicator,
        parts: Option<&ModelParts>,
    ) -> Self {
        let mut sizes = Vec::new();
        each_param(master, |param| sizes.push((param.id(), param.shape(), param.bytes())));
        let paths = Paths::of(master);
        let (mut parameters, mut aliases) = (HashMap::<ParamId, ParameterPlace>::new(), BTreeMap::new());
        let mut written = vec![0usize; world.size()];
        // The ranks that hold the parts of a model are neighbours.
        let (own, holding) = parts.map_or((0, 1), |parts| (parts.ranks().rank(), parts.ranks().size()));
        for (place, (id, shape, bytes)) in paths.places().iter().zip(sizes) {
            if let Some(first) = parameters.get(&id) {
                aliases.insert(place.path.clone(), first.path.clone());
                continue;
            }
            let part = parts.and_then(|parts| parts.part(id, &shape));
            let holders = parts.and_then(|parts| parts.holders(id));
            let mut shard = stages.shard(id);
            if let Some(shard) = &mut shard {
                shard.copy = match &holders {
                    // Ranks outside have copies of what these hold, or nothing.
                    Some(holders) => shard.copy * 2 + usize::from(!holders.contains(&own)),
                    None => shard.copy * holding + own,
                };
            }
            let writer = match (&shard, &holders) {
                (Some(_), _) => None,
                // Ranks hold other parts, so they take turns.
                (None, holders) if parts.is_some() => {
                    let each = if holders.is_some() { holding } else { 1 };
                    Some(parameters.len() * each % written.len())
                }
                (None, _) => (0..written.len()).min_by_key(|rank| written[*rank]),
            };
            // Those that hold one copy together write it.
            let held = holders.unwrap_or(0..1);
            let written_by = writer.map_or(0..0, |first| first + held.start..first + held.end);
            written[written_by.clone()].iter_mut().for_each(|written| *written += bytes.max(1));
            let writes_whole = written_by.contains(&world.rank());
            let path = place.path.clone();
            let axes = shape.len();
            parameters.insert(id, ParameterPlace { path, axes, part, shard, writes_whole });
        }
        Self { parameters, aliases, lora_scale: None, bases: HashMap::new() }
    }

    /// Sets the scale of the low-rank factors' product.
    pub fn scaling(self, lora_scale: Option<f64>) -> Self {
        Self { lora_scale, ..self }
    }

    /// Sets the packed matrices.
    pub fn packing(self, bases: HashMap<ParamId, PackedBase>) -> Self {
        Self { bases, ..self }
    }

    /// Returns where the values of a parameter are, if it is packed.
    pub fn base(&self, id: ParamId) -> Option<&PackedBase> {
        self.bases.get(&id)
    }

    /// Returns what a manifest says about the packed matrices, if there are any.
    pub fn packed(&self) -> Option<PackedMatrices> {
        let matrices = self.bases.iter().filter_map(|(id, base)| Some((self.place(*id)?, base.get()?)));
        let matrices: Vec<_> = matrices.collect();
        let packing = matrices.first()?.1.packing();
        let shapes = matrices.iter().map(|(place, matrix)| (place.path.clone(), matrix.shape())).collect();
        Some(PackedMatrices {
            bits: packing.bits(),
            block: packing.block(),
            values: packing.values(),
            shapes,
        })
    }

    pub fn place(&self, id: ParamId) -> Option<&ParameterPlace> {
        self.parameters.get(&id)
    }

    /// All places, in no particular order.
    pub fn places(&self) -> impl Iterator<Item = (ParamId, &ParameterPlace)> {
        self.parameters.iter().map(|(id, place)| (*id, place))
    }
}

impl ParameterPlace {
    /// Whether this rank writes any part of the parameter.
    pub fn is_written(&self) -> bool {
        match &self.shard {
            Some(shard) => shard.copy == 0 && !shard.rows.is_empty(),
            None => self.writes_whole,
        }
    }

    /// Whether this rank writes the scalars that belong to the whole parameter; exactly one rank does.
    pub fn writes_scalars(&self) -> bool {
        let is_first = |part: &ModelPart| part.ranges.first().is_some_and(|range| range.start == 0);
        self.part.as_ref().is_none_or(is_first)
            && match &self.shard {
                Some(shard) => self.is_written() && shard.rows.start == 0,
                None => self.writes_whole,
            }
    }

    /// Whether the parameter is another rank's, so that this one has nothing of it.
    pub fn is_away(&self) -> bool {
        self.part.as_ref().is_some_and(|part| part.ranges.is_empty())
    }

    /// Returns the shape of the whole of a tensor, of which this rank holds `shape`, padding included.
    pub fn whole(&self, shape: &[usize]) -> Vec<usize> {
        let mut whole = shape.to_vec();
        if let (Some(shard), Some(rows)) = (self.shard_of(shape), whole.first_mut()) {
            *rows = shard.whole;
        }
        if let Some(part) = self.part_of(&whole) {
            whole[part.axis] = part.whole;
        }
        whole
    }

    /// Returns this rank's shard of a tensor, of which it holds `shape`. A state with a shape other than the parameter's, such
    /// as a factored one, is not split by rows.
    fn shard_of(&self, shape: &[usize]) -> Option<&Shard> {
        self.shard.as_ref().filter(|shard| shape.first() == Some(&shard.padded))
    }

    /// Returns this rank's part of a tensor, where all shards of the part have `shape`.
    fn part_of(&self, shape: &[usize]) -> Option<&ModelPart> {
        self.part.as_ref().filter(|part| shape.get(part.axis) == Some(&part.length()))
    }

    /// Returns where rows of this rank's part stand in a whole tensor of so many axes.
    pub(super) fn in_whole(&self, part: &ModelPart, rows: Range<usize>, axes: usize) -> Slice {
        if axes == 1 {
            return Slice { rows: None, columns: Some(within(&part.ranges, rows)) };
        }
        match part.axis {
            0 => {
                let start = part.ranges.first().map_or(0, |range| range.start);
                Slice { rows: Some(start + rows.start..start + rows.end), columns: None }
            }
            _ => Slice { rows: Some(rows), columns: Some(part.ranges.clone()) },
        }
    }
}

/// The piece of a tensor that is laid out like its parameter; `shape` is the part that this rank holds, padding
/// included. `None` if this rank writes no part of it, or if files do not support its dtype.
pub(super) fn piece(
    place: &ParameterPlace,
    name: String,
    dtype: DType,
    shape: &[usize],
    bytes: Bytes,
) -> Option<Piece> {
    let all = bytes.len();
    of_first(place, name, dtype, shape, all, |length| match length == all {
        true => FileBytes::new(AllOf(bytes)),
        false => FileBytes::new(FirstOf { bytes, length }),
    })
}

/// The same of a tensor on a disk, which is read when it is written.
pub(super) fn piece_on_disk(
    place: &ParameterPlace,
    name: String,
    bucket: &Arc<Stored>,
    index: usize,
) -> Option<Piece> {
    let StoredTensor { dtype, shape, bytes, .. } = &bucket.tensors[index];
    of_first(place, name, *dtype, shape, *bytes, |length| {
        let bucket = bucket.clone();
        FileBytes::read_by(length, move || {
            let mut bytes = bucket.read_tensor(index).map_err(io::Error::other)?;
            bytes.truncate(length);
            Ok(bytes)
        })
    })
}

/// The piece of a tensor of so many bytes; `first` returns those before the padding.
fn of_first(
    place: &ParameterPlace,
    name: String,
    dtype: DType,
    shape: &[usize],
    bytes: usize,
    first: impl FnOnce(usize) -> FileBytes,
) -> Option<Piece> {
    if !place.is_written() {
        return None;
    }
    let dtype = of_file(dtype)?;
    let whole = place.whole(shape);
    let (rows, bytes) = match place.shard_of(shape) {
        None => (None, bytes),
        Some(shard) => (Some(shard.rows.clone()), bytes / shard.padded.max(1) * shard.rows.len()),
    };
    let slice = match &place.part {
        Some(part) if whole.get(part.axis) == Some(&part.whole) => {
            let rows = rows.unwrap_or(0..shape[0]);
            place.in_whole(part, rows, whole.len())
        }
        _ => Slice { rows, columns: None },
    };
    Some(Piece { name, dtype, shape: whole, rows: slice.rows, columns: slice.columns, bytes: first(bytes) })
}

/// A part of a tensor in a file.
pub(super) struct Slice {
    /// The rows of its first axis, or `None` for all.
    pub rows: Option<Range<usize>>,
    /// The ranges of its last axis, or `None` for all.
    pub columns: Option<Vec<Range<usize>>>,
}

/// Returns the ranges of some of the elements of ranges that stand side by side.
fn within(ranges: &[Range<usize>], elements: Range<usize>) -> Vec<Range<usize>> {
    let mut at = 0;
    let cut = ranges.iter().filter_map(|range| {
        let first = at;
        at += range.len();
        let (start, end) = (elements.start.max(first), elements.end.min(at));
        (start < end).then(|| range.start + start - first..range.start + end - first)
    });
    cut.collect()
}

/// The pieces of a packed matrix: its codes, which are not copied, and its scales.
pub(super) fn packed_pieces(path: &str, matrix: &Arc<Packed>) -> [Piece; 2] {
    let scales: Vec<u8> = matrix.scales.iter().flat_map(|scale| scale.to_le_bytes()).collect();
    let whole = |name, dtype, length, bytes| Piece {
        name,
        dtype,
        shape: vec![length],
        rows: None,
        columns: None,
        bytes,
    };
    [
        whole(
            PackedMatrices::codes_of(path),
            Dtype::U8,
            matrix.codes.len(),
            FileBytes::new(CodesOf(matrix.clone())),
        ),
        whole(PackedMatrices::scales_of(path), Dtype::F32, matrix.scales.len(), scales.into()),
    ]
}

struct CodesOf(Arc<Packed>);

impl AsRef<[u8]> for CodesOf {
    fn as_ref(&self) -> &[u8] {
        &self.0.codes
    }
}

struct AllOf(Bytes);

impl AsRef<[u8]> for AllOf {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

/// The bytes before the padding.
struct FirstOf {
    bytes: Bytes,
    length: usize,
}

impl AsRef<[u8]> for FirstOf {
    fn as_ref(&self) -> &[u8] {
        &self.bytes[..self.length]
    }
}

/// The dtype in a file; `None` for quantized tensors.
fn of_file(dtype: DType) -> Option<Dtype> {
    Some(match dtype {
        DType::F64 => Dtype::F64,
        DType::F32 => Dtype::F32,
        DType::F16 => Dtype::F16,
        DType::BF16 => Dtype::BF16,
        DType::I64 => Dtype::I64,
        DType::I32 => Dtype::I32,
        DType::I16 => Dtype::I16,
        DType::I8 => Dtype::I8,
        DType::U64 => Dtype::U64,
        DType::U32 => Dtype::U32,
        DType::U16 => Dtype::U16,
        DType::U8 => Dtype::U8,
        _ => return None,
    })
}

/// The tensor's dtype; `None` for dtypes that tensors never have here.
pub(super) fn of_tensor(dtype: Dtype) -> Option<DType> {
    Some(match dtype {
        Dtype::F64 => DType::F64,
        Dtype::F32 => DType::F32,
        Dtype::F16 => DType::F16,
        Dtype::BF16 => DType::BF16,
        Dtype::I64 => DType::I64,
        Dtype::I32 => DType::I32,
        Dtype::I16 => DType::I16,
        Dtype::I8 => DType::I8,
        Dtype::U64 => DType::U64,
        Dtype::U32 => DType::U32,
        Dtype::U16 => DType::U16,
        Dtype::U8 => DType::U8,
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use burn::nn::{Linear, LinearConfig};
    use firebrick_strategies::{Composition, Setup, Zero};

    use super::*;
    use crate::testing::on_ranks;

    /// A model with two places for one layer, and one place for another.
    fn model() -> (Vec<Linear>, Linear) {
        let device = burn::tensor::Device::flex().autodiff();
        let tied = LinearConfig::new(64, 64).init(&device);
        (vec![tied.clone(), tied], LinearConfig::new(32, 8).init(&device))
    }

    #[test]
    fn a_tied_parameter_is_saved_once_under_its_first_path() {
        let model = model();
        let layout = Layout::of(&model, &mut Stages::none(), &Communicator::solo(), None);
        let mut paths: Vec<_> = layout.places().map(|(_, place)| place.path.as_str()).collect();
        paths.sort();
        assert_eq!(paths, ["0.0.bias", "0.0.weight", "1.bias", "1.weight"]);
        let alias = |name: &str| layout.aliases[&format!("0.1.{name}")].clone();
        assert_eq!([alias("weight"), alias("bias")], ["0.0.weight", "0.0.bias"]);
        assert!(layout.places().all(|(_, place)| place.is_written() && place.writes_scalars()));
    }

    #[test]
    fn ranks_write_each_byte_once_and_about_as_many_each() {
        let written = on_ranks(3, |world| {
            let model = model();
            let device = model.1.devices()[0].clone();
            let mut setup = Setup::new(&model, &device).among(world.clone());
            let mut stages = Zero::stage(1).replicate_below(1000).start(&mut setup).unwrap();
            let layout = Layout::of(&model, &mut stages, &world, None);
            let mut rows: Vec<_> = layout
                .places()
                .filter(|(_, place)| place.is_written())
                .map(|(_, place)| (place.path.clone(), place.shard.clone().map(|shard| shard.rows)))
                .collect();
            rows.sort_by(|a, b| a.0.cmp(&b.0));
            rows
        });
        let whole: Vec<_> = written.iter().flatten().filter(|(_, rows)| rows.is_none()).collect();
        assert_eq!(whole.len(), 3, "each small one by one rank: {written:?}");
        let of_sharded = |rank: usize| written[rank].iter().find_map(|(_, rows)| rows.clone()).unwrap();
        assert_eq!([of_sharded(0), of_sharded(1), of_sharded(2)], [0..22, 22..44, 44..64]);
        assert!(written.iter().all(|rank| rank.len() == 2), "{written:?}");
    }
}
