//! Sums over the rows of a matrix: the gradients of biases and scales.
//!
//! A cube sums neighbouring columns, each by several units that share the rows. Where a matrix has many rows, several
//! cubes share them, and a second kernel adds their sums. All sums are added in a fixed order, so they have the same bits
//! each time.
#![allow(unsafe_code)] // Launches without checks of bounds: the kernel checks its column and its rows.

use burn::tensor::DType;
use burn_cubecl::tensor::CubeTensor;
use cubecl::prelude::*;

use super::{element, empty, with_stride};

/// The columns of one cube: whole lines of memory.
pub(crate) const COLUMNS: u32 = 32;

/// The most units of one cube.
const UNITS: u32 = 1024;

/// The rows that a unit adds before another cube shares them.
const ROWS: usize = 64;

/// The most cubes that share the rows, so that the second kernel is short.
const PARTS: usize = 128;

/// How the cubes share a matrix.
pub(crate) struct Tiles {
    /// The units that share a column.
    pub lanes: u32,
    /// The rows of a cube.
    pub each: usize,
    /// The cubes that share the rows.
    pub parts: usize,
    across: usize,
}

impl Tiles {
    pub fn of(x: &CubeTensor, rows: usize, columns: usize) -> Self {
        let units = x.client.properties().hardware.max_units_per_cube.min(UNITS);
        let wanted = rows.next_power_of_two().min((UNITS / COLUMNS) as usize) as u32;
        let lanes = 1 << (units / COLUMNS).max(1).min(wanted).ilog2();
        let each = rows.div_ceil(PARTS).max(ROWS * lanes as usize);
        let across = columns.div_ceil(COLUMNS as usize);
        Self { lanes, each, parts: rows.div_ceil(each), across }
    }

    pub fn grid(&self) -> CubeCount {
        CubeCount::Static(self.across as u32, self.parts as u32, 1)
    }

    pub fn units(&self) -> CubeDim {
        CubeDim::new_1d(self.lanes * COLUMNS)
    }
}

/// Sums `[rows, columns]` over its rows, in f32, and returns `[columns]` in the dtype of `x`.
pub(crate) fn column_sums(x: CubeTensor) -> CubeTensor {
    let dtype = x.dtype;
    sums_in(x, dtype)
}

/// Sums `[rows, columns]` over its rows, in f32, and returns `[columns]` in `dtype`.
pub(crate) fn sums_in(x: CubeTensor, dtype: DType) -> CubeTensor {
    let (x, stride) = with_stride(x);
    let [rows, columns] = x.meta.shape().dims();
    let tiles = Tiles::of(&x, rows, columns);
    let sums = match tiles.parts {
        1 => empty(&x, [columns], dtype),
        parts => empty(&x, [parts, columns], DType::F32),
    };
    // SAFETY: the kernel checks that its column exists, and that its rows do.
    unsafe {
        sum_kernel::launch_unchecked(
            &x.client,
            tiles.grid(),
            tiles.units(),
            x.clone().into_buffer_arg(),
            sums.clone().into_buffer_arg(),
            rows,
            columns,
            stride,
            tiles.each,
            tiles.lanes,
            [element(&x), element(&sums)],
        );
    }
    if tiles.parts == 1 { sums } else { sums_in(sums, dtype) }
}

#[cube(launch_unchecked)]
fn sum_kernel<F: Float, S: Float>(
    x: &[F],
    sums: &mut [S],
    rows: usize,
    columns: usize,
    stride: usize,
    each: usize,
    #[comptime] lanes: u32,
    #[define(F, S)] _dtypes: [ElemType; 2],
) {
    let mut shared = Shared::<[f32]>::new_slice((lanes * COLUMNS) as usize);
    let column = column();
    let mut sum = 0.0f32;
    if column < columns {
        let mut row = first_row(each);
        let end = min((CUBE_POS_Y as usize + 1) * each, rows);
        while row < end {
            sum += f32::cast_from(x[row * stride + column]);
            row += lanes as usize;
        }
    }
    let sum = sum_of_lanes(&mut shared, sum, lanes);
    if is_first_lane() && column < columns {
        sums[CUBE_POS_Y as usize * columns + column] = S::cast_from(sum);
    }
}

/// Returns the column of this unit.
#[cube]
pub(crate) fn column() -> usize {
    (CUBE_POS_X * COLUMNS + UNIT_POS % COLUMNS) as usize
}

/// Returns the first row of this unit. The next ones are `lanes` apart.
#[cube]
pub(crate) fn first_row(each: usize) -> usize {
    CUBE_POS_Y as usize * each + (UNIT_POS / COLUMNS) as usize
}

/// Returns the sum of the values of all lanes, to the first lane. `shared` has one element for each unit.
#[cube]
pub(crate) fn sum_of_lanes(shared: &mut [f32], value: f32, #[comptime] lanes: u32) -> f32 {
    sync_cube();
    shared[UNIT_POS as usize] = value;
    sync_cube();
    let mut sum = 0.0f32;
    if is_first_lane() {
        let mut lane = 0u32;
        while lane < lanes {
            sum += shared[(lane * COLUMNS + UNIT_POS) as usize];
            lane += 1;
        }
    }
    sum
}

/// Returns whether this unit writes the sums of its column.
#[cube]
pub(crate) fn is_first_lane() -> bool {
    UNIT_POS < COLUMNS
}
