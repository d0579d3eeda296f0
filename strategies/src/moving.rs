//! Flat tensors on their way: the buckets that travel together, and moves to host memory while the device goes on computing.

use std::ops::Range;

use burn::module::{Module, ParamId};
use burn::tensor::{DType, Device, Tensor};
use firebrick_kernels::Reading;
use firebrick_world::{count_read, is_host, joined, moved};

use crate::{AnyParam, StrategyError, each_distinct_param, with_values};

/// Bytes in flight at once by default: large enough to use a network or a bus well, and small beside a model.
pub(crate) const BUCKET_BYTES: usize = 32 << 20;

/// Splits items into runs of neighbours of at most `most` bytes each, and of at least one item.
pub(crate) fn buckets<T>(all: &[T], most: usize, bytes: impl Fn(&T) -> usize) -> Vec<&[T]> {
    let mut sum = 0;
    let mut runs = Vec::new();
    let mut start = 0;
    for (end, item) in all.iter().enumerate() {
        if sum > 0 && sum + bytes(item) > most {
            runs.push(&all[start..end]);
            (start, sum) = (end, 0);
        }
        sum += bytes(item);
    }
    if start < all.len() {
        runs.push(&all[start..]);
    }
    runs
}

/// Returns the bytes of a flat tensor.
pub(crate) fn bytes((_, flat): &(ParamId, Tensor<1>)) -> usize {
    bytes_of(flat)
}

/// Returns the bytes of a flat tensor.
pub(crate) fn bytes_of(flat: &Tensor<1>) -> usize {
    flat.dims()[0] * flat.dtype().size()
}

/// A move of flat tensors to another device, which has begun.
///
/// Towards the host, the tensors of a bucket are joined on their device, so that they are one copy, and one wait is for
/// all of them. The device copies them in a queue of its own. From the host, or to where no read can begin before
/// it is waited for, the move is over at once.
pub(crate) struct Moving(MoveState);

enum MoveState {
    There(Vec<Tensor<1>>),
    Begun { reading: Reading, places: Vec<BufferPlace>, to: Device },
}

/// Where a tensor is among the buffers that are read.
struct BufferPlace {
    buffer: usize,
    elements: Range<usize>,
    dtype: DType,
}

impl Moving {
    /// Begins to move tensors, at most `most` bytes in one copy, unless a tensor alone has more.
    ///
    /// # Errors
    ///
    /// A device has failed.
    pub fn begin(tensors: Vec<Tensor<1>>, to: &Device, most: usize) -> Result<Self, StrategyError> {
        let is_away = |tensor: &Tensor<1>| !is_host(&tensor.device());
        if is_host(to) && tensors.iter().all(is_away) {
            let (buffers, places) = join(&tensors, most);
            if let Some(reading) = Reading::beside(&buffers) {
                return Ok(Self(MoveState::Begun { reading, places, to: to.clone() }));
            }
        }
        let mut there = Vec::with_capacity(tensors.len());
        for bucket in buckets(&tensors, most, bytes_of) {
            let moved = moved(bucket.to_vec(), to);
            there.extend(moved.map_err(|error| StrategyError::Read(error.to_string()))?);
        }
        Ok(Self(MoveState::There(there)))
    }

    /// Waits for the tensors, in their order.
    ///
    /// # Errors
    ///
    /// A device has failed.
    pub fn wait(self) -> Result<Vec<Tensor<1>>, StrategyError> {
        let (reading, places, to) = match self.0 {
            MoveState::There(there) => return Ok(there),
            MoveState::Begun { reading, places, to } => (reading, places, to),
        };
        count_read();
        let buffers = reading.wait().map_err(StrategyError::Read)?;
        // The buffers are pinned memory, which the next copies need: the values leave it.
        let there = places.into_iter().map(|BufferPlace { buffer, elements, dtype }| {
            let bytes = &buffers[buffer][elements.start * dtype.size()..elements.end * dtype.size()];
            Tensor::from_data(joined(dtype, vec![elements.len()], std::iter::once(bytes)), (&to, dtype))
        });
        Ok(there.collect())
    }
}

/// Joins tensors of one dtype on their device, in buckets. Returns the buffers, and where each tensor is.
fn join(tensors: &[Tensor<1>], most: usize) -> (Vec<Tensor<1>>, Vec<BufferPlace>) {
    let mut by_dtype: Vec<(DType, Vec<usize>)> = Vec::new();
    for (at, tensor) in tensors.iter().enumerate() {
        match by_dtype.iter_mut().find(|(dtype, _)| *dtype == tensor.dtype()) {
            Some((_, alike)) => alike.push(at),
            None => by_dtype.push((tensor.dtype(), vec![at])),
        }
    }
    let (mut buffers, mut places) = (Vec::new(), Vec::with_capacity(tensors.len()));
    for (dtype, alike) in by_dtype {
        for bucket in buckets(&alike, most, |at| bytes_of(&tensors[*at])) {
            let mut end = 0;
            for at in bucket {
                let start = end;
                end += tensors[*at].dims()[0];
                places.push((*at, BufferPlace { buffer: buffers.len(), elements: start..end, dtype }));
            }
            let mut parts: Vec<_> = bucket.iter().map(|at| tensors[*at].clone()).collect();
            buffers.push(if parts.len() == 1 { parts.remove(0) } else { Tensor::cat(parts, 0) });
        }
    }
    places.sort_unstable_by_key(|(at, _)| *at);
    (buffers, places.into_iter().map(|(_, place)| place).collect())
}

/// Copies the parameters of a model that are `wanted` to a device, at most `most` bytes in one copy.
///
/// # Errors
///
/// A device has failed.
pub(crate) fn copied<M: Module>(
    model: M,
    to: &Device,
    most: usize,
    wanted: impl Fn(&dyn AnyParam) -> bool,
) -> Result<M, StrategyError> {
    let (mut ids, mut flat) = (Vec::new(), Vec::new());
    each_distinct_param(&model, |param| {
        if wanted(param) {
            ids.push(param.id());
            flat.push(param.flat());
        }
    });
    let there = Moving::begin(flat, to, most)?.wait()?;
    Ok(with_values(model, std::iter::zip(ids, there).collect()))
}

#[cfg(test)]
mod tests {
    use burn::tensor::FloatDType;
    use firebrick_world::{host_device, reads};

    use super::*;
    use crate::testing;

    #[test]
    fn tensors_arrive_in_order_with_a_wait_for_all_of_them() {
        let device = testing::device();
        let wide = |from: i64, to| Tensor::arange(from..to, &device).float();
        let narrow = |from, to| {
            wide(from, to).cast(if testing::has_bf16() { FloatDType::BF16 } else { FloatDType::F16 })
        };
        let tensors = vec![wide(0, 3), narrow(3, 7), wide(7, 8), narrow(8, 11), wide(11, 30), wide(30, 31)];
        let expected: Vec<_> = tensors.iter().map(Tensor::to_data).collect();
        for most in [1, 20, usize::MAX] {
            let before = reads();
            let moving = Moving::begin(tensors.clone(), &host_device(), most).unwrap();
            // What is queued behind the move does not change it.
            let _later: Vec<_> = tensors.iter().cloned().map(|tensor| tensor * 2.0).collect();
            let there = moving.wait().unwrap();
            assert!(there.iter().all(|tensor| is_host(&tensor.device())));
            assert_eq!(there.iter().map(Tensor::to_data).collect::<Vec<_>>(), expected, "{most}");
            if !is_host(&device) {
                assert_eq!(reads() - before, 1, "{most}");
            }
        }
        assert!(Moving::begin(Vec::new(), &host_device(), 1).unwrap().wait().unwrap().is_empty());
    }

    #[test]
    fn neighbours_of_a_dtype_are_joined_up_to_the_bytes_of_a_bucket() {
        let device = testing::device();
        let of = |elements: usize| Tensor::<1>::zeros([elements], &device);
        let half = |elements| of(elements).cast(FloatDType::F16);
        let (buffers, places) = join(&[of(2), half(4), of(3), of(1), half(2)], 20);
        assert_eq!(buffers.iter().map(|buffer| buffer.dims()[0]).collect::<Vec<_>>(), [5, 1, 6]);
        let places: Vec<_> = places.into_iter().map(|place| (place.buffer, place.elements)).collect();
        assert_eq!(places, [(0, 0..2), (2, 0..4), (0, 2..5), (1, 0..1), (2, 4..6)]);
    }
}
