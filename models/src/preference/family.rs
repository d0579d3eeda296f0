//! Models that learn preferences, for run files.

use burn::tensor::Device;
use firebrick::TrainError;
use firebrick_datasets::TokenBatch;
use firebrick_datasets::collators::PreferenceBatch;

use super::{Likelihood, Preferring};
use crate::family::Trainable;
use crate::inference::{Answer, Answers, Inference, Question};
use crate::pretrained::{KeyMap, Pretrained, PretrainedError};

impl<M: Pretrained> Pretrained for Preferring<M> {
    type Config = M::Config;

    fn architecture(config: &M::Config) -> &'static str {
        M::architecture(config)
    }

    fn check(config: &M::Config) -> Result<(), PretrainedError> {
        M::check(config)
    }

    fn init(config: &M::Config, device: &Device) -> Self {
        Self(M::init(config, device))
    }

    fn keys(config: &M::Config) -> KeyMap {
        M::keys(config)
    }
}

impl<M: Trainable<Batch = TokenBatch> + Likelihood> Trainable for Preferring<M> {
    const TASK: &'static str = "Dpo";

    type Batch = PreferenceBatch;

    fn rows(batch: &PreferenceBatch) -> usize {
        batch.rows().shape()[0]
    }
}

impl<M: Answers> Answers for Preferring<M> {
    fn answers(&self, questions: &[Question], inference: &Inference) -> Result<Vec<Answer>, TrainError> {
        self.0.answers(questions, inference)
    }
}
