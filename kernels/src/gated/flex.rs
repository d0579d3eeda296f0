//! Gated activations over slices on all cores.

use burn::backend::Flex;
use burn::backend::tensor::FloatTensor;

use super::ops::{Gate, GatedOps, gradients, value};
use crate::elements::{is_narrow, mapped, mapped_to_two};
use crate::gelu::Gelu;
use crate::gelu::vectors::{approximate, approximate_slope, exact, exact_slope, silu};
use crate::off::Kernel;

impl GatedOps for Flex {
    fn gated_value(gate: FloatTensor<Self>, up: FloatTensor<Self>, form: Gate) -> FloatTensor<Self> {
        match form {
            _ if !is_narrow(gate.dtype()) || Kernel::Activations.is_off() => value::<Self>(gate, up, form),
            Gate::Silu => mapped([gate, up], |[x, up]| silu(x)[0] * up),
            Gate::Gelu(Gelu::Exact) => mapped([gate, up], |[x, up]| exact(x) * up),
            Gate::Gelu(Gelu::Tanh) => mapped([gate, up], |[x, up]| approximate(x) * up),
        }
    }

    fn gated_gradients(
        gate: FloatTensor<Self>,
        up: FloatTensor<Self>,
        grad: FloatTensor<Self>,
        form: Gate,
    ) -> (FloatTensor<Self>, FloatTensor<Self>) {
        if !is_narrow(gate.dtype()) || Kernel::Activations.is_off() {
            return gradients::<Self>(gate, up, grad, form);
        }
        let tensors = [gate, up, grad];
        let found = match form {
            Gate::Silu => mapped_to_two(tensors, |[x, up, grad]| {
                let [active, slope] = silu(x);
                [grad * up * slope, grad * active]
            }),
            Gate::Gelu(Gelu::Exact) => {
                mapped_to_two(tensors, |[x, up, grad]| [grad * up * exact_slope(x), grad * exact(x)])
            }
            Gate::Gelu(Gelu::Tanh) => mapped_to_two(tensors, |[x, up, grad]| {
                [grad * up * approximate_slope(x), grad * approximate(x)]
            }),
        };
        found.into()
    }
}
