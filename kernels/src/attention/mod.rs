//! Scaled dot-product attention whose scores never exist as a whole on the CPU.
//!
//! Flex computes tiles of 64 queries and 64 keys on all cores, forward and backward, and skips tiles that no query
//! reads (Dao, 2023, arXiv:2307.08691). Products, softmax and dropout of a tile stay in the caches; sums are in f32 in
//! every dtype. On NVIDIA's GPUs, kernels in CUDA C++ do the same in bf16 and f16. On other GPUs, the scores of some heads of
//! one attention exist at a time: the backward pass computes them again. Other attentions, such as those in f64, are
//! composed of Burn's operations.
//!
//! ```text
//! reads.rs     the range of keys that each query reads
//! spans.rs     where rows stand, and their blocks
//! ops.rs       attention as operations of a backend, with its gradient
//! parts.rs     attention to keys that come in parts
//! flash/       attention on NVIDIA's GPUs, in tiles of half precision
//! cube.rs      attention on a device, between products
//! cube_rows.rs rows of scores on a device, and their dropped weights
//! cube_joint.rs the thirds of a joint projection on a device
//! flex.rs      blocks of queries on all cores
//! block.rs     a block of queries, the tiles that it reads, widened to f32, and the memory of a task
//! forward.rs   the output of a block
//! gradient.rs  the gradients of blocks, and how they are shared out among tasks
//! product.rs   products of small matrices in vector registers
//! scores.rs    softmax and its gradient on a tile, in vectors
//! drops.rs     the dropped weights of a tile
//! rows.rs      rows of a buffer that several tasks write
//! ```

mod block;
#[cfg(feature = "cube")]
mod cube;
#[cfg(feature = "cube")]
mod cube_joint;
#[cfg(feature = "cube")]
mod cube_rows;
mod drops;
#[cfg(feature = "cuda")]
mod flash;
mod flex;
mod forward;
mod gradient;
mod ops;
mod parts;
mod product;
mod reads;
mod rows;
mod scores;
mod spans;
#[cfg(test)]
mod tests;

use burn::backend::Dispatch;
use burn::tensor::{Device, FloatDType, Int, Tensor, activation};

use self::drops::Drops;
use self::ops::{AttentionOps, Plan};
#[cfg(feature = "cube")]
use crate::device::is_cube;
use crate::device::is_flex;
use crate::dropout::dropout_along;
use crate::off::Kernel;
use crate::{Ragged, Samples, Site, cast, matmul};

pub use parts::{AttentionInParts, AttentionSoFar};
pub use reads::Reads;

/// What an [`attention`] computes, apart from its tensors.
#[derive(Clone, Copy, Debug)]
pub struct Attending<'a> {
    /// The keys that each query reads.
    pub reads: &'a Reads,
    /// The factor of the products of queries and keys: 1 / √size in most models.
    pub scale: f64,
    /// Bounds the scores, bias included, by `cap · tanh(score / cap)` (Gemma Team, 2024, arXiv:2408.00118, section 2).
    pub cap: Option<f64>,
    /// The probability of dropping a weight, and the site of its mask, which is the one that
    /// [`dropout`](crate::dropout()) draws for weights `[batch, heads, length, read]` with positions along axes 2 and 3.
    pub dropout: Option<(f64, Site<'a>)>,
}

impl Attending<'_> {
    fn plan(&self, batch: usize, device: &Device) -> Plan {
        #[cfg(not(feature = "cube"))]
        let _ = device;
        let drops = self.dropout.and_then(|(prob, site)| Drops::new(prob, site, self.reads, batch));
        Plan {
            reads: self.reads.clone(),
            scale: self.scale,
            cap: self.cap,
            #[cfg(feature = "cube")]
            is_part: false,
            #[cfg(feature = "cube")]
            drop_keys: drops.as_ref().filter(|_| is_cube(device)).map(|drops| drops.on_device(device)),
            drops: drops.map(Into::into),
            #[cfg(feature = "cube")]
            bounds: self.reads.bounds(device),
        }
    }
}

/// Computes `softmax(scale · query · keyᵀ + bias) · value` of the keys that each query reads (Vaswani et al., 2017,
/// arXiv:1706.03762), of shape `[batch, heads, length, size]`. A query that reads nothing gives zeros.
///
/// - `query` is `[batch, heads, length, size]`.
/// - `key` and `value` are `[batch, key_heads, read, size]`; consecutive query heads share a key head (Ainslie et al.,
///   2023, arXiv:2305.13245).
/// - `bias` is `[1 or batch, heads, length, read]`, of any float dtype, and is added in f32.
///
/// If the rows are [ragged](Reads::ragged), `length` and `read` are their totals, `batch` is 1, and each row computes
/// what it computes alone. A bias is that of rows padded to the longest, `[1 or rows, heads, longest, longest read]`,
/// and a dropout drops what it drops from such rows.
///
/// On Flex, in f32, bf16 and f16, inputs with a contiguous last axis are read where they stand, such as the views of
/// split heads. The output is stored as `[batch, length, heads, size]`, so that joining the heads copies nothing. The
/// backward pass keeps the inputs, the output, and 4 bytes per head and query (rounded up to 64 queries); it computes
/// weights again, and only the gradients of inputs that are tracked. Results are the same on any number of threads, but
/// may differ in rounding between processors with different vectors. Where a key or value that a query does not read
/// isn't finite, its output and gradients are unspecified.
///
/// On NVIDIA's GPUs of compute capability 8.0 and above, in bf16 and f16, heads of 32, 64, 96 and 128 numbers without a bias
/// and a dropout are computed in tiles too: one kernel forward and two back, in which scores and weights never leave the
/// registers. They read inputs whose last axis is contiguous and whose other strides are multiples of 8 where they stand, and
/// store the output as `[batch, length, heads, size]`. Tiles of keys that no query of a tile reads cost nothing.
///
/// On other GPUs, and for other sizes, in f32, with a bias or a dropout, scores exist for some heads at a time: 96 MiB, or
/// one head if that is more. Either way the backward pass keeps the inputs, the output and 4 bytes per head and query, with a
/// dropout 16 bytes per row besides, and computes weights again. Ragged rows are padded. Capped scores are composed of
/// Burn's operations.
///
/// In every other case the backward pass keeps what Burn's operations keep: several tensors
/// `[batch, heads, length, read]`. [`attends_in_tiles`] tells where rows cost no padding.
///
/// ```
/// use burn::tensor::{Device, Distribution, Tensor};
/// use firebrick_kernels::{Attending, Reads, attention};
///
/// let device = Device::flex().autodiff();
/// let x = || Tensor::<4>::random([2, 4, 10, 16], Distribution::Default, &device).require_grad();
/// let (query, key, value) = (x(), x(), x());
/// let reads = Reads::causal(10);
/// let how = Attending { reads: &reads, scale: 0.25, cap: None, dropout: None };
/// let y = attention(query, key, value.clone(), None, how);
/// // The first query reads the first key only.
/// let first = |x: Tensor<4>| x.narrow(2, 0, 1).into_data();
/// first(y.clone()).assert_approx_eq::<f32>(&first(value.clone()), Default::default());
/// let gradient = value.grad(&y.sum().backward()).unwrap();
/// assert_eq!(gradient.dims(), [2, 4, 10, 16]);
/// ```
///
/// # Panics
///
/// If shapes or dtypes do not fit each other or the [`Reads`], if the dropout's site has starts for fewer rows than the
/// batch, or if the rows are ragged and the site's are not the same.
pub fn attention(
    query: Tensor<4>,
    key: Tensor<4>,
    value: Tensor<4>,
    bias: Option<Tensor<4>>,
    how: Attending,
) -> Tensor<4> {
    let shapes @ [[batch, heads, length, size], [_, key_heads, read, _], _] =
        [query.dims(), key.dims(), value.dims()];
    let fits = shapes[1] == [batch, key_heads, read, size] && shapes[2] == shapes[1];
    assert!(
        fits && key_heads > 0 && heads.is_multiple_of(key_heads),
        "attention: key and value must be [batch, key_heads, read, size] for a query of {:?}, where heads is a \
         multiple of key_heads; found {:?} and {:?}",
        shapes[0],
        shapes[1],
        shapes[2],
    );
    let dtypes = [query.dtype(), key.dtype(), value.dtype()];
    assert!(
        dtypes == [dtypes[0]; 3],
        "attention: query, key and value must have one dtype, found {dtypes:?}"
    );
    check_reads(how.reads, [batch, length, read]);
    if let Some(bias) = &bias {
        let rows = how.reads.ragged_rows().map_or(batch, |[rows, _]| rows.len());
        let ([length, read], found) = (how.reads.longest(), bias.dims());
        assert!(
            found == [found[0], heads, length, read] && (found[0] == 1 || found[0] == rows),
            "attention: bias must be [1 or {rows}, {heads}, {length}, {read}], found {found:?}"
        );
    }
    let is_empty = shapes.iter().any(|shape| shape.contains(&0));
    if is_empty || !has_kernels(&query.device(), dtypes[0].into(), &how) {
        return composed(query, key, value, bias, how);
    }
    let plan = how.plan(batch, &query.device());
    let [query, key, value] = [query, key, value].map(Tensor::into_dispatch);
    Tensor::from_dispatch(match bias {
        None => <Dispatch as AttentionOps>::attention(query, key, value, plan),
        Some(bias) => {
            let bias = cast(bias, FloatDType::F32).into_dispatch();
            <Dispatch as AttentionOps>::attention_biased(query, key, value, bias, plan)
        }
    })
}

/// Like [`attention`] of queries, keys and values that one linear layer projects: they are the thirds of `joint`,
/// `[batch, length, 3 * width]`, and each is split into `heads` of `width / heads`. Returns
/// `[batch, heads, length, width / heads]`.
///
/// On Flex, it reads the thirds where they stand and writes one gradient. The backward pass keeps `joint` and what
/// [`attention`] keeps of the output.
///
/// ```
/// use burn::tensor::{Device, Tensor};
/// use firebrick_kernels::{Attending, Reads, attention_of_joint};
///
/// let joint = Tensor::<3>::ones([2, 10, 3 * 64], &Device::flex());
/// let reads = Reads::causal(10);
/// let y = attention_of_joint(joint, 4, Attending { reads: &reads, scale: 0.25, cap: None, dropout: None });
/// assert_eq!(y.dims(), [2, 4, 10, 16]);
/// ```
///
/// # Panics
///
/// If the last axis isn't three times a multiple of `heads`, and as [`attention`].
pub fn attention_of_joint(joint: Tensor<3>, heads: usize, how: Attending) -> Tensor<4> {
    let [batch, length, width] = joint.dims();
    assert!(
        heads > 0 && width.is_multiple_of(3 * heads),
        "attention: a joint projection to {heads} heads must be 3 · {heads} · size wide, found {width}"
    );
    check_reads(how.reads, [batch, length, length]);
    let is_one = how.reads.ragged_rows().is_none_or(|[queries, keys]| queries == keys);
    assert!(is_one, "attention: queries and keys of a joint projection have the same rows");
    if joint.dims().contains(&0) || !has_kernels(&joint.device(), joint.dtype().into(), &how) {
        let [query, key, value] = [0, 1, 2].map(|part| {
            let part = joint.clone().narrow(2, part * width / 3, width / 3);
            part.reshape([batch, length, heads, width / 3 / heads]).swap_dims(1, 2)
        });
        return composed(query, key, value, None, how);
    }
    let plan = how.plan(batch, &joint.device());
    Tensor::from_dispatch(<Dispatch as AttentionOps>::attention_of_joint(joint.into_dispatch(), heads, plan))
}

/// Returns whether [`attention`] computes tiles, which cost [ragged](Reads::ragged) rows no padding: on Flex, in f32, bf16
/// and f16.
pub fn attends_in_tiles(device: &Device, dtype: FloatDType) -> bool {
    let narrow = matches!(dtype, FloatDType::F32 | FloatDType::BF16 | FloatDType::F16);
    is_flex(device) && narrow && !Kernel::Attention.is_off()
}

/// Returns whether an attention is an operation of ours, rather than composed of Burn's.
fn has_kernels(device: &Device, dtype: FloatDType, how: &Attending) -> bool {
    #[cfg(feature = "cube")]
    if cube::computes(device, dtype.into(), how) {
        return true;
    }
    let _ = how;
    attends_in_tiles(device, dtype)
}

fn check_reads(reads: &Reads, [batch, length, read]: [usize; 3]) {
    let [rows, queries, keys] = reads.shape();
    let fits = if reads.ragged_rows().is_some() { batch == 1 } else { rows == 1 || rows == batch };
    assert!(
        fits && [queries, keys] == [length, read],
        "attention: {length} queries of {read} keys in {batch} rows were given {reads:?}"
    );
}

/// Computes scores and weights as tensors `[batch, heads, length, read]`.
pub fn composed(
    query: Tensor<4>,
    key: Tensor<4>,
    value: Tensor<4>,
    bias: Option<Tensor<4>>,
    how: Attending,
) -> Tensor<4> {
    let ([batch, heads, _, size], [_, key_heads, read, _]) = (query.dims(), key.dims());
    if query.dims().contains(&0) || read == 0 {
        return query * 0.0;
    }
    if let Some([queries, keys]) = how.reads.ragged_rows() {
        return of_ragged([query, key, value], bias, how, [queries, keys]);
    }
    let dtype = FloatDType::from(query.dtype());
    // Softmax is computed in f32, since its sum runs over the whole row.
    let wide = if dtype == FloatDType::F64 { dtype } else { FloatDType::F32 };
    let [key, value] = [key, value].map(|x| match heads / key_heads {
        1 => x,
        group => {
            let shared = x.unsqueeze_dim::<5>(2).expand([batch, key_heads, group, read, size]);
            shared.reshape([batch, heads, read, size])
        }
    });
    let query = if how.scale == 1.0 { query } else { query * how.scale };
    let scores = cast(matmul(query, key.transpose()), wide);
    let scores = match bias {
        Some(bias) => scores + cast(bias, wide),
        None => scores,
    };
    let scores = match how.cap {
        Some(cap) => (scores / cap).tanh() * cap,
        None => scores,
    };
    let masked = how.reads.masked(&scores.device());
    let weights = activation::softmax(scores.mask_fill(masked.clone(), f32::NEG_INFINITY), 3);
    // Softmax is undefined for a query that reads nothing.
    let weights = if how.reads.has_empty() { weights.mask_fill(masked, 0.0) } else { weights };
    let weights = cast(weights, dtype);
    let weights = match how.dropout {
        Some((prob, site)) => {
            let starts = how.reads.key_starts(batch).map(|starts| Samples::Starting(starts.into()));
            let of_keys = starts.unwrap_or_else(|| site.samples.of_keys());
            dropout_along(weights, prob, &[(2, site.samples), (3, &of_keys)], site)
        }
        None => weights,
    };
    matmul(weights, value)
}

/// Pads ragged rows to the longest, computes their attention where a kernel can, and selects the outputs of what isn't
/// padding.
fn of_ragged(
    [query, key, value]: [Tensor<4>; 3],
    bias: Option<Tensor<4>>,
    how: Attending,
    [queries, keys]: [&Ragged; 2],
) -> Tensor<4> {
    let device = query.device();
    let select = |x: Tensor<4>, places: Vec<i64>, [rows, positions]: [usize; 2]| -> Tensor<4> {
        let [_, heads, _, size] = x.dims();
        let places = Tensor::<1, Int>::from_data(places.as_slice(), &device);
        let x = x.swap_dims(0, 1).select(2, places); // [heads, 1, rows * positions, size]
        x.reshape([heads, rows, positions, size]).swap_dims(0, 1)
    };
    let padded = |x: Tensor<4>, rows: &Ragged| {
        // Padding repeats any position, since nothing reads it.
        let places = |row| (0..rows.longest()).map(move |at| if at < rows.row(row).len() { at } else { 0 });
        let places = |row| places(row).map(move |at| (rows.row(row).start + at).min(rows.total() - 1) as i64);
        select(x, (0..rows.len()).flat_map(places).collect(), [rows.len(), rows.longest()])
    };
    let reads = how.reads.padded();
    let dropout = how.dropout.map(|(prob, site)| (prob, Site { samples: &Samples::Columns, ..site }));
    let how = Attending { reads: &reads, dropout, ..how };
    let y = attention(padded(query, queries), padded(key, keys), padded(value, keys), bias, how);
    let [rows, heads, longest, size] = y.dims();
    let y = y.swap_dims(0, 1).reshape([1, heads, rows * longest, size]);
    let real = |row| queries.row(row).enumerate().map(move |(at, _)| (row * longest + at) as i64);
    select(y, (0..rows).flat_map(real).collect(), [1, queries.total()])
}
