//! Loading saved tensors into the master that a rank holds.

use std::collections::BTreeSet;

use burn::module::{Module, ParamId};
use burn::tensor::{Bytes, DType, Tensor, TensorData};
use burn::train::Interrupter;
use firebrick_checkpoints::{Dtype, Tensors};
use firebrick_kernels::packed::PackedMatrix;
use firebrick_strategies::{PackedBase, ParamMap, each_param, map_params, relift};

use super::layout::{Layout, ParameterPlace, Slice, of_tensor};
use crate::ResumeError;
use crate::scratch::{DiskParams, NewValues};

/// The number of differences that an error lists before it only counts them.
const LISTED: usize = 10;

/// Returns the model with the saved values, in the model's dtypes, of the parts that this rank holds. The values of parameters
/// that wait on a disk go there one by one, and the model keeps what it has in their place.
///
/// # Errors
///
/// The run was interrupted, or the saved tensors differ from the model's. In the latter case the error names the
/// differences, and no tensor has been read.
pub(crate) fn load<M: Module>(
    model: M,
    layout: &Layout,
    saved: &Tensors,
    interrupter: &Interrupter,
    waiting: Waiting<'_>,
) -> Result<M, ResumeError> {
    require_same(&model, layout, saved)?;
    let mut put = SavedValues { layout, saved, interrupter, waiting, error: None };
    let model = map_params(model, &mut put);
    put.error.map_or(Ok(model), Err)
}

/// Compares names and shapes.
fn require_same<M: Module>(model: &M, layout: &Layout, saved: &Tensors) -> Result<(), ResumeError> {
    let (mut known, mut differences) = (BTreeSet::new(), Vec::new());
    each_param(model, |param| {
        let Some(place) = layout.place(param.id()) else { return };
        let path = &place.path;
        if !known.insert(path.clone()) {
            return;
        }
        let packed = layout.base(param.id()).and_then(PackedBase::get);
        let mut shape = packed.map_or_else(|| param.shape(), |matrix| matrix.shape().to_vec());
        shape = place.whole(&shape);
        differences.extend(match saved.info(path) {
            None => Some(format!("`{path}` is not in it")),
            // Its shape is that of another rank's.
            Some(_) if place.is_away() => None,
            Some(info) if info.shape != shape => {
                Some(format!("`{path}` is {:?} in it and {shape:?} in the model", info.shape))
            }
            Some(info) if !is_float(info.dtype) => {
                Some(format!("`{path}` is {:?} in it and a float in the model", info.dtype))
            }
            Some(_) => None,
        });
    });
    let unknown = saved.names().filter(|name| !known.contains(*name));
    differences.extend(unknown.map(|name| format!("the model has no `{name}`")));
    let more = differences.len().saturating_sub(LISTED);
    if more > 0 {
        differences.truncate(LISTED);
        differences.push(format!("and {more} more"));
    }
    if differences.is_empty() { Ok(()) } else { Err(ResumeError::OtherModel(differences)) }
}

/// What [`load`] does with parameters that wait on a disk.
#[derive(Clone, Copy)]
pub(crate) enum Waiting<'a> {
    /// None waits.
    Nothing,
    /// They are written to the disk.
    Written(&'a DiskParams),
    /// They are skipped if they have no value: those of an average that are not trained are the master's.
    Left(&'a DiskParams),
}

/// Puts the saved values in the place of a model's.
struct SavedValues<'a> {
    layout: &'a Layout,
    saved: &'a Tensors,
    interrupter: &'a Interrupter,
    waiting: Waiting<'a>,
    error: Option<ResumeError>,
}

impl ParamMap for SavedValues<'_> {
    fn map<const D: usize>(&mut self, id: ParamId, value: Tensor<D>) -> Tensor<D> {
        match self.error {
            Some(_) => value,
            None => self.read(id, &value).unwrap_or_else(|error| {
                self.error = Some(error);
                value
            }),
        }
    }

    fn wakes(&self, id: ParamId) -> bool {
        !matches!(self.waiting, Waiting::Left(offloaded) if offloaded.has(id))
    }
}

impl SavedValues<'_> {
    fn read<const D: usize>(&self, id: ParamId, value: &Tensor<D>) -> Result<Tensor<D>, ResumeError> {
        let Some(place) = self.layout.place(id).filter(|place| !place.is_away()) else {
            return Ok(value.clone());
        };
        let Some(info) = self.saved.info(&place.path) else { return Ok(value.clone()) };
        go_on(self.interrupter)?;
        let dtype = tensor_dtype(&place.path, info.dtype)?;
        let (shape, bytes) = read_part(self.saved, &place.path, &info.shape, place)?;
        let data = TensorData::from_bytes(Bytes::from_bytes_vec(bytes), shape, dtype);
        let base = self.layout.base(id);
        if let Some((base, matrix)) = base.and_then(|base| Some((base, base.get()?))) {
            // Packing what was unpacked gives the same codes and scales.
            let numbers: Vec<f32> = data.iter().collect();
            let packed = PackedMatrix::new(matrix.packing().pack(&numbers, matrix.shape()));
            base.set(packed.to_device(&matrix.device()));
            return Ok(value.clone());
        }
        let data = data.convert_dtype(value.dtype());
        if let Waiting::Written(offloaded) = self.waiting
            && offloaded.has(id)
        {
            offloaded.put(vec![NewValues { id, master: data, replica: None }])?;
            return Ok(value.clone());
        }
        Ok(relift(Tensor::from_data(data, (&value.device().inner(), value.dtype())), value))
    }
}

/// Returns an error if the run is to stop. A large model takes seconds to read.
pub(super) fn go_on(interrupter: &Interrupter) -> Result<(), ResumeError> {
    if interrupter.should_stop() { Err(ResumeError::Interrupted) } else { Ok(()) }
}

/// Whether parameters may be saved in this dtype; converting from any other would change their values.
fn is_float(dtype: Dtype) -> bool {
    matches!(dtype, Dtype::F64 | Dtype::F32 | Dtype::F16 | Dtype::BF16)
}

pub(super) fn tensor_dtype(name: &str, dtype: Dtype) -> Result<DType, ResumeError> {
    of_tensor(dtype).ok_or_else(|| {
        ResumeError::OtherModel(vec![format!("`{name}` is in {dtype:?}, which no parameter is in")])
    })
}

/// Reads the part of a saved tensor of this `shape` that a rank holds, with the shape of the part: the rows of its shard, then
/// the padding.
pub(super) fn read_part(
    saved: &Tensors,
    name: &str,
    shape: &[usize],
    place: &ParameterPlace,
) -> Result<(Vec<usize>, Vec<u8>), ResumeError> {
    let mut held = shape.to_vec();
    let part = place.part.as_ref().filter(|part| shape.get(part.axis) == Some(&part.whole));
    if let Some(part) = part {
        held[part.axis] = part.length();
    }
    let shard = place.shard.as_ref().filter(|shard| held.first() == Some(&shard.whole));
    if part.is_none() && shard.is_none() {
        return Ok((held, saved.read(name)?));
    }
    let rows = shard.map_or(0..held[0], |shard| shard.rows.clone());
    let slice = match part {
        Some(part) => place.in_whole(part, rows, shape.len()),
        None => Slice { rows: Some(rows), columns: None },
    };
    let all = 0..shape[0];
    let mut bytes = match slice.columns {
        // This rank's shard of the part is padding alone.
        Some(columns) if columns.is_empty() => Vec::new(),
        Some(columns) => saved.read_columns(name, slice.rows.unwrap_or(all), &columns)?,
        None => saved.read_rows(name, slice.rows.unwrap_or(all))?,
    };
    held[0] = shard.map_or(held[0], |shard| shard.padded);
    let size = saved.info(name).map_or(0, |info| info.dtype.bitsize() / 8);
    bytes.resize(held.iter().product::<usize>() * size, 0);
    Ok((held, bytes))
}

#[cfg(test)]
mod tests {
    use burn::nn::{Linear, LinearConfig};
    use firebrick_checkpoints::{Checkpoint, Folder, Manifest, Piece, RankState};
    use firebrick_strategies::{ModelPart, Shard, Stages};
    use firebrick_world::Communicator;

    use super::*;

    /// Saves a layer with 2 numbers in this dtype, and loads it.
    fn loaded(dtype: Dtype, interrupter: &Interrupter) -> Result<Linear, ResumeError> {
        let model = LinearConfig::new(2, 1).with_bias(false).init(&burn::tensor::Device::flex().autodiff());
        let layout = Layout::of(&model, &mut Stages::none(), &Communicator::solo(), None);
        let folder = tempfile::tempdir().unwrap();
        let staging = Folder::new(folder.path()).staging(1, "first");
        let bytes = vec![0; 2 * dtype.bitsize() / 8].into();
        let weight =
            Piece { name: "weight".into(), dtype, shape: vec![2, 1], rows: None, columns: None, bytes };
        let state = RankState { rank: 0, ranks: 1, parameters: vec![weight], ..Default::default() };
        let manifest = Manifest::new("run", 1, 1, "0").files(staging.write_rank(&state).unwrap());
        let saved = staging.publish(manifest, "()").unwrap();
        load(
            model,
            &layout,
            Checkpoint::open(saved.path).unwrap().parameters(),
            interrupter,
            Waiting::Nothing,
        )
    }

    #[test]
    fn parameters_are_loaded_from_floats_only() {
        for dtype in [Dtype::F64, Dtype::F32, Dtype::F16, Dtype::BF16] {
            loaded(dtype, &Interrupter::new()).unwrap();
        }
        for dtype in [Dtype::I64, Dtype::I32, Dtype::I8, Dtype::U8, Dtype::U32] {
            let error = loaded(dtype, &Interrupter::new()).unwrap_err().to_string();
            assert!(
                error.contains(&format!("`weight` is {dtype:?} in it and a float in the model")),
                "{error}"
            );
        }
    }

    /// A bias of three sections of four, of which a rank has the second half of each, in shards of four.
    #[test]
    fn a_rank_reads_its_shard_of_its_part() {
        let folder = tempfile::tempdir().unwrap();
        let staging = Folder::new(folder.path()).staging(1, "first");
        let bytes: Vec<u8> = (0..12).collect();
        let (shape, name) = (vec![12], "bias".to_string());
        let bias = Piece {
            name,
            dtype: Dtype::U8,
            shape: shape.clone(),
            rows: None,
            columns: None,
            bytes: bytes.into(),
        };
        let state = RankState { rank: 0, ranks: 1, parameters: vec![bias], ..Default::default() };
        let manifest = Manifest::new("run", 1, 1, "0").files(staging.write_rank(&state).unwrap());
        let saved = Checkpoint::open(staging.publish(manifest, "()").unwrap().path).unwrap();
        let read = |rows: Option<std::ops::Range<usize>>| {
            let part = ModelPart { axis: 0, whole: 12, ranges: vec![2..4, 6..8, 10..12] };
            let shard = rows.map(|rows| Shard { whole: 6, rows, padded: 4, copy: 0 });
            let place =
                ParameterPlace { path: "bias".into(), axes: 1, part: Some(part), shard, writes_whole: false };
            read_part(saved.parameters(), "bias", &shape, &place).unwrap()
        };
        assert_eq!(read(None), (vec![6], vec![2, 3, 6, 7, 10, 11]));
        assert_eq!(read(Some(0..4)), (vec![4], vec![2, 3, 6, 7]));
        assert_eq!(read(Some(4..6)), (vec![4], vec![10, 11, 0, 0]));
        // A shard of padding alone.
        assert_eq!(read(Some(6..6)), (vec![4], vec![0; 4]));
    }

    #[test]
    fn an_interruption_stops_the_reading() {
        let interrupter = Interrupter::new();
        interrupter.stop(None);
        assert!(matches!(loaded(Dtype::F32, &interrupter), Err(ResumeError::Interrupted)));
    }
}
