//! The gradient, which keeps only the ids.

use burn::backend::TensorMetadata;
use burn::backend::autodiff::Autodiff;
use burn::backend::autodiff::checkpoint::base::Checkpointer;
use burn::backend::autodiff::checkpoint::strategy::CheckpointStrategy;
use burn::backend::autodiff::grads::Gradients;
use burn::backend::autodiff::ops::{Backward, Ops, OpsKind, unary};
use burn::backend::tensor::{FloatTensor, IntTensor};
use burn::tensor::DType;

use super::ops::{EmbeddingOps, EmbeddingRows};

#[derive(Debug)]
struct Lookup;

impl<B: EmbeddingRows> Backward<B, 1> for Lookup {
    type State = (IntTensor<B>, usize, DType);

    fn backward(self, ops: Ops<Self::State, 1>, grads: &mut Gradients, _: &mut Checkpointer) {
        let (ids, rows, dtype) = ops.state;
        unary::<B, _>(ops.parents, ops.node, grads, |grad| B::scatter(grad, ids, rows, dtype));
    }
}

impl<B: EmbeddingRows, C: CheckpointStrategy> EmbeddingOps for Autodiff<B, C> {
    fn rows_of(table: FloatTensor<Self>, ids: IntTensor<Self>) -> FloatTensor<Self> {
        let prepared = Lookup.prepare::<C>([table.node()]).compute_bound();
        let table = table.into_primitive();
        let (rows, dtype) = (table.shape()[0], table.dtype());
        match prepared.stateful() {
            OpsKind::Tracked(prep) => prep.finish((ids.clone(), rows, dtype), B::select(table, ids)),
            OpsKind::UnTracked(prep) => prep.finish(B::select(table, ids)),
        }
    }
}
