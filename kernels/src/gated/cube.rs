//! Gated activations on a device in one kernel forward and one back, where Burn does not fuse their operations.

use burn::backend::tensor::FloatTensor;
use burn::backend::{Cube, TensorMetadata};

use super::{Gate, GatedOps};
use crate::cube::{Spec, run};
use crate::gelu::cube::{Curve, computes, gradients, values};

impl GatedOps for Cube {
    fn gated_value(gate: FloatTensor<Self>, up: FloatTensor<Self>, form: Gate) -> FloatTensor<Self> {
        if !computes(&gate) {
            return super::value::<Self>(gate, up, form);
        }
        let output = Spec::new(gate.shape(), gate.dtype());
        let [found] = run(vec![gate, up], [output], move |inputs| [values(inputs, curve(form))]);
        found
    }

    fn gated_gradients(
        gate: FloatTensor<Self>,
        up: FloatTensor<Self>,
        grad: FloatTensor<Self>,
        form: Gate,
    ) -> (FloatTensor<Self>, FloatTensor<Self>) {
        if !computes(&gate) || grad.dtype() != gate.dtype() {
            return super::gradients::<Self>(gate, up, grad, form);
        }
        let output = Spec::new(gate.shape(), gate.dtype());
        let outputs = [output.clone(), output];
        run(vec![gate, up, grad], outputs, move |inputs| gradients(inputs, curve(form))).into()
    }
}

fn curve(form: Gate) -> Curve {
    match form {
        Gate::Silu => Curve::Silu,
        Gate::Gelu(form) => Curve::Gelu(form),
    }
}
