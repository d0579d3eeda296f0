//! The device of the tests, and its capabilities.

use burn::nn::LinearConfig;
use burn::tensor::{Device, FloatDType};

use crate::{Amp, Composition, Setup, StrategyError};

/// Returns the device that `BURN_DEVICE` names, as in the program `firebrick`, or the CPU by default.
pub fn device() -> Device {
    match std::env::var("BURN_DEVICE").as_deref() {
        Err(_) | Ok("cpu") => Device::flex(),
        // Burn reads the variable itself, and panics if the build lacks that backend.
        Ok(_) => Device::default(),
    }
}

/// Returns whether tensors stand without gaps. On CUDA, CubeCL pads the rows of those that come from the host.
pub fn is_unpadded() -> bool {
    !std::env::var("BURN_DEVICE").is_ok_and(|name| name.starts_with("cuda"))
}

/// Returns whether the device computes in bf16. If it does not, this function has already checked that `Amp::bf16()` is
/// rejected and that the error lists the supported dtypes, so a bf16 test can return.
pub fn has_bf16() -> bool {
    let device = device().autodiff();
    let model = LinearConfig::new(2, 2).init(&device);
    match Amp::bf16().start(&mut Setup::new(&model, &device)) {
        Ok(_) => true,
        Err(StrategyError::Dtype { strategy: "Amp", dtype: "bf16", supported, .. }) => {
            let names = [(FloatDType::F64, "f64"), (FloatDType::F32, "f32"), (FloatDType::F16, "f16")];
            let names = names.iter().filter(|(dtype, _)| device.supports_dtype(*dtype));
            assert_eq!(supported, names.map(|(_, name)| *name).collect::<Vec<_>>().join(", "));
            assert!(!device.supports_dtype(FloatDType::BF16));
            false
        }
        Err(error) => panic!("{error}"),
    }
}
