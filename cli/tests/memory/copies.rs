//! Counts the copies of the model and of the optimizer's state that are alive during a resume, and at the end of a run.

use std::path::Path;
use std::sync::{Arc, Barrier, Mutex};

use crate::alone;
use crate::support::*;
use burn::module::Module;
use burn::tensor::{Device, Tensor};
use firebrick::memory::{Account, Usage, reset_peak};
use firebrick::optim::AdamW;
use firebrick::strategies::{Effects, Setup, Stage, Stages, StrategyError, StrategyRecipe};
use firebrick::{Checkpoints, Data, Resume, Schedule, Strategy, Trainer, World, Zero};
use firebrick_models::{Gpt, GptConfig};

/// Many matrices, none of which is a large part of the model.
const SHAPE: GptConfig = GptConfig { layers: 16, heads: 4, width: 128, dropout: 0.0, bias: true, tied: true };

/// Records what each rank allocates while its state is loaded, and at the end of the run. It is the last strategy.
#[derive(Clone, Debug, Default)]
struct Look {
    found: Arc<Mutex<Vec<Found>>>,
}

/// Peak bytes beyond those in use before.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Found {
    /// From collecting the master until it is published: in a load or an update.
    Loaded(usize),
    /// From gathering the whole model until the end, with the rank.
    Ended(usize, usize),
}

struct Looking {
    found: Arc<Mutex<Vec<Found>>>,
    rank: usize,
    loads: Option<usize>,
    ends: Option<usize>,
}

impl Looking {
    fn begin() -> Option<usize> {
        reset_peak();
        Some(Usage::of_process().unwrap().live)
    }

    fn end(&self, found: impl Fn(usize) -> Found, before: Option<usize>) {
        if let Some(before) = before {
            let beyond = Usage::of_process().unwrap().peak - before;
            self.found.lock().unwrap().push(found(beyond));
        }
    }
}

impl StrategyRecipe for Look {
    fn effects(&self) -> Effects {
        Effects::none("Look")
    }
}

impl<M: Module> Strategy<M> for Look {
    fn stages(&self, setup: &mut Setup<M>) -> Result<Stages<M>, StrategyError> {
        let rank = setup.world().rank();
        Ok(Stages::of(Looking { found: self.found.clone(), rank, loads: None, ends: None }))
    }
}

impl<M: Module> Stage<M> for Looking {
    fn name(&self) -> &'static str {
        "Look"
    }

    fn updated(&mut self, _: &M) {
        let loads = self.loads.take();
        self.end(Found::Loaded, loads);
    }

    fn unalias_master(&mut self, master: M) -> M {
        self.loads = Self::begin();
        master
    }

    fn gather_full(&mut self, master: M, _: Option<usize>) -> Result<Option<M>, StrategyError> {
        self.ends = Self::begin();
        Ok(Some(master))
    }
}

impl Drop for Looking {
    fn drop(&mut self) {
        let rank = self.rank;
        self.end(|beyond| Found::Ended(rank, beyond), self.ends);
    }
}

/// Runs one update, or what is left of it.
fn found(trainer: Trainer<Gpt>, output: &Path, resume: bool) -> Vec<Found> {
    let look = Look::default();
    let account = Account::new();
    let _on_it = account.enter();
    let data = Data::new(Rows::ragged(8)).micro_batch(1);
    let trainer = trainer.with(look.clone()).steps(1).output(output).checkpoints(Checkpoints::every(1));
    let trainer = if resume { trainer.resume(Resume::Latest) } else { trainer };
    let model = SHAPE.init(VOCABULARY, 8, &device().autodiff());
    trainer.fit(model, AdamW::new().init().unwrap(), Schedule::constant(1e-3), data).unwrap();
    let mut found = look.found.lock().unwrap().clone();
    found.sort_unstable();
    found
}

#[test]
fn the_optimizer_s_state_is_alive_once() {
    let _alone = alone();
    if !is_cpu() {
        return; // The accounts count only the host's memory.
    }
    let folder = tempfile::tempdir().unwrap();
    let output = folder.path().join("run");
    let state = 8 * SHAPE.init(VOCABULARY, 8, &device().autodiff()).num_params();
    let parts = |found: &[Found]| match *found {
        [Found::Loaded(loaded), Found::Ended(0, ended)] => {
            (loaded as f64 / state as f64, ended as f64 / state as f64)
        }
        _ => panic!("{found:?}"),
    };
    // The first update creates the state. At the end it is counted, a few parameters at a time.
    let (_, ended) = parts(&found(Trainer::new(), &output, false));
    assert!(ended < 0.4, "{ended} of the state beyond what the run had at its end");
    let (loaded, ended) = parts(&found(Trainer::new(), &output, true));
    assert!((1.0..1.4).contains(&loaded), "{loaded} of the state beyond what the run began with");
    assert!(ended < 0.4, "{ended} of the state beyond what the run had at its end");
}

#[test]
fn the_model_comes_together_in_one_place() {
    let _alone = alone();
    if !is_cpu() {
        return; // The accounts count only the host's memory.
    }
    const RANKS: usize = 3;
    let folder = tempfile::tempdir().unwrap();
    let trainer = Trainer::new().over(World::threads(RANKS)).with(Zero::stage(3));
    let found = found(trainer, &folder.path().join("run"), false);
    let whole = (4 * SHAPE.init(VOCABULARY, 8, &device().autodiff()).num_params()) as f64;
    let mut ranks = 0..RANKS;
    for found in found {
        if let Found::Ended(rank, beyond) = found {
            assert_eq!(Some(rank), ranks.next());
            let share = beyond as f64 / whole;
            // The other ranks hold what they send, and what is counted at a time.
            let expected = if rank == 0 { 1.0..2.2 } else { 0.3..0.8 };
            assert!(expected.contains(&share), "rank {rank}: {share} of the model");
        }
    }
    assert_eq!(ranks, RANKS..RANKS);
}

/// A thread writes the best model while training goes on. The next update then writes to new memory.
#[test]
fn the_best_model_is_written_without_a_copy() {
    let _alone = alone();
    if !is_cpu() {
        return; // The process's heap is the host's memory alone.
    }
    let folder = tempfile::tempdir().unwrap();
    let peak = |output: Option<&Path>| {
        let data = Data::new(Rows::ragged(8)).micro_batch(1).valid(Rows::ragged(2));
        let trainer = Trainer::new().steps(1).evaluate_every(1);
        let trainer = if let Some(output) = output { trainer.output(output) } else { trainer };
        let model = SHAPE.init(VOCABULARY, 8, &device().autodiff());
        let before = Looking::begin().unwrap();
        trainer.fit(model, AdamW::new().init().unwrap(), Schedule::constant(1e-3), data).unwrap();
        Usage::of_all_accounts().unwrap().peak - before
    };
    // The first run also allocates what the process keeps.
    peak(None);
    let (alone, written) = (peak(None), peak(Some(&folder.path().join("run"))));
    let model = 4 * SHAPE.init(VOCABULARY, 8, &device().autodiff()).num_params();
    let beyond = written.saturating_sub(alone) as f64 / model as f64;
    assert!(beyond < 0.4, "{beyond} of the model beyond a run that writes nothing");
}

/// A rank whose call is complete has its result in use, whether the other one has taken its message by then or not.
#[test]
fn a_slow_rank_does_not_change_what_another_has_in_use() {
    let _alone = alone();
    const BYTES: usize = 4 << 20;
    let measured = Arc::new(Barrier::new(2));
    let ranks = World::threads(2).join().unwrap().into_iter().map(|world| {
        let measured = measured.clone();
        std::thread::spawn(move || {
            let account = Account::new();
            let _on_it = account.enter();
            let device = Device::flex();
            let shard = Tensor::<1>::ones([BYTES / 4], &device);
            let gathering = world.begin_all_gather("shards", vec![shard], &device).unwrap();
            if world.rank() == 1 {
                measured.wait();
                return 0;
            }
            let whole = gathering.wait().unwrap();
            let live = account.usage().unwrap().live;
            measured.wait();
            drop(whole);
            live
        })
    });
    let live: Vec<usize> = ranks.collect::<Vec<_>>().into_iter().map(|rank| rank.join().unwrap()).collect();
    assert!((2 * BYTES..2 * BYTES + BYTES / 8).contains(&live[0]), "{live:?}");
}
