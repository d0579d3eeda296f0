//! Attention to keys that come in parts, whose outputs are joined by the logarithms of their sums.

use std::f64::consts::LN_2;
use std::sync::Arc;

use burn::backend::Flex;
use burn::backend::flex::FlexTensor;
use burn::tensor::{DType, FloatDType, Tensor};

use super::ops::{Plan, Source, Tiled};
use super::{Attending, attends_in_tiles};
use crate::cast;

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
    /// The logarithms to the base 2 of the sums of each query, `[batch, heads, length, 1]`.
    logs: Tensor<4>,
}

/// The logarithm of a query that has read nothing so far: small beside any other, and finite.
const NOTHING: f32 = -1e30;

/// The queries of a row and head have places for a multiple of so many logarithms.
const LINE: usize = super::spans::LINE;

impl AttentionInParts {
    /// Prepares the attention of these queries, where the keys of each part have the given columns, in order. `None` if their device
    /// does not compute [tiles](crate::attends_in_tiles).
    ///
    /// # Panics
    ///
    /// If the rows are ragged, and as [`attention`](crate::attention()).
    pub fn of(query: &Tensor<4>, how: Attending, columns: &[Arc<[usize]>]) -> Option<Self> {
        let (device, batch) = (query.device(), query.dims()[0]);
        if !attends_in_tiles(&device, FloatDType::from(query.dtype())) {
            return None;
        }
        let plan = |columns: &Arc<[usize]>| {
            let reads = how.reads.of_keys(columns.clone());
            Attending { reads: &reads, ..how }.plan(batch, &device)
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
        let [query, key, value] = [query.clone(), key, value].map(primitive);
        let (output, logs) = Flex::tiled(Source::Apart { query, key, value, bias: None }, plan);
        let logs = Tensor::<1>::from_primitive::<Flex>(logs);
        let logs = logs.reshape([batch, heads, length.next_multiple_of(LINE), 1]).narrow(2, 0, length);
        let logs = match plan.reads.empty(&logs.device()) {
            Some(empty) => logs.mask_fill(empty, NOTHING),
            None => logs,
        };
        let output = cast(Tensor::<4>::from_primitive::<Flex>(output), FloatDType::F32);
        let one = AttentionSoFar { output, logs };
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
        let missing = length.next_multiple_of(LINE) - length;
        let logs = match missing {
            0 => all.logs.clone(),
            _ => {
                let rest = Tensor::zeros([batch, heads, missing, 1], (&all.logs.device(), DType::F32));
                Tensor::cat(vec![all.logs.clone(), rest], 2)
            }
        };
        let [query, key, value, output, grad] =
            [query.clone(), key, value, output.clone(), grad].map(primitive);
        let kept = [output, primitive(logs).to_contiguous()];
        let source = Source::Apart { query, key, value, bias: None };
        let wanted = [true, true, true, false];
        let [query, key, value, _] = Flex::tiled_gradients(source, &self.0[part], kept, grad, wanted);
        [query, key, value].map(|x| Tensor::from_primitive::<Flex>(x.expect("all three are wanted")))
    }
}

impl AttentionSoFar {
    fn and(self, other: Self) -> Self {
        let most = self.logs.clone().max_pair(other.logs.clone());
        let weight = |logs: Tensor<4>| ((logs - most.clone()) * LN_2).exp();
        let [own, others] = [self.logs, other.logs].map(weight);
        let sum = own.clone() + others.clone();
        let output = (self.output * own + other.output * others) / sum.clone();
        Self { output, logs: most + sum.log() / LN_2 }
    }

    /// Returns the output in the dtype of a tensor.
    pub fn output(&self, like: &Tensor<4>) -> Tensor<4> {
        cast(self.output.clone(), FloatDType::from(like.dtype()))
    }
}

/// Returns a tensor of the CPU.
fn primitive(x: Tensor<4>) -> FlexTensor {
    x.try_into_primitive::<Flex>().expect("tiles are computed on Flex")
}
