//! What `firebrick_strategies::conformance` cannot see: all strategies with the trainer, a transformer and AdamW, and
//! the orders that are refused. Add a new strategy to `every_strategy`.

use std::collections::HashSet;

use crate::support::*;
use burn::module::{Module, ModuleVisitor, Param};
use burn::optim::{AdamWConfig, ModuleOptimizer};
use burn::tensor::{FloatDType, Tensor};
use firebrick::datasets::{Batch, Batches, TokenBatch};
use firebrick::strategies::{
    Accumulate, Adaptation, Amp, Clip, Composed, Composition, Ema, Freeze, Keep, KeepPadding, Lora,
    LossScale, Mesh, Offload, Outcome, Paths, Quantize, Recompute, SavedStates, Settled, Setup, StageState,
    Stages, StrategyError, Zero,
};
use firebrick::{AnyModel, Data, Loss, Objective, Pass, Schedule, SkipOutliers, StepNumbers, Trainer};
use firebrick_models::Gpt;

type Recipe = Composed<Gpt>;

fn boxed(strategy: impl Composition<Gpt>) -> Recipe {
    Composed::new().with(strategy)
}

/// ZeRO in a world of one rank.
fn zero(stage: u8) -> Recipe {
    boxed(Zero::stage(stage).replicate_below(64))
}

/// Every strategy, with settings that have an effect, and its kind.
fn every_strategy() -> Vec<(&'static str, Recipe)> {
    // A scale that changes within a few steps.
    let scaled = Amp::f16().scaled_by(LossScale::dynamic(1024.0).interval(2));
    let amp =
        [Amp::bf16(), Amp::fp8(), Amp::f16(), Amp::pure_bf16(), Amp::f16().keep_f32(Keep::norms()), scaled];
    let half = amp.map(|amp| ("Amp", boxed(amp))).into_iter();
    let half = half.chain([("Accumulate", boxed(Accumulate(4).held_in(FloatDType::BF16)))]);
    let supported = |(_, strategy): &(_, Recipe)| {
        let device = device().autodiff();
        let has_it = strategy.start(&mut Setup::new(&gpt(0.0, &device), &device)).is_ok();
        assert!(has_it || !is_cpu(), "the CPU computes in every dtype: {strategy:?}");
        has_it
    };
    half.filter(supported)
        .chain([
            ("Accumulate", boxed(Accumulate(4))),
            ("Clip", boxed(Clip::norm(0.01))),
            ("Clip", boxed(Clip::value(0.01))),
            ("SkipOutliers", boxed(SkipOutliers::new(0.5).window(2))),
            ("Recompute", boxed(Recompute::every_block())),
            ("Recompute", boxed(Recompute::every_block().offloaded())),
            ("Recompute", boxed(Recompute::paths(["blocks.1"]))),
            ("Offload", boxed(Offload::optimizer())),
            ("Offload of parameters", boxed(Offload::parameters())),
            ("Offload of parameters", boxed(Offload::parameters().on(std::env::temp_dir()))),
            ("Zero", zero(0)),
            ("Zero", zero(1)),
            ("Zero in the backward pass", zero(2)),
            ("Zero in the backward pass", zero(3)),
            ("Recompute", boxed(Recompute::elementwise())),
            ("Ema", boxed(Ema::new(0.9))),
            ("KeepPadding", boxed(KeepPadding {})),
        ])
        .collect()
}

/// All strategies, including those that leave parameters unchanged.
fn all_strategies() -> Vec<(&'static str, Recipe)> {
    let mut all = every_strategy();
    all.push(("Lora", boxed(Lora::rank(2).alpha(4.0).also(["norm"]))));
    all.push(("Lora", boxed(Lora::rank(2).alpha(4.0).dropout(0.2))));
    all.push(("Lora", boxed(Lora::rank(2).alpha(4.0).dora())));
    all.push(("Freeze", boxed(Freeze::paths(["tokens"]))));
    for quantize in [Quantize::nf4(), Quantize::int8()] {
        all.push((
            "Quantize",
            boxed(Composed::new().with(Freeze::paths(["blocks.*.weight"])).with(quantize)),
        ));
    }
    all
}

/// Returns the model as adapted by the strategies.
fn adapted(model: Gpt, recipe: &impl Composition<Gpt>) -> Gpt {
    recipe.adapt(model, &mut Adaptation::seeded(5)).unwrap()
}

/// Every strategy, with settings that have no effect.
fn identities() -> Vec<Recipe> {
    vec![
        boxed(Amp::f32()),
        boxed(Accumulate(1)),
        boxed(Clip::norm(1e30)),
        boxed(Clip::value(1e30)),
        // A path that matches no segment.
        boxed(Recompute::paths(["norm"])),
        // Trains the same model, and evaluates another.
        boxed(Ema::new(0.9)),
        boxed(Recompute::every(1000)),
        boxed(Mesh::new()),
    ]
}

fn train(strategies: Vec<Recipe>, micro: usize, steps: u64) -> (Vec<f64>, Gpt) {
    let (sender, losses) = std::sync::mpsc::channel();
    let data = Data::new(Rows::ragged(21)).micro_batch(micro);
    let trained = Trainer::new()
        .seed(5)
        .with(strategies)
        .steps(steps)
        .observe(move |step: &StepNumbers| sender.send(step.loss).unwrap())
        .fit(gpt(0.1, &device().autodiff()), optimizer(), Schedule::constant(1e-2), data);
    (losses.into_iter().collect(), trained.unwrap().model)
}

/// Has no weight decay, which would move a weight whose gradient is lost.
fn optimizer() -> ModuleOptimizer {
    AdamWConfig::new().with_weight_decay(0.0).init()
}

#[test]
fn identity_settings_change_no_bit() {
    let (losses, model) = train(Vec::new(), 8, 10);
    let expected = parameters(&model);
    // The strategies of each kind, composed.
    let all_of_them = identities().into_iter().take(6).collect();
    let each = identities().into_iter().map(|strategy| vec![strategy]);
    for strategies in each.chain([all_of_them]) {
        let name = format!("{strategies:?}");
        let (found, model) = train(strategies, 8, 10);
        assert_eq!(found, losses, "{name}");
        assert!(parameters(&model) == expected, "{name}");
    }
}

/// Dropout included, which depends on the position of a token in its sample.
#[test]
fn padding_changes_no_more_than_rounding() {
    let near = |a: f64, b: f64| (a - b).abs() <= 1e-4 * a.abs().max(0.1);
    let recomputed = || boxed(Recompute::every_block());
    for with in [vec![], vec![recomputed()], vec![zero(3)]] {
        let (losses, model) = train(with.clone(), 4, 6);
        let keeping = [vec![boxed(KeepPadding {})], with.clone()].concat();
        assert!(!is_cpu() || drops_padding(with));
        assert!(!drops_padding(keeping.clone()));
        let (kept_losses, kept_model) = train(keeping, 4, 6);
        assert!(losses.iter().zip(&kept_losses).all(|(a, b)| near(*a, *b)), "{losses:?} {kept_losses:?}");
        let [dropped, kept] = [parameters(&model), parameters(&kept_model)];
        assert!(dropped.iter().zip(&kept).all(|(a, b)| near(f64::from(*a), f64::from(*b))));
    }
}

/// Erasing the types of the model and of its batches changes nothing.
#[test]
fn a_model_without_its_type_trains_alike() {
    fn of<M, B: Batch>(model: M, data: Data<B>) -> (f64, f64, M)
    where
        M: Objective<B> + 'static,
    {
        let trainer = Trainer::new().seed(5).steps(6).evaluate_every(3);
        let trained = trainer.fit(model, optimizer(), Schedule::constant(1e-2), data).unwrap();
        let report = trained.report;
        (report.train_loss, report.valid_loss.unwrap(), trained.model)
    }
    let data = || Data::new(Rows::ragged(21)).valid(Rows::ragged(7)).micro_batch(4);
    let model = gpt(0.1, &device().autodiff());
    let any = || AnyModel::new::<TokenBatch>(model.clone());
    let (train, valid, expected) = of(model.clone(), data());
    for (train_loss, valid_loss, found) in [of(any(), data()), of(any(), data().erased())] {
        assert_eq!((train_loss, valid_loss), (train, valid));
        assert!(parameters(&found.into_inner::<Gpt>().unwrap()) == parameters(&expected));
    }
}

/// Returns whether a model drops the padding of its batches under these strategies.
fn drops_padding(strategies: Vec<Recipe>) -> bool {
    let device = device().autodiff();
    let model = gpt(0.0, &device);
    let mut setup = Setup::new(&model, &device);
    drop(Composed::new().with(strategies).start(&mut setup).unwrap());
    setup.into_pass().drops_padding()
}

#[test]
fn no_gradient_is_lost() {
    let device = device().autodiff();
    let before = gpt(0.0, &device);
    let paths = Paths::of(&before);
    for (_, strategy) in every_strategy() {
        let (_, after) = train(vec![strategy.clone()], 4, 2);
        let [before, after] = [each_parameter(&before), each_parameter(&after)];
        for ((place, before), after) in paths.places().iter().zip(before).zip(after) {
            assert_ne!(before, after, "{strategy:?}: {} has not moved", place.path);
        }
    }
}

/// Returns the values of each parameter.
fn each_parameter<M: Module>(model: &M) -> Vec<Vec<f32>> {
    struct Each(Vec<Vec<f32>>);
    impl ModuleVisitor for Each {
        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
            self.0.push(param.base().into_data().iter().collect());
        }
    }
    let mut each = Each(Vec::new());
    model.visit(&mut each);
    each.0
}

/// A hand-written run: steps of one micro-batch of two rows through a composition, some of them poisoned.
struct Drive {
    stage: Stages<Gpt>,
    master: Gpt,
    optimizer: ModuleOptimizer,
    pass: Pass,
    per_step: usize,
}

impl Drive {
    fn start(recipe: &impl Composition<Gpt>) -> Self {
        Self::start_on(adapted(gpt(0.0, &device().autodiff()), recipe), recipe)
    }

    fn start_on(model: Gpt, recipe: &impl Composition<Gpt>) -> Self {
        let device = device().autodiff();
        let mut setup = Setup::new(&model, &device);
        let mut stage = recipe.start(&mut setup).unwrap();
        let per_step = setup.order().micro_batches();
        let pass = setup.into_pass();
        let master = stage.init_master(model).unwrap();
        stage.updated(&master);
        Self { stage, master, optimizer: optimizer(), pass, per_step }
    }

    fn states(&mut self) -> Vec<StageState> {
        self.stage.save()
    }

    fn step(&mut self, number: usize) {
        let poisoned = number % 3 == 1;
        let replica = self.stage.publish(self.master.clone()).unwrap();
        let mut outcome = Outcome::Hold;
        for micro in 0..self.per_step {
            let at = (2 * (number * self.per_step + micro)) % 18;
            let batch = Rows::ragged(20).batch(0, at..at + 2).unwrap();
            let items = batch.items() as f64;
            let (entered, pass) = self.pass.drawing(self.pass.draws()).enter(&replica).unwrap();
            let Loss { sum, .. } = entered.loss(batch, &pass);
            let scale = self.stage.loss_scale().unwrap_or(1.0);
            let poison = if poisoned && micro == 0 { f64::INFINITY } else { 1.0 };
            let grads = (sum / items * scale * poison).backward();
            let grads = pass.gradients(grads, &entered, micro + 1 == self.per_step).unwrap();
            outcome = self.stage.collect(&self.master, grads).unwrap();
        }
        let mut grads = match outcome {
            Outcome::Apply(grads) => grads,
            Outcome::Skip(reason) => return self.stage.after_step(&Settled::Skipped(reason)).unwrap(),
            Outcome::Hold => panic!("the step ends"),
        };
        // The loop does this for a stage that asks for it; here it is done for all.
        let is_finite = grads.norm(&self.master).unwrap().into_scalar::<f32>().is_finite();
        let settled = match is_finite {
            true => Settled::Applied,
            false => Settled::Skipped(firebrick::strategies::SkipReason::NonFinite),
        };
        if is_finite {
            let grads = grads.for_update(&self.master, &HashSet::new());
            self.master = self.optimizer.step(1e-2, self.master.clone(), grads);
            self.stage.updated(&self.master);
        }
        self.stage.after_step(&settled).unwrap();
    }
}

#[test]
fn a_restored_state_goes_on_as_if_nothing_had_happened() {
    for (_, strategy) in all_strategies() {
        let mut whole = Drive::start(&vec![strategy.clone()]);
        (0..7).for_each(|number| whole.step(number));

        let mut first = Drive::start(&vec![strategy.clone()]);
        (0..4).for_each(|number| first.step(number));
        let text = serde_json::to_string(&first.states()).unwrap();
        let mut second = Drive::start_on(first.master, &vec![strategy.clone()]);
        let mut states = SavedStates::new(serde_json::from_str(&text).unwrap());
        second.stage.restore(&mut states).unwrap();
        states.finish().unwrap();
        second.optimizer = first.optimizer;
        (4..7).for_each(|number| second.step(number));

        assert_eq!(second.states(), whole.states(), "{strategy:?}");
        assert!(parameters(&second.master) == parameters(&whole.master), "{strategy:?}");
        assert_eq!(second.stage.loss_scale(), whole.stage.loss_scale(), "{strategy:?}");
        assert!(parameters(&second.master).iter().all(|x| x.is_finite()), "{strategy:?}");
    }
}

#[test]
fn states_of_another_composition_are_refused() {
    let strategies = all_strategies();
    for (index, (_, strategy)) in strategies.iter().enumerate() {
        let other = &strategies[(index + 3) % strategies.len()].1;
        let name = |strategy: &Recipe| Drive::start(strategy).states()[0].stage().to_string();
        if name(strategy) == name(other) {
            continue;
        }
        let states = Drive::start(&vec![other.clone()]).states();
        let mut stage = Drive::start(&vec![strategy.clone()]).stage;
        let refused = stage.restore(&mut SavedStates::new(states)).unwrap_err().to_string();
        assert!(refused.contains(&name(strategy)), "{refused}");
    }
}

/// Returns when a strategy meets gradients, one of this kind.
fn place(kind: &str) -> usize {
    let places: [&[&str]; 8] = [
        &["Lora", "Freeze"],
        &["Quantize"],
        &["Zero in the backward pass"],
        &["Offload", "Offload of parameters"],
        &["Amp"],
        &["Accumulate"],
        &["Zero"],
        &["Clip", "SkipOutliers", "Ema", "Recompute", "KeepPadding"],
    ];
    places.iter().position(|kinds| kinds.contains(&kind)).unwrap_or_else(|| panic!("{kind} has no place"))
}

/// Returns whether a strategy of the first kind comes first even if it is written second.
fn comes_first(kind: &str, before: &str) -> bool {
    match [kind, before] {
        // The optimizer's gradients are offloaded once they are summed, and cast there.
        ["Zero", "Offload" | "Amp"] => true,
        ["Offload" | "Amp", "Zero"] => false,
        _ => place(kind) < place(before),
    }
}

/// Each pair starts in the one order in which it is executed, or names a technique twice.
#[test]
fn every_order_starts() {
    let device = device().autodiff();
    let model = gpt(0.0, &device);
    let started = |strategies: &Recipe| -> Result<Vec<StageState>, StrategyError> {
        let adapted = strategies.adapt(model.clone(), &mut Adaptation::default())?;
        Ok(strategies.start(&mut Setup::new(&adapted, &device))?.save())
    };
    let names = |states: Vec<StageState>| -> Vec<String> {
        states.iter().map(|state| state.stage().to_string()).collect()
    };
    let alone: Vec<_> = all_strategies()
        .into_iter()
        .map(|(kind, strategy)| (kind, names(started(&strategy).unwrap()), strategy))
        .collect();
    for (first_kind, first_names, first) in &alone {
        for (then_kind, then_names, then) in &alone {
            let found = started(&Composed::new().with(first.clone()).with(then.clone()));
            let name = format!("{first:?}, {then:?}");
            let twice = first_names == then_names
                && !matches!(*first_kind, "Clip" | "SkipOutliers" | "Freeze" | "KeepPadding");
            match found.map(names) {
                Err(error) => {
                    let named = format!("{} is named twice", then_names.last().unwrap());
                    assert!(twice && error.to_string().contains(&named), "{name}: {error}");
                }
                Ok(found) => {
                    assert!(!twice, "{name}");
                    // Those of `Quantize` freeze first what it packs.
                    let last = |names: &[String]| {
                        let name = names.last().unwrap();
                        found.iter().rposition(|found| found == name).unwrap()
                    };
                    let kept = place(first_kind) == place(then_kind);
                    let swapped = !kept && comes_first(then_kind, first_kind);
                    let is_same = first_kind == then_kind;
                    assert!(
                        is_same || swapped == (last(then_names) < last(first_names)),
                        "{name}: {found:?}"
                    );
                }
            }
        }
    }
}
