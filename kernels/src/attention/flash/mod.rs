//! Attention on NVIDIA's GPUs in one kernel forward and two back, whose scores and weights never leave the registers (Dao,
//! 2023, arXiv:2307.08691).
//!
//! The kernels are written in CUDA C++, for the instructions of tensor cores that CubeCL's language has no words for, and
//! are compiled when they are first used, as CubeCL's are. They read queries, keys and values where they stand, such as
//! in a joint projection, and write the gradients where those of a joint projection stand. Sums, softmax and the
//! logarithms that the backward pass reads are in f32. No sum depends on the order of blocks, so that two runs give the
//! same bits.
//!
//! ```text
//! tile.cu        rows in shared memory, and products of tiles
//! of_queries.cu  what the kernels that own a block of queries have in common
//! forward.cu     the output, and the logarithm of each query's sum of powers
//! queries.cu     the gradient of the queries
//! keys.cu        the gradients of keys and values
//! ```

use burn::backend::ops::FloatTensorOps;
use burn::backend::tensor::FloatTensor;
use burn::backend::{Cube, TensorMetadata};
use burn::tensor::DType;
use burn_cubecl::tensor::CubeTensor;

use super::ops::{Gradients, Plan, Source};
use crate::cube::cuda::capability;
use crate::cube::{Spec, contiguous, cuda, empty, run, run_many};
use crate::off::Kernel;

/// The numbers of a head that the kernels are written for.
const SIZES: [usize; 4] = [32, 64, 96, 128];

/// The rows of a head that a block owns.
const ROWS: usize = 64;

/// Returns whether these kernels compute an attention: in bf16 or f16, of heads of 32, 64, 96 or 128 numbers, without a
/// bias and a dropout, on a device of compute capability 8.0 or above.
pub(super) fn computes(source: &Source<FloatTensor<Cube>>, plan: &Plan) -> bool {
    let (like, size) = match source {
        Source::Joint { joint, heads } => (joint, joint.shape()[2] / 3 / heads),
        Source::Apart { bias: Some(_), .. } => return false,
        Source::Apart { query, .. } => (query, query.shape()[3]),
    };
    let is_narrow = matches!(like.dtype(), DType::BF16 | DType::F16);
    let is_plain = plan.drops.is_none() && plan.scale > 0.0;
    is_narrow
        && is_plain
        && SIZES.contains(&size)
        && !Kernel::Flash.is_off()
        // The kernels copy while they compute.
        && capability(&like.device()).is_some_and(|capability| capability >= (8, 0))
}

/// Returns the output, `[batch, heads, length, size]`, and the logarithms of the sums of the scores' powers,
/// `[batch, heads, length]`. The output is stored as `[batch, length, heads, size]`, so that joining the heads copies
/// nothing.
pub(super) fn forward(
    source: Source<FloatTensor<Cube>>,
    plan: &Plan,
) -> (FloatTensor<Cube>, FloatTensor<Cube>) {
    let (shape, tensors) = Shape::of(source, plan);
    let Shape { batch, heads, length, size, dtype, .. } = shape;
    let outputs =
        [Spec::new([batch, length, heads, size], dtype), Spec::new([batch, heads, length], DType::F32)];
    let [output, logs] = run(tensors, outputs, move |tensors| {
        let (inputs, _) = shape.inputs(tensors);
        let output = empty(&inputs.tensors[0], [batch, length, heads, size], dtype);
        let logs = empty(&output, [batch, heads, length], DType::F32);
        let info = Info { output: TensorStrides::by_position(&output), ..shape.info(&inputs) };
        launch(shape.form(Pass::Forward), batch * heads, &inputs.tensors, &[&output, &logs], info);
        [output, logs]
    });
    (Cube::float_swap_dims(output, 1, 2), logs)
}

/// Returns the gradients, given what [`forward`] returned and the gradient of the output.
pub(super) fn gradients(
    source: Source<FloatTensor<Cube>>,
    plan: &Plan,
    kept: [FloatTensor<Cube>; 2],
    grad: FloatTensor<Cube>,
) -> Gradients<FloatTensor<Cube>> {
    let (shape, mut tensors) = Shape::of(source, plan);
    let Shape { batch, heads, key_heads, length, read, size, dtype, .. } = shape;
    tensors.extend(kept);
    tensors.push(grad);
    let shapes: &[_] = match shape.is_joint {
        true => &[[batch, length, 3, heads * size]],
        false => {
            &[[batch, length, heads, size], [batch, read, key_heads, size], [batch, read, key_heads, size]]
        }
    };
    let outputs = shapes.iter().map(|shape| Spec::new(*shape, dtype)).collect::<Vec<_>>();
    let found = run_many(tensors, outputs.clone(), move |tensors| {
        let (inputs, rest) = shape.inputs(tensors);
        let [output, logs, grad]: [CubeTensor; 3] = rest.try_into().expect("what was kept, and the gradient");
        let (output, logs, grad) = (in_pieces(output), contiguous(logs), in_pieces(grad));
        let found: Vec<_> = outputs.iter().map(|spec| empty(&grad, spec.shape.clone(), dtype)).collect();
        let places = match &found[..] {
            [joint] => [0, 1, 2].map(|part| TensorStrides::in_joint(joint, part, heads, size)),
            [query, key, value] => [query, key, value].map(TensorStrides::by_position),
            _ => unreachable!("the gradient of a joint projection, or of its parts"),
        };
        let [of_query, of_key, of_value] = places;
        let (last, first) = (&found[found.len() - 1], &found[0]);
        let of_keys = &found[found.len() / 2];
        let inner = empty(&logs, [batch, heads, length], DType::F32);
        let info = Info {
            output: TensorStrides::of(&output),
            grad: TensorStrides::of(&grad),
            of_query,
            of_key,
            of_value,
            ..shape.info(&inputs)
        };
        let mut reads = inputs.tensors.to_vec();
        reads.extend([output, logs.clone(), grad.clone()]);
        launch(shape.form(Pass::OfQueries), batch * heads, &reads, &[first, &inner], info);
        reads.splice(4.., [logs, inner, grad]);
        let info = Info { tiles: read.div_ceil(ROWS) as u64, ..info };
        launch(shape.form(Pass::OfKeys), batch * key_heads, &reads, &[of_keys, last], info);
        found
    });
    let by_head = |x: FloatTensor<Cube>| Some(Cube::float_swap_dims(x, 1, 2));
    match <[_; 3]>::try_from(found) {
        Ok([query, key, value]) => [by_head(query), by_head(key), by_head(value), None],
        Err(found) => {
            let whole = [batch, length, 3 * heads * size].into();
            [found.into_iter().next().map(|joint| Cube::float_reshape(joint, whole)), None, None, None]
        }
    }
}

/// What an attention computes.
#[derive(Clone, Copy)]
struct Shape {
    batch: usize,
    heads: usize,
    key_heads: usize,
    length: usize,
    read: usize,
    size: usize,
    dtype: DType,
    scale: f64,
    /// Whether queries, keys and values are one projection.
    is_joint: bool,
    /// Whether bounds say which keys a query reads: else those up to its own.
    is_bounded: bool,
}

/// The inputs where they stand.
struct Inputs {
    /// Queries, keys, values and bounds. A tensor that is missing is another one again.
    tensors: [CubeTensor; 4],
    places: [TensorStrides; 3],
    /// The rows of the bounds.
    masks: usize,
}

impl Shape {
    /// Also returns the inputs' tensors: the projection, or queries, keys and values; then the bounds, if there are any.
    fn of(source: Source<FloatTensor<Cube>>, plan: &Plan) -> (Self, Vec<FloatTensor<Cube>>) {
        let is_joint = matches!(source, Source::Joint { .. });
        let ([batch, heads, length, size], [key_heads, read], mut tensors) = match source {
            Source::Joint { joint, heads } => {
                let [batch, length, width] = joint.shape().dims();
                ([batch, heads, length, width / 3 / heads], [heads, length], vec![joint])
            }
            Source::Apart { query, key, value, .. } => {
                let [_, key_heads, read, _] = key.shape().dims();
                (query.shape().dims(), [key_heads, read], vec![query, key, value])
            }
        };
        let dtype = tensors[0].dtype();
        let bounds = plan.bounds.clone().map(|bounds| bounds.try_into_primitive::<Cube>());
        tensors.extend(bounds.map(|bounds| bounds.expect("they were sent to the inputs' device")));
        let is_bounded = plan.bounds.is_some();
        let scale = plan.scale;
        (Self { batch, heads, key_heads, length, read, size, dtype, scale, is_joint, is_bounded }, tensors)
    }

    /// Returns the inputs, and the tensors that come after them.
    fn inputs(&self, mut tensors: Vec<CubeTensor>) -> (Inputs, Vec<CubeTensor>) {
        let rest = tensors.split_off(if self.is_joint { 1 } else { 3 } + usize::from(self.is_bounded));
        let bounds = if self.is_bounded { tensors.pop().map(contiguous) } else { None };
        let masks = bounds.as_ref().map_or(1, |bounds| bounds.meta.num_elements() / 2 / self.length);
        let mut tensors = tensors.into_iter().map(in_pieces);
        let mut next = || tensors.next().expect("as many tensors as the form has");
        let (parts, places) = match self.is_joint {
            true => {
                let joint = next();
                let places =
                    [0, 1, 2].map(|part| TensorStrides::in_joint(&joint, part, self.heads, self.size));
                ([joint.clone(), joint.clone(), joint], places)
            }
            false => {
                let parts = [next(), next(), next()];
                let places = parts.each_ref().map(TensorStrides::of);
                (parts, places)
            }
        };
        let bounds = bounds.unwrap_or_else(|| parts[0].clone());
        let [query, key, value] = parts;
        (Inputs { tensors: [query, key, value, bounds], places, masks }, rest)
    }

    fn form(&self, pass: Pass) -> Form {
        Form { pass, is_f16: self.dtype == DType::F16, size: self.size, is_causal: !self.is_bounded }
    }

    /// Returns the parameters of a kernel whose blocks own queries, without the places of what it writes.
    fn info(&self, inputs: &Inputs) -> Info {
        let [query, key, value] = inputs.places;
        Info {
            query,
            key,
            value,
            heads: self.heads as u64,
            shared: (self.heads / self.key_heads) as u64,
            length: self.length as u64,
            read: self.read as u64,
            masks: inputs.masks as u64,
            tiles: self.length.div_ceil(ROWS) as u64,
            scale: self.scale,
            ..Info::default()
        }
    }
}

/// Returns `x` as rows that the kernels copy in pieces of 16 bytes.
fn in_pieces(x: CubeTensor) -> CubeTensor {
    const PIECE: usize = 8;
    let strides = x.meta.strides();
    let axes = strides.len();
    let is_run =
        strides[axes - 1] == 1 && strides[..axes - 1].iter().all(|stride| stride.is_multiple_of(PIECE));
    let is_aligned = x.handle.offset_start.unwrap_or(0).is_multiple_of(16);
    if is_run && is_aligned { x } else { contiguous(x) }
}

/// What a kernel computes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Pass {
    Forward,
    OfQueries,
    OfKeys,
}

/// What the text of a kernel depends on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Form {
    pub pass: Pass,
    pub is_f16: bool,
    /// The numbers of a head.
    pub size: usize,
    /// Whether each query reads the keys up to its own: else bounds say which.
    pub is_causal: bool,
}

impl cuda::Form for Form {
    const UNITS: u32 = 128;

    /// Such as `attention_forward_bf16_64_causal`.
    fn entrypoint(&self) -> String {
        let pass = match self.pass {
            Pass::Forward => "forward",
            Pass::OfQueries => "of_queries",
            Pass::OfKeys => "of_keys",
        };
        let dtype = if self.is_f16 { "f16" } else { "bf16" };
        let reads = if self.is_causal { "causal" } else { "ranges" };
        format!("attention_{pass}_{dtype}_{}_{reads}", self.size)
    }

    fn text(&self) -> String {
        let (header, dtype) = if self.is_f16 { ("fp16", "__half") } else { ("bf16", "__nv_bfloat16") };
        let parts: &[_] = match self.pass {
            Pass::Forward => &[include_str!("of_queries.cu"), include_str!("forward.cu")],
            Pass::OfQueries => &[include_str!("of_queries.cu"), include_str!("queries.cu")],
            Pass::OfKeys => &[include_str!("keys.cu")],
        };
        let [is_f16, is_causal] = [self.is_f16, self.is_causal].map(u8::from);
        format!(
            "#include <cuda_{header}.h>\n#define T {dtype}\n#define IS_F16 {is_f16}\n#define SIZE {}\n\
             #define CAUSAL {is_causal}\n\n{}\n{}",
            self.size,
            include_str!("tile.cu"),
            parts.join("\n").replace("KERNEL", &self.entrypoint()),
        )
    }
}

/// Where a tensor `[batch, heads, length, size]` has its first number, and the numbers from one row of the batch, head and
/// position to the next.
#[derive(Clone, Copy, Debug, Default)]
pub struct TensorStrides {
    first: u64,
    row: u64,
    head: u64,
    step: u64,
}

impl TensorStrides {
    /// Of a tensor `[batch, heads, length, size]`.
    pub fn of(x: &CubeTensor) -> Self {
        let [row, head, step] = [0, 1, 2].map(|axis| x.meta.strides()[axis] as u64);
        Self { first: 0, row, head, step }
    }

    /// Of a tensor that stands as `[batch, length, heads, size]`.
    pub fn by_position(x: &CubeTensor) -> Self {
        let [row, step, head] = [0, 1, 2].map(|axis| x.meta.strides()[axis] as u64);
        Self { first: 0, row, head, step }
    }

    /// Of a third of a joint projection, `[batch, length, ..]`.
    pub fn in_joint(joint: &CubeTensor, part: usize, heads: usize, size: usize) -> Self {
        let [row, step] = [0, 1].map(|axis| joint.meta.strides()[axis] as u64);
        Self { first: (part * heads * size) as u64, row, head: size as u64, step }
    }
}

/// The parameters of a kernel besides its tensors: `Info` in `tile.cu`, where numbers are counted in elements.
#[derive(Clone, Copy, Debug, Default)]
pub struct Info {
    pub query: TensorStrides,
    pub key: TensorStrides,
    pub value: TensorStrides,
    pub output: TensorStrides,
    pub grad: TensorStrides,
    pub of_query: TensorStrides,
    pub of_key: TensorStrides,
    pub of_value: TensorStrides,
    pub heads: u64,
    /// The heads of queries that share a head of keys.
    pub shared: u64,
    pub length: u64,
    pub read: u64,
    /// The rows of the bounds.
    pub masks: u64,
    /// The blocks of a head.
    pub tiles: u64,
    pub scale: f64,
}

impl Info {
    /// Returns it as it stands in memory.
    fn words(&self) -> Vec<u64> {
        let Self { query, key, value, output, grad, of_query, of_key, of_value, .. } = *self;
        let places = [query, key, value, output, grad, of_query, of_key, of_value];
        let Self { heads, shared, length, read, masks, tiles, scale, .. } = *self;
        let places = places.into_iter().flat_map(|place| [place.first, place.row, place.head, place.step]);
        places.chain([heads, shared, length, read, masks, tiles, scale.to_bits()]).collect()
    }
}

/// Launches a kernel for so many heads, of all rows of the batch.
pub fn launch(form: Form, heads: usize, reads: &[CubeTensor], writes: &[&CubeTensor], info: Info) {
    cuda::launch(form, heads * info.tiles as usize, reads, writes, info.words());
}
