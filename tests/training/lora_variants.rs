//! Dropout on the input of low-rank factors, and magnitudes beside them (DoRA), under every strategy.

use burn::module::Module;
use firebrick::datasets::{Batch, TokenBatch};
use firebrick::strategies::Composed;
use firebrick::{
    Accumulate, Amp, Data, Lora, Loss, Objective, Offload, Pass, Recompute, Schedule, Trainer, Zero,
};

use crate::support::many::{Outcome, Setting, apart, optimizer};
use crate::support::*;

/// f32 sums in another order, over 20 updates.
const TOLERANCE: f64 = 2e-6;
const RANK: usize = 4;

/// Trains with factors in the same way, whatever else the recipe has.
fn is_the_same_under_other_strategies(lora: fn() -> Lora, expected: &Outcome) {
    let setting = Setting::default();
    let holds = |name: &str, found: Outcome, tolerance: f64| {
        let (losses, parameters) = apart(&found, expected);
        assert!(losses < tolerance && parameters < tolerance, "{name}: {losses:e} {parameters:e}");
    };
    let recomputed = setting.run(1, 1, Composed::new().with(lora()).with(Recompute::every_block()));
    if is_cpu() {
        assert_eq!(recomputed.losses, expected.losses);
        assert!(recomputed.parameters == expected.parameters);
    }
    holds("recomputed", recomputed, TOLERANCE);
    holds(
        "offloaded",
        setting.run(1, 1, Composed::new().with(lora()).with(Offload::parameters())),
        TOLERANCE,
    );
    let cut = setting.cut_for(1, 4);
    holds("accumulated", cut.run(1, 4, Composed::new().with(lora()).with(Accumulate(4))), TOLERANCE);
    let cut = setting.cut_for(2, 2);
    let reduced_late =
        Composed::new().with(Accumulate(2)).with(Zero::stage(1).replicate_below(64)).with(lora());
    holds("stage 1", cut.run(2, 2, reduced_late), TOLERANCE);
    for stage in [2, 3] {
        let zero = Zero::stage(stage).replicate_below(64);
        let found = cut.run(2, 2, Composed::new().with(zero).with(lora()).with(Accumulate(2)));
        holds(&format!("stage {stage}"), found, TOLERANCE);
    }
    if has_bf16() {
        let half = Composed::new().with(Amp::bf16()).with(lora()).with(Recompute::every_block());
        holds("bf16", setting.run(1, 1, half), 5e-2);
    }
}

#[test]
fn its_dropout_is_the_same_under_other_strategies() {
    let setting = Setting::default();
    let lora = || Lora::rank(RANK).dropout(0.2).on_all_linear();
    let expected = setting.run(1, 1, lora());
    is_the_same_under_other_strategies(lora, &expected);
    // Without the model's own dropout, whose masks depend on how many others come before.
    let undropped = Setting { dropout: 0.0, ..Setting::default() };
    let [with, without] = [lora(), lora().dropout(0.0)].map(|lora| undropped.run(1, 1, lora));
    assert_eq!(with.losses[0], without.losses[0], "B starts at 0");
    assert!(apart(&with, &without).0 > 1e-4, "it drops something");
}

#[test]
fn its_magnitudes_are_the_same_under_other_strategies() {
    let setting = Setting::default();
    let lora = || Lora::rank(RANK).dora().on_all_linear();
    let expected = setting.run(1, 1, lora());
    let plain = setting.run(1, 1, Lora::rank(RANK).on_all_linear());
    assert_eq!(plain.losses[0], expected.losses[0], "they start as the norms are");
    assert!(apart(&plain, &expected).0 > 1e-4, "they learn");
    is_the_same_under_other_strategies(lora, &expected);
    let both = || Lora::rank(RANK).dora().dropout(0.2);
    is_the_same_under_other_strategies(both, &setting.run(1, 1, both()));
}

/// A user's model of Burn's own layers.
#[derive(Module, Debug)]
struct Own {
    embedding: burn::nn::Embedding,
    linear: burn::nn::Linear,
}

impl Objective<TokenBatch> for Own {
    fn loss(&self, batch: TokenBatch, pass: &Pass) -> Loss {
        let y = self.linear.forward(self.embedding.forward(batch.ids(pass.device())));
        let items = batch.items();
        Loss { sum: y.square().mean() * items as f64, items }
    }
}

#[test]
fn a_layer_that_does_not_drop_ends_the_run() {
    let device = device().autodiff();
    let model = Own {
        embedding: burn::nn::EmbeddingConfig::new(VOCABULARY, 4).init(&device),
        linear: burn::nn::LinearConfig::new(4, 4).init(&device),
    };
    let fit = |dropout| {
        let lora = Lora::rank(2).on(["linear.weight", "embedding"]).dropout(dropout);
        let trainer = Trainer::new().with(lora).with(Recompute::every_block()).steps(2).evaluate_every(1);
        let data = Data::new(Rows::ragged(8)).micro_batch(4).valid(Rows::ragged(4));
        trainer.fit(model.clone(), optimizer(), Schedule::constant(1e-3), data)
    };
    fit(0.0).unwrap();
    let error = fit(0.5).unwrap_err().to_string();
    assert!(error.contains("`linear.weight` does not drop") && error.contains("adapted_linear"), "{error}");
}
