//! Sums of the rows of two tables on a device, and gradients of a table: a cube sums those of some neighbouring rows, in f32 and
//! in a fixed order.
//!
//! Burn's kernel has one unit for each column, which reads all ids one after the other, and adds in the dtype of the table.
//! Here the units of a cube share the ids. They list where the cube's rows are, sorted by unit, and then add the gradients
//! from the list. Where a cube's rows are more than the list has room for, it adds row by row. Few rows, as those of token
//! types, are shared by several cubes, whose sums are added by one more kernel.
#![allow(unsafe_code)] // A launch without checks of bounds: the kernel checks its row and its ids.

use burn::backend::ops::FloatTensorOps;
use burn::backend::tensor::{FloatTensor, IntTensor};
use burn::backend::{Cube, TensorMetadata};
use burn::tensor::{DType, Shape};
use burn_cubecl::tensor::CubeTensor;
use cubecl::prelude::*;

use super::ops::{EmbeddingOps, added, scattered};
use crate::cube::{Spec, UNITS, contiguous, element, empty, grid, run, sums_in, together, units};
use crate::off::Kernel;

impl EmbeddingOps for Cube {
    fn select_sum(
        table: FloatTensor<Self>,
        ids: IntTensor<Self>,
        other: FloatTensor<Self>,
        places: IntTensor<Self>,
    ) -> FloatTensor<Self> {
        let (width, dtype) = (table.shape()[1], table.dtype());
        let shape = Shape::new([ids.shape()[0], ids.shape()[1], width]);
        let is_empty = shape.num_elements() == 0 || table.shape()[0] == 0 || other.shape()[0] == 0;
        if is_empty || !is_narrow(dtype) || Kernel::Embedding.is_off() {
            return added::<Self>([table, other], [ids, places]);
        }
        let spec = Spec::new(shape.clone(), dtype);
        let [sum] = run(vec![table, ids, other, places], [spec], move |inputs| {
            let inputs: Vec<_> = inputs.into_iter().map(contiguous).collect();
            let [table, ids, other, places] = inputs.try_into().expect("four inputs");
            [sum_of_rows([table, other], [ids, places], shape.clone())]
        });
        sum
    }

    fn scatter(
        grad: FloatTensor<Self>,
        ids: IntTensor<Self>,
        rows: usize,
        dtype: DType,
    ) -> FloatTensor<Self> {
        let width = grad.shape()[2];
        let is_empty = grad.shape().num_elements() == 0 || rows == 0;
        if is_empty || !is_narrow(grad.dtype()) || !is_narrow(dtype) || Kernel::Embedding.is_off() {
            return scattered::<Self>(grad, ids, rows, dtype);
        }
        let [sums] = run(vec![grad, ids], [Spec::new([rows * width], dtype)], move |inputs| {
            let [grad, ids] = inputs.try_into().expect("two inputs");
            [summed(contiguous(grad), contiguous(ids), rows, dtype)]
        });
        Self::float_reshape(sums, Shape::new([rows, width]))
    }
}

/// Returns the sums of the rows of two tables. The second ids repeat until there are as many as of the first.
fn sum_of_rows(tables: [CubeTensor; 2], ids: [CubeTensor; 2], shape: Shape) -> CubeTensor {
    let [table, other] = &tables;
    let width = table.meta.shape()[1];
    let sum = empty(table, shape, table.dtype);
    let together = together(&[table, other, &sum], |together| width.is_multiple_of(together));
    let pieces = sum.meta.num_elements() / together;
    let units = units(table, UNITS as usize);
    let address = tables.iter().chain([&sum]).map(CubeTensor::required_address_type).max();
    // SAFETY: a unit beyond the last piece does nothing; the others read within the tables and the ids, and write within the sum.
    unsafe {
        pairs_kernel::launch_unchecked(
            &table.client,
            grid(table, pieces.div_ceil(units as usize)),
            CubeDim::new_1d(units),
            address.expect("there are tensors"),
            together,
            table.clone().into_buffer_arg(),
            other.clone().into_buffer_arg(),
            ids[0].clone().into_buffer_arg(),
            ids[1].clone().into_buffer_arg(),
            sum.clone().into_buffer_arg(),
            pieces,
            width / together,
            table.meta.shape()[0],
            other.meta.shape()[0],
            ids[1].meta.num_elements(),
            [element(table), element(&ids[0]), element(&ids[1])],
        );
    }
    sum
}

#[cube(launch_unchecked, address_type = "dynamic")]
fn pairs_kernel<T: Float, I: Numeric, J: Numeric, N: Size>(
    table: &[Vector<T, N>],
    other: &[Vector<T, N>],
    ids: &[I],
    places: &[J],
    sum: &mut [Vector<T, N>],
    pieces: usize,
    width: usize,
    rows: usize,
    other_rows: usize,
    period: usize,
    #[define(T, I, J)] _dtypes: [ElemType; 3],
) {
    let at = ABSOLUTE_POS;
    if at >= pieces {
        terminate!();
    }
    let (row, column) = (at / width, at % width);
    // An id beyond its table would read foreign memory.
    let id = min(usize::cast_from(ids[row]), rows - 1);
    let place = min(usize::cast_from(places[row % period]), other_rows - 1);
    let of_table = Vector::<f32, N>::cast_from(table[id * width + column]);
    let of_other = Vector::<f32, N>::cast_from(other[place * width + column]);
    sum[at] = Vector::cast_from(of_table + of_other);
}

fn is_narrow(dtype: DType) -> bool {
    matches!(dtype, DType::F32 | DType::F16 | DType::BF16)
}

/// Cubes that keep a device busy.
const CUBES: usize = if cfg!(test) { 4 } else { 512 };

/// The fewest ids of a cube that shares a row with others.
const IDS: usize = if cfg!(test) { 8 } else { 256 };

/// The most rows of a cube. Each cube reads all ids, so that more rows read less, but fewer cubes share the work.
const ROWS: usize = 8;

/// The most places of a list.
const LIST: usize = if cfg!(test) { 16 } else { 1024 };

/// Returns the sums of all rows, one after the other. The ids repeat until there are as many as gradients.
fn summed(grad: CubeTensor, ids: CubeTensor, rows: usize, dtype: DType) -> CubeTensor {
    let width = grad.meta.shape()[2];
    let (count, period) = (grad.meta.num_elements() / width, ids.meta.num_elements());
    let parts = (CUBES / rows).min(count / IDS).max(1);
    let each = count.div_ceil(parts);
    let parts = count.div_ceil(each);
    let each_rows = if rows >= CUBES * ROWS { ROWS } else { 1 };
    let sums = match parts {
        1 => empty(&grad, [rows * width], dtype),
        parts => empty(&grad, [parts, rows * width], DType::F32),
    };
    let together = together(&[&grad, &sums], |together| width.is_multiple_of(together));
    let units = units(&grad, width / together);
    let cubes = parts * rows.div_ceil(each_rows);
    // SAFETY: each cube checks that it has rows, writes their sums alone, and reads ids and gradients within their count.
    unsafe {
        rows_kernel::launch_unchecked(
            &grad.client,
            grid(&grad, cubes),
            CubeDim::new_1d(units),
            grad.required_address_type().max(sums.required_address_type()),
            together,
            grad.clone().into_buffer_arg(),
            ids.clone().into_buffer_arg(),
            sums.clone().into_buffer_arg(),
            cubes,
            rows,
            width / together,
            count,
            period,
            each,
            each_rows,
            units,
            period < count,
            [element(&grad), element(&ids), element(&sums)],
        );
    }
    if parts == 1 { sums } else { sums_in(sums, dtype) }
}

#[cube(launch_unchecked, address_type = "dynamic")]
fn rows_kernel<G: Float, I: Numeric, S: Float, N: Size>(
    grad: &[Vector<G, N>],
    ids: &[I],
    sums: &mut [Vector<S, N>],
    cubes: usize,
    rows: usize,
    width: usize,
    count: usize,
    period: usize,
    each: usize,
    #[comptime] each_rows: usize,
    #[comptime] units: u32,
    #[comptime] repeats: bool,
    #[define(G, I, S)] _dtypes: [ElemType; 3],
) {
    let cube = CUBE_POS;
    if cube >= cubes {
        terminate!();
    }
    let mut counts = Shared::<[u32]>::new_slice(units as usize);
    let mut list = Shared::<[u32]>::new_slice(LIST);
    let step = units as usize;
    let groups = rows.div_ceil(each_rows);
    let first_row = cube % groups * each_rows;
    let end_row = min(first_row + each_rows, rows);
    let part = cube / groups;
    let first = part * each;
    let end = min(first + each, count);

    let own = count_rows::<I>(ids, period, first, end, first_row, end_row, step, repeats);
    let before = sum_before(&mut counts, own, units);
    let all = counts[step - 1];
    let mut row = first_row;
    if all as usize <= LIST {
        // The ids of a unit follow those of the unit before it.
        let mut place = before as usize;
        let mut at = first + UNIT_POS as usize;
        while at < end {
            let id = id_at::<I>(ids, at, period, repeats);
            if id >= first_row && id < end_row {
                list[place] = u32::cast_from((at - first) * each_rows + (id - first_row));
                place += 1;
            }
            at += step;
        }
        sync_cube();
        while row < end_row {
            let mut column = UNIT_POS as usize;
            while column < width {
                let mut sum = Vector::<f32, N>::new(0.0f32);
                for place in 0..all as usize {
                    let found = list[place] as usize;
                    if found % each_rows == row - first_row {
                        sum += Vector::cast_from(grad[(first + found / each_rows) * width + column]);
                    }
                }
                sums[(part * rows + row) * width + column] = Vector::cast_from(sum);
                column += step;
            }
            row += 1;
        }
    } else {
        while row < end_row {
            let own = count_rows::<I>(ids, period, first, end, row, row + 1, step, repeats);
            sync_cube();
            counts[UNIT_POS as usize] = own;
            sync_cube();
            let mut column = UNIT_POS as usize;
            while column < width {
                let mut sum = Vector::<f32, N>::new(0.0f32);
                for unit in 0..step {
                    let mut left = counts[unit];
                    let mut at = first + unit;
                    while left > 0 {
                        if id_at::<I>(ids, at, period, repeats) == row {
                            sum += Vector::cast_from(grad[at * width + column]);
                            left -= 1;
                        }
                        at += step;
                    }
                }
                sums[(part * rows + row) * width + column] = Vector::cast_from(sum);
                column += step;
            }
            row += 1;
        }
    }
}

/// Returns the id of a gradient.
#[cube]
fn id_at<I: Numeric>(ids: &[I], at: usize, period: usize, #[comptime] repeats: bool) -> usize {
    let mut place = at;
    if repeats {
        place = at % period;
    }
    usize::cast_from(ids[place])
}

/// Returns how many of this unit's ids name one of the rows.
#[cube]
fn count_rows<I: Numeric>(
    ids: &[I],
    period: usize,
    first: usize,
    end: usize,
    first_row: usize,
    end_row: usize,
    step: usize,
    #[comptime] repeats: bool,
) -> u32 {
    let mut own = 0u32;
    let mut at = first + UNIT_POS as usize;
    while at < end {
        let id = id_at::<I>(ids, at, period, repeats);
        if id >= first_row && id < end_row {
            own += 1;
        }
        at += step;
    }
    own
}

/// Returns the sum of the numbers of the units before this one. `sums` has one element for each unit, and becomes the sums up
/// to each.
#[cube]
fn sum_before(sums: &mut [u32], own: u32, #[comptime] units: u32) -> u32 {
    let unit = UNIT_POS as usize;
    sums[unit] = own;
    sync_cube();
    let mut distance = 1u32.runtime();
    while distance < units {
        let mut other = 0u32;
        if UNIT_POS >= distance {
            other = sums[unit - distance as usize];
        }
        sync_cube();
        sums[unit] += other;
        sync_cube();
        distance *= 2;
    }
    sums[unit] - own
}
