//! The device of the tests, and what it can compute in.

use burn::nn::LinearConfig;
use burn::tensor::{Device, FloatDType};

use crate::{Amp, Setup, Strategy, StrategyError};

/// The device that `BURN_DEVICE` names, as for the program `firebrick`; the CPU where it is not set.
pub fn device() -> Device {
    match std::env::var("BURN_DEVICE").as_deref() {
        Err(_) | Ok("cpu") => Device::flex(),
        // Burn reads the variable itself, and panics where that backend is not part of the build.
        Ok(_) => Device::default(),
    }
}

/// Whether the device computes in bf16. Where it does not, a test in bf16 is over with this: it has
/// seen that `Amp::bf16()` is refused, and that the error names what the device computes in.
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
