//! Strategies written outside of Firebrick's crates, one of each kind: they sum, freeze, shard, recompute and offload
//! with what is public, and train what the built-in strategies train.

use std::collections::HashMap;
use std::sync::Arc;

use burn::module::{Module, ModuleMapper, ModuleVisitor, Param, ParamId};
use burn::tensor::{Device, FloatDType, Tensor};
use firebrick::strategies::effects::{RecomputedBlocks, Recomputes, Sums};
use firebrick::strategies::{
    Adaptation, Composed, Composition, Effects, GradMap, Grads, Offloads, Outcome, ParamMap, Part, Paths,
    Publishes, Reduces, Setup, Shard, Sharding, Stage, Stages, Strategy, StrategyError, StrategyRecipe,
    Trained, Which, conformance, host_device, map_params, params_of, relift, trained,
};
use firebrick::{Accumulate, Data, Freeze, Offload, Recompute, Schedule, Trainer, World, Zero};

use crate::support::*;

/// Sums two micro-batches.
#[derive(Clone, Debug)]
struct Pairs;

#[derive(Default)]
struct FirstOfPair(Option<Grads>);

impl StrategyRecipe for Pairs {
    fn effects(&self) -> Effects {
        let sums = Sums { micro_batches: 2, dtype: FloatDType::F32 };
        Effects { sums: Some(sums), ..Effects::none("Pairs") }
    }
}

impl<M: Module> Strategy<M> for Pairs {
    fn stages(&self, _: &mut Setup<M>) -> Result<Stages<M>, StrategyError> {
        Ok(Stages::of(FirstOfPair::default()))
    }
}

impl<M: Module> Stage<M> for FirstOfPair {
    fn name(&self) -> &'static str {
        "Pairs"
    }

    fn collect(&mut self, master: &M, mut grads: Grads) -> Result<Outcome, StrategyError> {
        if let Some(first) = self.0.take() {
            grads.add(master, first, FloatDType::F32);
        }
        if grads.closes() {
            return Ok(Outcome::Apply(grads));
        }
        self.0 = Some(grads);
        Ok(Outcome::Hold)
    }
}

/// Freezes embeddings.
#[derive(Clone, Debug)]
struct FreezeTokens;

struct Nothing(&'static str);

impl<M> Stage<M> for Nothing {
    fn name(&self) -> &'static str {
        self.0
    }
}

impl StrategyRecipe for FreezeTokens {
    fn effects(&self) -> Effects {
        Effects { adapts: true, ..Effects::of("FreezeTokens") }
    }
}

impl<M: Module> Strategy<M> for FreezeTokens {
    fn adapted(&self, model: M, adaptation: &mut Adaptation) -> Result<M, StrategyError> {
        struct Freezing<'a>(std::collections::HashSet<ParamId>, &'a mut Adaptation);
        impl ModuleMapper for Freezing<'_> {
            fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
                if self.0.contains(&param.id) { self.1.freeze(param) } else { param }
            }
        }
        let tokens = params_of("FreezeTokens", &["tokens".to_string()], &Paths::of(&model))?;
        Ok(model.map(&mut Freezing(tokens, adaptation)))
    }

    fn stages(&self, _: &mut Setup<M>) -> Result<Stages<M>, StrategyError> {
        Ok(Stages::of(Nothing("FreezeTokens")))
    }
}

/// Recomputes every second block.
#[derive(Clone, Debug)]
struct EverySecond;

impl StrategyRecipe for EverySecond {
    fn effects(&self) -> Effects {
        let recomputes = Recomputes { blocks: RecomputedBlocks::Every(2), offloaded: false };
        Effects { recomputes: Some(recomputes), ..Effects::none("EverySecond") }
    }
}

impl<M: Module> Strategy<M> for EverySecond {
    fn stages(&self, setup: &mut Setup<M>) -> Result<Stages<M>, StrategyError> {
        setup.segments_mut().recompute(Which::Every(2), None);
        Ok(Stages::of(Nothing("EverySecond")))
    }
}

/// Keeps the master on the host.
#[derive(Clone, Debug)]
struct ToHost;

struct OnHost {
    host: Device,
    device: Device,
}

struct Moved<'a>(&'a Device);

impl ParamMap for Moved<'_> {
    fn map<const D: usize>(&mut self, _: ParamId, value: Tensor<D>) -> Tensor<D> {
        relift(value.clone().inner().to_device(self.0), &value)
    }
}

impl GradMap for Moved<'_> {
    fn map<const D: usize>(&mut self, _: ParamId, grad: Tensor<D>) -> Tensor<D> {
        grad.to_device(self.0)
    }
}

impl StrategyRecipe for ToHost {
    fn effects(&self) -> Effects {
        Effects { offloads: Some(Offloads::Optimizer), ..Effects::none("ToHost") }
    }
}

impl<M: Module> Strategy<M> for ToHost {
    fn stages(&self, setup: &mut Setup<M>) -> Result<Stages<M>, StrategyError> {
        Ok(Stages::of(OnHost { host: host_device(), device: setup.device().clone().inner() }))
    }
}

impl<M: Module> Stage<M> for OnHost {
    fn name(&self) -> &'static str {
        "ToHost"
    }

    fn collect(&mut self, master: &M, mut grads: Grads) -> Result<Outcome, StrategyError> {
        grads.moved(master, &mut Moved(&self.host));
        grads.put_delivered(master, &self.host);
        Ok(Outcome::Apply(grads))
    }

    fn publishes(&self) -> Publishes {
        Publishes::Together
    }

    fn init_master(&mut self, model: M) -> Result<M, StrategyError> {
        Ok(map_params(model, &mut Moved(&self.host)))
    }

    fn publish(&mut self, master: M) -> Result<M, StrategyError> {
        Ok(map_params(master, &mut Moved(&self.device)))
    }
}

/// Shards the optimizer's state: ZeRO 1.
#[derive(Clone, Debug)]
struct ShardState(World);

struct Sharded {
    sharding: Arc<Sharding>,
    trained: Vec<Trained>,
    device: Device,
}

impl StrategyRecipe for ShardState {
    fn effects(&self) -> Effects {
        let reduces =
            Reduces { stage: 1, each_micro_batch: false, replicate_below: 1, sum_in: None, within: None };
        Effects { reduces: Some(reduces), ..Effects::none("ShardState") }
    }

    fn world(&self) -> Option<&World> {
        Some(&self.0)
    }
}

impl<M: Module> Strategy<M> for ShardState {
    fn stages(&self, setup: &mut Setup<M>) -> Result<Stages<M>, StrategyError> {
        let Some(reduces) = setup.order().reduces() else { unreachable!("its effects were added") };
        let sharding = Arc::new(Sharding::of(setup.model(), setup.world().clone(), &reduces));
        Ok(Stages::of(Sharded { sharding, trained: Vec::new(), device: setup.device().clone().inner() }))
    }
}

impl<M: Module> Stage<M> for Sharded {
    fn name(&self) -> &'static str {
        "ShardState"
    }

    fn collect(&mut self, master: &M, mut grads: Grads) -> Result<Outcome, StrategyError> {
        struct Put<'a>(HashMap<ParamId, Tensor<1>>, &'a mut Grads);
        impl ModuleVisitor for Put<'_> {
            fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
                if let Some(sum) = self.0.remove(&param.id) {
                    self.1.params_mut().register::<D>(param.id, sum.reshape(param.lazy_shape()));
                }
            }
        }
        let parts = self.trained.iter().map(|one| Part {
            id: one.id,
            shape: one.shape.clone(),
            dtype: one.dtype,
            grad: None,
        });
        let sums = self.sharding.reduce_all(master, grads.params_mut(), parts.collect(), &self.device)?;
        master.visit(&mut Put(sums.into_iter().collect(), &mut grads));
        grads.set_sharding(self.sharding.clone());
        Ok(Outcome::Apply(grads))
    }

    fn publishes(&self) -> Publishes {
        Publishes::Together
    }

    fn init_master(&mut self, model: M) -> Result<M, StrategyError> {
        self.trained = trained(&model);
        self.sharding.divide(model, &self.device)
    }

    fn publish(&mut self, master: M) -> Result<M, StrategyError> {
        self.sharding.gather(master, "the parameters", |_| true)
    }

    fn shard(&self, parameter: ParamId) -> Option<Shard> {
        self.sharding.shard(parameter)
    }

    fn gather_full(&mut self, master: M, root: Option<usize>) -> Result<Option<M>, StrategyError> {
        self.sharding.whole(master, root)
    }
}

/// Trains a transformer, and returns its parameters.
fn train(strategy: impl Strategy<firebrick_models::Gpt>) -> Vec<f32> {
    let data = Data::new(Rows::ragged(12)).micro_batch(2);
    let model = gpt(0.0, &device().autodiff());
    let trainer = Trainer::new().with(strategy).seed(3).steps(3);
    let trained = trainer.fit(model, adamw(), Schedule::constant(1e-2), data).unwrap();
    parameters(&trained.model)
}

#[test]
fn a_third_crate_can_write_one_of_each_kind() {
    let threads = || World::threads(2);
    for (own, built_in) in [
        (train(Pairs), train(Accumulate(2))),
        (train(FreezeTokens), train(Freeze::paths(["tokens"]))),
        (train(EverySecond), train(Recompute::every(2))),
        (train(ToHost), train(Offload::optimizer())),
        (train(ShardState(threads())), train(Zero::stage(1).replicate_below(1).over(threads()))),
    ] {
        assert_eq!(own, built_in);
    }
}

fn boxed(strategy: impl Composition<conformance::Probe>) -> Composed<conformance::Probe> {
    Composed::new().with(strategy)
}

#[test]
fn they_obey_the_laws() {
    let device = device().autodiff();
    conformance::check(&Pairs, &device, 1e-4).unwrap();
    conformance::check(&EverySecond, &device, 1e-4).unwrap();
    conformance::check(&ToHost, &device, 1e-4).unwrap();
    conformance::check(&ShardState(World::solo()), &device, 1e-4).unwrap();
    for strategy in [boxed(Pairs), boxed(EverySecond), boxed(ToHost), boxed(ShardState(World::solo()))] {
        conformance::check_on_ranks(&strategy, &device, 2, 1e-4).unwrap();
    }
}
