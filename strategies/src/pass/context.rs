//! The tokens of a batch among the ranks of a context axis: see [`Mesh`](crate::Mesh).

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use burn::tensor::{FloatDType, Tensor};
use firebrick_kernels::{Attending, AttentionInParts, Samples, attention, cast};
use firebrick_world::{Communicator, WorldError};

use super::ring::RingAttention;
use super::segment::graft;
use super::{Pass, SegmentPlan};

/// The columns of each row that a rank of a context axis computes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ContextColumns {
    /// Those of this rank, in order: as many as on each other rank.
    pub own: Arc<[usize]>,
    /// The number of columns over all ranks, a multiple of twice their number. If the batch has fewer, the model pads its rows.
    pub all: usize,
}

impl Pass {
    /// Returns the columns that this rank computes of rows `[batch, columns]`, if several ranks share the tokens of a batch.
    ///
    /// A model that divides its tokens sums the loss of these columns alone, and returns the items of the whole batch beside
    /// it. It calls [`selecting`](Self::selecting) for the pass of its layers, and [`attention`](Self::attention) or
    /// [`of_all_columns`](Self::of_all_columns) for what tokens read of one another. What an evaluation counts of the whole batch, it counts where
    /// [`counts_batch`](Self::counts_batch) alone.
    ///
    /// ```
    /// use burn::tensor::{Device, Tensor};
    /// use firebrick_strategies::{Composition, Mesh, Pass, Setup, World};
    ///
    /// assert!(Pass::train(&Device::flex()).context_columns(8).is_none());
    ///
    /// let ranks = World::threads(2).join()?.into_iter().map(|world| {
    ///     std::thread::spawn(move || {
    ///         let (model, device) = (Vec::<burn::nn::Linear>::new(), Device::flex().autodiff());
    ///         let mut setup = Setup::new(&model, &device).among(world);
    ///         Mesh::new().context(2).start(&mut setup).unwrap();
    ///         let pass = setup.into_pass();
    ///         // Two of four chunks of a row of eight tokens, which starts in column 0.
    ///         let columns = pass.context_columns(8).unwrap();
    ///         let pass = pass.selecting(&columns, vec![0]);
    ///         let own: Vec<f32> = columns.own.iter().map(|column| *column as f32).collect();
    ///         let keys = Tensor::<1>::from_data(&own[..], &device).reshape([1, 4, 1]).require_grad();
    ///         let all = pass.of_all_columns(keys.clone());
    ///         // Both ranks read all keys, so that each key has the gradients of both.
    ///         let grads = all.clone().sum().backward();
    ///         let gradient = keys.grad(&grads).unwrap();
    ///         (columns.own, all.into_data(), gradient.into_data())
    ///     })
    /// });
    /// let found: Vec<_> = ranks.collect::<Vec<_>>().into_iter().map(|rank| rank.join().unwrap()).collect();
    /// assert_eq!([&*found[0].0, &*found[1].0], [[0, 1, 6, 7], [2, 3, 4, 5]]);
    /// for (_, all, gradient) in found {
    ///     assert_eq!(all.as_slice::<f32>().unwrap(), [0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0]);
    ///     assert_eq!(gradient.as_slice::<f32>().unwrap(), [2.0; 4]);
    /// }
    /// # Ok::<(), firebrick_strategies::WorldError>(())
    /// ```
    pub fn context_columns(&self, columns: usize) -> Option<ContextColumns> {
        self.divided.store(true, Relaxed);
        let ranks = self.plan.context()?;
        let length = columns.div_ceil(2 * ranks.size());
        let own = chunks_of(ranks.rank(), ranks.size()).into_iter().flat_map(|chunk| part(chunk, length));
        Some(ContextColumns { own: own.collect(), all: 2 * ranks.size() * length })
    }

    /// Creates the pass of layers that compute these columns of rows in which a sample starts at the given column. Random
    /// numbers are those of the whole rows.
    pub fn selecting(&self, columns: &ContextColumns, starts: Vec<usize>) -> Self {
        let samples = Samples::Selected { columns: columns.own.clone(), starts: starts.into() };
        Self { samples, ..self.clone() }
    }

    /// Computes the [`attention`] of the queries that the pass [selects](Self::selecting), `[batch, heads, columns, size]`, to the keys
    /// and values of all ranks, given those of this one, `[batch, key heads, columns, size]`. `how.reads` has the keys of all columns.
    /// All ranks that share a batch call it together, forward and backward. In a pass that selects none, it is [`attention`].
    ///
    /// Keys and values go around in a ring: each rank computes its part of the output with those that it has, hands
    /// them to the next rank, and joins the parts by the logarithms of their sums (Liu et al., 2023, arXiv:2310.01889). In the
    /// backward pass they go around again, with their gradients. With a bias, and where [`attention`] is composed of Burn's
    /// operations, each rank gathers all keys and values (Llama Team, 2024, arXiv:2407.21783, section 3.3.2).
    ///
    /// If another rank is gone, it returns zeros, and [`check`](Self::check) the error.
    ///
    /// # Panics
    ///
    /// As [`attention`], and [`of_all_columns`](Self::of_all_columns).
    pub fn attention(
        &self,
        [query, key, value]: [Tensor<4>; 3],
        bias: Option<Tensor<4>>,
        how: Attending,
    ) -> Tensor<4> {
        let (Some(ranks), Samples::Selected { columns, .. }) = (self.plan.context(), &self.samples) else {
            return attention(query, key, value, bias, how);
        };
        if bias.is_none() {
            let length = columns.len() / 2;
            let of_rank = |rank| chunks_of(rank, ranks.size()).map(|chunk| part(chunk, length));
            let columns = (0..ranks.size()).map(|rank| of_rank(rank).into_iter().flatten().collect());
            if let Some(parts) = AttentionInParts::of(&query, how, &columns.collect::<Vec<_>>()) {
                return self.ring_attention([query, key, value], parts, ranks);
            }
        }
        self.gathered_attention([query, key, value], bias, how)
    }

    /// Computes it with keys and values that go around.
    fn ring_attention(
        &self,
        [query, key, value]: [Tensor<4>; 3],
        parts: AttentionInParts,
        ranks: &Communicator,
    ) -> Tensor<4> {
        let (shape, key_heads) = (query.dims(), key.dims()[1]);
        // One tensor, since a graft has one input.
        let joint = Tensor::cat(vec![query, key, value], 1);
        let attention = RingAttention::of(ranks.clone(), parts, joint.clone().inner(), key_heads);
        let all = match attention.forward() {
            Ok(all) => all,
            Err(error) => return lost(&self.plan, error, shape, &joint),
        };
        let output = all.output(&joint);
        let Some(strategy) = joint.device().gradient_checkpointing_strategy() else { return output };
        let value = Tensor::from_inner(output.clone()).with_gradient_checkpointing_strategy(strategy);
        let (plan, whole) = (self.plan.clone(), joint.dims());
        graft(joint, value, move |grad: Tensor<4>| match attention.backward(&output, &all, &grad) {
            Ok(gradients) => cast(Tensor::cat(gradients.to_vec(), 1), FloatDType::from(grad.dtype())),
            Err(error) => lost(&plan, error, whole, &grad),
        })
    }

    /// Computes it with gathered keys and values.
    fn gathered_attention(
        &self,
        [query, key, value]: [Tensor<4>; 3],
        bias: Option<Tensor<4>>,
        how: Attending,
    ) -> Tensor<4> {
        let [rows, heads, columns, size] = key.dims();
        let by_column = |x: Tensor<4>| x.swap_dims(1, 2).reshape([rows, columns, heads * size]);
        let all = self.of_all_columns(Tensor::cat(vec![by_column(key), by_column(value)], 2));
        let [key, value] = [0, 1].map(|part| {
            let part = all.clone().narrow(2, part * heads * size, heads * size);
            part.reshape([rows, all.dims()[1], heads, size]).swap_dims(1, 2)
        });
        attention(query, key, value, bias, how)
    }

    /// Returns the values of all columns, `[batch, all columns, width]`, from those of the columns that the pass
    /// [selects](Self::selecting), `[batch, columns, width]`. All ranks that share a batch call it together, forward and
    /// backward: there, each sums the gradients of its columns. A pass that selects none returns `x`.
    ///
    /// If another rank is gone, it returns zeros, and [`check`](Self::check) the error.
    ///
    /// # Panics
    ///
    /// If `x` has another number of columns than the pass selects.
    pub fn of_all_columns(&self, x: Tensor<3>) -> Tensor<3> {
        let (Some(ranks), Samples::Selected { columns: own, .. }) = (self.plan.context(), &self.samples)
        else {
            return x;
        };
        let found = x.dims()[1];
        assert_eq!(
            found,
            own.len(),
            "Pass: the pass selects {} columns, and the tensor has {found}",
            own.len()
        );
        let (plan, ranks) = (self.plan.clone(), ranks.clone());
        let shape @ [rows, columns, width] = x.dims();
        let value = x.clone().inner();
        let all = match ranks.all_gather(value.clone()) {
            Ok(gathered) => in_order(gathered, ranks.size()),
            Err(error) => lost(&plan, error, [rows, columns * ranks.size(), width], &value),
        };
        let Some(strategy) = x.device().gradient_checkpointing_strategy() else { return all };
        let all = Tensor::from_inner(all).with_gradient_checkpointing_strategy(strategy);
        graft(x, all, move |grad| {
            let own = ranks.reduce_scatter(by_rank(grad.clone(), ranks.size()));
            own.unwrap_or_else(|error| lost(&plan, error, shape, &grad))
        })
    }

    /// Returns whether the layers of this pass compute some columns of each row: see [`selecting`](Self::selecting).
    pub fn selects_columns(&self) -> bool {
        matches!(self.samples, Samples::Selected { .. })
    }

    /// Returns whether this rank counts the samples, tokens and items of its batches: the first of those that share them.
    pub fn counts_batch(&self) -> bool {
        self.plan.context().is_none_or(|ranks| ranks.rank() == 0) && self.adds_results()
    }

    /// Returns whether ranks share the tokens of a batch, but no model of this pass has asked for
    /// [its columns](Self::context_columns) so far.
    pub fn repeats_batch(&self) -> bool {
        self.plan.context().is_some() && !self.divided.load(Relaxed)
    }
}

/// Reports that another rank is gone, and returns zeros like another tensor.
pub(super) fn lost<const D: usize>(
    plan: &SegmentPlan,
    error: WorldError,
    shape: [usize; D],
    like: &Tensor<D>,
) -> Tensor<D> {
    plan.report(error.into());
    Tensor::zeros(shape, (&like.device(), like.dtype()))
}

/// The chunks of a rank: one from the front, and one from the back.
fn chunks_of(rank: usize, ranks: usize) -> [usize; 2] {
    [rank, 2 * ranks - 1 - rank]
}

/// The rows of all ranks, `[ranks * rows, columns, width]`, side by side in the order of columns.
fn in_order(x: Tensor<3>, ranks: usize) -> Tensor<3> {
    let [all, columns, width] = x.dims();
    let (rows, length) = (all / ranks, columns / 2);
    let chunk = |rank: usize, half: usize| x.clone().slice([part(rank, rows), part(half, length), 0..width]);
    let front = (0..ranks).map(|rank| chunk(rank, 0));
    let back = (0..ranks).rev().map(|rank| chunk(rank, 1));
    Tensor::cat(front.chain(back).collect(), 1)
}

/// The opposite of [`in_order`].
fn by_rank(x: Tensor<3>, ranks: usize) -> Tensor<3> {
    let [rows, columns, width] = x.dims();
    let length = columns / (2 * ranks);
    let chunk = |chunk: usize| x.clone().slice([0..rows, part(chunk, length), 0..width]);
    let of_rank = |rank: usize| Tensor::cat(chunks_of(rank, ranks).map(chunk).to_vec(), 1);
    Tensor::cat((0..ranks).map(of_rank).collect(), 0)
}

/// One of several parts of the same length.
fn part(at: usize, length: usize) -> Range<usize> {
    at * length..(at + 1) * length
}
