//! GELU over slices on all cores.

use burn::backend::Flex;
use burn::backend::tensor::FloatTensor;

use super::ops::{Gelu, GeluOps, gradient, value};
use super::vectors::{approximate, approximate_slope, exact, exact_slope};
use crate::elements::{is_narrow, mapped};
use crate::off::Kernel;

impl GeluOps for Flex {
    fn gelu_value(x: FloatTensor<Self>, form: Gelu) -> FloatTensor<Self> {
        match form {
            _ if !is_narrow(x.dtype()) || Kernel::Activations.is_off() => value::<Self>(x, form),
            Gelu::Exact => mapped([x], |[x]| exact(x)),
            Gelu::Tanh => mapped([x], |[x]| approximate(x)),
        }
    }

    fn gelu_gradient(x: FloatTensor<Self>, grad: FloatTensor<Self>, form: Gelu) -> FloatTensor<Self> {
        match form {
            _ if !is_narrow(x.dtype()) || Kernel::Activations.is_off() => gradient::<Self>(x, grad, form),
            Gelu::Exact => mapped([x, grad], |[x, grad]| grad * exact_slope(x)),
            Gelu::Tanh => mapped([x, grad], |[x, grad]| grad * approximate_slope(x)),
        }
    }
}
