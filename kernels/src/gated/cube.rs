//! Gated activations on a device in one kernel forward and one back, where Burn does not fuse their operations.

use burn::backend::tensor::FloatTensor;
use burn::backend::{Cube, TensorMetadata};

use super::ops::{self, Gate, Gates};
use crate::cube::{Spec, run};
use crate::gelu::cube::{Curve, computes, gradients, values};

impl Gates for Cube {
    fn value(gate: FloatTensor<Self>, up: FloatTensor<Self>, form: Gate) -> FloatTensor<Self> {
        if !computes(&gate) {
            return ops::value::<Self>(gate, up, form);
        }
        let output = Spec::new(gate.shape(), gate.dtype());
        let [found] = run(vec![gate, up], [output], move |inputs| [values(inputs, curve(form))]);
        found
    }

    fn gradients(
        gate: FloatTensor<Self>,
        up: FloatTensor<Self>,
        grad: FloatTensor<Self>,
        form: Gate,
    ) -> [FloatTensor<Self>; 2] {
        if !computes(&gate) || grad.dtype() != gate.dtype() {
            return ops::gradients::<Self>(gate, up, grad, form);
        }
        let output = Spec::new(gate.shape(), gate.dtype());
        run(vec![gate, up, grad], [output.clone(), output], move |inputs| gradients(inputs, curve(form)))
    }
}

fn curve(form: Gate) -> Curve {
    match form {
        Gate::Silu => Curve::Silu,
        Gate::Gelu(form) => Curve::Gelu(form),
    }
}
