//! Attention to keys that come in parts, whose outputs are joined by the logarithms of their sums.

use std::sync::Arc;

#[cfg(feature = "cube")]
use burn::backend::Cube;
use burn::backend::Flex;
use burn::backend::ops::FloatTensorOps;
use burn::tensor::{DType, FloatDType, Shape, Tensor};

use super::ops::{Plan, Source, Tiled};
use super::{Attending, has_kernels};
use crate::cast;
#[cfg(feature = "cube")]
use crate::device::is_cube;

/// Computes this with `$backend` as the name of the backend of a tensor.
macro_rules! on_backend_of {
    ($tensor:expr, $backend:ident => $found:expr) => {{
        #[cfg(feature = "cube")]
        let found = if is_cube(&$tensor.device()) {
            type $backend = Cube;
            $found
        } else {
            type $backend = Flex;
            $found
        };
        #[cfg(not(feature = "cube"))]
        let found = {
            type $backend = Flex;
            $found
        };
        found
    }};
}

/// An [`attention`](crate::attention()) to keys and values that come in parts, in any order: those of each of several ranks
/// (Liu et al., 2023, arXiv:2310.01889), where no rank has the keys of all.
///
/// Each part gives an output and the logarithms of the sums of its queries, and these tell how two outputs are weighted to be that
/// of both (Dao, 2023, arXiv:2307.08691, section 2.3.1). The gradients of a part read the output and the logarithms of all.
/// Queries are `[batch, heads, length, size]`, and a part's keys and values `[batch, key heads, read, size]`, in f32, bf16 or f16, all
/// outside autodiff.
///
/// ```
/// use burn::tensor::{Device, Distribution, Tensor, Tolerance};
/// use firebrick_kernels::{Attending, AttentionInParts, Reads, attention};
///
/// let device = Device::flex();
/// let x = || Tensor::<4>::random([2, 4, 10, 16], Distribution::Default, &device);
/// let (query, key, value) = (x(), x(), x());
/// let reads = Reads::causal(10);
/// let how = Attending { reads: &reads, scale: 0.25, cap: None, dropout: None };
/// let whole = attention(query.clone(), key.clone(), value.clone(), None, how);
///
/// let parts = [0..6, 6..10];
/// let columns = parts.clone().map(|part| part.collect());
/// let attention = AttentionInParts::of(&query, how, &columns).expect("the CPU computes tiles");
/// let part = |part: std::ops::Range<usize>| [&key, &value].map(|x| x.clone().narrow(2, part.start, part.len()));
/// let first = attention.join(0, &query, part(parts[0].clone()), None);
/// let both = attention.join(1, &query, part(parts[1].clone()), Some(first));
/// both.output(&query).into_data().assert_approx_eq::<f32>(&whole.into_data(), Tolerance::default());
/// ```
#[derive(Clone, Debug)]
pub struct AttentionInParts(Vec<Plan>);

/// The output of the parts so far.
#[derive(Clone, Debug)]
pub struct AttentionSoFar {
    /// `[batch, heads, length, size]`, in f32.
    output: Tensor<4>,
    /// The logarithms of the sums of each query, `[batch, heads, length, 1]`.
    logs: Tensor<4>,
    /// The natural logarithm of their base.
    ln_base: f64,
}

/// The logarithm of a query that has read nothing so far: small beside any other, and finite.
const NOTHING: f32 = -1e30;

const ONE_DEVICE: &str = "keys, values and queries are on one device, outside autodiff";

impl AttentionInParts {
    /// Prepares the attention of these queries, where the keys of each part have the given columns, in order. `None` if
    /// [`attention`](crate::attention()) is composed of Burn's operations there.
    ///
    /// # Panics
    ///
    /// If the rows are ragged, and as [`attention`](crate::attention()).
    pub fn of(query: &Tensor<4>, how: Attending, columns: &[Arc<[usize]>]) -> Option<Self> {
        let (device, batch) = (query.device(), query.dims()[0]);
        if !has_kernels(&device, FloatDType::from(query.dtype()), &how) {
            return None;
        }
        let plan = |columns: &Arc<[usize]>| {
            let reads = how.reads.of_keys(columns.clone());
            let plan = Attending { reads: &reads, ..how }.plan(batch, &device);
            #[cfg(feature = "cube")]
            let plan = Plan { is_part: true, ..plan };
            plan
        };
        Some(Self(columns.iter().map(plan).collect()))
    }

    /// Returns the output of the parts so far and of another one, given its keys and values.
    ///
    /// # Panics
    ///
    /// If there is no such part, or a tensor is on another device than the queries were.
    pub fn join(
        &self,
        part: usize,
        query: &Tensor<4>,
        [key, value]: [Tensor<4>; 2],
        so_far: Option<AttentionSoFar>,
    ) -> AttentionSoFar {
        let (plan, [batch, heads, length, _]) = (&self.0[part], query.dims());
        let (output, logs, ln_base) = on_backend_of!(query, B => {
            let primitive = |x: Tensor<4>| x.try_into_primitive::<B>().expect(ONE_DEVICE);
            let [query, key, value] = [query.clone(), key, value].map(primitive);
            let (output, logs) = B::tiled(Source::Apart { query, key, value, bias: None }, plan);
            let places = Shape::new([batch, heads, length.next_multiple_of(B::LINE), 1]);
            let logs = Tensor::<4>::from_primitive::<B>(B::float_reshape(logs, places));
            (Tensor::<4>::from_primitive::<B>(output), logs.narrow(2, 0, length), B::LN_BASE)
        });
        let logs = match plan.reads.empty(&logs.device()) {
            Some(empty) => logs.mask_fill(empty, NOTHING),
            None => logs,
        };
        let one = AttentionSoFar { output: cast(output, FloatDType::F32), logs, ln_base };
        match so_far {
            Some(so_far) => so_far.and(one),
            None => one,
        }
    }

    /// Returns the gradients of the queries, of a part's keys and of its values, in their dtype and shapes. `output` and `all` are those
    /// of all parts together, and `grad` is the gradient of the output. The gradient of the queries is the sum over the parts.
    ///
    /// # Panics
    ///
    /// The same as [`join`](Self::join).
    pub fn gradients(
        &self,
        part: usize,
        query: &Tensor<4>,
        [key, value]: [Tensor<4>; 2],
        (output, all): (&Tensor<4>, &AttentionSoFar),
        grad: Tensor<4>,
    ) -> [Tensor<4>; 3] {
        let [batch, heads, length, _] = query.dims();
        on_backend_of!(query, B => {
            let logs = match length.next_multiple_of(B::LINE) - length {
                0 => all.logs.clone(),
                missing => {
                    let rest = Tensor::zeros([batch, heads, missing, 1], (&all.logs.device(), DType::F32));
                    Tensor::cat(vec![all.logs.clone(), rest], 2)
                }
            };
            let primitive = |x: Tensor<4>| x.try_into_primitive::<B>().expect(ONE_DEVICE);
            let [query, key, value, output, logs, grad] =
                [query.clone(), key, value, output.clone(), logs, grad].map(primitive);
            let source = Source::Apart { query, key, value, bias: None };
            let wanted = [true, true, true, false];
            let [query, key, value, _] = B::tiled_gradients(source, &self.0[part], [output, logs], grad, wanted);
            [query, key, value].map(|x| Tensor::from_primitive::<B>(x.expect("all three are wanted")))
        })
    }
}

impl AttentionSoFar {
    fn and(self, other: Self) -> Self {
        let most = self.logs.clone().max_pair(other.logs.clone());
        let weight = |logs: Tensor<4>| ((logs - most.clone()) * self.ln_base).exp();
        let [own, others] = [self.logs, other.logs].map(weight);
        let sum = own.clone() + others.clone();
        let output = (self.output * own + other.output * others) / sum.clone();
        Self { output, logs: most + sum.log() / self.ln_base, ln_base: self.ln_base }
    }

    /// Returns the output in the dtype of a tensor.
    pub fn output(&self, like: &Tensor<4>) -> Tensor<4> {
        cast(self.output.clone(), FloatDType::from(like.dtype()))
    }
}
