//! Attention on Flex: blocks of queries on all cores.

use std::f64::consts::LN_2;

use burn::backend::Flex;
use burn::backend::flex::{FlexTensor, Layout};
use burn::tensor::{Bytes, DType, Shape, bf16, f16};
use pulp::Arch;
use rayon::prelude::*;

use super::block::{Block, Inputs, View, readable};
use super::forward::Forward;
use super::gradient::{BackwardInputs, Partial, Share, Unit, WantedGradients, shares};
use super::ops::{Gradients, Plan, Source, Tiled};
use super::rows::Rows;
use super::spans::{LINE, Spans};
use crate::elements::{Float, zeros_on_all_cores};
use crate::flex::adjacent;
use crate::zero_results::are_zero;

impl Tiled for Flex {
    const LN_BASE: f64 = LN_2;
    const LINE: usize = LINE;

    fn tiled(source: Source<FlexTensor>, plan: &Plan) -> (FlexTensor, FlexTensor) {
        let parts = Parts::of(source, plan);
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
        let parts = Parts::of(source, plan);
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
    queries: Spans,
    keys: Spans,
    is_joint: bool,
}

impl Parts {
    fn of(source: Source<FlexTensor>, plan: &Plan) -> Self {
        let is_joint = matches!(source, Source::Joint { .. });
        let ([query, key, value], bias) = match source {
            Source::Apart { query, key, value, bias } => {
                ([query, key, value].map(readable), bias.map(readable))
            }
            Source::Joint { joint, heads } => {
                let shape = joint.layout().shape();
                let (batch, length, size) = (shape[0], shape[1], shape[2] / 3 / heads);
                let joint = joint.reshape(Shape::new([batch, length, 3 * heads, size]));
                ([0, 1, 2].map(|part| joint.narrow(2, part * heads, heads).transpose(1, 2)), None)
            }
        };
        let even = |x: &FlexTensor| Spans::even(x.layout().shape()[0], x.layout().shape()[2]);
        let (queries, keys) = match plan.reads.ragged_rows() {
            Some([queries, keys]) => (Spans::ragged(queries), Spans::ragged(keys)),
            None => (even(&query), even(&key)),
        };
        Self { query, key, value, bias, queries, keys, is_joint }
    }

    fn inputs<'a, T: Float>(&'a self, plan: &'a Plan) -> Inputs<'a, T> {
        Inputs {
            query: View::of(&self.query),
            key: View::of(&self.key),
            value: View::of(&self.value),
            bias: self.bias.as_ref().map(View::of),
            queries: &self.queries,
            keys: &self.keys,
            plan,
        }
    }
}

/// A tensor `[batch, heads, positions, size]` that is stored as `[batch, positions, heads, size]`.
fn by_position<T: Float>(values: Vec<T>, spans: &Spans, heads: usize, size: usize) -> FlexTensor {
    let [batch, positions] = spans.shape();
    let layout = Layout::contiguous(Shape::new([batch, positions, heads, size]));
    FlexTensor::new(Bytes::from_elems(values), layout, T::dtype()).transpose(1, 2)
}

fn forward<T: Float>(parts: &Parts, plan: &Plan) -> (FlexTensor, FlexTensor) {
    let inputs = parts.inputs::<T>(plan);
    let (heads, size, queries) = (inputs.heads(), inputs.size(), &parts.queries);
    let mut output = zeros_on_all_cores::<T>(inputs.query.shape.iter().product());
    let rows = Rows::by_position(&mut output, queries, heads, size);
    let arch = Arch::new();
    let of_block = |memory: &mut _, index: usize| {
        let at = queries.at(index, heads);
        let (block, output) = (Block::new(inputs, at), rows.take(at[0], at[1], at[2]));
        arch.dispatch(Forward { block, memory, output })
    };
    let tasks = 0..heads * queries.all_blocks();
    let logs: Vec<[f32; LINE]> = match are_zero() {
        true => vec![[0.0; LINE]; tasks.len()],
        false => tasks.into_par_iter().map_init(|| inputs.memory(false), of_block).collect(),
    };
    let layout = Layout::contiguous(Shape::new([logs.len() * LINE]));
    let logs = FlexTensor::new(Bytes::from_elems(logs.into_flattened()), layout, DType::F32);
    drop(rows);
    (by_position(output, queries, heads, size), logs)
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
        true => WantedGradients { query: true, key: true, value: true, bias: false },
        false => WantedGradients { query, key, value, bias },
    };
    let (output, logs, grad) = (readable(output), adjacent(logs), readable(grad));
    let kept = BackwardInputs { output: View::of(&output), grad: View::of(&grad), logs: logs.storage() };
    let (queries, keys, size) = (&parts.queries, &parts.keys, inputs.size());
    let (heads, key_heads) = (inputs.heads(), inputs.key.shape[1]);

    // Where gradients stand, and their heads. Those of a joint projection are one buffer, with thrice the heads.
    let places = match parts.is_joint {
        true => [Some((queries, 3 * heads)), None, None],
        false => [
            wanted.query.then_some((queries, heads)),
            wanted.key.then_some((keys, key_heads)),
            wanted.value.then_some((keys, key_heads)),
        ],
    };
    let zeros = |(spans, heads): (&Spans, usize)| {
        zeros_on_all_cores::<T>(spans.shape().iter().product::<usize>() * heads * size)
    };
    let mut buffers = places.map(|place| place.map(zeros));
    let bias_shape = inputs.bias.filter(|_| wanted.bias).map(|bias| bias.shape);
    let mut of_bias = bias_shape.map(|shape| zeros_on_all_cores::<f32>(shape.iter().product()));
    if !are_zero() {
        let mut sets = buffers.iter_mut().zip(places);
        let mut rows = || {
            let (buffer, place) = sets.next()?;
            let (spans, heads) = place?;
            Some(Rows::by_position(buffer.as_mut()?, spans, heads, size))
        };
        let rows = [rows(), rows(), rows()];
        let targets = match parts.is_joint {
            true => [(rows[0].as_ref(), heads), (rows[0].as_ref(), 2 * heads)],
            false => [(rows[1].as_ref(), 0), (rows[2].as_ref(), 0)],
        };
        let bias_spans = bias_shape.map(|shape| Spans::even(shape[0], shape[2]));
        let bias_rows = of_bias.as_mut().zip(bias_shape).zip(bias_spans.as_ref());
        let bias_rows =
            bias_rows.map(|((buffer, shape), spans)| Rows::by_head(buffer, spans, shape[1], shape[3]));

        // A bias of all rows alike sums over them, so that one task computes all rows.
        let together = bias_shape.is_some_and(|shape| shape[0] < queries.rows());
        let shares = shares(queries, inputs.group(), key_heads, together);
        let arch = Arch::new();
        let of_share = |memory: &mut _, share: &Share| {
            let (of_query, of_bias) = (rows[0].as_ref().filter(|_| wanted.query), bias_rows.as_ref());
            let sums = arch.dispatch(Unit { inputs, kept, wanted, of_query, of_bias, share, memory });
            if !share.is_whole {
                return sums;
            }
            for sum in &sums {
                write(&[sum], targets, inputs.width());
            }
            Vec::new()
        };
        let partials: Vec<Vec<Partial>> =
            shares.par_iter().map_init(|| inputs.memory(true), of_share).collect();
        // Each head's sums, in the order of its queries.
        let partials: Vec<_> = shares.iter().zip(&partials).filter(|(share, _)| !share.is_whole).collect();
        let is_of = |share: &Share| (share.rows.start, share.key_head);
        let of_heads: Vec<_> = partials.chunk_by(|(a, _), (b, _)| is_of(a) == is_of(b)).collect();
        of_heads.into_par_iter().for_each(|shares| {
            shares[0].0.rows.clone().into_par_iter().enumerate().for_each(|(at, _)| {
                let sums: Vec<_> = shares.iter().map(|(_, sums)| &sums[at]).collect();
                write(&sums, targets, inputs.width());
            });
        });
    }
    let mut gradients = [None, None, None, None];
    for ((gradient, buffer), place) in gradients.iter_mut().zip(buffers).zip(places) {
        *gradient = buffer.zip(place).map(|(buffer, (spans, heads))| by_position(buffer, spans, heads, size));
    }
    if parts.is_joint {
        let [batch, length] = queries.shape();
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
        for first in rows.blocks(*row) {
            let mut block = rows.take(*row, head + key_head, first);
            for at_row in 0..block.len() {
                let mut values = sums.iter().filter_map(|sum| {
                    let start = (first + at_row).checked_sub(sum.first)? * width;
                    let values = if at == 0 { &sum.key } else { &sum.value };
                    values.get(start..start + size)
                });
                match (values.next(), sums.len()) {
                    (Some(only), 1) => T::narrow(only, block.row(at_row)),
                    (one, _) => {
                        wide.fill(0.0);
                        for values in one.into_iter().chain(values) {
                            wide.iter_mut().zip(values).for_each(|(wide, value)| *wide += value);
                        }
                        T::narrow(&wide, block.row(at_row));
                    }
                }
            }
        }
    }
}
