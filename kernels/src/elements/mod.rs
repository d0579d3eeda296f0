//! Passes over the elements of Flex's tensors, on all cores and in vectors.

#[cfg(test)]
mod tests;

use std::mem::MaybeUninit;

use burn::backend::flex::{FlexTensor, Layout};
use burn::backend::{Element, TensorMetadata};
use burn::tensor::{Bytes, DType, bf16, f16};
use bytemuck::{Pod, zeroed_vec};
use half::slice::HalfFloatSliceExt;
use pulp::{Arch, NullaryFnOnce};
use rayon::prelude::*;

use crate::flex::Buffer;
use crate::zero_results::are_zero;

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
        if are_zero() {
            return out;
        }
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
    if are_zero() {
        return zeros::<T>(length, &tensors[0]);
    }
    let mut out = Buffer::<T>::new(length);
    out.parts(BLOCK).with_min_len(TASK / BLOCK).enumerate().for_each(|(block, mut part)| {
        let at = block * BLOCK;
        let slices = slices.map(|slice| &slice[at..(at + BLOCK).min(length)]);
        for piece in part.pieces(BLOCK) {
            // Initialized by the core that computes it, in its cache.
            let out = piece.copy(slices[0]);
            arch.dispatch(InPlace { at, slices: slices.map(Some), out, of });
        }
    });
    FlexTensor::new(Bytes::from_elems(out.finish()), Layout::contiguous(tensors[0].shape()), T::dtype())
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
    if are_zero() {
        return [zeros::<T>(length, &second), second];
    }
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

/// Elements of a part that one core clears.
const CLEARED: usize = 1 << 15;

/// Zeros. Of memory that the process has kept, the allocator would clear all on one core.
pub fn zeros_on_all_cores<T: Pod + Send>(length: usize) -> Vec<T> {
    // Where nothing is computed, untouched pages take no memory.
    if length < 2 * CLEARED || are_zero() {
        return zeroed_vec(length);
    }
    let mut out = Buffer::<T>::new(length);
    out.parts(CLEARED).enumerate().for_each(|(part, mut memory)| {
        let size = CLEARED.min(length - part * CLEARED);
        for piece in memory.pieces(CLEARED) {
            piece.write(size, |_| T::zeroed());
        }
    });
    out.finish()
}

/// A tensor that takes no more memory than its elements, so that its size is a multiple of the width.
fn zeros<T: Float>(length: usize, like: &FlexTensor) -> FlexTensor {
    FlexTensor::new(Bytes::from_elems(zeroed_vec::<T>(length)), Layout::contiguous(like.shape()), T::dtype())
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
        let (mut rooms, mut own) = ([T::ROOM; N], [MaybeUninit::uninit(); BLOCK]);
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
        let (mut rooms, mut own) = ([T::ROOM; N], [MaybeUninit::uninit(); BLOCK]);
        let x = operands(&slices, second, &mut rooms, &mut own);
        // Results in local memory share nothing with the operands. Otherwise the compiler would have to compare the
        // places of all slices, and leaves a loop over so many of them without vectors.
        let mut results = [[0.0; BLOCK]; 2];
        let [left, right] = &mut results;
        let x = x.map(|x| &x[..length]);
        for (at, (left, right)) in left[..length].iter_mut().zip(&mut right[..length]).enumerate() {
            [*left, *right] = of(x.map(|x| x[at]));
        }
        let mut first = [T::default(); BLOCK];
        T::narrow(&results[0][..length], &mut first[..length]);
        T::narrow(&results[1][..length], second);
        first
    }
}

/// Returns the operands of a block in f32. The one without a slice lies where a result will.
#[inline(always)]
fn operands<'a, T: Float, const N: usize>(
    slices: &[Option<&'a [T]>; N],
    place: &[T],
    rooms: &'a mut [T::Room; N],
    own: &'a mut [MaybeUninit<f32>; BLOCK],
) -> [&'a [f32]; N] {
    let own = match slices.iter().any(Option::is_none) {
        true => T::widen_into(place, &mut own[..place.len()]),
        false => &[],
    };
    let mut rooms = rooms.iter_mut();
    slices.map(|slice| match (slice, rooms.next()) {
        (Some(slice), Some(room)) => T::widened(slice, room),
        _ => own,
    })
}

/// A float of at most 32 bits, as it lies in memory. Both conversions are of slices of equal lengths.
pub trait Float: Element + Pod + Sync + Send {
    /// Converts to f32, which is exact.
    fn widen(from: &[Self], to: &mut [f32]);

    /// Like [`widen`](Self::widen), for at most a [`BLOCK`] and into memory that is not initialized.
    fn widen_into<'a>(from: &[Self], to: &'a mut [MaybeUninit<f32>]) -> &'a [f32];

    /// Rounds to nearest, ties to even.
    fn narrow(from: &[f32], to: &mut [Self]);

    /// Room for the elements of a block in f32, if they are not already.
    type Room: Copy;

    /// New room.
    const ROOM: Self::Room;

    /// Returns at most a [`BLOCK`] of elements in f32.
    fn widened<'a>(from: &'a [Self], room: &'a mut Self::Room) -> &'a [f32];

    /// Writes what `write` writes to at most a [`BLOCK`] of elements, rounded.
    fn narrowed(to: &mut [Self], write: impl FnOnce(&mut [f32]));
}

/// Elements computed at a time: they fit the L1 cache.
pub const BLOCK: usize = 512;

impl Float for f32 {
    #[inline(always)]
    fn widen(from: &[Self], to: &mut [f32]) {
        to.copy_from_slice(from);
    }

    #[inline(always)]
    fn widen_into<'a>(from: &[Self], to: &'a mut [MaybeUninit<f32>]) -> &'a [f32] {
        to.write_copy_of_slice(from)
    }

    #[inline(always)]
    fn narrow(from: &[f32], to: &mut [Self]) {
        to.copy_from_slice(from);
    }

    type Room = ();

    const ROOM: () = ();

    #[inline(always)]
    fn widened<'a>(from: &'a [Self], (): &'a mut ()) -> &'a [f32] {
        from
    }

    #[inline(always)]
    fn narrowed(to: &mut [Self], write: impl FnOnce(&mut [f32])) {
        write(to);
    }
}

macro_rules! in_room {
    () => {
        type Room = [f32; BLOCK];

        const ROOM: Self::Room = [0.0; BLOCK];

        #[inline(always)]
        fn widen_into<'a>(from: &[Self], to: &'a mut [MaybeUninit<f32>]) -> &'a [f32] {
            let to = to.write_copy_of_slice(&Self::ROOM[..from.len()]);
            Self::widen(from, to);
            to
        }

        #[inline(always)]
        fn widened<'a>(from: &'a [Self], room: &'a mut Self::Room) -> &'a [f32] {
            let room = &mut room[..from.len()];
            Self::widen(from, room);
            room
        }

        #[inline(always)]
        fn narrowed(to: &mut [Self], write: impl FnOnce(&mut [f32])) {
            let mut room = [0.0; BLOCK];
            let room = &mut room[..to.len()];
            write(room);
            Self::narrow(room, to);
        }
    };
}

impl Float for bf16 {
    #[inline(always)]
    fn widen(from: &[Self], to: &mut [f32]) {
        crate::half::bf16::widen(from, to);
    }

    #[inline(always)]
    fn narrow(from: &[f32], to: &mut [Self]) {
        crate::half::bf16::narrow(from, to);
    }

    in_room!();
}

impl Float for f16 {
    #[inline(always)]
    fn widen(from: &[Self], to: &mut [f32]) {
        from.convert_to_f32_slice(to);
    }

    #[inline(always)]
    fn narrow(from: &[f32], to: &mut [Self]) {
        to.convert_from_f32_slice(from);
    }

    in_room!();
}
