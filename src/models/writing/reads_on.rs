//! A decoder that goes on from what it has read.

use burn::module::Module;
use burn::tensor::{FloatDType, Tensor};
use firebrick_datasets::Inputs;
use firebrick_strategies::Pass;

use crate::models::causal::Placed;
use crate::models::key_value::Past;

/// A decoder that goes on from what it has read.
pub(crate) trait ReadsOn: Module {
    /// Tokens that it has logits for.
    fn vocabulary(&self) -> usize;

    /// The most positions of a row that it can read, where there is a bound.
    fn positions(&self) -> Option<usize>;

    /// The dtype that its blocks compute in: that of their weights.
    fn dtype(&self) -> FloatDType;

    /// Reads further columns, and says what may come after the last of them: `[batch, vocabulary]`.
    ///
    /// `read` has the new columns; what is masked of all columns, those of the past first, is
    /// `[1 or batch, 1, length, past + length]`. The past grows by them. Without a past, `source` is what an encoder
    /// reads first, where there is one.
    fn read_on(
        &self,
        read: Placed,
        source: Option<&Inputs>,
        past: Option<Past>,
        pass: &Pass,
    ) -> (Tensor<2>, Past);
}
