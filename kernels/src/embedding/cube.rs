//! Sums of the rows of two tables on a device, and gradients of tables: each row is summed once, in f32 and in a fixed order.
//!
//! Burn's kernel has one unit for each column, which reads all ids one after the other, and adds in the dtype of the table.
//! Here one kernel sorts the ids into buckets of neighbouring rows, about as many buckets as a bucket has groups of rows,
//! and another sums the gradients, a cube for each group of rows. Such a cube reads the ids of its bucket, lists those of
//! its rows, and adds the gradients from the list. Where they are more than the list has room for, it adds row by row.
//! A row that has many gradients, as those of token types have, is shared by several cubes, whose sums are added by one more
//! kernel. The gradients of two tables whose rows were added share these launches.
#![allow(unsafe_code)] // A launch without checks of bounds: the kernel checks its row and its ids.

use burn::backend::tensor::{FloatTensor, IntTensor};
use burn::backend::{Cube, TensorMetadata};
use burn::tensor::{DType, Shape};
use burn_cubecl::tensor::CubeTensor;
use cubecl::prelude::*;

use super::{EmbeddingOps, added, scattered};
use crate::cube::{Spec, UNITS, contiguous, element, empty, grid, part_of, run, sums_in, together, units};
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
        let [sums] = run(vec![grad, ids], [Spec::new([rows, width], dtype)], move |inputs| {
            let [grad, ids] = inputs.try_into().expect("two inputs");
            let [sums] = summed(contiguous(grad), [(contiguous(ids), rows)], dtype);
            [sums]
        });
        sums
    }

    fn scatter_both(
        grad: FloatTensor<Self>,
        ids: IntTensor<Self>,
        places: IntTensor<Self>,
        rows: [usize; 2],
        dtype: DType,
    ) -> (FloatTensor<Self>, FloatTensor<Self>) {
        let width = grad.shape()[2];
        let is_empty = grad.shape().num_elements() == 0 || rows.contains(&0);
        let is_alike = ids.dtype() == places.dtype();
        let are_narrow = is_narrow(grad.dtype()) && is_narrow(dtype);
        if is_empty || !is_alike || !are_narrow || Kernel::Embedding.is_off() {
            let of_table = Self::scatter(grad.clone(), ids, rows[0], dtype);
            return (of_table, Self::scatter(grad, places, rows[1], dtype));
        }
        let specs = rows.map(|rows| Spec::new([rows, width], dtype));
        let [sums, other_sums] = run(vec![grad, ids, places], specs, move |inputs| {
            let [grad, ids, places] = inputs.try_into().expect("three inputs");
            let tables = [(contiguous(ids), rows[0]), (contiguous(places), rows[1])];
            summed(contiguous(grad), tables, dtype)
        });
        (sums, other_sums)
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

/// The fewest gradients of a row, on average, for which several cubes share it.
const SHARED: usize = if cfg!(test) { 4 } else { 64 };

/// The most rows of a group. A cube reads the ids of its group's bucket, so larger groups read less, but fewer cubes share
/// the work.
const GROUP: usize = 8;

/// The most gradients of a list.
const LIST: usize = if cfg!(test) { 16 } else { 1024 };

/// How cubes share the rows of a table.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Shares {
    rows: usize,
    /// The rows of a group.
    group: usize,
    /// The rows of a bucket: some groups.
    bucket: usize,
    /// The cubes that share a group.
    parts: usize,
}

impl Shares {
    fn new(rows: usize, gradients: usize) -> Self {
        let group = if rows >= CUBES * GROUP { GROUP } else { 1 };
        let groups = rows.div_ceil(group);
        // A bucket's cube reads all ids, and a group's those of its bucket: fewest are read with as many buckets as a bucket
        // has groups.
        let bucket = groups.isqrt() * group;
        let parts = (CUBES / rows).min(gradients / rows / SHARED).max(1);
        Self { rows, group, bucket, parts }
    }

    fn groups(self) -> usize {
        self.rows.div_ceil(self.group)
    }

    fn buckets(self) -> usize {
        self.rows.div_ceil(self.bucket)
    }
}

/// Returns the sums of all rows of each table: `[rows, width]` each. The ids of a table repeat until there are as many as
/// gradients; all ids have one dtype.
fn summed<const N: usize>(
    grad: CubeTensor,
    tables: [(CubeTensor, usize); N],
    dtype: DType,
) -> [CubeTensor; N] {
    let width = grad.meta.shape()[2];
    let count = grad.meta.num_elements() / width;
    let shares = tables.each_ref().map(|(_, rows)| Shares::new(*rows, count));
    let ids = tables.map(|(ids, _)| ids);
    let sorted = sorted(&ids, shares, count);
    let sums = shares.map(|Shares { rows, parts, .. }| match parts {
        1 => empty(&grad, [1, rows * width], dtype),
        parts => empty(&grad, [parts, rows * width], DType::F32),
    });
    let together =
        together(&[&[&grad], sums.each_ref().as_slice()].concat(), |together| width.is_multiple_of(together));
    // Sums of one dtype are one launch.
    let alone = sums.iter().any(|found| found.dtype != sums[0].dtype);
    let all: Vec<usize> = (0..N).collect();
    for launch in all.chunks(if alone { 1 } else { N }) {
        let (mut of_ids, mut of_sorted, mut of_sums) =
            (SequenceArg::new(), SequenceArg::new(), SequenceArg::new());
        let (mut periods, mut sizes) = (SequenceArg::new(), SequenceArg::new());
        let mut cubes = 0;
        for at in launch {
            let Shares { rows, group, bucket, parts } = shares[*at];
            of_ids.push(ids[*at].clone().into_buffer_arg());
            of_sorted.push(sorted[*at].clone().into_buffer_arg());
            of_sums.push(sums[*at].clone().into_buffer_arg());
            periods.push(ids[*at].meta.num_elements());
            [rows, group, bucket, parts].into_iter().for_each(|size| sizes.push(size));
            cubes += shares[*at].groups() * parts;
        }
        let units = units(&grad, width / together);
        let address = sums.iter().chain([&grad]).map(CubeTensor::required_address_type).max();
        // SAFETY: each cube checks that it has rows, writes their sums alone, and reads ids and gradients within their count.
        unsafe {
            rows_kernel::launch_unchecked(
                &grad.client,
                grid(&grad, cubes),
                CubeDim::new_1d(units),
                address.expect("there are tensors"),
                together,
                grad.clone().into_buffer_arg(),
                of_ids,
                of_sorted,
                of_sums,
                periods,
                sizes,
                width / together,
                units,
                [element(&grad), element(&ids[0]), element(&sums[launch[0]])],
            );
        }
    }
    let mut shapes = shares.iter().map(|shares| [shares.rows, width]);
    sums.map(|sums| {
        let shape = shapes.next().expect("a shape for each table").into();
        let sums = if sums.meta.shape()[0] == 1 { sums } else { sums_in(sums, dtype) };
        part_of(&sums, shape, 0)
    })
}

/// Sorts the places of the gradients of each table into the buckets of its rows. Returns for each table where the places
/// of each bucket begin and where those of the last end, and then the places.
fn sorted<const N: usize>(ids: &[CubeTensor; N], shares: [Shares; N], count: usize) -> [CubeTensor; N] {
    let lengths = shares.map(|shares| shares.buckets() + 1 + count);
    let sorted = lengths.map(|length| empty(&ids[0], [length], DType::U32));
    let (mut of_ids, mut of_sorted) = (SequenceArg::new(), SequenceArg::new());
    let (mut periods, mut sizes) = (SequenceArg::new(), SequenceArg::new());
    let mut cubes = 0;
    for at in 0..N {
        of_ids.push(ids[at].clone().into_buffer_arg());
        of_sorted.push(sorted[at].clone().into_buffer_arg());
        periods.push(ids[at].meta.num_elements());
        [shares[at].rows, shares[at].bucket].into_iter().for_each(|size| sizes.push(size));
        cubes += shares[at].buckets();
    }
    let units = units(&ids[0], UNITS as usize);
    // SAFETY: a cube beyond the last bucket does nothing. The others read ids within their period. They write where their
    // bucket begins and its places, and all buckets together have at most as many places as there are gradients.
    unsafe {
        sort_kernel::launch_unchecked(
            &ids[0].client,
            grid(&ids[0], cubes),
            CubeDim::new_1d(units),
            of_ids,
            of_sorted,
            periods,
            sizes,
            count,
            units,
            element(&ids[0]),
        );
    }
    sorted
}

#[cube(launch_unchecked)]
fn sort_kernel<I: Numeric>(
    ids: Sequence<Box<[I]>>,
    mut sorted: Sequence<Box<[u32]>>,
    periods: Sequence<usize>,
    sizes: Sequence<usize>,
    count: usize,
    #[comptime] units: u32,
    #[define(I)] _dtype: ElemType,
) {
    let cube = CUBE_POS;
    let step = units as usize;
    let mut counts = Shared::<[u32]>::new_slice(units as usize);
    let mut begin = 0usize;
    #[unroll]
    for i in 0..ids.len() {
        let (rows, bucket) = (sizes[2 * i], sizes[2 * i + 1]);
        let buckets = rows.div_ceil(bucket);
        let end = begin + buckets;
        if cube >= begin && cube < end {
            let (ids, period) = (&ids[i], periods[i]);
            let sorted = &mut sorted[i];
            let first_row = (cube - begin) * bucket;
            let end_row = min(first_row + bucket, rows);
            let mut below = 0u32;
            let mut own = 0u32;
            let mut at = UNIT_POS as usize;
            while at < count {
                let id = usize::cast_from(ids[at % period]);
                if id < first_row {
                    below += 1;
                } else if id < end_row {
                    own += 1;
                }
                at += step;
            }
            sum_before(&mut counts, below, units);
            let start = counts[step - 1];
            sync_cube();
            let before = sum_before(&mut counts, own, units);
            if UNIT_POS == 0 {
                sorted[cube - begin] = start;
                if cube + 1 == end {
                    sorted[buckets] = start + counts[step - 1];
                }
            }
            let mut place = buckets + 1 + (start + before) as usize;
            let mut at = UNIT_POS as usize;
            while at < count {
                let id = usize::cast_from(ids[at % period]);
                if id >= first_row && id < end_row {
                    sorted[place] = u32::cast_from(at);
                    place += 1;
                }
                at += step;
            }
        }
        begin = end;
    }
}

#[cube(launch_unchecked, address_type = "dynamic")]
fn rows_kernel<G: Float, I: Numeric, S: Float, N: Size>(
    grad: &[Vector<G, N>],
    ids: Sequence<Box<[I]>>,
    sorted: Sequence<Box<[u32]>>,
    mut sums: Sequence<Box<[Vector<S, N>]>>,
    periods: Sequence<usize>,
    sizes: Sequence<usize>,
    width: usize,
    #[comptime] units: u32,
    #[define(G, I, S)] _dtypes: [ElemType; 3],
) {
    let step = units as usize;
    let mut counts = Shared::<[u32]>::new_slice(units as usize);
    let mut list = Shared::<[u32]>::new_slice(LIST);
    let mut begin = 0usize;
    #[unroll]
    for i in 0..ids.len() {
        let (rows, group) = (sizes[4 * i], sizes[4 * i + 1]);
        let (bucket, parts) = (sizes[4 * i + 2], sizes[4 * i + 3]);
        let groups = rows.div_ceil(group);
        let end_cube = begin + groups * parts;
        if CUBE_POS >= begin && CUBE_POS < end_cube {
            let cube = CUBE_POS - begin;
            let (ids, period) = (&ids[i], periods[i]);
            let sorted = &sorted[i];
            let sums = &mut sums[i];
            let first_row = cube % groups * group;
            let end_row = min(first_row + group, rows);
            let part = cube / groups;
            // The places of the bucket, of which this cube has a part.
            let places = rows.div_ceil(bucket) + 1;
            let start = sorted[first_row / bucket] as usize;
            let stop = sorted[first_row / bucket + 1] as usize;
            let each = (stop - start).div_ceil(parts);
            let first = places + min(start + part * each, stop);
            let end = places + min(start + (part + 1) * each, stop);

            let all = list_rows::<I>(
                &mut list,
                &mut counts,
                ids,
                period,
                sorted,
                first,
                end,
                first_row,
                end_row,
                units,
            );
            let mut row = first_row;
            if all as usize <= LIST {
                while row < end_row {
                    let mut column = UNIT_POS as usize;
                    while column < width {
                        let mut sum = Vector::<f32, N>::new(0.0f32);
                        for at in 0..all as usize {
                            let found = list[at] as usize;
                            if found % GROUP == row - first_row {
                                sum += Vector::cast_from(grad[found / GROUP * width + column]);
                            }
                        }
                        sums[(part * rows + row) * width + column] = Vector::cast_from(sum);
                        column += step;
                    }
                    row += 1;
                }
            } else {
                while row < end_row {
                    let mut column = UNIT_POS as usize;
                    // All units come along to the last columns, since they fill the list together.
                    while column < width + UNIT_POS as usize {
                        let mut sum = Vector::<f32, N>::new(0.0f32);
                        let mut window = first;
                        while window < end {
                            let last = min(window + LIST, end);
                            let all = list_rows::<I>(
                                &mut list,
                                &mut counts,
                                ids,
                                period,
                                sorted,
                                window,
                                last,
                                row,
                                row + 1,
                                units,
                            );
                            if column < width {
                                for at in 0..all as usize {
                                    sum +=
                                        Vector::cast_from(grad[list[at] as usize / GROUP * width + column]);
                                }
                            }
                            window += LIST;
                        }
                        if column < width {
                            sums[(part * rows + row) * width + column] = Vector::cast_from(sum);
                        }
                        column += step;
                    }
                    row += 1;
                }
            }
        }
        begin = end_cube;
    }
}

/// Lists the gradients of some rows, among the sorted places from `first` to `end`, and returns how many they are. If there is
/// no room for them, nothing is listed. Each is its place times [`GROUP`], and the number of its row after `first_row`.
#[cube]
#[allow(clippy::too_many_arguments)]
fn list_rows<I: Numeric>(
    list: &mut [u32],
    counts: &mut [u32],
    ids: &[I],
    period: usize,
    sorted: &[u32],
    first: usize,
    end: usize,
    first_row: usize,
    end_row: usize,
    #[comptime] units: u32,
) -> u32 {
    let step = units as usize;
    let mut own = 0u32;
    let mut at = first + UNIT_POS as usize;
    while at < end {
        let id = usize::cast_from(ids[sorted[at] as usize % period]);
        if id >= first_row && id < end_row {
            own += 1;
        }
        at += step;
    }
    // Others may still read the last list.
    sync_cube();
    let before = sum_before(counts, own, units);
    let all = counts[step - 1];
    if all as usize <= LIST {
        // The places of a unit follow those of the unit before it.
        let mut next = before as usize;
        let mut at = first + UNIT_POS as usize;
        while at < end {
            let place = sorted[at] as usize;
            let id = usize::cast_from(ids[place % period]);
            if id >= first_row && id < end_row {
                list[next] = u32::cast_from(place * GROUP + (id - first_row));
                next += 1;
            }
            at += step;
        }
    }
    sync_cube();
    all
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

#[cfg(test)]
mod tests {
    use super::Shares;

    #[test]
    fn ids_are_read_about_as_often_as_twice_the_root_of_the_groups() {
        for rows in (1..2000).chain([30_522, 50_304, 151_936, 262_144]) {
            let shares = Shares::new(rows, 8192);
            let groups = shares.groups();
            let reads = shares.buckets() + shares.bucket / shares.group;
            assert!(reads <= 2 * groups.isqrt() + 3, "{shares:?}: {reads} times");
            assert!(shares.buckets() * shares.bucket >= rows && shares.bucket.is_multiple_of(shares.group));
        }
    }
}
