//! One run of a check: its inputs, what it computed, the gradients of that, and how far the results of two runs are apart.

use burn::backend::DispatchTensor;
use burn::tensor::{DType, Device, FloatDType, Gradients, Int, Tensor, TensorData};
use half::{bf16, f16};

use crate::{Draws, IGNORED, cast};

/// A number of operations or bytes, from which a time makes a speed.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Work {
    Operations(f64),
    Bytes(f64),
}

/// The inputs and results of a [check](super::Check), on one device and in one dtype.
///
/// Inputs are numbered by the order in which a check asks for them, and their numbers depend on that alone: the device and the
/// CPU compute the same. In f32 they are any numbers, and for half precision those that bf16 and f16 both hold, so that one
/// reference serves both.
pub struct Run {
    device: Device,
    dtype: FloatDType,
    coarse: bool,
    /// Whether the results are thrown away.
    times: bool,
    /// The inputs so far, outside autodiff. One that is lent is missing.
    given: Vec<Option<DispatchTensor>>,
    next: usize,
    leaves: Vec<Gradient>,
    losses: Vec<Tensor<1>>,
    outputs: Vec<Output>,
    /// What a timed run computed, which is dropped once it is queued: a queue that fuses operations need not compute what
    /// nothing holds.
    held: Vec<DispatchTensor>,
    backward: Option<Box<dyn FnOnce() -> Gradients>>,
    work: Option<Work>,
}

/// Returns the gradient of a leaf.
type Gradient = Box<dyn Fn(&Gradients) -> Output>;

impl Run {
    /// `coarse` rounds the inputs to what half precision holds. A run that `times` keeps no results.
    pub(super) fn new(device: &Device, dtype: FloatDType, coarse: bool, times: bool) -> Self {
        Self {
            device: device.clone().autodiff(),
            dtype,
            coarse,
            times,
            given: Vec::new(),
            next: 0,
            leaves: Vec::new(),
            losses: Vec::new(),
            outputs: Vec::new(),
            held: Vec::new(),
            backward: None,
            work: None,
        }
    }

    /// Returns whether this run is the one on the CPU in f64 to which the device is compared.
    pub fn is_reference(&self) -> bool {
        self.dtype == FloatDType::F64
    }

    /// Returns the dtype that is checked, or f64.
    pub fn dtype(&self) -> FloatDType {
        self.dtype
    }

    /// Returns the dtype of sums and of the weights that an optimizer owns: f32, or f64 in the reference.
    pub fn wide(&self) -> FloatDType {
        if self.is_reference() { self.dtype } else { FloatDType::F32 }
    }

    /// Returns whether the inputs are those of half precision.
    pub fn is_half(&self) -> bool {
        self.coarse
    }

    /// Returns the device, without autodiff.
    pub fn device(&self) -> Device {
        self.device.clone().inner()
    }

    /// Returns a tracked input of numbers between -1 and 1, whose gradient is compared too.
    pub fn leaf<const D: usize>(&mut self, name: &'static str, shape: [usize; D]) -> Tensor<D> {
        self.leaf_within(name, shape, 1.0)
    }

    /// Like [`leaf`](Self::leaf), of numbers between -`most` and `most`.
    pub fn leaf_within<const D: usize>(
        &mut self,
        name: &'static str,
        shape: [usize; D],
        most: f32,
    ) -> Tensor<D> {
        let inner = Tensor::<D>::from_dispatch(self.input(shape, [-most, most], self.dtype));
        self.track(name, inner)
    }

    /// Like [`leaf`](Self::leaf), in the [wide](Self::wide) dtype.
    pub fn wide_leaf<const D: usize>(&mut self, name: &'static str, shape: [usize; D]) -> Tensor<D> {
        let inner = Tensor::<D>::from_dispatch(self.input(shape, [-1.0, 1.0], self.wide()));
        self.track(name, inner)
    }

    fn track<const D: usize>(&mut self, name: &'static str, inner: Tensor<D>) -> Tensor<D> {
        let leaf = Tensor::from_inner(inner).require_grad();
        let tracked = leaf.clone();
        self.leaves.push(Box::new(move |grads| match tracked.grad(grads) {
            Some(gradient) => output(format!("the gradient of {name}"), gradient),
            None => Output::missing(format!("the gradient of {name}")),
        }));
        leaf
    }

    /// Returns an input in f32, or f64 in the reference, of numbers between -1 and 1 without a gradient.
    pub fn constant<const D: usize>(&mut self, shape: [usize; D]) -> Tensor<D> {
        Tensor::from_inner(Tensor::from_dispatch(self.input(shape, [-1.0, 1.0], self.wide())))
    }

    /// Returns an input in this run's dtype, outside autodiff.
    pub fn plain<const D: usize>(&mut self, shape: [usize; D]) -> Tensor<D> {
        Tensor::from_dispatch(self.input(shape, [-1.0, 1.0], self.dtype))
    }

    /// Lends numbers between `range`, `[count]`, outside autodiff, which nothing else holds, so that a kernel may write in
    /// their place. [`restore`](Self::restore) takes what became of them, under the same number.
    pub fn lend(&mut self, count: usize, range: [f32; 2], dtype: FloatDType) -> (usize, Tensor<1>) {
        let place = self.next;
        let lent = self.input([count], range, dtype);
        self.given[place] = None;
        (place, Tensor::from_dispatch(lent))
    }

    /// Takes a tensor that was [lent](Self::lend).
    pub fn restore(&mut self, place: usize, tensor: Tensor<1>) {
        if self.times {
            self.given[place] = Some(tensor.into_dispatch());
        }
    }

    /// Returns ids below `below`, of which some are equal.
    pub fn ids<const D: usize>(&mut self, shape: [usize; D], below: usize) -> Tensor<D, Int> {
        let device = self.device();
        let ids = self.number(|_, seed| {
            let count: u64 = shape.iter().product::<usize>() as u64;
            let ids = (0..count).map(|at| (Draws::mix(seed, at) % below as u64) as i32);
            let data = TensorData::new(ids.collect::<Vec<_>>(), shape);
            Tensor::<D, Int>::from_data(data, &device).into_dispatch()
        });
        Tensor::from_inner(Tensor::from_dispatch(ids))
    }

    /// Returns labels of rows, of which every fifth is -100.
    pub fn labels(&self, rows: usize, classes: usize) -> Vec<i32> {
        let label = |row: usize| if row % 5 == 4 { IGNORED } else { ((row * 7 + 3) % classes) as i32 };
        (0..rows).map(label).collect()
    }

    /// Returns numbers between -1 and 1 in host memory.
    pub fn on_host(&mut self, count: usize) -> Vec<f32> {
        self.next += 1;
        self.given.resize_with(self.next.max(self.given.len()), || None);
        self.numbers(count, self.next as u64, [-1.0, 1.0])
    }

    /// Adds a result. If it is tracked, so does its gradient for the leaves, given a gradient of numbers between -1 and 1.
    pub fn result<const D: usize>(&mut self, name: &'static str, y: Tensor<D>) {
        if self.times {
            if y.is_autodiff() && !self.leaves.is_empty() {
                let of = y.clone();
                self.backward = Some(Box::new(move || of.backward()));
            }
            self.held.push(y.into_dispatch());
            return;
        }
        if y.is_autodiff() && !self.leaves.is_empty() {
            let weights = self.constant(y.dims());
            let loss = (cast(y.clone(), self.wide()) * weights).sum();
            self.losses.push(loss);
        }
        self.outputs.push(output(name.into(), y));
    }

    /// Says how many floating-point operations a run has, forward and backward.
    pub fn operations(&mut self, count: usize) {
        self.work = Some(Work::Operations(count as f64));
    }

    /// Says how many numbers of the checked dtype a run reads and writes, and how many in f32.
    pub fn moves(&mut self, count: usize, wide: usize) {
        let size = DType::from(self.dtype).size();
        self.work = Some(Work::Bytes((count * size + wide * 4) as f64));
    }

    pub(super) fn work(&self) -> Option<Work> {
        self.work
    }

    /// Returns the results and the gradients.
    pub(super) fn finish(mut self) -> Vec<Output> {
        if let Some(loss) = self.losses.drain(..).reduce(|sum, loss| sum + loss) {
            let grads = loss.backward();
            self.outputs.extend(self.leaves.iter().map(|of| of(&grads)));
        }
        self.outputs
    }

    /// Ends one of several timed runs: runs its backward pass, and hands everything to the device.
    pub(super) fn end_timed(&mut self) -> Result<(), String> {
        let grads = self.backward.take().map(|backward| backward());
        self.device.flush().map_err(|error| error.to_string())?;
        drop(grads);
        self.held.clear();
        self.leaves.clear();
        self.next = 0;
        Ok(())
    }

    fn input<const D: usize>(
        &mut self,
        shape: [usize; D],
        range: [f32; 2],
        dtype: FloatDType,
    ) -> DispatchTensor {
        let device = self.device();
        self.number(|run, seed| {
            let numbers = run.numbers(shape.iter().product(), seed, range);
            let data = TensorData::new(numbers, shape);
            Tensor::<D>::from_data(data, (&device, DType::from(dtype))).into_dispatch()
        })
    }

    /// Returns the next input, which an earlier timed run may have made.
    fn number(&mut self, make: impl FnOnce(&Self, u64) -> DispatchTensor) -> DispatchTensor {
        let place = self.next;
        self.next += 1;
        if let Some(Some(known)) = self.given.get(place) {
            return known.clone();
        }
        let made = make(self, self.next as u64);
        self.given.resize_with(self.next.max(self.given.len()), || None);
        self.given[place] = self.times.then(|| made.clone());
        made
    }

    fn numbers(&self, count: usize, seed: u64, [least, most]: [f32; 2]) -> Vec<f32> {
        let number = |at: usize| {
            let share = (Draws::mix(seed, at as u64) >> 40) as f32 / (1 << 24) as f32;
            let number = least + (most - least) * share;
            if self.coarse { bf16::from_f32(f16::from_f32(number).to_f32()).to_f32() } else { number }
        };
        (0..count).map(number).collect()
    }
}

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
