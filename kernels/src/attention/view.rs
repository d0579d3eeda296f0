//! Rows of a tensor `[batch, heads, positions, size]` on Flex, widened to f32.

use burn::backend::flex::FlexTensor;

use crate::elements::Float;

/// Returns the tensor itself if [`View`] can read it, or a copy.
pub fn readable(x: FlexTensor) -> FlexTensor {
    let (shape, strides) = (x.layout().shape(), x.layout().strides());
    let last = shape.num_dims() - 1;
    let is_readable = (strides[last] == 1 || shape[last] == 1) && strides.iter().all(|stride| *stride >= 0);
    if is_readable { x } else { x.to_contiguous() }
}

/// The elements of a [`readable`] tensor of four axes.
#[derive(Clone, Copy)]
pub struct View<'a, T> {
    values: &'a [T],
    start: usize,
    pub shape: [usize; 4],
    strides: [usize; 3],
}

impl<'a, T: Float> View<'a, T> {
    pub fn of(x: &'a FlexTensor) -> Self {
        let (shape, strides) = (x.layout().shape(), x.layout().strides());
        Self {
            values: x.storage(),
            start: x.layout().start_offset(),
            shape: [shape[0], shape[1], shape[2], shape[3]],
            strides: [strides[0], strides[1], strides[2]].map(|stride| stride as usize),
        }
    }

    /// Returns one row, of `size` elements. Batches of 1 are broadcast.
    #[inline(always)]
    pub fn row(&self, row: usize, head: usize, position: usize) -> &'a [T] {
        let row = if self.shape[0] == 1 { 0 } else { row };
        let at = self.start + row * self.strides[0] + head * self.strides[1] + position * self.strides[2];
        &self.values[at..][..self.shape[3]]
    }

    /// Widens `count` rows from `position` into rows of `stride` elements, and fills the rest of `to` with zeros.
    #[inline(always)]
    pub fn widen(&self, [row, head, position]: [usize; 3], count: usize, to: &mut [f32], stride: usize) {
        let size = self.shape[3];
        for (at, to) in to.chunks_exact_mut(stride).enumerate() {
            if at < count {
                let (values, end) = to.split_at_mut(size);
                T::widen(self.row(row, head, position + at), values);
                end.fill(0.0);
            } else {
                to.fill(0.0);
            }
        }
    }
}
