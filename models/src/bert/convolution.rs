//! The convolution beside a DeBERTa's first block.

use burn::module::{Initializer, Module, Param};
use burn::tensor::{Device, FloatDType, Int, Tensor};
use firebrick_kernels::{cast, embedding, linear};
use firebrick_strategies::{Dropout, Pass};

use super::BertConfig;
use super::deberta::Convolved;
use crate::ragged::Tokens;
use crate::{Activation, Norm};

/// Mixes the embeddings of neighbouring tokens, and adds them to the hidden states of the first block: the nGram induced
/// encoding of DeBERTa v2 (He et al., 2021, arXiv:2006.03654), as transformers' `ConvLayer` computes it.
#[derive(Module, Debug)]
pub(super) struct Convolution {
    /// `[hidden_size, hidden_size, kernel]`, of outputs and inputs.
    weight: Param<Tensor<3>>,
    /// `[hidden_size]`.
    bias: Param<Tensor<1>>,
    norm: Norm,
    dropout: Dropout,
    #[module(skip)]
    activation: Activation,
}

impl Convolution {
    pub fn new(config: &BertConfig, convolved: &Convolved, device: &Device) -> Self {
        let width = config.hidden_size;
        Self {
            weight: config.normal().init([width, width, convolved.kernel], device),
            bias: Initializer::Zeros.init([width], device),
            norm: config.norm(width, device),
            dropout: Dropout::new(config.hidden_dropout_prob),
            activation: convolved.activation,
        }
    }

    /// `embeddings` and `states` are `[batch, length, hidden_size]`, of the shape of `tokens`; so is the result. Padding
    /// counts as 0.
    pub fn forward(
        &self,
        embeddings: Tensor<3>,
        states: Tensor<3>,
        tokens: &Tokens,
        pass: &Pass,
    ) -> Tensor<3> {
        let [batch, length, width] = embeddings.dims();
        let weight = self.weight.val();
        let kernel = weight.dims()[2];
        let places: Tensor<2, Int> = tokens.neighbours(kernel / 2, &embeddings.device());
        let flat = embeddings.flatten::<2>(0, 1);
        let nothing = flat.clone().narrow(0, 0, 1).zeros_like();
        let read = embedding(Tensor::cat(vec![flat, nothing], 0), places);
        let read = read.reshape([batch, length, kernel * width]);
        // [out, in, kernel] -> [kernel * in, out]
        let weight = weight.permute([2, 1, 0]).reshape([kernel * width, width]);
        // As other layers, it computes in the dtype of its weights.
        let (of_input, own) = (FloatDType::from(read.dtype()), FloatDType::from(weight.dtype()));
        let mixed = linear(cast(read, own), weight, Some(cast(self.bias.val(), own)));
        let mixed = self.activation.forward(self.dropout.forward(cast(mixed, of_input), pass));
        self.norm.of_sum(states, mixed).1
    }
}
