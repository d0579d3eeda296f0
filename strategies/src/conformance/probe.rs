//! The model of the checks.

use burn::module::{Module, Param, ParamId};
use burn::nn::{Linear, LinearConfig};
use burn::tensor::{Device, FloatDType, Tensor};

use crate::{ParamMap, Pass, adapted_linear, map_params, relift};

const WIDTH: usize = 8;

/// A model of two blocks and a head, with the same weights each time it is made. Its parameters are `blocks.0.weight`,
/// `blocks.0.bias`, `blocks.1.weight`, `blocks.1.bias`, `head.weight` and `head.bias`.
#[derive(Module, Debug)]
pub struct Probe {
    blocks: Vec<Linear>,
    head: Linear,
}

impl Probe {
    /// Creates the model on a device.
    pub fn new(device: &Device) -> Self {
        let linear = |output| LinearConfig::new(WIDTH, output).init(device);
        map_params(Self { blocks: vec![linear(WIDTH), linear(WIDTH)], head: linear(2) }, &mut Waves(0))
    }

    /// Returns the summed loss of samples, `[1]` in f32. A sample is a function of its number.
    pub(super) fn loss(&self, samples: std::ops::Range<usize>, pass: &Pass) -> Tensor<1> {
        let rows = samples.len();
        let numbers: Vec<f32> =
            samples.flat_map(|sample| (0..WIDTH).map(move |i| wave(11 * sample + i))).collect();
        let x = Tensor::<1>::from_floats(numbers.as_slice(), pass.device()).reshape([rows, WIDTH]);
        let run = |block: &Linear, x: Tensor<2>, pass: &Pass| {
            adapted_linear(x, &block.weight, block.bias.as_ref().map(Param::val), pass).tanh()
        };
        let x = x.cast(FloatDType::from(self.head.weight.val().dtype()));
        let x = self.blocks.iter().fold(x, |x, block| pass.segment(block, x, run));
        (self.head.forward(x).cast(FloatDType::F32) - 1.0).square().sum()
    }
}

/// A number between -0.5 and 0.5.
fn wave(at: usize) -> f32 {
    (at as f32 * 0.7 + 0.3).sin() * 0.5
}

/// Sets the elements of all parameters to successive numbers of a wave.
struct Waves(usize);

impl ParamMap for Waves {
    fn map<const D: usize>(&mut self, _: ParamId, value: Tensor<D>) -> Tensor<D> {
        let numbers: Vec<f32> = (0..value.shape().num_elements()).map(|i| wave(self.0 + i)).collect();
        self.0 += numbers.len();
        let flat = Tensor::<1>::from_floats(numbers.as_slice(), &value.device().inner());
        relift(flat.reshape(value.shape()), &value)
    }
}
