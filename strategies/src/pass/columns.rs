//! What column-parallel layers read, gathered once more for the gradients of their weights (Korthikanti et al., 2022, *Reducing
//! activation recomputation in large transformer models*, arXiv:2205.05198, section 4.2.2).
//!
//! A layer that Burn differentiates keeps its input, which here is that of all positions. These layers keep the positions of
//! the rank alone.

use std::sync::{Arc, Mutex};

use burn::tensor::Tensor;
use firebrick_kernels::{linear, linear_gradients, matmul};

use super::Pass;
use super::segment::{graft, join, lock, node_of};
use super::sequence::Sequence;

/// The positions of all ranks, which this one has gathered.
#[derive(Debug)]
pub(super) struct GatheredPositions {
    /// The number of its node in the graph.
    node: u64,
    own: Tensor<3>,
    sequence: Arc<Sequence>,
    again: Mutex<Again>,
}

/// The positions of all ranks in the backward pass, for as long as layers read them.
#[derive(Debug, Default)]
struct Again {
    /// The layers whose backward pass is still to come.
    readers: usize,
    all: Option<Tensor<3>>,
}

/// The positions that a segment has gathered last.
pub(super) type LastGathered = Arc<Mutex<Option<Arc<GatheredPositions>>>>;

impl GatheredPositions {
    /// Gathers the positions, unless another layer has, for one of the readers.
    fn again(&self) -> Tensor<3> {
        let mut again = lock(&self.again);
        let all = again.all.take().unwrap_or_else(|| self.sequence.gather(self.own.clone()));
        again.readers -= 1;
        if again.readers > 0 {
            again.all = Some(all.clone());
        }
        all
    }
}

impl Pass {
    /// Notes that `all`, in the graph of the backward pass, has been gathered from `own`.
    pub(super) fn has_gathered(&self, all: &Tensor<3>, own: Tensor<3>, sequence: Arc<Sequence>) {
        let Some((last, node)) = self.gathered.as_ref().zip(node_of(all)) else { return };
        let again = Mutex::default();
        *lock(last) = Some(Arc::new(GatheredPositions { node, own, sequence, again }));
    }

    /// Computes `x · weight + bias` of an `x` that [`before_columns`](Self::before_columns) has gathered, without keeping it. `None` if it
    /// is another one, or the weight does not learn.
    pub(crate) fn linear_of_gathered<const D: usize>(
        &self,
        x: &Tensor<D>,
        weight: &Tensor<2>,
        bias: Option<&Tensor<1>>,
    ) -> Option<Tensor<D>> {
        if !weight.is_tracked() {
            return None;
        }
        let gathered = lock(self.gathered.as_ref()?).clone()?;
        if node_of(x) != Some(gathered.node) {
            return None;
        }
        lock(&gathered.again).readers += 1;
        let inner = weight.clone().inner();
        let value = linear(x.clone().inner(), inner.clone(), bias.map(|bias| bias.clone().inner()));
        let y = graft(x.clone(), self.lift(value), move |grad: Tensor<D>| {
            matmul(grad, inner.clone().transpose().unsqueeze())
        });
        Some(match bias {
            None => join(y, weight.clone(), move |grad| {
                Some(matmul(rows(gathered.again()).transpose(), rows(grad)))
            }),
            Some(bias) => {
                // The backward pass reaches the join of the bias first, which finds both.
                let of_weight = Arc::new(Mutex::new(None));
                let found = of_weight.clone();
                let y = join(y, weight.clone(), move |_| lock(&found).take());
                join(y, bias.clone(), move |grad| {
                    let [weight, bias] = linear_gradients(rows(gathered.again()), rows(grad));
                    *lock(&of_weight) = Some(weight);
                    Some(bias.reshape([-1]))
                })
            }
        })
    }
}

/// Returns `x`, `[.., width]`, as a matrix.
fn rows<const D: usize>(x: Tensor<D>) -> Tensor<2> {
    let width = x.dims()[D - 1];
    x.reshape([-1, width as i32])
}
