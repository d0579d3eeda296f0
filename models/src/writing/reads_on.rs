//! A decoder that continues from its cache.

use burn::module::Module;
use burn::tensor::{FloatDType, Tensor};
use firebrick_datasets::collators::Inputs;
use firebrick_strategies::Pass;

use crate::causal::PlacedTokens;
use crate::key_value::Past;

/// A decoder that continues from its cache.
pub(crate) trait ReadsOn: Module {
    /// The number of tokens in its logits.
    fn vocabulary(&self) -> usize;

    /// The maximum number of positions in a row, if there is one.
    fn positions(&self) -> Option<usize>;

    /// Whether the cached keys of a row no longer hold once it grows to `length` tokens, so that it is read again.
    fn rereads_at(&self, length: usize) -> bool {
        let _ = length;
        false
    }

    /// The dtype in which its blocks compute, which is that of their weights.
    fn dtype(&self) -> FloatDType;

    /// Reads further columns, and returns the logits of the token after the last of them, `[batch, vocabulary]`.
    ///
    /// `read` holds the new columns; its mask covers all columns, first those in `past`, with shape
    /// `[1 or batch, 1, length, past + length]`. The returned cache includes the new columns. Without a `past`,
    /// `source` is the encoder's input, if the model has an encoder. A `past` may hold a source alone.
    fn read_on(
        &self,
        read: PlacedTokens,
        source: Option<&Inputs>,
        past: Option<Past>,
        pass: &Pass,
    ) -> (Tensor<2>, Past);
}
