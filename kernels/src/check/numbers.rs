//! The results of runs, and how far they are apart.

use burn::tensor::Tensor;

/// A result of a run, in f64.
#[derive(Clone, Debug)]
pub(super) struct Output {
    name: String,
    shape: Vec<usize>,
    values: Vec<f64>,
}

impl Output {
    /// A result that there should be and is not.
    pub fn missing(name: String) -> Self {
        Self { name, shape: Vec::new(), values: Vec::new() }
    }

    /// Returns whether there are numbers, and not only zeros or one number everywhere.
    #[cfg(test)]
    pub fn differs(&self) -> bool {
        match &*self.values {
            [] => false,
            [only] => *only != 0.0,
            [first, ..] => self.values.iter().any(|value| value != first),
        }
    }
}

/// Reads a result from its device.
pub(super) fn output<const D: usize>(name: String, x: Tensor<D>) -> Output {
    Output { name, shape: x.dims().into(), values: x.into_data().iter().collect() }
}

/// Where a device is farthest from what was expected.
#[derive(Clone, Debug, PartialEq)]
pub struct Deviation {
    /// The result, as in "the gradient of key".
    pub of: String,
    /// Its shape.
    pub shape: Vec<usize>,
    /// The element, counted row by row.
    pub element: usize,
    /// Its number on the CPU, in f64.
    pub expected: f64,
    /// Its number on the device.
    pub found: f64,
    /// The difference, divided by the largest magnitude in the expected result; infinite if a number is not finite or a
    /// result is missing.
    pub error: f64,
}

/// Returns the largest deviation in all results. `None` if there are none.
///
/// It is relative to the largest number of a result, not to each: where a sum cancels, rounding leaves any number.
pub(super) fn largest(found: &[Output], expected: &[Output]) -> Option<Deviation> {
    let missing = Output::missing(String::new());
    let found = found.iter().chain(std::iter::repeat(&missing));
    let all = found.zip(expected).flat_map(|(found, expected)| of_result(found, expected));
    all.reduce(|most, other| if other.error > most.error { other } else { most })
}

fn of_result(found: &Output, expected: &Output) -> Option<Deviation> {
    let of = |element: usize, error: f64| Deviation {
        of: expected.name.clone(),
        shape: expected.shape.clone(),
        element,
        expected: expected.values.get(element).copied().unwrap_or(f64::NAN),
        found: found.values.get(element).copied().unwrap_or(f64::NAN),
        error,
    };
    if found.shape != expected.shape {
        return Some(of(0, f64::INFINITY));
    }
    let largest = expected.values.iter().fold(0.0, |most: f64, number| most.max(number.abs()));
    let scale = if largest > 0.0 { largest } else { 1.0 };
    let errors = found.values.iter().zip(&expected.values).map(|(found, expected)| {
        let error = (found - expected).abs() / scale;
        if error.is_finite() { error } else { f64::INFINITY }
    });
    let most = errors.enumerate().reduce(|most, other| if other.1 > most.1 { other } else { most });
    most.map(|(element, error)| of(element, error))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn outputs(values: &[f64]) -> Vec<Output> {
        vec![Output { name: "y".into(), shape: vec![values.len()], values: values.into() }]
    }

    #[test]
    fn the_largest_difference_is_relative_to_the_largest_number() {
        let most = largest(&outputs(&[1.0, 0.1, -4.2]), &outputs(&[1.1, 0.0, -4.0])).unwrap();
        assert_eq!((most.element, most.expected, most.found), (2, -4.0, -4.2));
        assert!((most.error - 0.05).abs() < 1e-12);
        assert_eq!(largest(&outputs(&[0.0]), &outputs(&[0.0])).unwrap().error, 0.0);
    }

    #[test]
    fn what_is_missing_or_not_finite_is_infinitely_far() {
        for found in [vec![1.0, f64::NAN], vec![f64::INFINITY, 1.0], vec![1.0]] {
            let most = largest(&outputs(&found), &outputs(&[1.0, 1.0])).unwrap();
            assert_eq!(most.error, f64::INFINITY, "{found:?}");
        }
        assert_eq!(largest(&[], &outputs(&[1.0])).unwrap().error, f64::INFINITY);
    }
}
