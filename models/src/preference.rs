//! Learning from preferences.

use burn::module::{Devices, Module, ModuleMapper, ModuleVisitor};
use burn::tensor::activation::log_sigmoid;
use burn::tensor::{DType, Device, Int, Tensor, TensorData};
use firebrick::{Evaluation, Loss, Objective, Score, TrainError};
use firebrick_datasets::collators::{Dpo, PreferenceBatch};
use firebrick_datasets::{Batch, IGNORE, TokenBatch};
use firebrick_kernels::{Draws, Head, head_losses};
use firebrick_strategies::Pass;

use crate::causal::{PlacedTokens, Read};
use crate::family::Trainable;
use crate::inference::{Answer, Answers, Inference, Question};
use crate::pretrained::{KeyMap, Pretrained, PretrainedError};
use crate::{Gpt, Llama};

/// A language model that learns to prefer the better of two answers, by [`Dpo`].
///
/// It is the same model: its parameters have the paths, ids and values of the inner one. A
/// [`Trainer`](firebrick::Trainer) asks the reference model about all answers before the first update, with the
/// strategies of the run, so that no second model is held in training.
///
/// ```
/// use std::sync::Arc;
/// use burn::tensor::Device;
/// use firebrick::optim::AdamW;
/// use firebrick::{Data, Schedule, Trainer};
/// use firebrick_datasets::collators::{CausalSample, Dpo, PreferenceSample, Preferences};
/// use firebrick_datasets::{Batcher, Encoder, InMemory, Tokenizer};
/// use firebrick_models::{Gpt, GptConfig, Preferring};
///
/// // "ab" is better than "ac".
/// let row = |ids: [u32; 2]| CausalSample { ids: ids.to_vec(), prompt: 1, ..Default::default() };
/// let pair = PreferenceSample::new(row([0, 1]), row([0, 2]));
/// let encoder = Encoder::new(Arc::new(Tokenizer::characters("abc")?));
/// let pairs = Batcher::new(InMemory::new(vec![pair]), Preferences::new(encoder, Dpo::default())?);
///
/// let config = GptConfig { layers: 1, heads: 1, width: 8, dropout: 0.0, bias: true, tied: true };
/// let model = Preferring::new(config.init(3, 2, &Device::flex().autodiff()));
/// let trained = Trainer::new().steps(20).fit(
///     model,
///     AdamW::new().init()?,
///     Schedule::constant(1e-2),
///     Data::new(pairs.clone()).valid(pairs).micro_batch(1),
/// )?;
/// assert!(trained.report.best_valid_scores["reward_margin"] > 0.0);
/// let model: Gpt = trained.model.into_inner();
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct Preferring<M>(M);

impl<M> Preferring<M> {
    /// Creates a model that learns from preferences.
    pub fn new(model: M) -> Self {
        Self(model)
    }

    /// Returns the model itself.
    pub fn into_inner(self) -> M {
        self.0
    }
}

impl<M: Module> Module for Preferring<M> {
    fn collect_devices(&self, devices: Devices) -> Devices {
        self.0.collect_devices(devices)
    }

    fn fork(self, device: &Device) -> Self {
        Self(self.0.fork(device))
    }

    fn to_device(self, device: &Device) -> Self {
        Self(self.0.to_device(device))
    }

    fn train(self) -> Self {
        Self(self.0.train())
    }

    fn valid(&self) -> Self {
        Self(self.0.valid())
    }

    fn materialize(self) -> Self {
        Self(self.0.materialize())
    }

    fn visit<V: ModuleVisitor>(&self, visitor: &mut V) {
        self.0.visit(visitor);
    }

    fn map<V: ModuleMapper>(self, mapper: &mut V) -> Self {
        Self(self.0.map(mapper))
    }
}

impl<M: Likelihood> Preferring<M> {
    /// Returns the log-probabilities of the answers, `[2 * pairs]`, one for each row.
    fn log_probs(&self, batch: &PreferenceBatch, pass: &Pass) -> Tensor<1> {
        // Each pair has two rows, so that random numbers do not depend on how pairs are cut into batches.
        let draws = pass.draws();
        let pass = pass.drawing(Draws { first: draws.first.wrapping_mul(2), ..draws });
        self.0.log_probs(batch.rows(), &pass)
    }
}

impl<M: Likelihood> Objective<PreferenceBatch> for Preferring<M> {
    /// Without answers of the reference model, they count as 0.
    fn loss(&self, batch: PreferenceBatch, pass: &Pass) -> Loss {
        if batch.items() == 0 {
            return Loss::of_nothing(pass);
        }
        ComparedPairs::of(self.log_probs(&batch, pass), &batch).loss()
    }

    fn evaluate(&self, batch: PreferenceBatch, pass: &Pass) -> Evaluation {
        if batch.items() == 0 {
            return Loss::of_nothing(pass).into();
        }
        let compared = ComparedPairs::of(self.log_probs(&batch, pass), &batch);
        Evaluation { counts: compared.counts(), loss: compared.loss() }
    }

    /// Means over pairs, as trl's: the rewards `reward_chosen` and `reward_rejected`, β times the log-probability of an
    /// answer less that of the reference model; their difference `reward_margin`; `reward_accuracy`, the share of pairs
    /// whose chosen answer has the larger reward; and the log-probabilities `logp_chosen` and `logp_rejected`.
    fn scores(&self, counts: &[f64]) -> Vec<Score> {
        scores(counts)
    }

    fn reference(&self, batch: PreferenceBatch, pass: &Pass) -> Option<Tensor<1>> {
        Some(self.log_probs(&batch, pass))
    }
}

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
}

impl<M: Answers> Answers for Preferring<M> {
    fn answers(&self, questions: &[Question], inference: &Inference) -> Result<Vec<Answer>, TrainError> {
        self.0.answers(questions, inference)
    }
}

/// A causal language model that computes how likely texts are.
pub trait Likelihood: Module {
    /// Returns the natural logarithm of the probability of each row's labels, summed over the row: `[rows]`, in f32,
    /// tracked for gradients. Each position predicts the next one's label, and those of -100 do not count.
    fn log_probs(&self, rows: &TokenBatch, pass: &Pass) -> Tensor<1>;
}

impl Likelihood for Gpt {
    fn log_probs(&self, rows: &TokenBatch, pass: &Pass) -> Tensor<1> {
        log_probs(rows, pass, &self.head(), |placed, pass| self.hidden(placed, pass))
    }
}

impl Likelihood for Llama {
    fn log_probs(&self, rows: &TokenBatch, pass: &Pass) -> Tensor<1> {
        log_probs(rows, pass, &self.head(), |placed, pass| self.hidden(placed, pass))
    }
}

/// Selected positions are multiples of this number, so that GPUs meet few shapes.
const SELECTED: usize = 64;

/// Computes the log-probabilities of rows, with the logits of labels alone, and not all of these at once. `hidden` is
/// the model without its `head`; it returns `[batch, length, width]` of the shape of its input.
fn log_probs(
    batch: &TokenBatch,
    pass: &Pass,
    head: &Head,
    hidden: impl FnOnce(PlacedTokens, &Pass) -> Tensor<3>,
) -> Tensor<1> {
    let ([rows, _], device) = (batch.shape(), pass.device());
    let Some(read) = Read::of(batch, pass) else {
        return Tensor::zeros([rows], (device, DType::F32));
    };
    let (labels, of_rows) = (read.labels(), read.tokens.rows());
    let hidden = hidden(read.placed, &read.pass).flatten::<2>(0, 1);
    let mut at: Vec<i32> =
        (0..).zip(&labels).filter(|(_, label)| **label != IGNORE).map(|(at, _)| at).collect();
    let mut positions = vec![Vec::new(); rows];
    at.iter().enumerate().for_each(|(selected, at)| positions[of_rows[*at as usize]].push(selected as i32));
    let mut labels: Vec<i32> = at.iter().map(|at| labels[*at as usize]).collect();
    // One position more, without a label: its loss is 0, which fills up the rows.
    let none = at.len() as i32;
    let selected = (at.len() + 1).next_multiple_of(SELECTED);
    labels.resize(selected, IGNORE);
    at.resize(selected, 0);
    let ints = |values: Vec<i32>| Tensor::<1, Int>::from_data(TensorData::from(&*values), device);
    let losses = head_losses(hidden.select(0, ints(at)), head, &labels);
    let most = positions.iter().map(Vec::len).max().unwrap_or(0).max(1);
    positions.iter_mut().for_each(|row| row.resize(most, none));
    let losses = losses.select(0, ints(positions.concat())).reshape([rows, most]);
    losses.sum_dim(1).squeeze_dim::<1>(1).neg()
}

/// Returns the [`Dpo`] loss of each pair, `[pairs]`, from log-probabilities of the chosen and the rejected answers by the
/// model and by its reference, each `[pairs, 2]`, all in f32.
///
/// ```
/// use burn::tensor::{Device, Tensor};
/// use firebrick_datasets::collators::Dpo;
/// use firebrick_models::dpo_losses;
///
/// let device = Device::flex();
/// let reference = Tensor::<2>::from_data([[-3.0, -4.0]], &device);
/// let losses = dpo_losses(reference.clone(), reference, Dpo::default());
/// assert!((losses.into_scalar::<f32>() - 2f32.ln()).abs() < 1e-6);
/// ```
pub fn dpo_losses(log_probs: Tensor<2>, reference: Tensor<2>, dpo: Dpo) -> Tensor<1> {
    let log_ratios = log_probs - reference;
    let [chosen, rejected] = [0, 1].map(|answer| log_ratios.clone().narrow(1, answer, 1).squeeze_dim::<1>(1));
    let margin = (chosen - rejected) * dpo.beta;
    match dpo.label_smoothing {
        0.0 => log_sigmoid(margin).neg(),
        swapped => {
            let (right, wrong) = (log_sigmoid(margin.clone()), log_sigmoid(margin.neg()));
            (right * (1.0 - swapped) + wrong * swapped).neg()
        }
    }
}

/// Pairs whose answers have been compared.
struct ComparedPairs {
    /// `[pairs, 2]`.
    log_probs: Tensor<2>,
    /// `[pairs, 2]`.
    reference: Tensor<2>,
    dpo: Dpo,
}

impl ComparedPairs {
    /// `log_probs` holds one number for each row of the batch.
    pub fn of(log_probs: Tensor<1>, batch: &PreferenceBatch) -> Self {
        let [rows] = log_probs.dims();
        let (shape, device) = ([rows / 2, 2], log_probs.device());
        let reference = match batch.reference() {
            Some(numbers) => {
                Tensor::from_data(TensorData::new(numbers.to_vec(), shape), (&device, DType::F32))
            }
            None => Tensor::zeros(shape, (&device, DType::F32)),
        };
        Self { log_probs: log_probs.reshape(shape), reference, dpo: batch.dpo() }
    }

    /// The sum over pairs.
    pub fn loss(self) -> Loss {
        let [items, _] = self.log_probs.dims();
        Loss { sum: dpo_losses(self.log_probs, self.reference, self.dpo).sum(), items }
    }

    /// The sums that [`scores`] divides by the number of pairs, which is the last one.
    pub fn counts(&self) -> Vec<f64> {
        let values = |x: &Tensor<2>| x.clone().into_data().iter::<f64>().collect::<Vec<_>>();
        let (log_probs, reference) = (values(&self.log_probs), values(&self.reference));
        let mut counts = vec![0.0; COUNTS];
        for (log_probs, reference) in log_probs.chunks(2).zip(reference.chunks(2)) {
            let [chosen, rejected] =
                [0, 1].map(|answer| self.dpo.beta * (log_probs[answer] - reference[answer]));
            let accurate = f64::from(u8::from(chosen > rejected));
            let pair = [chosen, rejected, accurate, log_probs[0], log_probs[1], 1.0];
            counts.iter_mut().zip(pair).for_each(|(sum, number)| *sum += number);
        }
        counts
    }
}

/// Two rewards, whether they are in order, two log-probabilities, and the number of pairs.
const COUNTS: usize = 6;

fn scores(counts: &[f64]) -> Vec<Score> {
    let sums: [f64; COUNTS] = counts.try_into().unwrap_or([f64::NAN; COUNTS]);
    let [chosen, rejected, accurate, logp_chosen, logp_rejected, _] = sums.map(|sum| sum / sums[COUNTS - 1]);
    vec![
        Score::higher("reward_margin", chosen - rejected),
        Score::higher("reward_accuracy", accurate),
        Score::higher("reward_chosen", chosen),
        Score::lower("reward_rejected", rejected),
        Score::higher("logp_chosen", logp_chosen),
        Score::lower("logp_rejected", logp_rejected),
    ]
}
