//! Writes a strategy of your own, and composes it with the others:
//!
//!     cargo run --example own_strategy
//!
//! Gradient centralization subtracts from each column of a weight matrix's gradient its mean (Yong et al., *Gradient
//! Centralization: A New Optimization Technique for Deep Neural Networks*, 2020, arXiv:2004.01461).

use burn::module::{Module, ParamId};
use burn::optim::SgdConfig;
use burn::tensor::{Device, Tensor};
use firebrick::datasets::{Tokenizer, Windows};
use firebrick::strategies::{
    Effects, GradMap, Grads, Outcome, Setup, Stage, Stages, StrategyError, StrategyRecipe,
};
use firebrick::{Accumulate, Amp, Clip, Data, Report, Schedule, Show, Strategy, TrainError, Trainer};
use firebrick_models::GptConfig;

/// The recipe: what the strategy is set to. This one has no settings.
#[derive(Clone, Debug)]
pub struct Centralize;

impl StrategyRecipe for Centralize {
    fn effects(&self) -> Effects {
        // It transforms the gradient of the whole update, in f32: `Accumulate` and `Amp` come first, wherever they are written.
        Effects::of("Centralize")
    }
}

impl<M: Module> Strategy<M> for Centralize {
    fn stages(&self, _: &mut Setup<M>) -> Result<Stages<M>, StrategyError> {
        Ok(Stages::of(self.clone()))
    }
}

// The live state of a run. This strategy has none, so the recipe itself is the stage.
impl<M: Module> Stage<M> for Centralize {
    fn name(&self) -> &'static str {
        "Centralize"
    }

    fn collect(&mut self, master: &M, mut grads: Grads) -> Result<Outcome, StrategyError> {
        grads.map(master, &mut WithoutMean);
        Ok(Outcome::Apply(grads))
    }
}

struct WithoutMean;

impl GradMap for WithoutMean {
    // Burn stores the weights of a linear layer as `[in, out]`: a column has what one output reads.
    fn map<const D: usize>(&mut self, _: ParamId, grad: Tensor<D>) -> Tensor<D> {
        if D < 2 { grad } else { grad.clone() - grad.mean_dim(0) }
    }
}

/// Trains a small GPT on the README.
pub fn train(steps: u64) -> Result<Report, TrainError> {
    let text = include_str!("../README.md");
    let tokenizer = Tokenizer::characters(text)?;
    let data = Data::new(Windows::new(tokenizer.encode(text)?, 32)?.shuffled(42)).micro_batch(4);
    let config = GptConfig { layers: 2, heads: 2, width: 32, dropout: 0.0, bias: true, tied: false };
    let model = config.init(tokenizer.vocab_size(), 32, &Device::flex().autodiff());

    let trained = Trainer::new()
        .with(Amp::bf16())
        .with(Accumulate(4))
        .with(Centralize)
        .with(Clip::norm(1.0))
        .steps(steps)
        .show(Show::Lines)
        .fit(model, SgdConfig::new().init(), Schedule::constant(0.5), data)?;
    Ok(trained.report)
}

/// Trains, and prints the loss.
pub fn main() -> Result<(), TrainError> {
    println!("loss {:.3}", train(50)?.train_loss);
    Ok(())
}
