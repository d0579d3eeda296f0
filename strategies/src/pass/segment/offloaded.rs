//! Parameters that wait outside memory.

use std::fmt::Debug;

use burn::module::ParamId;
use burn::tensor::{DType, Tensor};

use crate::StrategyError;

/// Parameters of blocks that wait outside memory, such as on a [disk](crate::Offload::on), until a segment needs them.
///
/// A model has such a parameter without a value: Burn calls it lazy. Its initializer reads the value, so that it is
/// correct wherever it is read, at the cost of memory. A [pass](crate::Pass::reading) does not initialize it. It reads the
/// parameters of a block when the block's segment begins, drops them when the segment ends, and reads those of the next
/// block meanwhile, or this rank's shards of the next two blocks.
pub trait OffloadedParams: Debug + Send + Sync {
    /// Returns what is known of a parameter that waits here; `None` for any other.
    fn param(&self, id: ParamId) -> Option<OffloadedParam>;

    /// Begins to read the replica's values of parameters that wait here. The values are those of this moment.
    fn begin_read(&self, ids: &[ParamId]) -> OffloadedRead;
}

/// What is known of a parameter that waits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OffloadedParam {
    /// The shape of what waits: of the whole parameter, or of this rank's shard.
    pub shape: Vec<usize>,
    /// The replica's dtype.
    pub dtype: DType,
    /// Whether it is trained.
    pub is_trained: bool,
}

/// A read of parameters that has begun.
///
/// ```
/// use burn::tensor::{Device, Tensor};
/// use firebrick_strategies::OffloadedRead;
///
/// let reading = std::thread::spawn(|| vec![Tensor::<1>::ones([2], &Device::flex())]);
/// let read = OffloadedRead::new(move || Ok(reading.join().unwrap()));
/// assert_eq!(read.wait()?[0].dims(), [2]);
/// # Ok::<(), firebrick_strategies::StrategyError>(())
/// ```
pub struct OffloadedRead(Box<dyn FnOnce() -> Result<Vec<Tensor<1>>, StrategyError> + Send>);

impl OffloadedRead {
    /// Creates a read that `wait` waits for. It returns the values in their order, each flat, on the host and outside
    /// autodiff.
    pub fn new(wait: impl FnOnce() -> Result<Vec<Tensor<1>>, StrategyError> + Send + 'static) -> Self {
        Self(Box::new(wait))
    }

    /// Waits for the values, in their order, each flat, on the host and outside autodiff.
    ///
    /// # Errors
    ///
    /// They cannot be read.
    pub fn wait(self) -> Result<Vec<Tensor<1>>, StrategyError> {
        (self.0)()
    }
}
