//! The positions of a batch among the ranks of a tensor axis, between the layers that they divide: sequence parallelism
//! (Korthikanti et al., 2022, *Reducing activation recomputation in large transformer models*, arXiv:2205.05198).
//!
//! Positions are counted along one row after the other, so that every batch can be divided, whatever its shape, and what a
//! rank has is one run of memory. If the ranks do not divide their number, some ranks have copies of the last one, which nothing
//! reads.

use std::sync::Arc;

use burn::tensor::Tensor;
use firebrick_kernels::Samples;
use firebrick_world::Communicator;

use super::{Pass, SegmentPlan};

/// The positions of a rank. What it does after another rank is gone is zeros, and [`Pass::check`] returns the error.
#[derive(Debug)]
pub(super) struct Sequence {
    /// The rows of the batch, and their columns.
    shape: [usize; 2],
    ranks: Communicator,
    plan: Arc<SegmentPlan>,
    /// Where the samples stand in the positions of this rank.
    samples: Samples,
}

impl Sequence {
    /// Where the samples stand in the positions of this rank.
    pub fn samples(&self) -> &Samples {
        &self.samples
    }

    /// The number of positions of all rows.
    fn all(&self) -> usize {
        self.shape[0] * self.shape[1]
    }

    /// The number of positions of each rank.
    fn each(&self) -> usize {
        positions_of_each(self.shape, &self.ranks)
    }

    /// Returns this rank's positions of `x`, `[rows, columns, width]`, as `[1, positions, width]`. Those that no row has are copies
    /// of the last one, or zeros.
    fn cut(&self, x: Tensor<3>, copies: bool) -> Tensor<3> {
        let ([_, _, width], all, each) = (x.dims(), self.all(), self.each());
        let first = (self.ranks.rank() * each).min(all);
        let own = each.min(all - first);
        let x = x.reshape([1, all, width]);
        if own == each {
            return x.narrow(1, first, own);
        }
        let last = x.clone().narrow(1, all - 1, 1);
        let missing = if copies { last } else { last.zeros_like() }.repeat_dim(1, each - own);
        match own {
            0 => missing,
            own => Tensor::cat(vec![x.narrow(1, first, own), missing], 1),
        }
    }

    /// Returns all positions, `[rows, columns, width]`, of what each rank has of its own.
    pub fn gather(&self, own: Tensor<3>) -> Tensor<3> {
        let ([_, each, width], [rows, columns]) = (own.dims(), self.shape);
        match self.ranks.all_gather(own.clone().reshape([each, width])) {
            Ok(all) => {
                let all = if all.dims()[0] > self.all() { all.narrow(0, 0, self.all()) } else { all };
                all.reshape([rows, columns, width])
            }
            Err(error) => {
                self.plan.report(error.into());
                Tensor::zeros([rows, columns, width], (&own.device(), own.dtype()))
            }
        }
    }

    /// Sums the `x` of all ranks, `[rows, columns, width]`, and returns this rank's positions, `[1, positions, width]`.
    pub fn reduce_scatter(&self, x: Tensor<3>) -> Tensor<3> {
        let ([_, _, width], all, each) = (x.dims(), self.all(), self.each());
        let like = (x.device(), x.dtype());
        let zeros = |positions| Tensor::zeros([positions, width], (&like.0, like.1));
        let missing = each * self.ranks.size() - all;
        let x = x.reshape([all, width]);
        let x = if missing > 0 { Tensor::cat(vec![x, zeros(missing)], 0) } else { x };
        let own = self.ranks.reduce_scatter(x).unwrap_or_else(|error| {
            self.plan.report(error.into());
            zeros(each)
        });
        own.unsqueeze_dim(0)
    }
}

fn positions_of_each([rows, columns]: [usize; 2], ranks: &Communicator) -> usize {
    (rows * columns).div_ceil(ranks.size())
}

impl Pass {
    /// Divides the positions of `x`, `[rows, columns, width]`, among the ranks that share layers: returns this rank's, `[1, positions,
    /// width]`, and the pass of the blocks that compute them. In these, [`before_columns`](Self::before_columns)
    /// gathers all positions, and [`after_rows`](Self::after_rows) scatters the sums: what is between, such as norms and
    /// dropout, takes 1/t of the memory and of the time on each of t ranks, and as much is sent as without. Each
    /// [`segment`](Self::segment) sums the gradients of the parameters of its block that all ranks have whole; other layers are read
    /// by [`at_own_positions`](Self::at_own_positions). What the last layer returns goes through [`join_sequence`](Self::join_sequence).
    ///
    /// Where no ranks share layers, it returns `x` and the same pass.
    ///
    /// ```
    /// use burn::tensor::{Device, Tensor};
    /// use firebrick_strategies::Pass;
    ///
    /// let (device, pass) = (Device::flex(), Pass::train(&Device::flex()));
    /// let (x, within) = pass.divide_sequence(Tensor::<3>::ones([2, 3, 4], &device));
    /// assert_eq!(within.join_sequence(x).dims(), [2, 3, 4]);
    /// ```
    pub fn divide_sequence(&self, x: Tensor<3>) -> (Tensor<3>, Self) {
        let Some(ranks) = self.plan.tensor() else { return (x, self.clone()) };
        let [rows, columns, _] = x.dims();
        let each = positions_of_each([rows, columns], ranks);
        let samples = Samples::Share {
            of: Arc::new(self.samples.clone()),
            shape: [rows, columns],
            own: ranks.rank() * each..(ranks.rank() + 1) * each,
        };
        let (ranks, plan) = (ranks.clone(), self.plan.clone());
        let sequence = Arc::new(Sequence { shape: [rows, columns], ranks, plan, samples });
        let within = Self { sequence: Some(sequence.clone()), ..self.clone() };
        // Copies rather than zeros, which a norm without an epsilon would divide by 0.
        let own = sequence.cut(x.clone().inner(), true);
        (self.grafted(x, own, move |grad| sequence.gather(grad)), within)
    }

    pub(super) fn divides_sequence(&self) -> bool {
        self.sequence.is_some()
    }

    /// Returns the states of all positions, `[rows, columns, width]`, from those that the ranks have after the last layer of a
    /// pass that [divides](Self::divide_sequence) them. Each rank computes the same from these; backward, it has the
    /// gradients of its own.
    ///
    /// If another rank is gone, it returns zeros, and [`check`](Self::check) the error.
    pub fn join_sequence(&self, x: Tensor<3>) -> Tensor<3> {
        let Some(sequence) = self.sequence.clone() else { return x };
        let all = sequence.gather(x.clone().inner());
        self.grafted(x, all, move |grad| sequence.cut(grad, false))
    }
}

#[cfg(test)]
mod tests {
    use burn::module::{Module, Param};
    use burn::tensor::TensorData;
    use firebrick_world::World;

    use super::*;
    use crate::model_parallel::Factors;
    use crate::{ModelParts, Pipelined, StrategyError, TensorPlan, testing};

    const WIDTH: usize = 3;

    fn wave(shape: [usize; 3], step: f32) -> Tensor<3> {
        let values: Vec<f32> =
            (0..shape.iter().product()).map(|at: usize| (at as f32 * step).sin()).collect();
        Tensor::from_data(TensorData::new(values, shape), &testing::device().autodiff())
    }

    fn values<const D: usize>(x: Tensor<D>) -> Vec<f32> {
        x.into_data().iter().collect()
    }

    fn differ(found: &[f32], expected: &[f32]) -> bool {
        assert_eq!(found.len(), expected.len());
        found.iter().zip(expected).any(|(found, expected)| (found - expected).abs() > 1e-5)
    }

    /// A layer whose inner features ranks divide, behind a scale that each reads at its own positions.
    #[derive(Module, Debug)]
    struct Block {
        scale: Param<Tensor<1>>,
        /// `[width, inner]`, of which the inner axis is that of columns and of rows.
        inner: Param<Tensor<2>>,
    }

    impl Block {
        fn new() -> Self {
            let scale = wave([1, 1, WIDTH], 1.3).squeeze_dims(&[0, 1]);
            let inner = wave([1, WIDTH, 4], 0.9).squeeze_dim(0);
            Self { scale: Param::from_tensor(scale), inner: Param::from_tensor(inner) }
        }

        fn forward(&self, x: Tensor<3>, pass: &Pass) -> Tensor<3> {
            let scaled = pass.before_columns(x.clone() * self.scale.val().unsqueeze());
            let inner = scaled.matmul(self.inner.val().unsqueeze()).square();
            x + pass.after_rows(inner.matmul(self.inner.val().transpose().unsqueeze()))
        }
    }

    /// A rank's part of two blocks, whose inner features ranks divide, and a pass through them.
    fn divided(world: Communicator) -> (Vec<Block>, Pass) {
        let model = vec![Block::new(), Block::new()];
        let plan = TensorPlan::new().columns("*.inner", [4]);
        let parts = Arc::new(
            ModelParts::of(&model, &plan, world, &Pipelined::default(), None, &Factors::new()).unwrap(),
        );
        let model = parts.cut(model);
        let mut plan = SegmentPlan::of(&model);
        plan.divide_model(parts);
        (model, Pass::train(&testing::device().autodiff()).planned(Arc::new(plan)))
    }

    /// What two blocks return, and the gradients of their input, of the scales and of the rank's weights.
    fn layer(pass: &Pass, shape: [usize; 2], blocks: &[Block]) -> [Vec<f32>; 4] {
        let x = wave([shape[0], shape[1], WIDTH], 0.7).require_grad();
        let (own, within) = pass.divide_sequence(x.clone());
        let own = blocks
            .iter()
            .fold(own, |x, block| within.segment(block, x, |block, x, pass| block.forward(x, pass)));
        let all = within.join_sequence(own);
        let grads = (all.clone() * wave(all.dims(), 0.4)).sum().backward();
        pass.check().unwrap();
        let of_scales = blocks.iter().flat_map(|block| values(block.scale.val().grad(&grads).unwrap()));
        let of_inner = blocks.iter().flat_map(|block| values(block.inner.val().grad(&grads).unwrap()));
        [values(all), values(x.grad(&grads).unwrap()), of_scales.collect(), of_inner.collect()]
    }

    #[test]
    fn a_layer_outside_segments_is_refused() {
        let of_rank = |world: Communicator| {
            std::thread::spawn(move || {
                let (_, pass) = divided(world);
                let (own, within) = pass.divide_sequence(wave([1, 4, WIDTH], 0.7));
                within.before_columns(own);
                pass.check()
            })
        };
        let running: Vec<_> = World::threads(2).join().unwrap().into_iter().map(of_rank).collect();
        for running in running {
            assert_eq!(running.join().unwrap(), Err(StrategyError::DividedLayerOutsideSegment));
        }
    }

    /// Fewer positions than ranks, and numbers that they do not divide, too.
    #[test]
    fn ranks_compute_and_learn_what_one_does() {
        for (ranks, shape) in [(2, [2, 4]), (2, [3, 3]), (4, [1, 2]), (4, [2, 5]), (4, [1, 1])] {
            let blocks = [Block::new(), Block::new()];
            let alone = layer(&Pass::train(&testing::device().autodiff()), shape, &blocks);
            let of_rank = |world: Communicator| {
                std::thread::spawn(move || {
                    let (model, pass) = divided(world);
                    layer(&pass, shape, &model)
                })
            };
            let running: Vec<_> = World::threads(ranks).join().unwrap().into_iter().map(of_rank).collect();
            for (rank, running) in running.into_iter().enumerate() {
                let found = running.join().unwrap();
                for (found, expected) in found[..3].iter().zip(&alone) {
                    assert!(!differ(found, expected), "{ranks} {shape:?}: {found:?} {expected:?}");
                }
                let (each, own) = (4 / ranks, rank * 4 / ranks);
                let expected: Vec<f32> =
                    alone[3].chunks(4).flat_map(|row| row[own..own + each].to_vec()).collect();
                assert!(!differ(&found[3], &expected), "{ranks} {shape:?}: {found:?} {expected:?}");
            }
        }
    }
}
