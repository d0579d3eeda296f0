//! Rows on all cores.

use burn::backend::Flex;
use burn::backend::flex::FlexTensor;
use burn::backend::ops::{IntTensorOps, ModuleOps};
use burn::backend::tensor::{FloatTensor, IntTensor};
use burn::tensor::{DType, IntDType, Shape, bf16, f16};
use pulp::{Arch, NullaryFnOnce};
use rayon::prelude::*;

use super::EmbeddingOps;
use crate::flex::{Buffer, Lane, TASK, adjacent, elements, tensor};
use crate::off::Kernel;
use crate::zero_results::are_zero;

impl EmbeddingOps for Flex {
    fn select(table: FloatTensor<Self>, ids: IntTensor<Self>) -> FloatTensor<Self> {
        match table.dtype() {
            _ if Kernel::Embedding.is_off() => <Self as ModuleOps<Self>>::embedding(table, ids),
            DType::F32 => selected::<f32>(table, ids),
            DType::BF16 => selected::<bf16>(table, ids),
            DType::F16 => selected::<f16>(table, ids),
            _ => <Self as ModuleOps<Self>>::embedding(table, ids),
        }
    }

    fn select_sum(
        table: FloatTensor<Self>,
        ids: IntTensor<Self>,
        other: FloatTensor<Self>,
        places: IntTensor<Self>,
    ) -> FloatTensor<Self> {
        match table.dtype() {
            DType::F32 if !Kernel::Embedding.is_off() => {
                sum_of_selected::<f32>([table, other], [ids, places])
            }
            DType::BF16 if !Kernel::Embedding.is_off() => {
                sum_of_selected::<bf16>([table, other], [ids, places])
            }
            DType::F16 if !Kernel::Embedding.is_off() => {
                sum_of_selected::<f16>([table, other], [ids, places])
            }
            _ => super::added::<Self>([table, other], [ids, places]),
        }
    }

    fn scatter(
        grad: FloatTensor<Self>,
        ids: IntTensor<Self>,
        rows: usize,
        dtype: DType,
    ) -> FloatTensor<Self> {
        match (grad.dtype(), dtype) {
            _ if Kernel::Embedding.is_off() => super::scattered::<Self>(grad, ids, rows, dtype),
            (DType::F32, DType::F32) => scattered::<f32>(grad, ids, rows),
            (DType::BF16, DType::BF16) => scattered::<bf16>(grad, ids, rows),
            (DType::F16, DType::F16) => scattered::<f16>(grad, ids, rows),
            _ => super::scattered::<Self>(grad, ids, rows, dtype),
        }
    }
}

/// Returns the ids as numbers of rows.
fn numbers(ids: IntTensor<Flex>, rows: usize) -> Vec<usize> {
    let ids = match ids.dtype() {
        DType::I64 => ids,
        _ => Flex::int_cast(ids, IntDType::I64),
    };
    let are_zero = are_zero();
    let number = |id: &i64| {
        if are_zero {
            return 0;
        }
        assert!(
            (0..rows as i64).contains(id),
            "an id is below {rows}, the rows of the embedding; found {id}"
        );
        *id as usize
    };
    elements::<i64>(&adjacent(ids)).iter().map(number).collect()
}

fn selected<T: Lane>(table: FlexTensor, ids: FlexTensor) -> FlexTensor {
    let table = adjacent(table);
    let [rows, width] = table.layout().shape().dims();
    let [batch, length] = ids.layout().shape().dims();
    let ids = numbers(ids, rows);
    let from = elements::<T>(&table);
    let mut found = Buffer::<T>::new(ids.len() * width);
    let at_once = (TASK / width.max(1)).max(1);
    found.parts(at_once * width).zip(ids.par_chunks(at_once)).for_each(|(mut part, ids)| {
        for (piece, id) in part.pieces(width).zip(ids) {
            let row = &from[id * width..][..width];
            piece.write(width, |at| row[at]);
        }
    });
    tensor(found.finish(), Shape::new([batch, length, width]))
}

/// Adds rows of the first table to rows of the second. The second ids repeat until there are as many as of the first.
fn sum_of_selected<T: Lane>(tables: [FlexTensor; 2], ids: [FlexTensor; 2]) -> FlexTensor {
    let [batch, length] = ids[0].layout().shape().dims();
    let tables = tables.map(adjacent);
    let [_, width] = tables[0].layout().shape().dims();
    let rows = tables.each_ref().map(|table| table.layout().shape()[0]);
    let [ids, places] = ids;
    let (ids, places) = (numbers(ids, rows[0]), numbers(places, rows[1]));
    let [from, other] = tables.each_ref().map(elements::<T>);
    let mut found = Buffer::<T>::new(ids.len() * width);
    let at_once = (TASK / width.max(1)).max(1);
    let parts = found.parts(at_once * width).zip(ids.par_chunks(at_once)).enumerate();
    parts.for_each(|(at, (mut part, ids))| {
        let places = places.iter().cycle().skip(at * at_once % places.len());
        for (piece, (id, place)) in part.pieces(width).zip(ids.iter().zip(places)) {
            let (row, other) = (&from[id * width..][..width], &other[place * width..][..width]);
            piece.write(width, |at| T::narrow(row[at].wide() + other[at].wide()));
        }
    });
    tensor(found.finish(), Shape::new([batch, length, width]))
}

fn scattered<T: Lane>(grad: FlexTensor, ids: FlexTensor, rows: usize) -> FlexTensor {
    let grad = adjacent(grad);
    let [batch, length, width] = grad.layout().shape().dims();
    let ids = numbers(ids, rows);
    let ids = ids.iter().copied().cycle().take(batch * length);
    // Places in the order of their rows, and where those of each row begin: a counting sort.
    let mut starts = vec![0; rows + 1];
    ids.clone().for_each(|id| starts[id + 1] += 1);
    (0..rows).for_each(|row| starts[row + 1] += starts[row]);
    let (mut next, mut places) = (starts.clone(), vec![0; batch * length]);
    for (place, id) in ids.enumerate() {
        places[next[id]] = place;
        next[id] += 1;
    }
    let from = elements::<T>(&grad);
    // Memory of zeros is only touched where it is written.
    let mut found = vec![T::narrow(0.0); rows * width];
    let arch = Arch::new();
    let at_once = (TASK / width.max(1)).max(1);
    found.par_chunks_mut((at_once * width).max(1)).enumerate().for_each(|(at, part)| {
        let starts = &starts[at * at_once..];
        arch.dispatch(Sums { part, starts, places: &places, from, width });
    });
    tensor(found, Shape::new([rows, width]))
}

/// Sums of some rows, compiled for the vectors of each kind of processor.
struct Sums<'a, T> {
    part: &'a mut [T],
    /// Where the places of each row begin, and where those of the last end.
    starts: &'a [usize],
    places: &'a [usize],
    from: &'a [T],
    width: usize,
}

impl<T: Lane> NullaryFnOnce for Sums<'_, T> {
    type Output = ();

    #[inline(always)]
    fn call(self) {
        let Self { part, starts, places, from, width } = self;
        let mut sum = vec![0.0; width];
        for (row, range) in part.chunks_mut(width).zip(starts.windows(2)) {
            let places = &places[range[0]..range[1]];
            if places.is_empty() {
                continue;
            }
            sum.fill(0.0);
            for place in places {
                let from = &from[place * width..][..width];
                sum.iter_mut().zip(from).for_each(|(sum, x)| *sum += x.wide());
            }
            row.iter_mut().zip(&sum).for_each(|(row, sum)| *row = T::narrow(*sum));
        }
    }
}
