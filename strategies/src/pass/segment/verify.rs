//! Checks that a segment gives the same result twice.

use burn::backend::DispatchTensor;
use burn::module::{Flag, Module, ModuleVisitor, Param};
use burn::tensor::{FloatDType, Tensor};

use super::{Bundle, TensorMap};

/// The share of elements that may differ between two runs of one segment. A GPU may choose another kernel, even in
/// tf32, so that a few elements near 0 differ; dropping one element in a hundred changes two in a hundred.
pub const MAY_DIFFER: f64 = 1e-3;

/// Returns the largest share of a tensor's elements that differ between two runs.
pub fn differing<Y: Bundle>(first: Y, again: Y) -> f64 {
    let mut expected = Values(Vec::new());
    first.map_tensors(&mut expected);
    let mut compared = Differences { expected: expected.0.into_iter(), differ: 0.0 };
    again.map_tensors(&mut compared);
    compared.differ
}

struct Values(Vec<DispatchTensor>);

impl TensorMap for Values {
    fn float<const D: usize>(&mut self, tensor: Tensor<D>) -> Tensor<D> {
        self.0.push(tensor.clone().into_dispatch());
        tensor
    }
}

/// Finds the largest share of a tensor's elements that differ by more than 2% of their value. NaN never counts as
/// different.
struct Differences {
    expected: std::vec::IntoIter<DispatchTensor>,
    differ: f64,
}

impl TensorMap for Differences {
    fn float<const D: usize>(&mut self, tensor: Tensor<D>) -> Tensor<D> {
        let elements = tensor.shape().num_elements();
        if let Some(expected) = self.expected.next()
            && elements > 0
        {
            let expected = Tensor::<D>::from_dispatch(expected).cast(FloatDType::F32);
            let found = tensor.clone().inner().cast(FloatDType::F32);
            let bound = (found.clone().abs() + expected.clone().abs()) * 0.01;
            let differ = (found - expected).abs().greater(bound).float().sum();
            let differ = differ.try_into_scalar::<f64>().unwrap_or(0.0) / elements as f64;
            self.differ = self.differ.max(differ);
        }
        tensor
    }
}

/// Burn modules that act only in training and have their own state or randomness: dropout, noise, batch norm.
#[derive(Default)]
pub struct Random {
    containers: Vec<String>,
    found: Vec<String>,
}

impl ModuleVisitor for Random {
    fn enter_module(&mut self, _: &str, container: &str) {
        self.containers.push(container.trim_start_matches("Struct:").to_string());
    }

    fn exit_module(&mut self, _: &str, _: &str) {
        self.containers.pop();
    }

    fn visit_flag(&mut self, flag: &Param<Flag>) {
        // The flag itself is the innermost field of the module that owns it.
        let owner =
            self.containers.iter().rev().find(|name| !matches!(name.as_str(), "Flag" | "Vec" | "Tuple"));
        if let Some(owner) = owner.filter(|_| flag.is_enabled())
            && !self.found.contains(owner)
        {
            self.found.push(owner.clone());
        }
    }
}

impl Random {
    pub fn of<B: Module>(block: &B) -> Self {
        let mut random = Self::default();
        block.visit(&mut random);
        random
    }

    /// Returns whether there are none.
    pub fn is_empty(&self) -> bool {
        self.found.is_empty()
    }

    /// Returns the part of an error message that names the modules.
    pub fn hint(&self) -> String {
        match self.found.is_empty() {
            true => String::new(),
            false => format!(" (it holds {} of Burn)", self.found.join(", ")),
        }
    }
}
