//! Functions of the corresponding elements of tensors of one shape, computed in f32 in one pass over memory.

use burn::backend::TensorMetadata;
use burn::backend::flex::{FlexTensor, Layout};
use burn::tensor::{Bytes, DType, bf16, f16};
use pulp::{Arch, NullaryFnOnce};
use rayon::prelude::*;

use super::float::{BLOCK, Float};

/// Elements that one task computes: tens of microseconds of work, so that small tensors stay on one core.
const TASK: usize = 1 << 13;

/// Returns whether [`mapped`] computes in a dtype.
pub fn is_narrow(dtype: DType) -> bool {
    matches!(dtype, DType::F32 | DType::BF16 | DType::F16)
}

/// Applies `of` to the corresponding elements of tensors of one shape and dtype, and rounds once. The result takes the
/// place of an operand that nothing else holds.
///
/// # Panics
///
/// If the dtype is none of f32, bf16 and f16, or the shapes differ.
pub fn mapped<const N: usize>(
    tensors: [FlexTensor; N],
    of: impl Fn([f32; N]) -> f32 + Copy + Sync,
) -> FlexTensor {
    in_blocks(
        tensors,
        #[inline(always)]
        |_, x: [&[f32]; N], y: &mut [f32]| {
            // Makes the equal lengths visible to the compiler.
            let x = x.map(|x| &x[..y.len()]);
            for (at, y) in y.iter_mut().enumerate() {
                *y = of(x.map(|x| x[at]));
            }
        },
    )
}

/// Like [`mapped`], with two results.
pub fn mapped_to_two<const N: usize>(
    tensors: [FlexTensor; N],
    of: impl Fn([f32; N]) -> [f32; 2] + Copy + Sync,
) -> [FlexTensor; 2] {
    match tensors[0].dtype() {
        DType::F32 => to_two::<f32, N>(tensors, of),
        DType::BF16 => to_two::<bf16, N>(tensors, of),
        DType::F16 => to_two::<f16, N>(tensors, of),
        dtype => unreachable!("{dtype:?} is Burn's"),
    }
}

/// Computes blocks of the result: `of` has the index of a block's first element, the block of each operand and that of
/// the result. Place and panics are those of [`mapped`].
pub fn in_blocks<const N: usize>(
    tensors: [FlexTensor; N],
    of: impl Fn(usize, [&[f32]; N], &mut [f32]) + Copy + Sync,
) -> FlexTensor {
    match tensors[0].dtype() {
        DType::F32 => blocks::<f32, N>(tensors, of),
        DType::BF16 => blocks::<bf16, N>(tensors, of),
        DType::F16 => blocks::<f16, N>(tensors, of),
        dtype => unreachable!("{dtype:?} is Burn's"),
    }
}

fn blocks<T: Float, const N: usize>(
    tensors: [FlexTensor; N],
    of: impl Fn(usize, [&[f32]; N], &mut [f32]) + Copy + Sync,
) -> FlexTensor {
    let arch = Arch::new();
    let tensors = prepared(tensors);
    let place = tensors.iter().position(|tensor| tensor.is_unique() && fills_its_storage::<T>(tensor));
    let mut tensors = tensors.map(Some);
    if let Some(mut out) = place.and_then(|place| tensors[place].take()) {
        let slices = tensors.each_ref().map(|tensor| tensor.as_ref().map(shown::<T>));
        let out_blocks = out.storage_mut::<T>().par_chunks_mut(BLOCK).with_min_len(TASK / BLOCK).enumerate();
        out_blocks.for_each(|(block, out)| {
            let at = block * BLOCK;
            let slices = slices.map(|slice| slice.map(|slice| &slice[at..][..out.len()]));
            arch.dispatch(InPlace { at, slices, out, of });
        });
        return out;
    }
    let tensors = tensors.map(|tensor| tensor.expect("none is taken"));
    let slices = tensors.each_ref().map(shown::<T>);
    let length = slices[0].len();
    let block_at = |block: usize| {
        let (at, end) = (block * BLOCK, ((block + 1) * BLOCK).min(length));
        let mut out = [T::default(); BLOCK];
        let slices = slices.map(|slice| Some(&slice[at..end]));
        arch.dispatch(InPlace { at, slices, out: &mut out[..end - at], of });
        out
    };
    // Collecting whole blocks avoids zeroing the memory first on one core.
    let mut out = Vec::with_capacity(length.div_ceil(BLOCK));
    let blocks = (0..length.div_ceil(BLOCK)).into_par_iter().with_min_len(TASK / BLOCK);
    blocks.map(block_at).collect_into_vec(&mut out);
    joined(out, length, &tensors[0])
}

fn to_two<T: Float, const N: usize>(
    tensors: [FlexTensor; N],
    of: impl Fn([f32; N]) -> [f32; 2] + Copy + Sync,
) -> [FlexTensor; 2] {
    let arch = Arch::new();
    let tensors = prepared(tensors);
    let length = tensors[0].layout().num_elements();
    let place = tensors.iter().position(|tensor| tensor.is_unique() && fills_its_storage::<T>(tensor));
    let mut tensors = tensors.map(Some);
    let own = place.and_then(|place| tensors[place].take());
    // New memory, or the operand's.
    let mut second = own.unwrap_or_else(|| {
        FlexTensor::new(
            Bytes::from_elems(vec![T::default(); length]),
            Layout::contiguous(tensors[0].as_ref().expect("none is taken").shape()),
            T::dtype(),
        )
    });
    let slices = tensors.each_ref().map(|tensor| tensor.as_ref().map(shown::<T>));
    let mut first = Vec::with_capacity(length.div_ceil(BLOCK));
    let blocks = second.storage_mut::<T>().par_chunks_mut(BLOCK).with_min_len(TASK / BLOCK).enumerate();
    let compute = |(block, second): (usize, &mut [T])| {
        let at = block * BLOCK;
        let slices = slices.map(|slice| slice.map(|slice| &slice[at..][..second.len()]));
        arch.dispatch(ToTwo { slices, second, of })
    };
    blocks.map(compute).collect_into_vec(&mut first);
    [joined(first, length, &second), second]
}

/// Makes the elements of each tensor lie in one piece, in one order.
fn prepared<const N: usize>(tensors: [FlexTensor; N]) -> [FlexTensor; N] {
    let shape = tensors[0].shape();
    tensors.map(|tensor| {
        assert!(tensor.shape() == shape, "tensors of {:?} and {shape:?}", tensor.shape());
        if tensor.is_contiguous() { tensor } else { tensor.to_contiguous() }
    })
}

fn shown<T: Float>(tensor: &FlexTensor) -> &[T] {
    let layout = tensor.layout();
    &tensor.storage::<T>()[layout.start_offset()..][..layout.num_elements()]
}

fn fills_its_storage<T: Float>(tensor: &FlexTensor) -> bool {
    tensor.layout().start_offset() == 0 && tensor.storage::<T>().len() == tensor.layout().num_elements()
}

fn joined<T: Float>(blocks: Vec<[T; BLOCK]>, length: usize, like: &FlexTensor) -> FlexTensor {
    let mut out = blocks.into_flattened();
    out.truncate(length);
    FlexTensor::new(Bytes::from_elems(out), Layout::contiguous(like.shape()), T::dtype())
}

/// The work of one core, compiled for the vectors of each kind of processor. An operand that is `None` lies in `out`.
struct InPlace<'a, T, const N: usize, F> {
    at: usize,
    slices: [Option<&'a [T]>; N],
    out: &'a mut [T],
    of: F,
}

impl<T: Float, const N: usize, F: Fn(usize, [&[f32]; N], &mut [f32])> NullaryFnOnce for InPlace<'_, T, N, F> {
    type Output = ();

    #[inline(always)]
    fn call(self) {
        let Self { at, slices, out, of } = self;
        let (mut rooms, mut own) = ([T::ROOM; N], [0.0; BLOCK]);
        let x = operands(&slices, out, &mut rooms, &mut own);
        T::narrowed(out, |out| of(at, x, out));
    }
}

/// The same with two results, of which one is returned.
struct ToTwo<'a, T, const N: usize, F> {
    slices: [Option<&'a [T]>; N],
    second: &'a mut [T],
    of: F,
}

impl<T: Float, const N: usize, F: Fn([f32; N]) -> [f32; 2]> NullaryFnOnce for ToTwo<'_, T, N, F> {
    type Output = [T; BLOCK];

    #[inline(always)]
    fn call(self) -> Self::Output {
        let Self { slices, second, of } = self;
        let length = second.len();
        let (mut rooms, mut own) = ([T::ROOM; N], [0.0; BLOCK]);
        let x = operands(&slices, second, &mut rooms, &mut own).map(|x| &x[..length]);
        let mut first = [T::default(); BLOCK];
        T::narrowed(&mut first[..length], |first| {
            T::narrowed(second, |second| {
                for (at, (first, second)) in first.iter_mut().zip(second).enumerate() {
                    [*first, *second] = of(x.map(|x| x[at]));
                }
            });
        });
        first
    }
}

/// Returns the operands of a block in f32. The one without a slice lies where a result will.
#[inline(always)]
fn operands<'a, T: Float, const N: usize>(
    slices: &[Option<&'a [T]>; N],
    place: &[T],
    rooms: &'a mut [T::Room; N],
    own: &'a mut [f32; BLOCK],
) -> [&'a [f32]; N] {
    let own = &mut own[..place.len()];
    if slices.iter().any(Option::is_none) {
        T::widen(place, own);
    }
    let own: &[f32] = own;
    let mut rooms = rooms.iter_mut();
    slices.map(|slice| match (slice, rooms.next()) {
        (Some(slice), Some(room)) => T::widened(slice, room),
        _ => own,
    })
}
