//! Rows on a device: a cube computes one row at a time, with sums in f32.
//!
//! The forward pass is one kernel. So is the gradient, in which a cube also adds the gradients of scale and bias over its
//! rows; a second kernel adds what the cubes found. A tensor that a form lacks is bound to another one, and not read.
#![allow(unsafe_code)] // Launches without checks of bounds: each kernel checks its row or column.

use burn::backend::{Cube, TensorMetadata};
use burn::tensor::{DType, Shape};
use burn_cubecl::tensor::CubeTensor;
use cubecl::prelude::*;

use super::cube_columns::added;
use super::rows::{self, Gradients, NormKind, NormRows, Normed, Statistics, Upstream, WantedGradients};
use crate::cube::{
    Spec, contiguous, element, empty, grid, rows_and_width, run, run_many, sum_of_cube, together, units,
};
use crate::off::Kernel;
use burn::backend::tensor::FloatTensor;

impl NormRows for Cube {
    fn norm_rows(
        x: FloatTensor<Self>,
        y: Option<FloatTensor<Self>>,
        scale: FloatTensor<Self>,
        bias: Option<FloatTensor<Self>>,
        kind: NormKind,
    ) -> Normed<Self> {
        let (shape, dtype) = (x.shape(), x.dtype());
        if !computes(&x) {
            return rows::values::<Self>(x, y, scale, bias, kind);
        }
        let statistics = of_rows(&shape);
        let outputs = [
            Spec::new(shape.clone(), dtype),
            Spec::new(statistics.clone(), DType::F32),
            Spec::new(statistics, DType::F32),
        ];
        let (sums, biased) = (y.is_some(), bias.is_some());
        let kept = (!sums).then(|| x.clone());
        let inputs: Vec<_> = [Some(x), y, Some(scale), bias].into_iter().flatten().collect();
        let normed = move |inputs| forward(inputs, sums, biased, kind);
        let (sum, [normed, mean, inverse]) = match kept {
            Some(x) => (x, run(inputs, outputs, move |inputs| normed(inputs).1)),
            None => {
                let [a, b, c] = outputs;
                let outputs = [a.clone(), a, b, c];
                let [sum, normed, mean, inverse] = run(inputs, outputs, move |inputs| {
                    let (sum, [normed, mean, inverse]) = normed(inputs);
                    [sum, normed, mean, inverse]
                });
                (sum, [normed, mean, inverse])
            }
        };
        let mean = kind.is_centered().then_some(mean);
        Normed { sum, normed, statistics: Statistics { mean, inverse } }
    }

    fn norm_gradients(upstream: Upstream<Self>, wanted: WantedGradients) -> Gradients<Self> {
        let (shape, dtype) = (upstream.sum.shape(), upstream.sum.dtype());
        if !computes(&upstream.sum) {
            return rows::gradients::<Self>(upstream, wanted);
        }
        let Upstream { sum, statistics: Statistics { mean, inverse }, scale, grad, of_sum } = upstream;
        let width = shape[shape.num_dims() - 1];
        let form = Backward {
            centered: mean.is_some(),
            adds: of_sum.is_some(),
            of_columns: (wanted.scale || wanted.bias).then(|| scale.dtype()),
        };
        let mut outputs = vec![Spec::new(shape, dtype)];
        outputs.extend(
            form.of_columns.into_iter().flat_map(|dtype| [(); 2].map(|()| Spec::new([width], dtype))),
        );
        let inputs = [Some(sum), Some(grad), Some(scale), mean, Some(inverse), of_sum];
        let inputs = inputs.into_iter().flatten().collect();
        let mut found = run_many(inputs, outputs, move |inputs| backward(inputs, form)).into_iter();
        let mut next = |wanted| found.next().filter(|_| wanted);
        Gradients { sum: next(wanted.sum), scale: next(wanted.scale), bias: next(wanted.bias) }
    }
}

/// The number of buffers that each kernel binds, including its scalars. Some devices of wgpu bind at most 8.
const BUFFERS: u32 = 9;

/// Returns whether the kernels compute these rows. An empty grid cannot be launched, and sums of f64 are in f64.
fn computes(x: &FloatTensor<Cube>) -> bool {
    x.shape().num_elements() > 0
        && !Kernel::Norms.is_off()
        && matches!(x.dtype(), DType::F32 | DType::F16 | DType::BF16)
        && x.device().client().properties().hardware.max_bindings >= BUFFERS
}

/// Returns the shape of the rows' statistics.
fn of_rows(shape: &Shape) -> Shape {
    let mut shape = shape.clone();
    let last = shape.num_dims() - 1;
    shape[last] = 1;
    shape
}

/// Returns the sum, or `x` if there is no second tensor; the norm, the mean and the inverse of the deviation.
fn forward(
    inputs: Vec<CubeTensor>,
    sums: bool,
    biased: bool,
    kind: NormKind,
) -> (CubeTensor, [CubeTensor; 3]) {
    let mut inputs = inputs.into_iter().map(contiguous);
    let mut next = || inputs.next().expect("as many inputs as the form has");
    let x = next();
    let y = if sums { next() } else { x.clone() };
    let scale = next();
    let bias = if biased { next() } else { scale.clone() };
    let (rows, width) = rows_and_width(&x);
    let normed = empty(&x, x.meta.shape().clone(), x.dtype);
    let statistics = || empty(&x, of_rows(x.meta.shape()), DType::F32);
    let (mean, inverse) = (statistics(), statistics());
    let sum = if sums { empty(&x, x.meta.shape().clone(), x.dtype) } else { x.clone() };
    let written = if sums { sum.clone() } else { normed.clone() };
    let Shares { together, units, each } = Shares::of(width, &[&x, &y, &scale, &bias, &written, &normed]);
    // SAFETY: each cube checks that its row exists, and reads and writes the columns of that row.
    unsafe {
        forward_kernel::launch_unchecked(
            &x.client,
            grid(&x, rows),
            CubeDim::new_1d(units),
            together,
            x.clone().into_buffer_arg(),
            y.into_buffer_arg(),
            scale.clone().into_buffer_arg(),
            bias.clone().into_buffer_arg(),
            written.into_buffer_arg(),
            normed.clone().into_buffer_arg(),
            mean.clone().into_buffer_arg(),
            inverse.clone().into_buffer_arg(),
            rows,
            width / together,
            1.0 / width as f32,
            kind.epsilon() as f32,
            kind.is_centered(),
            sums,
            biased,
            units,
            each,
            [element(&x), element(&scale), element(&bias)],
        );
    }
    (sum, [normed, mean, inverse])
}

/// How the units of a cube share a row, which they read once and keep.
struct Shares {
    /// Neighbouring columns that are read and written at once: 16 bytes, if the device can and the tensors stand so.
    together: usize,
    units: u32,
    /// How many of them a unit keeps.
    each: usize,
}

impl Shares {
    /// Of rows of `width` that are read from and written to these tensors.
    fn of(width: usize, tensors: &[&CubeTensor]) -> Self {
        let together = together(tensors, |together| width.is_multiple_of(together));
        let units = units(tensors[0], width / together);
        Self { together, units, each: (width / together).div_ceil(units as usize) }
    }
}

/// Returns the sum of the numbers of a vector, in order.
#[cube]
fn sum_of_vector<N: Size>(x: Vector<f32, N>) -> f32 {
    let mut sum = 0.0f32;
    let size = x.vector_size().comptime();
    #[unroll]
    for at in 0..size {
        sum += x.extract(at);
    }
    sum
}

#[cube(launch_unchecked)]
fn forward_kernel<F: Float, S: Float, B: Float, N: Size>(
    x: &[Vector<F, N>],
    y: &[Vector<F, N>],
    scale: &[Vector<S, N>],
    bias: &[Vector<B, N>],
    sum: &mut [Vector<F, N>],
    normed: &mut [Vector<F, N>],
    means: &mut [f32],
    inverses: &mut [f32],
    rows: usize,
    width: usize,
    share: f32,
    epsilon: f32,
    #[comptime] centered: bool,
    #[comptime] sums: bool,
    #[comptime] biased: bool,
    #[comptime] units: u32,
    #[comptime] each: usize,
    #[define(F, S, B)] _dtypes: [ElemType; 3],
) {
    let row = CUBE_POS;
    if row >= rows {
        terminate!();
    }
    let mut shared = Shared::<[f32]>::new_slice(units as usize);
    let start = row * width;
    let unit = UNIT_POS as usize;

    let mut kept = Array::<Vector<f32, N>>::new(each);
    let mut total = Vector::<f32, N>::new(0.0f32);
    #[unroll]
    for step in 0..each {
        let at = unit + step * units as usize;
        let mut value = Vector::<f32, N>::new(0.0f32);
        if at < width {
            value = Vector::cast_from(x[start + at]);
            if sums {
                // Rounded to its dtype, as it is kept.
                let rounded = Vector::<F, N>::cast_from(value + Vector::cast_from(y[start + at]));
                sum[start + at] = rounded;
                value = Vector::cast_from(rounded);
            }
        }
        total += value;
        kept[step] = value;
    }
    let mut mean = 0.0f32;
    if centered {
        mean = sum_of_cube(&mut shared, sum_of_vector(total), units) * share;
    }

    let mut squares = Vector::<f32, N>::new(0.0f32);
    #[unroll]
    for step in 0..each {
        if unit + step * (units as usize) < width {
            let value = kept[step] - Vector::new(mean);
            squares += value * value;
        }
    }
    let squares = sum_of_cube(&mut shared, sum_of_vector(squares), units);
    let inverse = 1.0 / (squares * share + epsilon).sqrt();

    #[unroll]
    for step in 0..each {
        let at = unit + step * units as usize;
        if at < width {
            let mut found =
                (kept[step] - Vector::new(mean)) * Vector::new(inverse) * Vector::cast_from(scale[at]);
            if biased {
                found += Vector::cast_from(bias[at]);
            }
            normed[start + at] = Vector::cast_from(found);
        }
    }
    if UNIT_POS == 0 {
        means[row] = mean;
        inverses[row] = inverse;
    }
}

/// The most cubes that share the rows where their gradients are summed over the rows too.
const PARTS: usize = 512;

/// What a backward pass computes.
#[derive(Clone, Copy)]
struct Backward {
    /// Whether the norm subtracts the mean.
    centered: bool,
    /// Whether there is another gradient of the sum.
    adds: bool,
    /// The dtype of the gradients of scale and bias, if they are computed.
    of_columns: Option<DType>,
}

/// Returns the gradient of the sum, then those of scale and bias if they are computed.
fn backward(inputs: Vec<CubeTensor>, form: Backward) -> Vec<CubeTensor> {
    let Backward { centered, adds, of_columns } = form;
    let mut inputs = inputs.into_iter().map(contiguous);
    let mut next = || inputs.next().expect("as many inputs as the form has");
    let (x, grad, scale) = (next(), next(), next());
    let mean = centered.then(&mut next);
    let inverse = next();
    let mean = mean.unwrap_or_else(|| inverse.clone());
    let of_sum = if adds { next() } else { grad.clone() };
    let (rows, width) = rows_and_width(&x);
    let found = empty(&x, x.meta.shape().clone(), x.dtype);
    // A cube adds the rows that it computes; the fewer cubes, the fewer sums are left to add.
    let each_rows = if of_columns.is_some() { rows.div_ceil(PARTS) } else { 1 };
    let parts = rows.div_ceil(each_rows);
    let sums = match of_columns {
        Some(_) => empty(&x, [parts, 2, width], DType::F32),
        // Not written, but a whole vector of elements.
        None => empty(&x, [16], DType::F32),
    };
    let Shares { together, units, each } = Shares::of(width, &[&x, &grad, &scale, &of_sum, &found]);
    // SAFETY: each cube checks that its rows exist, and reads and writes the columns of these rows, and sums of its own.
    unsafe {
        backward_kernel::launch_unchecked(
            &x.client,
            grid(&x, parts),
            CubeDim::new_1d(units),
            together,
            x.clone().into_buffer_arg(),
            grad.clone().into_buffer_arg(),
            scale.clone().into_buffer_arg(),
            mean.into_buffer_arg(),
            inverse.into_buffer_arg(),
            of_sum.clone().into_buffer_arg(),
            found.clone().into_buffer_arg(),
            sums.clone().into_buffer_arg(),
            rows,
            each_rows,
            width / together,
            1.0 / width as f32,
            centered,
            adds,
            of_columns.is_some(),
            units,
            each,
            [element(&x), element(&grad), element(&scale), element(&of_sum)],
        );
    }
    let columns = of_columns.into_iter().flat_map(|dtype| added(&sums, dtype));
    std::iter::once(found).chain(columns).collect()
}

#[cube(launch_unchecked)]
fn backward_kernel<F: Float, G: Float, S: Float, O: Float, N: Size>(
    x: &[Vector<F, N>],
    grad: &[Vector<G, N>],
    scale: &[Vector<S, N>],
    means: &[f32],
    inverses: &[f32],
    of_sum: &[Vector<O, N>],
    found: &mut [Vector<F, N>],
    sums: &mut [Vector<f32, N>],
    rows: usize,
    each_rows: usize,
    width: usize,
    share: f32,
    #[comptime] centered: bool,
    #[comptime] adds: bool,
    #[comptime] of_columns: bool,
    #[comptime] units: u32,
    #[comptime] each: usize,
    #[define(F, G, S, O)] _dtypes: [ElemType; 4],
) {
    let part = CUBE_POS;
    let mut row = part * each_rows;
    if row >= rows {
        terminate!();
    }
    let end = min(row + each_rows, rows);
    let mut shared = Shared::<[f32]>::new_slice(units as usize);
    let unit = UNIT_POS as usize;

    // The gradients of scale and bias, over the rows so far.
    let mut of_scale = Array::<Vector<f32, N>>::new(each);
    let mut of_bias = Array::<Vector<f32, N>>::new(each);
    #[unroll]
    for step in 0..each {
        of_scale[step] = Vector::new(0.0f32);
        of_bias[step] = Vector::new(0.0f32);
    }
    while row < end {
        let start = row * width;
        let inverse = inverses[row];
        let mut mean = 0.0f32;
        if centered {
            mean = means[row];
        }
        // The gradient with the scale, and the norm without it.
        let mut grads = Array::<Vector<f32, N>>::new(each);
        let mut normals = Array::<Vector<f32, N>>::new(each);
        let mut total = Vector::<f32, N>::new(0.0f32);
        let mut along = Vector::<f32, N>::new(0.0f32);
        #[unroll]
        for step in 0..each {
            let at = unit + step * units as usize;
            let mut scaled = Vector::<f32, N>::new(0.0f32);
            let mut normal = Vector::<f32, N>::new(0.0f32);
            if at < width {
                let slope = Vector::<f32, N>::cast_from(grad[start + at]);
                normal =
                    (Vector::<f32, N>::cast_from(x[start + at]) - Vector::new(mean)) * Vector::new(inverse);
                scaled = slope * Vector::cast_from(scale[at]);
                if of_columns {
                    of_scale[step] += slope * normal;
                    of_bias[step] += slope;
                }
            }
            total += scaled;
            along += scaled * normal;
            grads[step] = scaled;
            normals[step] = normal;
        }
        let along = sum_of_cube(&mut shared, sum_of_vector(along), units) * share;
        let mut centre = 0.0f32;
        if centered {
            centre = sum_of_cube(&mut shared, sum_of_vector(total), units) * share;
        }

        #[unroll]
        for step in 0..each {
            let at = unit + step * units as usize;
            if at < width {
                let mut slope = (grads[step] - Vector::new(centre) - normals[step] * Vector::new(along))
                    * Vector::new(inverse);
                if adds {
                    slope += Vector::cast_from(of_sum[start + at]);
                }
                found[start + at] = Vector::cast_from(slope);
            }
        }
        row += 1;
    }

    if of_columns {
        let place = 2 * part * width;
        #[unroll]
        for step in 0..each {
            let at = unit + step * units as usize;
            if at < width {
                sums[place + at] = of_scale[step];
                sums[place + width + at] = of_bias[step];
            }
        }
    }
}
