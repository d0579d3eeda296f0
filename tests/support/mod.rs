//! A small model with ragged data, and the hand-written training loop of a Burn user.

#![allow(dead_code, reason = "each test file uses a part")]

pub mod golden_models;
pub mod many;
pub mod resuming;

use std::ops::Range;

use burn::module::{Module, ModuleVisitor, Param, ParamId};
use burn::nn::{Embedding, EmbeddingConfig, Linear, LinearConfig};
use burn::optim::{AdamWConfig, GradientsParams, ModuleOptimizer};
use burn::tensor::{Device, FloatDType, Int, Tensor, activation::log_softmax};
use firebrick::datasets::{Batch, Batches, DataError, TokenBatch};
use firebrick::strategies::{Draws, ParamMap, StrategyError, map_params, relift};
use firebrick::{Amp, Data, Loss, Objective, Pass, Schedule, TrainError, Trainer};
use firebrick_models::{Gpt, GptConfig};

/// Returns the device that `BURN_DEVICE` names, as in the program; the CPU by default.
pub fn device() -> Device {
    let name = std::env::var("BURN_DEVICE").unwrap_or("cpu".into());
    firebrick::device::find(&name).unwrap_or_else(|error| panic!("BURN_DEVICE: {error}")).0
}

/// Returns whether the device computes in bf16. If not, a test in bf16 ends here, after checking that `Amp::bf16()` is
/// refused, and that the error names what the device computes in.
pub fn has_bf16() -> bool {
    let device = device().autodiff();
    let trainer = Trainer::new().with(Amp::bf16()).steps(1);
    let (data, schedule) = (Data::new(Rows::ragged(2)), Schedule::constant(1e-3));
    match trainer.fit(Bigram::new(&device), adamw(), schedule, data) {
        Ok(_) => true,
        Err(TrainError::Strategy(StrategyError::Dtype { dtype: "bf16", supported, .. })) => {
            assert!(supported.contains("f32") && !supported.contains("bf16"), "{supported}");
            assert!(!device.supports_dtype(FloatDType::BF16));
            false
        }
        Err(error) => panic!("{error}"),
    }
}

pub const VOCABULARY: usize = 11;
/// A token that makes the loss NaN.
pub const POISON: u32 = 10;

/// Embeds each token and predicts the next from it.
#[derive(Module, Debug)]
pub struct Bigram {
    pub embedding: Embedding,
    pub hidden: Linear,
    pub head: Linear,
}

impl Bigram {
    /// Creates fixed weights, without a generator: all tests of a process share Burn's.
    pub fn new(device: &Device) -> Self {
        let model = Self {
            embedding: EmbeddingConfig::new(VOCABULARY, 6).init(device),
            hidden: LinearConfig::new(6, 9).init(device),
            head: LinearConfig::new(9, VOCABULARY).init(device),
        };
        map_params(model, &mut Waves::default())
    }

    /// Maps ids `[batch, length]` to the negative log-likelihoods `[batch, length - 1]` of the labels, and 1 for each
    /// supervised label.
    pub fn losses(&self, ids: Tensor<2, Int>, labels: Tensor<2, Int>) -> (Tensor<2>, Tensor<2>) {
        let [rows, length] = ids.dims();
        let x = self.embedding.forward(ids.clone().slice([0..rows, 0..length - 1]));
        let x = self.hidden.forward(x).tanh();
        let logits = self.head.forward(x).cast(FloatDType::F32);
        let labels = labels.slice([0..rows, 1..length]);
        let mask = labels.clone().greater_equal_scalar(0).float();
        let picked = labels.clamp_min(0).unsqueeze_dim::<3>(2);
        let losses = log_softmax(logits, 2).gather(2, picked).squeeze_dim::<2>(2).neg();
        let poisoned = ids.equal_scalar(POISON as i32).any().float();
        let poison = poisoned.clone().equal_scalar(1.0);
        let factor = poisoned.ones_like().mask_fill(poison, f32::NAN);
        (losses * factor.reshape([1, 1]), mask)
    }
}

/// Fixed values that look random: `map_params(model, &mut Waves::default())`.
#[derive(Default)]
pub struct Waves(i64);

impl ParamMap for Waves {
    fn map<const D: usize>(&mut self, _: ParamId, value: Tensor<D>) -> Tensor<D> {
        let (shape, start) = (value.shape(), self.0);
        self.0 += shape.num_elements() as i64;
        let places = Tensor::<1, Int>::arange(start..self.0, &value.device().inner());
        let waves = (places.float() * 1.7).sin() * 0.4;
        relift(waves.reshape(shape), &value)
    }
}

impl Objective<TokenBatch> for Bigram {
    fn loss(&self, batch: TokenBatch, pass: &Pass) -> Loss {
        let (losses, mask) = self.losses(batch.ids(pass.device()), batch.labels(pass.device()));
        Loss { sum: (losses * mask).sum(), items: batch.items() }
    }
}

/// Rows of tokens in order, the same in each epoch.
#[derive(Clone)]
pub struct Rows(pub Vec<Vec<u32>>);

impl Rows {
    /// `count` rows of 2 to 9 tokens.
    pub fn ragged(count: usize) -> Self {
        let row = |i: usize| (0..2 + (i * 5) % 8).map(|j| ((i * 7 + j * j * 3 + j) % 10) as u32).collect();
        Self((0..count).map(row).collect())
    }
}

impl Batches for Rows {
    type Batch = TokenBatch;

    fn samples(&self, _: u64) -> usize {
        self.0.len()
    }

    fn batch(&self, _: u64, positions: Range<usize>) -> Result<TokenBatch, DataError> {
        TokenBatch::from_rows(self.0[positions].to_vec(), 0)
    }
}

/// The AdamW of the tests.
pub fn adamw() -> ModuleOptimizer {
    AdamWConfig::new().with_epsilon(1e-8).with_weight_decay(0.1).init()
}

/// One step of the plain loop: one batch, one mean loss, one update. It does not use the trainer.
pub fn plain_step(
    model: Bigram,
    optimizer: &mut ModuleOptimizer,
    batch: &TokenBatch,
    rate: f64,
    change: impl FnOnce(&Bigram, GradientsParams) -> GradientsParams,
    device: &Device,
) -> (Bigram, f64) {
    let (losses, mask) = model.losses(batch.ids(device), batch.labels(device));
    let loss = (losses * mask).sum() / batch.items() as f64;
    let grads = GradientsParams::from_grads(loss.backward(), &model);
    let grads = change(&model, grads);
    let value = loss.into_scalar::<f64>();
    (optimizer.step(rate, model, grads), value)
}

/// Returns all parameters, concatenated.
pub fn parameters<M: Module>(model: &M) -> Vec<f32> {
    struct Values(Vec<f32>);
    impl ModuleVisitor for Values {
        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
            self.0.extend(param.base().into_data().iter::<f32>());
        }
    }
    let mut values = Values(Vec::new());
    model.visit(&mut values);
    values.0
}

/// Returns the largest difference, relative to the largest value.
pub fn difference(a: &[f32], b: &[f32]) -> f64 {
    assert_eq!(a.len(), b.len());
    let largest = b.iter().fold(0f32, |most, x| most.max(x.abs()));
    let difference = a.iter().zip(b).fold(0f32, |most, (a, b)| most.max((a - b).abs()));
    assert!(a.iter().all(|x| x.is_finite()), "a parameter is not finite");
    f64::from(difference) / f64::from(largest)
}

/// Returns whether the tests run on the CPU, where equal operations give equal bits.
pub fn is_cpu() -> bool {
    std::env::var("BURN_DEVICE").map_or(true, |name| name.starts_with("cpu") || name == "flex")
}

/// Returns whether a tensor has the bytes of its elements. On CUDA, CubeCL pads rows that come from the host, and those of a
/// product if they are no multiple of 16 bytes.
pub fn is_unpadded() -> bool {
    !std::env::var("BURN_DEVICE").is_ok_and(|name| name.starts_with("cuda"))
}

/// Replaces the model's weights by fixed ones.
pub fn map_waves<M: Module>(model: M) -> M {
    map_params(model, &mut Waves::default())
}

/// Creates a small transformer of three blocks with fixed weights.
pub fn gpt(dropout: f64, device: &Device) -> Gpt {
    gpt_of(3, dropout, device)
}

/// The same of so many blocks.
pub fn gpt_of(layers: usize, dropout: f64, device: &Device) -> Gpt {
    let config = GptConfig { layers, heads: 2, width: 16, dropout, bias: true, tied: true };
    map_params(config.init(VOCABULARY, 9, device), &mut Hashed(0))
}

/// Fills matrices with uniform values in `-0.1..0.1` without a generator; norms and biases keep their initial values.
struct Hashed(u64);

impl ParamMap for Hashed {
    fn map<const D: usize>(&mut self, _: ParamId, value: Tensor<D>) -> Tensor<D> {
        if D < 2 {
            return value;
        }
        self.0 += 1;
        let shape = value.shape();
        let uniform = |i| Draws::mix(self.0, i) as f64 / u64::MAX as f64;
        let values: Vec<f32> =
            (0..shape.num_elements() as u64).map(|i| (0.2 * uniform(i) - 0.1) as f32).collect();
        let drawn = Tensor::<1>::from_data(values.as_slice(), &value.device().inner());
        relift(drawn.reshape(shape), &value)
    }
}
