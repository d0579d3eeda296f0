//! The masked tokens.

use burn::module::{Module, Param};
use burn::tensor::{Device, FloatDType, Int, Tensor};
use firebrick::{Evaluation, Loss, Objective, Score, TrainError};
use firebrick_datasets::collators::{Inputs, LabeledBatch};
use firebrick_datasets::{Batch, IGNORE};
use firebrick_kernels::{Head, cast};
use firebrick_strategies::{Pass, TensorPlan};

use super::{HeadOf, Heads, Transform};
use crate::attention::starts_of;
use crate::family::{Family, Trainable};
use crate::inference::{Answer, Answers, Inference, Question, filled_in};
use crate::pretrained::{HubConfig, KeyMap, Pretrained, PretrainedError};
use crate::ragged::Tokens;
use crate::vocabulary::{counted, output_layer, output_loss, perplexity};

/// Predicts masked tokens: `BertForMaskedLM`, `ModernBertForMaskedLM` and the like, and the generator of an ELECTRA. Its
/// output weights are the token embedding.
#[derive(Module, Debug)]
pub struct MaskedLm<E> {
    encoder: E,
    transform: Option<Transform>,
    /// `[vocabulary]`.
    bias: Option<Param<Tensor<1>>>,
}

impl<E: Heads> MaskedLm<E> {
    /// Maps tokens `[batch, length]` to logits `[batch, length, vocabulary]`, in the dtype of the embedding.
    ///
    /// # Panics
    ///
    /// Those of the encoder's `forward`.
    pub fn forward(&self, inputs: &Inputs, pass: &Pass) -> Tensor<3> {
        self.head().logits(self.hidden(inputs, &Tokens::padded(inputs), pass))
    }

    /// The input of the output layer for some tokens, of their shape.
    fn hidden(&self, inputs: &Inputs, tokens: &Tokens, pass: &Pass) -> Tensor<3> {
        let x = self.encoder.hidden(inputs, tokens, pass);
        let pass = tokens.pass(pass, || starts_of(inputs.host_mask(), inputs.shape()[1]));
        match &self.transform {
            Some(transform) => transform.forward(x, &pass),
            None => x,
        }
    }

    fn head(&self) -> Head {
        let tokens = self.encoder.tokens();
        let dtype = FloatDType::from(tokens.weight.val().dtype());
        let bias = self.bias.as_ref().map(|bias| cast(bias.val(), dtype));
        Head { bias, ..output_layer(tokens, None) }
    }
}

impl<E: Heads> Objective<LabeledBatch> for MaskedLm<E> {
    fn loss(&self, batch: LabeledBatch, pass: &Pass) -> Loss {
        let tokens = self.encoder.shared(batch.inputs(), pass);
        if tokens.is_empty() {
            return Loss::of_nothing(pass);
        }
        let x = self.hidden(batch.inputs(), &tokens, pass);
        let labels = tokens.select(batch.host_labels(), IGNORE);
        Loss { sum: output_loss(x, &self.head(), &labels, pass), items: batch.items() }
    }

    fn tensor_plan(&self) -> TensorPlan {
        let plan = self.encoder.tensor_plan();
        if plan.is_empty() {
            return plan;
        }
        let plan = plan.logits("*tokens");
        match &self.bias {
            Some(bias) => plan.vocabulary("bias", bias.lazy_shape()[0]),
            None => plan,
        }
    }

    fn evaluate(&self, batch: LabeledBatch, pass: &Pass) -> Evaluation {
        let tokens = self.encoder.shared(batch.inputs(), pass);
        if tokens.is_empty() {
            let Evaluation { loss, counts } = counted(Loss::of_nothing(pass), pass);
            return Evaluation { loss, counts: [counts, vec![0.0]].concat() };
        }
        let head = self.head();
        let x = self.hidden(batch.inputs(), &tokens, pass);
        let all = tokens.select(batch.host_labels(), IGNORE);
        let masked = (0..).zip(&all).filter(|(_, label)| **label != IGNORE);
        let (places, labels): (Vec<i32>, Vec<i32>) = masked.unzip();
        let right = match labels.is_empty() {
            // Burn has no product of no rows.
            true => 0,
            false => {
                let places = Tensor::<1, Int>::from_data(places.as_slice(), &x.device());
                let guesses =
                    pass.likeliest(x.clone().flatten::<2>(0, 1).select(0, places), &head).into_data();
                guesses.iter::<i32>().zip(labels).filter(|(guess, label)| guess == label).count()
            }
        };
        let loss = Loss { sum: output_loss(x, &head, &all, pass), items: batch.items() };
        let Evaluation { loss, mut counts } = counted(loss, pass);
        counts.push(right as f64);
        Evaluation { loss, counts }
    }

    /// `accuracy` over the masked tokens, and `perplexity`, the exponential of their mean loss.
    fn scores(&self, counts: &[f64]) -> Vec<Score> {
        let [loss, items, right] = counts.try_into().unwrap_or([f64::NAN; 3]);
        vec![Score::higher("accuracy", right / items), perplexity(&[loss, items])]
    }
}

impl<E: Heads> Pretrained for MaskedLm<E> {
    type Config = E::Config;

    fn architecture(config: &E::Config) -> &'static str {
        E::architecture(config, HeadOf::Masked)
    }

    fn check(config: &E::Config) -> Result<(), PretrainedError> {
        config.check()?;
        match E::is_tied(config) {
            true => Ok(()),
            false => Err(PretrainedError::setting("tie_word_embeddings", "true", false)),
        }
    }

    fn init(config: &E::Config, device: &Device) -> Self {
        let bias = || Param::from_tensor(Tensor::zeros([config.vocabulary()], device));
        Self {
            encoder: E::new(config, device),
            transform: E::transform(config, HeadOf::Masked, device),
            bias: E::has_output_bias(config).then(bias),
        }
    }

    fn keys(config: &E::Config) -> KeyMap {
        E::keys(config, HeadOf::Masked)
    }
}

impl<E: Heads> Trainable for MaskedLm<E> {
    const TASK: &'static str = "MaskedLm";

    type Batch = LabeledBatch;

    fn divides_tokens(config: &E::Config) -> bool {
        E::divides_tokens(config)
    }
}

impl<E: Heads> Answers for MaskedLm<E> {
    fn answers(&self, questions: &[Question], inference: &Inference) -> Result<Vec<Answer>, TrainError> {
        filled_in(questions, inference, |inputs, pass| self.forward(inputs, pass))
    }
}
