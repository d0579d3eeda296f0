//! The factor that bounds a norm on a device: one kernel, where five operations on one number would be five.
#![allow(unsafe_code)] // A launch without checks of bounds: one unit reads and writes one number.

use burn::backend::Cube;
use burn::backend::tensor::FloatTensor;
use burn::tensor::DType;
use cubecl::prelude::*;

use crate::cube::{Spec, contiguous, empty, run};

/// Returns the factor, given the norm, both `[1]` in f32.
pub fn factor(norm: FloatTensor<Cube>, max: f32) -> FloatTensor<Cube> {
    let [factor] = run(vec![norm], [Spec::new([1], DType::F32)], move |inputs| {
        let [norm] = inputs.try_into().expect("one input");
        let norm = contiguous(norm);
        let factor = empty(&norm, [1], DType::F32);
        // SAFETY: the only unit reads one number and writes one.
        unsafe {
            factor_kernel::launch_unchecked(
                &norm.client,
                CubeCount::Static(1, 1, 1),
                CubeDim::new_1d(1),
                norm.clone().into_buffer_arg(),
                factor.clone().into_buffer_arg(),
                max,
            );
        }
        [factor]
    });
    factor
}

#[cube(launch_unchecked)]
fn factor_kernel(norm: &[f32], factor: &mut [f32], max: f32) {
    let share = 1.0 / (norm[0] + 1e-6) * max;
    // It stays NaN, which `min` would not keep.
    factor[0] = select(share > 1.0, 1.0, share);
}
