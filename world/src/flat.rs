//! Flat tensors between devices and host memory, with one copy for all of one dtype.

use std::ops::Range;

use burn::tensor::{DType, Device, ExecutionError, Tensor, TensorData};
use bytes::Bytes;

use crate::buffers::lend;
use crate::host::{is_host, joined, try_on_host};
use crate::message::Piece;

/// Where a part begins in a buffer that goes to a device, in bytes. A part that begins and ends at a multiple of it is a
/// view of the buffer; the device copies any other part out of it.
const ALIGNMENT: usize = 256;

/// Flat tensors on their way to host memory.
///
/// Those of a dtype are joined on the device, so that they are one copy. The CPU lends each tensor's own memory instead.
pub(crate) struct Reading {
    buffers: Vec<Tensor<1>>,
    /// The buffer of each tensor, and its elements there; `None` for a tensor that this rank lacks.
    places: Vec<Option<(usize, Range<usize>)>>,
}

impl Reading {
    /// Queues the joins on the device and does not wait for them.
    pub fn of(parts: Vec<Option<Tensor<1>>>) -> Self {
        let mut joined: Vec<(Vec<Tensor<1>>, usize)> = Vec::new();
        let mut places = Vec::with_capacity(parts.len());
        for part in parts {
            let place = part.map(Tensor::inner).map(|part| {
                let (device, dtype, elements) = (part.device(), part.dtype(), part.dims()[0]);
                let is_alike = |(tensors, _): &(Vec<Tensor<1>>, usize)| {
                    !is_host(&device) && tensors[0].dtype() == dtype && tensors[0].device() == device
                };
                let at = joined.iter().position(is_alike).unwrap_or(joined.len());
                if at == joined.len() {
                    joined.push((Vec::new(), 0));
                }
                let (tensors, end) = &mut joined[at];
                tensors.push(part);
                *end += elements;
                (at, *end - elements..*end)
            });
            places.push(place);
        }
        Self { buffers: joined.into_iter().map(|(tensors, _)| cat(tensors)).collect(), places }
    }

    /// Waits for the buffers, and returns each tensor's bytes.
    pub fn read(self) -> Result<Vec<Option<Piece>>, ExecutionError> {
        let read = self.buffers.into_iter().map(|buffer| {
            let element = buffer.dtype().size();
            Ok((lend(try_on_host(buffer)?), element))
        });
        let read: Vec<(Bytes, usize)> = read.collect::<Result<_, _>>()?;
        let piece = |(at, range): (usize, Range<usize>)| {
            let (bytes, element) = &read[at];
            Piece { bytes: bytes.slice(range.start * element..range.end * element), element: *element }
        };
        Ok(self.places.into_iter().map(|place| place.map(piece)).collect())
    }
}

/// Joins tensors, without a copy if there is one.
fn cat(mut tensors: Vec<Tensor<1>>) -> Tensor<1> {
    if tensors.len() == 1 { tensors.remove(0) } else { Tensor::cat(tensors, 0) }
}

/// Puts host data on a device, flat. Those of a dtype are one copy, of which each is a part.
pub(crate) fn put(parts: Vec<Option<TensorData>>, to: &Device) -> Vec<Option<Tensor<1>>> {
    let flat = |data: TensorData| {
        let (elements, dtype) = (data.num_elements(), data.dtype());
        let (bytes, ..) = data.into_parts();
        Tensor::from_data(TensorData::from_bytes(bytes, [elements], dtype), (to, dtype))
    };
    if is_host(to) {
        return parts.into_iter().map(|part| part.map(flat)).collect();
    }
    let mut of_dtype: Vec<(DType, Vec<usize>)> = Vec::new();
    for (at, part) in parts.iter().enumerate() {
        let Some(dtype) = part.as_ref().map(TensorData::dtype) else { continue };
        match of_dtype.iter_mut().find(|(known, _)| *known == dtype) {
            Some((_, all)) => all.push(at),
            None => of_dtype.push((dtype, vec![at])),
        }
    }
    let mut tensors = vec![None; parts.len()];
    let mut parts = parts;
    for (dtype, all) in of_dtype {
        if let [one] = all[..] {
            tensors[one] = parts[one].take().map(flat);
            continue;
        }
        let zeros = [0; ALIGNMENT];
        let (mut buffers, mut places, mut bytes) = (Vec::new(), Vec::new(), 0);
        for part in all.iter().filter_map(|at| parts[*at].as_ref()) {
            let part = part.as_bytes();
            places.push((bytes / dtype.size(), part.len() / dtype.size()));
            let end = (bytes + part.len()).next_multiple_of(ALIGNMENT);
            buffers.push(part);
            buffers.push(&zeros[..end - bytes - part.len()]);
            bytes = end;
        }
        let whole = flat(joined(dtype, vec![bytes / dtype.size()], buffers.into_iter()));
        for (at, (start, elements)) in all.into_iter().zip(places) {
            tensors[at] = Some(whole.clone().narrow(0, start, elements));
        }
    }
    tensors
}

/// Moves flat tensors to another device, with one copy and one wait for all of one dtype. Copies those that are there
/// already.
///
/// # Errors
///
/// A device has failed.
///
/// ```
/// use burn::tensor::{Device, Tensor};
///
/// let device = Device::flex();
/// let two = [[1.0, 2.0], [3.0, 4.0]].map(|values| Tensor::<1>::from_data(values, &device));
/// let there = firebrick_world::moved(two.to_vec(), &device)?;
/// assert_eq!(there[1].to_data(), two[1].to_data());
/// # Ok::<(), burn::tensor::ExecutionError>(())
/// ```
pub fn moved(tensors: Vec<Tensor<1>>, to: &Device) -> Result<Vec<Tensor<1>>, ExecutionError> {
    let dtypes: Vec<_> = tensors.iter().map(Tensor::dtype).collect();
    let read = Reading::of(tensors.into_iter().map(Some).collect()).read()?;
    let data = read.into_iter().zip(dtypes).map(|(piece, dtype)| {
        let piece = piece?;
        let elements = piece.bytes.len() / piece.element;
        Some(joined(dtype, vec![elements], std::iter::once(&*piece.bytes)))
    });
    Ok(put(data.collect(), to).into_iter().flatten().collect())
}
