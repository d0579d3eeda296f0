//! Attention on Flex: blocks of queries on all cores.

use burn::backend::Flex;
use burn::backend::flex::{FlexTensor, Layout};
use burn::backend::tensor::FloatTensor;
use burn::tensor::{Bytes, DType, Shape, bf16, f16};
use bytemuck::zeroed_vec;
use pulp::Arch;
use rayon::prelude::*;

use super::block::{Block, Inputs, KEYS, LINE, Scratch, columns};
use super::forward::Forward;
use super::gradient::{Kept, Partial, Unit, Wanted};
use super::ops::{AttentionOps, Gradients, Plan, Source, Tiled};
use super::rows::Rows;
use super::view::{View, readable};
use crate::elements::Float;

/// Tasks of a backward pass, if it has so many blocks of queries. It depends on shapes only, since it decides in which
/// order gradients are summed.
const UNITS: usize = 32;

impl AttentionOps for Flex {
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

impl Tiled for Flex {
    fn tiled(source: Source<FlexTensor>, plan: &Plan) -> (FlexTensor, FlexTensor) {
        let parts = Parts::of(source);
        match parts.query.dtype() {
            DType::BF16 => forward::<bf16>(&parts, plan),
            DType::F16 => forward::<f16>(&parts, plan),
            _ => forward::<f32>(&parts, plan),
        }
    }

    fn tiled_gradients(
        source: Source<FlexTensor>,
        plan: &Plan,
        kept: [FlexTensor; 2],
        grad: FlexTensor,
        wanted: [bool; 4],
    ) -> Gradients<FlexTensor> {
        let parts = Parts::of(source);
        match parts.query.dtype() {
            DType::BF16 => backward::<bf16>(&parts, plan, kept, grad, wanted),
            DType::F16 => backward::<f16>(&parts, plan, kept, grad, wanted),
            _ => backward::<f32>(&parts, plan, kept, grad, wanted),
        }
    }
}

/// The inputs as views of four axes.
struct Parts {
    query: FlexTensor,
    key: FlexTensor,
    value: FlexTensor,
    bias: Option<FlexTensor>,
    is_joint: bool,
}

impl Parts {
    fn of(source: Source<FlexTensor>) -> Self {
        match source {
            Source::Apart { query, key, value, bias } => {
                let [query, key, value] = [query, key, value].map(readable);
                Self { query, key, value, bias: bias.map(readable), is_joint: false }
            }
            Source::Joint { joint, heads } => {
                let shape = joint.layout().shape();
                let (batch, length, size) = (shape[0], shape[1], shape[2] / 3 / heads);
                let joint = joint.reshape(Shape::new([batch, length, 3 * heads, size]));
                let [query, key, value] =
                    [0, 1, 2].map(|part| joint.narrow(2, part * heads, heads).transpose(1, 2));
                Self { query, key, value, bias: None, is_joint: true }
            }
        }
    }

    fn inputs<'a, T: Float>(&'a self, plan: &'a Plan) -> Inputs<'a, T> {
        Inputs {
            query: View::of(&self.query),
            key: View::of(&self.key),
            value: View::of(&self.value),
            bias: self.bias.as_ref().map(View::of),
            plan,
        }
    }
}

/// A tensor `[batch, heads, positions, size]` that is stored as `[batch, positions, heads, size]`.
fn by_position<T: Float>(values: Vec<T>, [batch, heads, positions, size]: [usize; 4]) -> FlexTensor {
    let layout = Layout::contiguous(Shape::new([batch, positions, heads, size]));
    FlexTensor::new(Bytes::from_elems(values), layout, T::dtype()).transpose(1, 2)
}

fn forward<T: Float>(parts: &Parts, plan: &Plan) -> (FlexTensor, FlexTensor) {
    let inputs = parts.inputs::<T>(plan);
    let shape @ [batch, heads, length, _] = inputs.query.shape;
    let columns = columns(length);
    let blocks = length.div_ceil(columns);
    let mut output = zeroed_vec::<T>(shape.iter().product());
    let rows = Rows::by_position(&mut output, shape, columns);
    let arch = Arch::new();
    let of_block = |scratch: &mut Scratch, at: usize| {
        let at = [at / (heads * blocks), at / blocks % heads, at % blocks * columns];
        let (block, output) = (Block::new(inputs, at), rows.take(at[0], at[1], at[2]));
        arch.dispatch(Forward { block, scratch, output })
    };
    let tasks = (0..batch * heads * blocks).into_par_iter();
    let logs: Vec<[f32; LINE]> =
        tasks.map_init(|| Scratch::new(inputs.width(), columns, false), of_block).collect();
    let layout = Layout::contiguous(Shape::new([batch, heads, blocks * LINE]));
    let logs = FlexTensor::new(Bytes::from_elems(logs.into_flattened()), layout, DType::F32);
    drop(rows);
    (by_position(output, shape), logs)
}

fn backward<T: Float>(
    parts: &Parts,
    plan: &Plan,
    [output, logs]: [FlexTensor; 2],
    grad: FlexTensor,
    wanted: [bool; 4],
) -> Gradients<FlexTensor> {
    let inputs = parts.inputs::<T>(plan);
    let [query, key, value, bias] = wanted;
    let wanted = match parts.is_joint {
        true => Wanted { query: true, key: true, value: true, bias: false },
        false => Wanted { query, key, value, bias },
    };
    let (output, grad) = (readable(output), readable(grad));
    let kept = Kept { output: View::of(&output), grad: View::of(&grad), logs: logs.storage() };
    let (shape, key_shape) = (inputs.query.shape, inputs.key.shape);
    let ([batch, heads, length, size], [_, key_heads, ..]) = (shape, key_shape);
    let columns = columns(length);

    // The gradients of a joint projection are one buffer, with thrice the heads.
    let shapes = match parts.is_joint {
        true => [Some([batch, 3 * heads, length, size]), None, None],
        false => [
            wanted.query.then_some(shape),
            wanted.key.then_some(key_shape),
            wanted.value.then_some(key_shape),
        ],
    };
    let mut buffers = shapes.map(|shape| shape.map(|shape| zeroed_vec::<T>(shape.iter().product())));
    let bias_shape = inputs.bias.filter(|_| wanted.bias).map(|bias| bias.shape);
    let mut of_bias = bias_shape.map(|shape| zeroed_vec::<f32>(shape.iter().product()));
    {
        let mut sets = buffers.iter_mut().zip(shapes).zip([columns, KEYS, KEYS]);
        let mut rows = || {
            let ((buffer, shape), length) = sets.next()?;
            Some(Rows::by_position(buffer.as_mut()?, shape?, if parts.is_joint { columns } else { length }))
        };
        let rows = [rows(), rows(), rows()];
        let targets = match parts.is_joint {
            true => [(rows[0].as_ref(), heads), (rows[0].as_ref(), 2 * heads)],
            false => [(rows[1].as_ref(), 0), (rows[2].as_ref(), 0)],
        };
        let bias_rows = of_bias.as_mut().zip(bias_shape);
        let bias_rows = bias_rows.map(|(buffer, shape)| Rows::by_head(buffer, shape, columns));

        // A bias of all rows alike sums over them, so that one task computes all rows.
        let together = if bias_shape.is_some_and(|shape| shape[0] < batch) { batch } else { 1 };
        let steps = inputs.group() * length.div_ceil(columns);
        let chunks = UNITS.div_ceil(batch / together * key_heads).min(steps);
        let arch = Arch::new();
        let of_unit = |scratch: &mut Scratch, at: usize| {
            let (of_head, chunk) = (at / chunks, at % chunks);
            let row = of_head / key_heads * together;
            let unit = Unit {
                inputs,
                kept,
                wanted,
                of_query: rows[0].as_ref().filter(|_| wanted.query),
                of_bias: bias_rows.as_ref(),
                rows: row..row + together,
                key_head: of_head % key_heads,
                steps: steps * chunk / chunks..steps * (chunk + 1) / chunks,
                scratch,
            };
            let sums = arch.dispatch(unit);
            if chunks > 1 {
                return sums;
            }
            for sum in &sums {
                write(&[sum], targets, inputs.width());
            }
            Vec::new()
        };
        let tasks = (0..batch / together * key_heads * chunks).into_par_iter();
        let partials: Vec<Vec<Partial>> =
            tasks.map_init(|| Scratch::new(inputs.width(), columns, true), of_unit).collect();
        // Each head's sums, in the order of its queries.
        if chunks > 1 {
            (0..batch * key_heads).into_par_iter().for_each(|at| {
                let (row, head) = (at / key_heads, at % key_heads);
                let first = (row / together * key_heads + head) * chunks;
                let sums: Vec<_> =
                    partials[first..][..chunks].iter().map(|sums| &sums[row % together]).collect();
                write(&sums, targets, inputs.width());
            });
        }
    }
    let mut gradients = [None, None, None, None];
    for ((gradient, buffer), shape) in gradients.iter_mut().zip(buffers).zip(shapes) {
        *gradient = buffer.zip(shape).map(|(buffer, shape)| by_position(buffer, shape));
    }
    if parts.is_joint {
        let flat =
            |joint: FlexTensor| joint.transpose(1, 2).reshape(Shape::new([batch, length, 3 * heads * size]));
        gradients[0] = gradients[0].take().map(flat);
    }
    gradients[3] = of_bias.zip(bias_shape).map(|(values, shape)| {
        FlexTensor::new(Bytes::from_elems(values), Layout::contiguous(Shape::new(shape)), DType::F32)
    });
    gradients
}

/// Writes the sums of one head's keys and values to their rows.
fn write<T: Float>(sums: &[&Partial], targets: [(Option<&Rows<T>>, usize); 2], width: usize) {
    let Some(Partial { row, key_head, .. }) = sums.first() else { return };
    for (at, (rows, head)) in targets.into_iter().enumerate() {
        let Some(rows) = rows else { continue };
        let size = rows.size();
        let mut wide = vec![0.0; size];
        for first in rows.blocks() {
            let mut block = rows.take(*row, head + key_head, first);
            for at_row in 0..block.len() {
                wide.fill(0.0);
                for sum in sums {
                    let values = if at == 0 { &sum.key } else { &sum.value };
                    let start = (first + at_row).checked_sub(sum.first).map(|key| key * width);
                    if let Some(values) = start.and_then(|start| values.get(start..start + size)) {
                        for (wide, value) in wide.iter_mut().zip(values) {
                            *wide += value;
                        }
                    }
                }
                T::narrow(&wide, block.row(at_row));
            }
        }
    }
}
