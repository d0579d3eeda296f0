//! Attention on a device: in [tiles](super::flash) where there are kernels for them, or else products, and
//! [kernels](super::cube_rows) for the rows of scores between them.
//!
//! The backward pass keeps the inputs and one number for each query, and computes the scores again. Both passes compute
//! chunks of heads, whose scores alone exist at a time. Queries that share a head of keys are rows of one matrix, so no
//! key is ever repeated.

use burn::backend::ops::FloatTensorOps;
use burn::backend::tensor::{FloatTensor, IntTensor};
use burn::backend::{Cube, TensorMetadata};
use burn::tensor::{DType, Device, FloatDType, Int, Shape, Slice, Tensor};

use super::Attending;
use super::cube_joint::{join, split};
use super::cube_rows::{Rows, Weighed, slopes, weigh};
#[cfg(feature = "cuda")]
use super::flash;
use super::ops::{Gradients, Plan, Source, Tiled};
use crate::cube::{Spec, contiguous, run};
use crate::device::is_cube;
use crate::off::Kernel;
use crate::product::ProductOps;

/// Returns whether these kernels compute an attention.
pub(super) fn computes(device: &Device, dtype: DType, how: &Attending) -> bool {
    let narrow = matches!(dtype, DType::F32 | DType::F16 | DType::BF16);
    let is_plain = how.reads.ragged_rows().is_none() && how.cap.is_none();
    is_cube(device) && narrow && is_plain && !Kernel::Attention.is_off()
}

impl Tiled for Cube {
    const LN_BASE: f64 = 1.0;
    const LINE: usize = 1;

    fn tiled(source: Source<FloatTensor<Self>>, plan: &Plan) -> (FloatTensor<Self>, FloatTensor<Self>) {
        #[cfg(feature = "cuda")]
        if flash::computes(&source, plan) {
            return flash::forward(source, plan);
        }
        let parts = Parts::of(source, plan);
        let of_chunk = |chunk: &Chunk| {
            let (weights, logs) = parts.weights(chunk);
            (Self::product(weights, chunk.of(&parts.value)), logs)
        };
        let (outputs, logs): (Vec<_>, Vec<_>) = parts.chunks().iter().map(of_chunk).unzip();
        let [batch, heads, length, _] = parts.shape.dims();
        (joined(outputs, &parts.shape), joined(logs, &Shape::new([batch, heads, length])))
    }

    fn tiled_gradients(
        source: Source<FloatTensor<Self>>,
        plan: &Plan,
        [output, logs]: [FloatTensor<Self>; 2],
        grad: FloatTensor<Self>,
        wanted: [bool; 4],
    ) -> Gradients<FloatTensor<Self>> {
        #[cfg(feature = "cuda")]
        if flash::computes(&source, plan) {
            return flash::gradients(source, plan, [output, logs], grad);
        }
        let joint = matches!(source, Source::Joint { .. });
        let wanted = if joint { [true, true, true, false] } else { wanted };
        let parts = Parts::of(source, plan);
        // A part of the keys does not have all terms of the sum.
        let inner = plan.is_part.then(|| {
            let [output, grad] = [output.clone(), grad.clone()].map(|x| Self::float_cast(x, FloatDType::F32));
            Self::float_reshape(Self::float_sum_dim(Self::float_mul(output, grad), 3), parts.grouped_logs())
        });
        // What it takes from a device's memory is not needed while the scores are.
        drop(output);
        // Two products read it, and each would copy a view for itself.
        let grad = Self::float_reshape(in_rows(grad), parts.grouped());
        let logs = Self::float_reshape(logs, parts.grouped_logs());
        let turned = |x: FloatTensor<Self>| Self::float_swap_dims(x, 2, 3);
        let mut found = [(); 3].map(|()| Vec::new());
        let mut of_bias = Vec::new();
        for chunk in parts.chunks() {
            let grad = chunk.of(&grad);
            let (weights, dropped) = parts.weights_again(&chunk, chunk.of(&logs));
            if wanted[2] {
                let applied = dropped.as_ref().unwrap_or(&weights).clone();
                found[2].push(Self::product(turned(applied), grad.clone()));
            }
            if wanted[0] || wanted[1] || wanted[3] {
                let of_weights = Self::product(grad, turned(chunk.of(&parts.value)));
                let inner = inner.as_ref().map(|inner| chunk.of(inner));
                let (slopes, of_scores) = slopes(weights, dropped, of_weights, inner, parts.scale, wanted[3]);
                of_bias.extend(of_scores);
                if wanted[0] {
                    found[0].push(Self::product(slopes.clone(), chunk.of(&parts.key)));
                }
                if wanted[1] {
                    found[1].push(Self::product(turned(slopes), chunk.of(&parts.query)));
                }
            }
        }
        let [of_query, of_key, of_value] = found;
        let joined = |parts: Vec<_>, shape: &Shape| (!parts.is_empty()).then(|| joined(parts, shape));
        let [key, value] = [&parts.key, &parts.value].map(TensorMetadata::shape);
        let of_bias = (!of_bias.is_empty()).then(|| parts.of_bias(of_bias));
        match [joined(of_query, &parts.shape), joined(of_key, &key), joined(of_value, &value)] {
            [Some(query), Some(key), Some(value)] if joint => {
                [Some(join(query, key, value)), None, None, None]
            }
            [query, key, value] => [query, key, value, of_bias],
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
    drops: Option<Dropout>,
    /// `[1 or batch, heads, length, read]`, in f32.
    bias: Option<FloatTensor<Cube>>,
}

/// A dropout of the weights.
struct Dropout {
    /// The [words](super::drops::Drops::on_device) of the rows of the batch, and the columns of queries and of keys.
    keys: IntTensor<Cube>,
    columns_at: [usize; 2],
    threshold: u32,
    factor: f32,
}

impl Parts {
    fn of(source: Source<FloatTensor<Cube>>, plan: &Plan) -> Self {
        let ([query, key, value], bias) = match source {
            Source::Apart { query, key, value, bias } => ([query, key, value], bias),
            Source::Joint { joint, heads } => (split(joint, heads), None),
        };
        let (shape, key_heads) = (query.shape(), key.shape()[1]);
        let of_cube = |bounds: Tensor<1, Int>| bounds.try_into_primitive::<Cube>();
        let sent = |tensor| of_cube(tensor).expect("it was sent to the inputs' device");
        let bounds = plan.bounds.clone().map(sent);
        let drops = plan.drops.as_ref().zip(plan.drop_keys.clone()).map(|(drops, keys)| {
            let (threshold, factor) = drops.threshold_and_factor();
            Dropout { keys: sent(keys), columns_at: drops.columns_at(), threshold, factor }
        });
        let mut parts = Self { query, key, value, shape, scale: plan.scale as f32, bounds, drops, bias };
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

    /// Returns the shape of one number for each query, grouped like the queries.
    fn grouped_logs(&self) -> Shape {
        let mut shape = self.grouped();
        shape[3] = 1;
        shape
    }

    /// Returns chunks of heads, in order: of whole rows of the batch, if their scores are few enough.
    fn chunks(&self) -> Vec<Chunk> {
        let [batch, key_heads, rows, _] = self.grouped().dims();
        let scores = rows * self.key.shape()[2] * self.key.dtype().size();
        let most = (SCORES / scores.max(1)).max(1);
        let (samples, heads) = ((most / key_heads).max(1), most.min(key_heads));
        let chunk = |sample: usize, head: usize| Chunk {
            samples: (sample, (sample + samples).min(batch)),
            heads: (head, (head + heads).min(key_heads)),
            whole: samples >= batch && heads == key_heads,
            first: (sample * key_heads + head) * rows,
        };
        let samples = (0..batch).step_by(samples);
        samples
            .flat_map(|sample| (0..key_heads).step_by(heads).map(move |head| chunk(sample, head)))
            .collect()
    }

    /// Returns the weights of a chunk, `[samples, heads, rows, read]`, of which some are dropped, and the logarithms of
    /// the sums of their powers, `[samples, heads, rows, 1]`.
    fn weights(&self, chunk: &Chunk) -> (FloatTensor<Cube>, FloatTensor<Cube>) {
        let (inputs, rows) = self.scores(chunk, None);
        let weights = Spec::new(inputs[0].shape(), inputs[0].dtype());
        let mut of_rows = weights.shape.clone();
        of_rows[3] = 1;
        let [weights, logs] = run(inputs, [weights, Spec::new(of_rows, DType::F32)], move |inputs| {
            let Weighed { weights, logs, .. } = weigh(inputs, false, rows);
            [weights, logs]
        });
        (weights, logs)
    }

    /// Returns the weights of a chunk again, and those that are left of them if some are dropped.
    fn weights_again(
        &self,
        chunk: &Chunk,
        logs: FloatTensor<Cube>,
    ) -> (FloatTensor<Cube>, Option<FloatTensor<Cube>>) {
        let (inputs, rows) = self.scores(chunk, Some(logs));
        let weights = Spec::new(inputs[0].shape(), inputs[0].dtype());
        if rows.drops.is_none() {
            let [weights] = run(inputs, [weights], move |inputs| [weigh(inputs, true, rows).weights]);
            return (weights, None);
        }
        let [weights, dropped] = run(inputs, [weights.clone(), weights], move |inputs| {
            let Weighed { weights, dropped, .. } = weigh(inputs, true, rows);
            [weights, dropped.expect("some are dropped")]
        });
        (weights, Some(dropped))
    }

    /// Returns what the kernel of the weights reads: the scores of a chunk, the logarithms if they are known, the bounds
    /// and the keys of the dropout if there are any.
    fn scores(&self, chunk: &Chunk, logs: Option<FloatTensor<Cube>>) -> (Vec<FloatTensor<Cube>>, Rows) {
        let (query, key) = (chunk.of(&self.query), Cube::float_swap_dims(chunk.of(&self.key), 2, 3));
        // In f16, products that are scaled late may overflow.
        let (query, scale) = match query.dtype() {
            DType::F16 => (Cube::float_mul_scalar(query, self.scale.into()), 1.0),
            _ => (query, self.scale),
        };
        let scores = Cube::product(query, key);
        let [_, heads, length, _] = self.shape.dims();
        let drops = self.drops.as_ref().map(|drops| (drops.threshold, drops.factor, drops.columns_at));
        let bounded = self.bounds.is_some();
        let biases = self.bias.as_ref().map_or(0, |bias| bias.shape()[0]);
        let (rows_of_batch, first) = (heads * length, chunk.first);
        let rows = Rows { length, rows_of_batch, first, scale, bounded, drops, biases };
        let keys = self.drops.as_ref().map(|drops| drops.keys.clone());
        let inputs = std::iter::once(scores).chain(logs).chain(self.bounds.clone()).chain(keys);
        (inputs.chain(self.bias.clone()).collect(), rows)
    }

    /// Returns the gradient of the bias, given those of the scores of each chunk, in order. A bias that rows of the batch
    /// share has the sum of theirs.
    fn of_bias(&self, chunks: Vec<FloatTensor<Cube>>) -> FloatTensor<Cube> {
        let bias = self.bias.as_ref().expect("its gradient is wanted").shape();
        if bias[0] == self.shape[0] {
            return joined(chunks, &bias);
        }
        let mut heads: Vec<(usize, FloatTensor<Cube>)> = Vec::new();
        for (chunk, of_scores) in self.chunks().iter().zip(chunks) {
            let of_heads = Cube::float_sum_dim(of_scores, 0);
            match heads.iter_mut().find(|(first, _)| *first == chunk.heads.0) {
                Some((_, sum)) => *sum = Cube::float_add(sum.clone(), of_heads),
                None => heads.push((chunk.heads.0, of_heads)),
            }
        }
        joined(heads.into_iter().map(|(_, of_heads)| of_heads).collect(), &bias)
    }
}

/// The scores of a chunk, in bytes: 96 MiB, and few in tests. A single head may have more. A layer of GPT-2 on 8 x 1,024 tokens
/// has 2 chunks in half precision; each costs some ten launches.
const SCORES: usize = if cfg!(test) { 1 << 17 } else { 96 << 20 };

/// Some heads of some rows of the batch.
struct Chunk {
    /// The first row of the batch, and the one after the last.
    samples: (usize, usize),
    /// The first head of keys, and the one after the last.
    heads: (usize, usize),
    /// Whether these are all.
    whole: bool,
    /// The number of queries before them.
    first: usize,
}

impl Chunk {
    /// Returns this part of `[batch, key_heads, ..]`.
    fn of(&self, x: &FloatTensor<Cube>) -> FloatTensor<Cube> {
        if self.whole {
            return x.clone();
        }
        let range = |(first, end): (usize, usize)| Slice::new(first as isize, Some(end as isize), 1);
        Cube::float_slice(x.clone(), &[range(self.samples), range(self.heads)])
    }
}

/// Returns `x` as rows without gaps.
fn in_rows(x: FloatTensor<Cube>) -> FloatTensor<Cube> {
    let output = Spec::new(x.shape(), x.dtype());
    let [x] = run(vec![x], [output], |inputs| {
        let [x] = inputs.try_into().expect("one input");
        [contiguous(x)]
    });
    x
}

/// Joins what was computed of the chunks, and returns it in this shape.
fn joined(mut chunks: Vec<FloatTensor<Cube>>, shape: &Shape) -> FloatTensor<Cube> {
    let all = match chunks.len() {
        1 => chunks.remove(0),
        _ => {
            let flat = |chunk: FloatTensor<Cube>| {
                let elements = chunk.shape().num_elements();
                Cube::float_reshape(chunk, Shape::new([elements]))
            };
            Cube::float_cat(chunks.into_iter().map(flat).collect(), 0)
        }
    };
    Cube::float_reshape(all, shape.clone())
}
