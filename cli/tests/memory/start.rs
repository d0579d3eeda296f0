//! What a rank receives of the model at the start: its part, one parameter at a time.

use std::sync::{Arc, Barrier, Mutex};

use crate::alone;
use crate::support::*;
use burn::module::Module;
use burn::tensor::Device;
use firebrick::kernels::settle_products;
use firebrick::memory::{Account, Usage, reset_peak};
use firebrick::optim::AdamW;
use firebrick::strategies::{
    Communicator, Composed, Composition, Effects, Setup, Stage, Stages, StrategyError, StrategyRecipe,
};
use firebrick::{Amp, Data, Offload, Schedule, Strategy, TrainError, Trainer, World, Zero};
use firebrick_models::pretrained::{Folder, save};
use firebrick_models::{Gpt, Gpt2Config, GptConfig};

const RANKS: usize = 4;
const LENGTH: usize = 8;
const WIDTH: usize = 256;

/// Blocks of many matrices, none of which is a large part of the model.
const SHAPE: GptConfig =
    GptConfig { layers: 4, heads: 4, width: WIDTH, dropout: 0.0, bias: true, tied: true };

fn model(device: &Device) -> Gpt {
    SHAPE.init(VOCABULARY, LENGTH, device)
}

/// Records what each rank allocates until it owns its master. It is the first strategy.
#[derive(Clone, Debug, Default)]
struct Look {
    /// Each rank with its peak bytes.
    peaks: Arc<Mutex<Vec<(usize, usize)>>>,
    rank: usize,
    before: usize,
}

impl StrategyRecipe for Look {
    fn effects(&self) -> Effects {
        Effects::none("Look")
    }
}

impl<M: Module> Strategy<M> for Look {
    fn stages(&self, setup: &mut Setup<M>) -> Result<Stages<M>, StrategyError> {
        Ok(Stages::of(Self { rank: setup.world().rank(), ..self.clone() }))
    }
}

impl<M: Module> Stage<M> for Look {
    fn name(&self) -> &'static str {
        "Look"
    }

    fn init_master(&mut self, model: M) -> Result<M, StrategyError> {
        reset_peak();
        self.before = Usage::of_process().unwrap().live;
        Ok(model)
    }

    /// Called before anything is published.
    fn updated(&mut self, _: &M) {
        let peak = Usage::of_process().unwrap().peak;
        self.peaks.lock().unwrap().push((self.rank, peak - self.before));
    }
}

/// Returns the peak bytes of each rank until it owned its master, without the model that it was given. The run ends
/// there, with a budget that is always exceeded.
fn peaks(world: World, strategies: impl Composition<Gpt>, model: Gpt) -> Vec<usize> {
    let look = Look::default();
    let data = Data::new(Rows::ragged(64)).micro_batch(1);
    let trainer = Trainer::new().over(world).with(look.clone()).with(strategies).device_budget(1);
    let error = trainer
        .steps(1)
        .fit(model, AdamW::new().init().unwrap(), Schedule::constant(1e-3), data)
        .unwrap_err();
    let over = match &error {
        TrainError::Rank { reason, .. } => reason,
        other => other,
    };
    assert!(matches!(over, TrainError::OverBudget(_)), "{error}");
    let mut peaks = look.peaks.lock().unwrap().clone();
    peaks.sort_unstable();
    peaks.into_iter().map(|(_, peak)| peak).collect()
}

#[test]
fn a_rank_takes_its_part_of_the_model_and_nothing_else() {
    let _alone = alone();
    if !is_cpu() {
        return; // The accounts count only the host's memory.
    }
    let device = device().autodiff();
    let whole = 4 * model(&device).num_params();
    let parameter = 4 * WIDTH * 4 * WIDTH;
    for stage in 0..=3 {
        let part = if stage == 0 { whole } else { whole / RANKS };
        let before = steady();
        reset_peak();
        let peaks = peaks(World::threads(RANKS), Zero::stage(stage), model(&device));
        // Rank 0 sends one parameter at a time.
        let most = [part + 2 * parameter, part + parameter, part + parameter, part + parameter];
        assert_eq!(peaks.len(), RANKS);
        assert!(
            peaks.iter().zip(most).all(|(peak, most)| *peak < most),
            "stage {stage}: {peaks:?}, {most:?}"
        );
        if stage == 3 {
            // All ranks together hold the model once, and their parts of it.
            let together = Usage::of_all_accounts().unwrap().peak - before;
            assert!(together < 2 * whole + whole / 2, "{together} bytes for a model of {whole}");
        }
    }
    // On the host the master is the model itself, unless another rank has it too.
    for offload in [Offload::optimizer(), Offload::parameters()] {
        let (model, account) = (model(&device), Account::new());
        let _on_it = account.enter();
        let peaks = peaks(World::solo(), Composed::new().with(offload.clone()).with(Amp::bf16()), model);
        assert!(peaks[0] < parameter, "{offload:?}: {} bytes of {whole}", peaks[0]);
    }
}

/// Returns the live bytes, once they no longer change: the thread of an earlier test frees its buffers after the test.
fn steady() -> usize {
    let live = || Usage::of_all_accounts().unwrap().live;
    loop {
        let before = live();
        std::thread::sleep(std::time::Duration::from_millis(20));
        if live() == before {
            return before;
        }
    }
}

/// The products that make each thread's buffers have operands of 2 MiB.
#[test]
fn threads_that_settle_together_hold_the_operands_once() {
    let _alone = alone();
    if !is_cpu() {
        return; // A device keeps no buffers for a thread.
    }
    let device = device();
    let grown = |threads: usize| {
        let (all, before) = (Barrier::new(threads), steady());
        reset_peak();
        std::thread::scope(|scope| {
            for _ in 0..threads {
                scope.spawn(|| {
                    all.wait();
                    settle_products(&device);
                    all.wait(); // A thread's buffers end with it.
                });
            }
        });
        Usage::of_all_accounts().unwrap().peak - before
    };
    let (one, many) = (grown(1), grown(16));
    let kept = 15 * (one - (2 << 20));
    assert!(many < one + kept + (1 << 20), "{one} bytes of one thread, {many} of sixteen");
}

#[test]
fn a_model_that_is_read_later_is_whole_in_no_process() {
    let _alone = alone();
    if !is_cpu() {
        return; // The accounts count only the host's memory.
    }
    let device = device().autodiff();
    let (written, config) = (model(&device), Gpt2Config::of_shape(&SHAPE, VOCABULARY, LENGTH));
    let (whole, parameter) = (4 * written.num_params(), 4 * WIDTH * 4 * WIDTH);
    let path = tempfile::tempdir().unwrap();
    save(&written, &config, path.path()).unwrap();
    // Each rank reads the folder itself, as processes do.
    let most = |later: bool| {
        let rank = |world: Communicator| {
            let account = Account::new();
            let _on_it = account.enter();
            let folder = Folder::open(path.path()).unwrap();
            let loaded = match later {
                false => folder.load::<Gpt>(&config, &device),
                true => folder.load_later::<Gpt>(&config, &device),
            };
            let model = loaded.unwrap().model;
            let mut setup = Setup::new(&model, &device).among(world);
            let mut stage = Zero::stage(3).start(&mut setup).unwrap();
            stage.init_master(model).unwrap();
            account.usage().unwrap().peak
        };
        let worlds = World::threads(RANKS).join().unwrap();
        std::thread::scope(|scope| {
            let ranks: Vec<_> = worlds.into_iter().map(|world| scope.spawn(move || rank(world))).collect();
            ranks.into_iter().map(|rank| rank.join().unwrap()).max().unwrap()
        })
    };
    let [at_once, later] = [false, true].map(most);
    assert!(at_once > whole, "{at_once} bytes of {whole}");
    assert!(later < whole / RANKS + 4 * parameter, "{later} bytes of {whole}");
}
