//! Flat tensors between devices and host memory, with one copy for all of one dtype.

use std::ops::Range;

use burn::tensor::{DType, Device, ExecutionError, Tensor, TensorData};
use bytes::Bytes;
use firebrick_kernels::{Handover, staged};

use crate::host::{count_read, is_host, joined, lend, lend_pinned, try_on_host};
use crate::message::Piece;

/// Where a part begins in a buffer that goes to a device, in bytes. A part that begins and ends at a multiple of it is a
/// view of the buffer; the device copies any other part out of it.
const ALIGNMENT: usize = 256;

/// Flat tensors on their way to host memory.
///
/// Those of a dtype are joined on the device, so that they are one copy. The CPU lends each tensor's own memory instead.
pub(crate) struct Reading {
    buffers: Buffers,
    /// The buffer of each tensor, and its bytes there; `None` for a tensor that this rank lacks.
    places: Vec<Option<(usize, Range<usize>)>>,
    /// The bytes of an element of each buffer.
    elements: Vec<usize>,
}

enum Buffers {
    /// A device copies them beside what it computes.
    Begun(firebrick_kernels::Reading),
    /// They are read by the thread that waits.
    There(Handover),
}

impl Reading {
    /// Queues the joins and copies on the device and does not wait for them. Another thread may wait for the bytes.
    pub fn begin(parts: Vec<Option<Tensor<1>>>) -> Self {
        let mut joined: Vec<(Vec<Tensor<1>>, usize)> = Vec::new();
        let mut places = Vec::with_capacity(parts.len());
        for part in parts {
            let place = part.map(Tensor::inner).map(|part| {
                let (device, dtype) = (part.device(), part.dtype());
                let bytes = part.dims()[0] * dtype.size();
                let is_alike = |(tensors, _): &(Vec<Tensor<1>>, usize)| {
                    !is_host(&device) && tensors[0].dtype() == dtype && tensors[0].device() == device
                };
                let at = joined.iter().position(is_alike).unwrap_or(joined.len());
                if at == joined.len() {
                    joined.push((Vec::new(), 0));
                }
                let (tensors, end) = &mut joined[at];
                tensors.push(part);
                *end += bytes;
                (at, *end - bytes..*end)
            });
            places.push(place);
        }
        let buffers: Vec<_> = joined.into_iter().map(|(tensors, _)| cat(tensors)).collect();
        let elements = buffers.iter().map(|buffer| buffer.dtype().size()).collect();
        let begun = firebrick_kernels::Reading::beside(&buffers);
        let buffers = begun.map_or_else(|| Buffers::There(Handover::of(buffers)), Buffers::Begun);
        Self { buffers, places, elements }
    }

    /// Waits for the buffers, and returns each tensor's bytes.
    ///
    /// # Errors
    ///
    /// A device has failed: its message.
    pub fn wait(self) -> Result<Vec<Option<Piece>>, String> {
        let read: Vec<Bytes> = match self.buffers {
            Buffers::Begun(reading) => {
                count_read();
                reading.wait()?.into_iter().map(lend_pinned).collect()
            }
            Buffers::There(buffers) => {
                let read = |buffer| Ok(lend(try_on_host(buffer)?));
                let read: Result<_, ExecutionError> = buffers.into_tensors().into_iter().map(read).collect();
                read.map_err(|error| error.to_string())?
            }
        };
        let piece = |(at, bytes): (usize, Range<usize>)| Piece {
            bytes: read[at].slice(bytes),
            element: self.elements[at],
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
        let bytes = staged(bytes, to);
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
/// A device has failed: its message.
///
/// ```
/// use burn::tensor::{Device, Tensor};
///
/// let device = Device::flex();
/// let two = [[1.0, 2.0], [3.0, 4.0]].map(|values| Tensor::<1>::from_data(values, &device));
/// let there = firebrick_world::moved(two.to_vec(), &device)?;
/// assert_eq!(there[1].to_data(), two[1].to_data());
/// # Ok::<(), String>(())
/// ```
pub fn moved(tensors: Vec<Tensor<1>>, to: &Device) -> Result<Vec<Tensor<1>>, String> {
    let dtypes: Vec<_> = tensors.iter().map(Tensor::dtype).collect();
    let read = Reading::begin(tensors.into_iter().map(Some).collect()).wait()?;
    let data = read.into_iter().zip(dtypes).map(|(piece, dtype)| {
        let piece = piece?;
        let elements = piece.bytes.len() / piece.element;
        Some(joined(dtype, vec![elements], std::iter::once(&*piece.bytes)))
    });
    Ok(put(data.collect(), to).into_iter().flatten().collect())
}
