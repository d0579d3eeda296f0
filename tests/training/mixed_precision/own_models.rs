//! Models that a user wrote of Burn's layers, which may mix dtypes or share a state.

use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use burn::nn::{LayerNorm, LayerNormConfig, Linear, LinearConfig};

use super::*;

/// A user's model of Burn's own layers. `forgets` selects the cast that it omits.
#[derive(Module, Debug)]
struct Own {
    embedding: burn::nn::Embedding,
    norm: LayerNorm,
    linear: Linear,
    forgets: usize,
    #[module(skip)]
    calls: Arc<AtomicUsize>,
}

/// A factor created in f32 meets the output of the linear layer.
const FORGETS_FACTOR: usize = 1;
/// An input in f32 meets the linear layer.
const FORGETS_INPUT: usize = 2;

impl Own {
    fn new(forgets: usize) -> Self {
        let device = device();
        Self {
            embedding: burn::nn::EmbeddingConfig::new(VOCABULARY, 4).init(&device),
            norm: LayerNormConfig::new(4).init(&device),
            linear: LinearConfig::new(4, 4).init(&device),
            forgets,
            calls: Arc::default(),
        }
    }
}

impl Objective<TokenBatch> for Own {
    fn loss(&self, batch: TokenBatch, pass: &Pass) -> Loss {
        self.calls.fetch_add(1, Relaxed);
        let x = self.norm.forward(self.embedding.forward(batch.ids(pass.device())));
        let x = if self.forgets == FORGETS_INPUT { x.cast(FloatDType::F32) } else { x };
        let y = self.linear.forward(x);
        let factor = Tensor::<3>::ones([1, 1, 4], pass.device());
        let y = if self.forgets == FORGETS_FACTOR { y * factor } else { y };
        let items = batch.items();
        Loss { sum: y.cast(FloatDType::F32).square().mean() * items as f64, items }
    }
}

fn own(amp: Option<Amp>, forgets: usize) -> (Result<Trained<Own>, TrainError>, usize) {
    let model = Own::new(forgets);
    let calls = model.calls.clone();
    let data = Data::new(Rows::ragged(8)).micro_batch(2);
    let result = fit(Trainer::new().with(amp).steps(3), model, adamw(), RATE, data).0;
    (result, calls.load(Relaxed))
}

/// Burn's kernels for GPUs compare no dtypes.
#[test]
fn a_model_that_mixes_dtypes_is_refused_by_parameter_and_operation() {
    if !has_bf16() || !is_cpu() {
        return;
    }
    for (amp, forgets, parts) in [
        (Amp::bf16().keep_f32(Keep::norms()), 0, ["`norm.gamma`, in f32", "`layer_norm` failed", "in bf16"]),
        (
            Amp::bf16(),
            FORGETS_INPUT,
            ["`linear.weight`, in bf16", "`matmul` failed", "cannot compute in bf16"],
        ),
        (Amp::f16(), FORGETS_INPUT, ["`linear.weight`, in f16", "`matmul` failed", "cannot compute in f16"]),
        (Amp::bf16(), FORGETS_FACTOR, ["`linear.weight`, in bf16", "`mul` failed", "cannot compute in bf16"]),
    ] {
        let (result, _) = own(Some(amp), forgets);
        let error = result.unwrap_err();
        assert!(matches!(error, TrainError::MixedDtypes { .. }), "{error}");
        let error = error.to_string();
        assert!(parts.iter().all(|part| error.contains(part)), "{error}");
    }
}

#[test]
fn the_trial_is_one_more_pass_and_only_where_something_is_cast() {
    if !has_bf16() {
        return;
    }
    for (amp, calls) in [(None, 3), (Some(Amp::f32()), 3), (Some(Amp::bf16()), 4)] {
        let (result, found) = own(amp, 0);
        assert_eq!((result.unwrap().report.steps, found), (3, calls));
    }
    assert!(own(None, FORGETS_FACTOR).0.is_ok());
}

#[test]
fn a_model_that_cannot_be_evaluated_in_a_dtype_is_refused_before_the_run() {
    if !has_bf16() || !is_cpu() {
        return;
    }
    let model = Own::new(FORGETS_FACTOR);
    let data = Data::new(Rows::ragged(8)).valid(Rows::ragged(8)).micro_batch(2);
    let trainer = Trainer::new().with(Amp::f32().evaluate_in(FloatDType::BF16)).steps(3);
    let (result, steps) = fit(trainer, model, adamw(), RATE, data);
    let error = result.unwrap_err();
    assert!(matches!(error, TrainError::MixedDtypes { dtype: "bf16", .. }), "{error}");
    assert!(steps.is_empty());
}

/// Burn's running means are one state for all copies of a model.
#[test]
fn a_state_that_copies_share_is_refused_by_its_path() {
    use burn::nn::{BatchNorm, BatchNormConfig};

    #[derive(Module, Debug)]
    struct Normed {
        bigram: Bigram,
        norm: BatchNorm,
    }

    impl Objective<TokenBatch> for Normed {
        fn loss(&self, batch: TokenBatch, pass: &Pass) -> Loss {
            self.bigram.loss(batch, pass)
        }
    }

    let normed = || Normed { bigram: Bigram::new(&device()), norm: BatchNormConfig::new(4).init(&device()) };
    let run = |amp: Option<Amp>| {
        let data = Data::new(Rows::ragged(4));
        Trainer::new().with(amp).steps(1).fit(normed(), adamw(), Schedule::constant(RATE), data)
    };
    let error = run(Some(Amp::f16())).unwrap_err();
    assert!(matches!(&error, TrainError::SharedState { path } if path == "norm.running_mean"), "{error}");
    run(None).unwrap();
}
