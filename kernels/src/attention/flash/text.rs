//! The texts of the kernels, and what they are given.

use burn_cubecl::tensor::CubeTensor;

use crate::cube::cuda;

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
