//! The float dtypes that training can compute in: their names, and which ones a device supports.

use burn::module::{Module, ParamId};
use burn::tensor::{DType, Device, FloatDType, Tensor};
use firebrick_kernels::optim::take;
use serde::{Deserialize, Serialize};

use crate::params::map_params_later;
use crate::{ParamMap, StrategyError, map_params, relift};

/// A float dtype by the name that it has in run files.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Float {
    /// Double precision.
    F64,
    /// Single precision.
    F32,
    /// bfloat16.
    Bf16,
    /// Half precision.
    F16,
}

impl From<Float> for FloatDType {
    fn from(float: Float) -> Self {
        match float {
            Float::F64 => Self::F64,
            Float::F32 => Self::F32,
            Float::Bf16 => Self::BF16,
            Float::F16 => Self::F16,
        }
    }
}

impl From<FloatDType> for Float {
    fn from(dtype: FloatDType) -> Self {
        match dtype {
            FloatDType::F64 => Self::F64,
            FloatDType::BF16 => Self::Bf16,
            FloatDType::F16 => Self::F16,
            _ => Self::F32,
        }
    }
}

/// Reads and writes an optional dtype by its name, for serde's `with`.
pub(crate) mod option {
    use burn::tensor::FloatDType;
    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    use super::Float;

    #[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
    pub fn serialize<S: Serializer>(dtype: &Option<FloatDType>, serializer: S) -> Result<S::Ok, S::Error> {
        dtype.map(Float::from).serialize(serializer)
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<FloatDType>, D::Error> {
        Ok(Option::<Float>::deserialize(deserializer)?.map(FloatDType::from))
    }
}

const FLOATS: [(FloatDType, &str); 4] = [
    (FloatDType::F64, "f64"),
    (FloatDType::F32, "f32"),
    (FloatDType::BF16, "bf16"),
    (FloatDType::F16, "f16"),
];

/// Returns the name of a float dtype in run files and messages: `f64`, `f32`, `bf16` or `f16`.
pub fn float_name(dtype: FloatDType) -> &'static str {
    FLOATS.iter().find(|(known, _)| *known == dtype).map_or("another dtype", |(_, name)| name)
}

/// Returns the names of the float dtypes that a device supports.
pub fn supported_floats(device: &Device) -> Vec<&'static str> {
    let supported = FLOATS.iter().filter(|(dtype, _)| device.supports_dtype(*dtype));
    supported.map(|(_, name)| *name).collect()
}

/// Returns an error if the device does not support a dtype, or it is one of Burn's own, such as Flex32.
///
/// # Errors
///
/// [`StrategyError::Dtype`], which lists the dtypes that the device supports.
pub fn require_dtype(
    strategy: &'static str,
    device: &Device,
    dtype: FloatDType,
) -> Result<(), StrategyError> {
    if FLOATS.iter().any(|(known, _)| *known == dtype) && device.supports_dtype(dtype) {
        return Ok(());
    }
    Err(StrategyError::Dtype {
        strategy,
        device: device_name(device),
        dtype: float_name(dtype),
        supported: supported_floats(device).join(", "),
    })
}

/// Returns the device's name as users write it. Burn exposes it only through `Debug`, as in
/// `Device<Cube(Wgpu(DefaultDevice))>`.
fn device_name(device: &Device) -> String {
    let shown = format!("{:?}", device.clone().inner());
    let backends = [("Flex", "cpu"), ("Cuda", "cuda"), ("Vulkan", "vulkan"), ("Wgpu", "wgpu")];
    backends.iter().find(|(part, _)| shown.contains(part)).map_or(shown.clone(), |(_, name)| name.to_string())
}

/// Casts each float parameter to the dtype that `dtype_of` returns. A parameter that already has this dtype keeps its
/// tensor, at no cost. If the update's copies are [lent](firebrick_kernels::optim::Replicas::lend), a parameter takes
/// its copy in this dtype, also at no cost.
pub fn cast_params<M: Module>(model: M, dtype_of: impl Fn(ParamId) -> FloatDType) -> M {
    map_params(model, &mut Cast(dtype_of))
}

/// Like [`cast_params`], but a parameter that has no value yet is cast when something first reads it.
pub(crate) fn cast_params_later<M: Module>(
    model: M,
    dtype_of: impl Fn(ParamId) -> FloatDType + Clone + Send + Sync + 'static,
) -> M {
    map_params_later(model, Cast(dtype_of))
}

#[derive(Clone)]
struct Cast<F>(F);

impl<F: Fn(ParamId) -> FloatDType> ParamMap for Cast<F> {
    fn map<const D: usize>(&mut self, id: ParamId, value: Tensor<D>) -> Tensor<D> {
        let dtype = (self.0)(id);
        match value.dtype() == DType::from(dtype) {
            true => value,
            false => relift(cast_value(value.clone().inner(), dtype), &value),
        }
    }
}

/// Casts the value of a parameter, outside autodiff, like [`cast_params`].
pub(crate) fn cast_value<const D: usize>(value: Tensor<D>, dtype: FloatDType) -> Tensor<D> {
    match value.dtype() == DType::from(dtype) {
        true => value,
        false => take(&value, dtype).unwrap_or_else(|| value.cast(dtype)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_dtype_that_the_device_lacks_is_answered_with_those_it_has() {
        let device = Device::flex();
        assert_eq!(supported_floats(&device), ["f64", "f32", "bf16", "f16"]);
        assert_eq!(require_dtype("Amp", &device, FloatDType::BF16), Ok(()));
        let error = require_dtype("Amp", &device, FloatDType::Flex32).unwrap_err().to_string();
        assert_eq!(error, "Amp: cpu cannot compute in another dtype; it can in f64, f32, bf16, f16");
    }
}
