//! The states of parameters outside an optimizer, as checkpoints and disks keep them.

use std::collections::BTreeMap;

use burn::module::ParamId;
use burn::tensor::TensorData;
use burn_pack::Scalar;

/// The states of parameters.
pub type OptimizerStates = BTreeMap<ParamId, ParamState>;

/// The state of one parameter: tensors and numbers by the names of their fields.
#[derive(Clone, Debug, Default)]
pub struct ParamState {
    /// The number of axes of the parameter.
    pub axes: usize,
    /// The path of the parameter, on which its group may depend.
    pub path: Option<String>,
    /// The tensors, such as moments.
    pub tensors: Vec<(String, TensorData)>,
    /// The numbers, such as the count of updates.
    pub scalars: Vec<(String, Scalar)>,
}
