//! The settings of a GPT, whatever they were read from, and the layers that they describe.

use burn::nn::Initializer;
use burn::tensor::Device;

use crate::{Activation, Linear, Norm};

/// The settings of a [`Gpt`], except for the sizes of its embeddings.
pub(super) struct Shape {
    pub layers: usize,
    pub heads: usize,
    pub width: usize,
    /// The width inside a feed-forward layer.
    pub inner: usize,
    pub bias: bool,
    pub tied: bool,
    pub embedding_dropout: f64,
    /// Dropout of attention weights.
    pub attention_dropout: f64,
    /// Dropout at the end of each residual branch.
    pub residual_dropout: f64,
    pub activation: Activation,
    /// Added to the variance in layer norms.
    pub epsilon: f64,
}

impl Shape {
    /// The standard deviation of weights at the end of a residual branch.
    pub fn residual_std(&self) -> f64 {
        0.02 / ((2 * self.layers) as f64).sqrt()
    }

    /// A linear layer with weights of standard deviation `std` and bias 0.
    pub fn linear(&self, from: usize, to: usize, std: f64, device: &Device) -> Linear {
        Linear::new(from, to, self.bias, normal(std), device)
    }

    pub fn norm(&self, device: &Device) -> Norm {
        Norm::new(self.width, self.bias, device).with_epsilon(self.epsilon)
    }
}

pub(super) fn normal(std: f64) -> Initializer {
    Initializer::Normal { mean: 0.0, std }
}
