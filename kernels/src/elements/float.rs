//! Numbers that are computed with in f32.

use burn::backend::Element;
use burn::tensor::{bf16, f16};
use bytemuck::Pod;
use half::slice::HalfFloatSliceExt;

/// A float of at most 32 bits, as it lies in memory. Both conversions are of slices of equal lengths.
pub trait Float: Element + Pod + Sync + Send {
    /// Converts to f32, which is exact.
    fn widen(from: &[Self], to: &mut [f32]);

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
