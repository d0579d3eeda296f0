//! The conformance suite of all strategies. Add a new strategy to `every_strategy`.

use crate::support::*;
use burn::module::{Module, ModuleVisitor, Param};
use burn::optim::{AdamWConfig, ModuleOptimizer};
use burn::tensor::Tensor;
use firebrick::datasets::{Batch, Batches};
use firebrick::strategies::{
    Adaptation, Outcome, Paths, SavedStates, Settled, Setup, StageState, Stages, Strategy,
};
use firebrick::{Data, Loss, Objective, Pass, Schedule, Trainer};
use firebrick_cli::{
    AmpConfig, ClipConfig, EmaConfig, FloatConfig, KeepConfig, LoraConfig, LossScaleConfig, OffloadConfig,
    Precision, RecomputeConfig, StrategyConfig, ZeroConfig,
};
use firebrick_models::Gpt;

fn clip(norm: f64) -> StrategyConfig {
    StrategyConfig::Clip(ClipConfig { norm: Some(norm), value: None })
}

fn amp(precision: Precision) -> StrategyConfig {
    StrategyConfig::Amp(AmpConfig::from(precision))
}

/// ZeRO in a world of one rank.
fn zero(stage: u8) -> StrategyConfig {
    StrategyConfig::Zero(ZeroConfig { replicate_below: Some(64), ..ZeroConfig::from(stage) })
}

fn recompute(config: RecomputeConfig) -> StrategyConfig {
    StrategyConfig::Recompute(config)
}

fn ema(decay: f64) -> StrategyConfig {
    StrategyConfig::Ema(EmaConfig { decay, warmup: true })
}

/// Every strategy, with settings that have an effect.
fn every_strategy() -> Vec<StrategyConfig> {
    let kept = AmpConfig { keep_f32: vec![KeepConfig::norms], ..AmpConfig::from(Precision::f16) };
    // A scale that changes within a few windows.
    let scale = LossScaleConfig { initial: Some(1024.0), interval: Some(2), ..Default::default() };
    let scaled = AmpConfig { loss_scale: Some(scale), ..AmpConfig::from(Precision::f16) };
    let half = [Precision::bf16, Precision::f16, Precision::pure_bf16].map(amp);
    let half = half.into_iter().chain([kept, scaled].map(StrategyConfig::Amp));
    let half = half.chain([StrategyConfig::AccumulateIn(4, FloatConfig::bf16)]);
    let supported = |strategy: &StrategyConfig| {
        let device = device().autodiff();
        let has_it = strategy.start(&mut Setup::new(&gpt(0.0, &device), &device)).is_ok();
        assert!(has_it || !is_cpu(), "the CPU computes in every dtype: {strategy:?}");
        has_it
    };
    let every = RecomputeConfig { every: Some(1), ..Default::default() };
    half.filter(supported)
        .chain([
            StrategyConfig::Accumulate(4),
            clip(0.01),
            StrategyConfig::Clip(ClipConfig { norm: None, value: Some(0.01) }),
            recompute(every.clone()),
            recompute(RecomputeConfig { offloaded: true, ..every }),
            recompute(RecomputeConfig { paths: Some(vec!["blocks.1".into()]), ..Default::default() }),
            StrategyConfig::Offload(OffloadConfig::optimizer),
            StrategyConfig::Offload(OffloadConfig::parameters),
            zero(0),
            zero(1),
            zero(2),
            zero(3),
            recompute(RecomputeConfig { elementwise: true, ..Default::default() }),
            ema(0.9),
        ])
        .collect()
}

/// All strategies, including those that leave parameters unchanged.
fn all_strategies() -> Vec<StrategyConfig> {
    let lora = LoraConfig {
        rank: 2,
        alpha: Some(4.0),
        paths: Vec::new(),
        also: vec!["norm".into()],
        fresh: Vec::new(),
    };
    let mut all = every_strategy();
    all.extend([StrategyConfig::Lora(lora), StrategyConfig::Freeze(vec!["tokens".into()])]);
    all
}

/// Returns the model as adapted by the strategies.
fn adapted(model: Gpt, recipe: &impl Strategy<Gpt>) -> Gpt {
    recipe.adapt(model, &mut Adaptation::seeded(5)).unwrap()
}

/// Every strategy, with settings that have no effect.
fn identities() -> Vec<StrategyConfig> {
    let paths = vec!["norm".into()];
    vec![
        amp(Precision::f32),
        StrategyConfig::Accumulate(1),
        clip(1e30),
        StrategyConfig::Clip(ClipConfig { norm: None, value: Some(1e30) }),
        // A path that matches no segment.
        recompute(RecomputeConfig { paths: Some(paths), ..Default::default() }),
        // Trains the same model, and evaluates another.
        ema(0.9),
        recompute(RecomputeConfig { every: Some(1000), ..Default::default() }),
    ]
}

fn train(strategies: Vec<StrategyConfig>, micro: usize, steps: u64) -> (Vec<f64>, Gpt) {
    let (sender, losses) = std::sync::mpsc::channel();
    let data = Data::new(Rows::ragged(21)).micro_batch(micro);
    let trained = Trainer::new().seed(5).with(strategies).steps(steps).fit_watched(
        gpt(0.1, &device().autodiff()),
        optimizer(),
        Schedule::constant(1e-2),
        data,
        move |step| sender.send(step.loss).unwrap(),
    );
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

#[test]
fn no_gradient_is_lost() {
    let device = device().autodiff();
    let before = gpt(0.0, &device);
    let paths = Paths::of(&before);
    for strategy in every_strategy() {
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

/// A hand-written run: windows of one micro-batch of two rows through a composition, with some windows poisoned.
struct Drive {
    stage: Stages<Gpt>,
    master: Gpt,
    optimizer: ModuleOptimizer,
    pass: Pass,
    window: usize,
}

impl Drive {
    fn start(recipe: &impl Strategy<Gpt>) -> Self {
        Self::start_on(adapted(gpt(0.0, &device().autodiff()), recipe), recipe)
    }

    fn start_on(model: Gpt, recipe: &impl Strategy<Gpt>) -> Self {
        let device = device().autodiff();
        let mut setup = Setup::new(&model, &device);
        let mut stage = recipe.start(&mut setup).unwrap();
        let window = setup.window();
        let pass = setup.into_pass();
        let master = stage.init_master(model).unwrap();
        stage.updated(&master);
        Self { stage, master, optimizer: optimizer(), pass, window }
    }

    fn states(&self) -> Vec<StageState> {
        self.stage.save()
    }

    fn window(&mut self, number: usize) {
        let poisoned = number % 3 == 1;
        let replica = self.stage.publish(self.master.clone()).unwrap();
        let mut outcome = Outcome::Hold;
        for micro in 0..self.window {
            let at = (2 * (number * self.window + micro)) % 18;
            let batch = Rows::ragged(20).batch(0, at..at + 2).unwrap();
            let items = batch.items() as f64;
            let (entered, pass) = self.pass.drawing(self.pass.draws()).enter(&replica).unwrap();
            let Loss { sum, .. } = entered.loss(batch, &pass);
            let scale = self.stage.loss_scale().unwrap_or(1.0);
            let poison = if poisoned && micro == 0 { f64::INFINITY } else { 1.0 };
            let grads = (sum / items * scale * poison).backward();
            let grads = pass.gradients(grads, &entered, micro + 1 == self.window).unwrap();
            outcome = self.stage.collect(&self.master, grads).unwrap();
        }
        let Outcome::Apply(mut grads) = outcome else { panic!("the window closes") };
        // The loop does this for a stage that asks for it; here it is done for all.
        let is_finite = grads.norm(&self.master).unwrap().into_scalar::<f32>().is_finite();
        let settled = match is_finite {
            true => Settled::Applied,
            false => Settled::Skipped(firebrick::strategies::SkipReason::NonFinite),
        };
        if is_finite {
            let grads = grads.for_update(&self.master);
            self.master = self.optimizer.step(1e-2, self.master.clone(), grads);
            self.stage.updated(&self.master);
        }
        self.stage.after_window(&settled).unwrap();
    }
}

#[test]
fn a_restored_state_goes_on_as_if_nothing_had_happened() {
    for strategy in all_strategies() {
        let mut whole = Drive::start(&vec![strategy.clone()]);
        (0..7).for_each(|number| whole.window(number));

        let mut first = Drive::start(&vec![strategy.clone()]);
        (0..4).for_each(|number| first.window(number));
        let text = serde_json::to_string(&first.states()).unwrap();
        let mut second = Drive::start_on(first.master, &vec![strategy.clone()]);
        let mut states = SavedStates::new(serde_json::from_str(&text).unwrap());
        second.stage.restore(&mut states).unwrap();
        states.finish().unwrap();
        second.optimizer = first.optimizer;
        (4..7).for_each(|number| second.window(number));

        assert_eq!(second.states(), whole.states(), "{strategy:?}");
        assert!(parameters(&second.master) == parameters(&whole.master), "{strategy:?}");
        assert_eq!(second.stage.loss_scale(), whole.stage.loss_scale(), "{strategy:?}");
        assert!(parameters(&second.master).iter().all(|x| x.is_finite()), "{strategy:?}");
    }
}

#[test]
fn states_of_another_composition_are_refused() {
    let strategies = all_strategies();
    for (index, strategy) in strategies.iter().enumerate() {
        let other = &strategies[(index + 3) % strategies.len()];
        let name = |strategy: &StrategyConfig| Drive::start(strategy).states()[0].stage().to_string();
        if name(strategy) == name(other) {
            continue;
        }
        let states = Drive::start(&vec![other.clone()]).states();
        let mut stage = Drive::start(&vec![strategy.clone()]).stage;
        let refused = stage.restore(&mut SavedStates::new(states)).unwrap_err().to_string();
        assert!(refused.contains(&name(strategy)), "{refused}");
    }
}

/// Each ordered pair either starts or is refused with advice. Clipping must come after summing and casting; nothing
/// else depends on the order.
#[test]
fn wrong_orders_are_refused() {
    let device = device().autodiff();
    let model = gpt(0.0, &device);
    let kind = |strategy: &StrategyConfig| match strategy {
        StrategyConfig::Amp(_) => "Amp",
        StrategyConfig::Accumulate(_) | StrategyConfig::AccumulateIn(..) => "Accumulate",
        StrategyConfig::Clip(_) => "Clip",
        StrategyConfig::Recompute(_) => "Recompute",
        StrategyConfig::Offload(OffloadConfig::optimizer) => "Offload",
        StrategyConfig::Offload(OffloadConfig::parameters) => "Offload of parameters",
        StrategyConfig::Ema(_) => "Ema",
        StrategyConfig::Lora(_) => "Lora",
        StrategyConfig::Freeze(_) => "Freeze",
        StrategyConfig::Zero(ZeroConfig { stage: 0 | 1, .. }) => "Zero",
        StrategyConfig::Zero(_) => "Zero in the backward pass",
    };
    for first in all_strategies() {
        for then in all_strategies() {
            let composed = vec![first.clone(), then.clone()];
            let adapted = composed.adapt(model.clone(), &mut Adaptation::default());
            let started =
                adapted.and_then(|model| composed.start(&mut Setup::new(&model, &device)).map(drop));
            let result = started.err().map(|error| error.to_string());
            let name = format!("{first:?}, {then:?}: {result:?}");
            match (kind(&first), kind(&then)) {
                ("Clip", "Clip") | ("Freeze", "Freeze") => assert_eq!(result, None, "{name}"),
                ("Offload" | "Offload of parameters", "Offload" | "Offload of parameters") => {
                    assert!(result.unwrap().contains("Offload is named twice"), "{name}");
                }
                // Offload of parameters takes the gradients of blocks in the backward pass.
                (first @ ("Amp" | "Accumulate" | "Clip"), "Offload of parameters") => {
                    assert!(result.unwrap().contains(&format!("{first} stands before Offload")), "{name}");
                }
                (first, then) if first.starts_with("Zero") && then.starts_with("Zero") => {
                    assert!(result.unwrap().contains("Zero is named twice"), "{name}");
                }
                ("Clip", then) if then.starts_with("Zero") => {
                    assert!(result.unwrap().contains("write Zero first"), "{name}");
                }
                ("Amp" | "Accumulate" | "Offload" | "Offload of parameters", "Zero in the backward pass") => {
                    assert!(result.unwrap().contains("write Zero first"), "{name}");
                }
                (first, then) if first == then => {
                    assert!(result.unwrap().contains(&format!("{first} is named twice")), "{name}");
                }
                ("Clip", then @ ("Amp" | "Accumulate")) => {
                    assert!(result.unwrap().contains(&format!("write {then} first")), "{name}");
                }
                _ => assert_eq!(result, None, "{name}"),
            }
        }
    }
}
