//! Attention on a device: Burn's products, and kernels for the rows of scores between them.
//!
//! The backward pass keeps the inputs and one number for each query, and computes the scores again, so the scores of one
//! attention exist at a time. Queries that share a head of keys are rows of one matrix, so no key is ever repeated.
#![allow(unsafe_code)] // Launches without checks of bounds: each kernel checks its row or element.

use burn::backend::ops::FloatTensorOps;
use burn::backend::tensor::{FloatTensor, IntTensor};
use burn::backend::{Cube, TensorMetadata};
use burn::tensor::{DType, Device, Int, Shape, Tensor};
use burn_cubecl::tensor::CubeTensor;
use cubecl::prelude::*;

use super::Attending;
use super::cube_joint::{join, split};
use super::ops::{AttentionOps, Gradients, Plan, Source, Tiled};
use crate::cube::{Spec, contiguous, element, empty, grid, most_of_cube, run, sum_of_cube, units, written};
use crate::device::is_cube;

/// Returns whether these kernels compute an attention.
pub(super) fn computes(device: &Device, dtype: DType, biased: bool, how: &Attending) -> bool {
    let narrow = matches!(dtype, DType::F32 | DType::F16 | DType::BF16);
    let drops = how.dropout.is_some_and(|(prob, _)| prob > 0.0);
    is_cube(device) && narrow && !biased && !drops && how.reads.ragged_rows().is_none()
}

impl AttentionOps for Cube {
    fn attention(
        query: FloatTensor<Self>,
        key: FloatTensor<Self>,
        value: FloatTensor<Self>,
        plan: Plan,
    ) -> FloatTensor<Self> {
        Self::tiled(Source::Apart { query, key, value, bias: None }, &plan).0
    }

    fn attention_biased(
        query: FloatTensor<Self>,
        key: FloatTensor<Self>,
        value: FloatTensor<Self>,
        bias: FloatTensor<Self>,
        plan: Plan,
    ) -> FloatTensor<Self> {
        Self::tiled(Source::Apart { query, key, value, bias: Some(bias) }, &plan).0
    }

    fn attention_of_joint(joint: FloatTensor<Self>, heads: usize, plan: Plan) -> FloatTensor<Self> {
        Self::tiled(Source::Joint { joint, heads }, &plan).0
    }
}

impl Tiled for Cube {
    fn tiled(source: Source<FloatTensor<Self>>, plan: &Plan) -> (FloatTensor<Self>, FloatTensor<Self>) {
        let parts = Parts::of(source, plan);
        let (weights, logs) = parts.weights(None);
        let output = Self::float_matmul(weights, parts.value);
        (Self::float_reshape(output, parts.shape), logs)
    }

    fn tiled_gradients(
        source: Source<FloatTensor<Self>>,
        plan: &Plan,
        [_, logs]: [FloatTensor<Self>; 2],
        grad: FloatTensor<Self>,
        wanted: [bool; 4],
    ) -> Gradients<FloatTensor<Self>> {
        let joint = matches!(source, Source::Joint { .. });
        let wanted = if joint { [true; 3] } else { [wanted[0], wanted[1], wanted[2]] };
        let parts = Parts::of(source, plan);
        let grad = Self::float_reshape(grad, parts.grouped());
        let (weights, _) = parts.weights(Some(logs));
        let turned = |x: FloatTensor<Self>| Self::float_swap_dims(x, 2, 3);
        let of_value = wanted[2].then(|| Self::float_matmul(turned(weights.clone()), grad.clone()));
        let slopes = (wanted[0] || wanted[1]).then(|| {
            let of_weights = Self::float_matmul(grad, turned(parts.value.clone()));
            slopes(weights, of_weights, parts.scale)
        });
        let slopes_of = |wanted: bool| slopes.clone().filter(|_| wanted);
        let of_query = slopes_of(wanted[0]).map(|slopes| {
            Self::float_reshape(Self::float_matmul(slopes, parts.key.clone()), parts.shape.clone())
        });
        let of_key =
            slopes_of(wanted[1]).map(|slopes| Self::float_matmul(turned(slopes), parts.query.clone()));
        match [of_query, of_key, of_value] {
            [Some(query), Some(key), Some(value)] if joint => {
                [Some(join(query, key, value)), None, None, None]
            }
            [query, key, value] => [query, key, value, None],
        }
    }
}

/// The inputs, `[batch, key_heads, rows, size]`: the queries that share a head of keys are the rows of one matrix.
struct Parts {
    query: FloatTensor<Cube>,
    key: FloatTensor<Cube>,
    value: FloatTensor<Cube>,
    /// `[batch, heads, length, size]`.
    shape: Shape,
    scale: f32,
    /// The first key that each query reads and the one after the last, `[rows * length * 2]`. `None` if each reads those
    /// up to its own.
    bounds: Option<IntTensor<Cube>>,
}

impl Parts {
    fn of(source: Source<FloatTensor<Cube>>, plan: &Plan) -> Self {
        let [query, key, value] = match source {
            Source::Apart { query, key, value, .. } => [query, key, value],
            Source::Joint { joint, heads } => split(joint, heads),
        };
        let (shape, key_heads) = (query.shape(), key.shape()[1]);
        let of_cube = |bounds: Tensor<1, Int>| bounds.try_into_primitive::<Cube>();
        let bounds =
            plan.bounds.clone().map(|bounds| of_cube(bounds).expect("bounds are sent to the inputs' device"));
        let mut parts = Self { query, key, value, shape, scale: plan.scale as f32, bounds };
        parts.query = Cube::float_reshape(parts.query.clone(), parts.grouped_by(key_heads));
        parts
    }

    fn grouped(&self) -> Shape {
        self.grouped_by(self.key.shape()[1])
    }

    fn grouped_by(&self, key_heads: usize) -> Shape {
        let [batch, heads, length, size] = self.shape.dims();
        Shape::new([batch, key_heads, heads / key_heads * length, size])
    }

    /// Returns the weights, `[batch, key_heads, rows, read]`, and the logarithms of the sums of their powers,
    /// `[batch, heads, length]`, or those that are known.
    fn weights(&self, logs: Option<FloatTensor<Cube>>) -> (FloatTensor<Cube>, FloatTensor<Cube>) {
        let key = Cube::float_swap_dims(self.key.clone(), 2, 3);
        // In f16, products that are scaled late may overflow.
        let (query, scale) = match self.query.dtype() {
            DType::F16 => (Cube::float_mul_scalar(self.query.clone(), self.scale.into()), 1.0),
            _ => (self.query.clone(), self.scale),
        };
        let scores = Cube::float_matmul(query, key);
        let [batch, heads, length, _] = self.shape.dims();
        let (shape, dtype) = (scores.shape(), scores.dtype());
        let known = logs.is_some();
        let mut inputs = vec![scores];
        inputs.extend(logs.clone());
        inputs.extend(self.bounds.clone());
        let rows_of_batch = heads * length;
        let host = move |inputs| weigh(inputs, known, Rows { length, rows_of_batch, scale });
        match logs {
            Some(logs) => {
                let [weights] = run(inputs, [Spec::new(shape, dtype)], move |inputs| [host(inputs).0]);
                (weights, logs)
            }
            None => {
                let outputs = [Spec::new(shape, dtype), Spec::new([batch, heads, length], DType::F32)];
                let [weights, logs] = run(inputs, outputs, move |inputs| {
                    let (weights, logs) = host(inputs);
                    [weights, logs]
                });
                (weights, logs)
            }
        }
    }
}

/// How the rows of scores lie: `length` queries of a head, and those of all heads of a row of the batch.
#[derive(Clone, Copy)]
struct Rows {
    length: usize,
    rows_of_batch: usize,
    scale: f32,
}

fn weigh(inputs: Vec<CubeTensor>, known: bool, how: Rows) -> (CubeTensor, CubeTensor) {
    let mut inputs = inputs.into_iter().map(contiguous);
    let scores = inputs.next().expect("there are scores");
    let weights = written(&scores);
    let read = scores.meta.shape()[3];
    let rows = scores.meta.num_elements() / read;
    let logs = match known {
        true => inputs.next().expect("the logarithms are known"),
        false => {
            empty(&scores, [rows / how.rows_of_batch, how.rows_of_batch / how.length, how.length], DType::F32)
        }
    };
    let bounds = inputs.next();
    let causal = bounds.is_none();
    let bounds = bounds.unwrap_or_else(|| logs.clone());
    let masks = if causal { 1 } else { bounds.meta.num_elements() / 2 / how.length };
    let units = units(&scores, read);
    // SAFETY: each cube checks that its row exists, and reads and writes the columns of that row.
    unsafe {
        weights_kernel::launch_unchecked(
            &scores.client,
            grid(&scores, rows),
            CubeDim::new_1d(units),
            scores.required_address_type(),
            scores.clone().into_buffer_arg(),
            bounds.clone().into_buffer_arg(),
            weights.clone().into_buffer_arg(),
            logs.clone().into_buffer_arg(),
            rows,
            read,
            how.length,
            how.rows_of_batch,
            masks,
            how.scale,
            causal,
            known,
            units,
            [element(&scores), element(&bounds)],
        );
    }
    (weights, logs)
}

#[cube(launch_unchecked, address_type = "dynamic")]
fn weights_kernel<F: Float, I: Numeric>(
    scores: &[F],
    bounds: &[I],
    weights: &mut [F],
    logs: &mut [f32],
    rows: usize,
    read: usize,
    length: usize,
    rows_of_batch: usize,
    masks: usize,
    scale: f32,
    #[comptime] causal: bool,
    #[comptime] known: bool,
    #[comptime] units: u32,
    #[define(F, I)] _dtypes: [ElemType; 2],
) {
    let row = CUBE_POS;
    if row >= rows {
        terminate!();
    }
    let mut shared = Shared::<[f32]>::new_slice(units as usize);
    let query = row % length;
    let mut first = 0usize;
    let mut end = query + 1 + read - length;
    if !causal {
        let place = ((row / rows_of_batch) % masks * length + query) * 2;
        first = usize::cast_from(bounds[place]);
        end = usize::cast_from(bounds[place + 1]);
    }
    let start = row * read;
    let unit = UNIT_POS as usize;
    let step = units as usize;

    let mut log = 0.0f32;
    if known {
        log = logs[row];
    } else {
        let mut most = f32::new(-3.0e38);
        let mut at = first + unit;
        while at < end {
            most = max(most, f32::cast_from(scores[start + at]) * scale);
            at += step;
        }
        let most = most_of_cube(&mut shared, most, units);
        let mut sum = 0.0f32;
        let mut at = first + unit;
        while at < end {
            sum += (f32::cast_from(scores[start + at]) * scale - most).exp();
            at += step;
        }
        let sum = sum_of_cube(&mut shared, sum, units);
        if first < end {
            log = most + sum.ln();
        }
        if UNIT_POS == 0 {
            logs[row] = log;
        }
    }
    let mut at = unit;
    while at < read {
        let mut weight = 0.0f32;
        if at >= first && at < end {
            weight = (f32::cast_from(scores[start + at]) * scale - log).exp();
        }
        weights[start + at] = F::cast_from(weight);
        at += step;
    }
}

/// Returns the gradient of the scores, before they are scaled, given the weights and their gradients:
/// `(g - Σ w · g) · w · scale` for each row.
fn slopes(weights: FloatTensor<Cube>, grads: FloatTensor<Cube>, scale: f32) -> FloatTensor<Cube> {
    let output = Spec::new(grads.shape(), grads.dtype());
    let [slopes] = run(vec![grads, weights], [output], move |inputs| {
        let mut inputs = inputs.into_iter().map(contiguous);
        let mut next = || inputs.next().expect("the weights and their gradients");
        let (grads, weights) = (next(), next());
        let slopes = written(&grads);
        let read = grads.meta.shape()[3];
        let rows = grads.meta.num_elements() / read;
        let units = units(&grads, read);
        // SAFETY: each cube checks that its row exists, and reads and writes the columns of that row.
        unsafe {
            slopes_kernel::launch_unchecked(
                &grads.client,
                grid(&grads, rows),
                CubeDim::new_1d(units),
                grads.required_address_type(),
                weights.into_buffer_arg(),
                grads.clone().into_buffer_arg(),
                slopes.clone().into_buffer_arg(),
                rows,
                read,
                scale,
                units,
                element(&grads),
            );
        }
        [slopes]
    });
    slopes
}

#[cube(launch_unchecked, address_type = "dynamic")]
fn slopes_kernel<F: Float>(
    weights: &[F],
    grads: &[F],
    slopes: &mut [F],
    rows: usize,
    read: usize,
    scale: f32,
    #[comptime] units: u32,
    #[define(F)] _dtype: ElemType,
) {
    let row = CUBE_POS;
    if row >= rows {
        terminate!();
    }
    let mut shared = Shared::<[f32]>::new_slice(units as usize);
    let start = row * read;
    let step = units as usize;
    let mut sum = 0.0f32;
    let mut at = UNIT_POS as usize;
    while at < read {
        sum += f32::cast_from(weights[start + at]) * f32::cast_from(grads[start + at]);
        at += step;
    }
    let inner = sum_of_cube(&mut shared, sum, units);
    let mut at = UNIT_POS as usize;
    while at < read {
        let weight = f32::cast_from(weights[start + at]);
        let slope = (f32::cast_from(grads[start + at]) - inner) * weight * scale;
        slopes[start + at] = F::cast_from(slope);
        at += step;
    }
}
