//! GPT-2, a decoder with learned positions.

use crate::{Gpt, Gpt2Config, GptConfig};
use firebrick::TrainError;
use firebrick_datasets::TokenBatch;
use firebrick_strategies::SettingError;

use crate::family::{Attention, Family, Sizes, Trainable, Transformer, ids};
use crate::inference::{Answer, Answers, Inference, Question, continued};

impl Family for Gpt2Config {
    type Shape = GptConfig;

    const CHANGEABLE: &'static [&'static str] = &["dropout"];

    fn check_shape(shape: &GptConfig) -> Result<(), SettingError> {
        let GptConfig { layers, heads, width, dropout, .. } = *shape;
        Transformer { layers, heads, width, inner: None, default_inner: width.saturating_mul(4), dropout }
            .check()
    }

    fn fresh(shape: &GptConfig, Sizes { vocabulary, positions, special }: Sizes<'_>) -> Self {
        Self { rest: ids(special), ..Self::of_shape(shape, vocabulary, positions) }
    }

    fn layers(&self) -> usize {
        self.n_layer
    }

    fn with_layers(self, n_layer: usize) -> Self {
        Self { n_layer, ..self }
    }

    fn smallest(self) -> Self {
        Self { vocab_size: 1, n_positions: 1, n_embd: 1, n_head: 1, n_inner: Some(1), ..self }
    }

    fn attention(&self) -> Vec<Attention> {
        Attention::of_itself(self.n_layer, self.n_embd)
    }

    fn vocabulary(&self) -> usize {
        self.vocab_size
    }

    fn with_vocabulary(self, vocab_size: usize) -> Self {
        Self { vocab_size, ..self }
    }

    fn positions(&self) -> Option<usize> {
        Some(self.n_positions)
    }
}

impl Trainable for Gpt {
    const TASK: &'static str = "CausalLm";

    type Batch = TokenBatch;
}

impl Answers for Gpt {
    fn answers(&self, questions: &[Question], inference: &Inference) -> Result<Vec<Answer>, TrainError> {
        continued(self, questions, inference)
    }
}
