//! Tests of when a checkpoint is published.

use std::path::Path;
use std::sync::Arc;
use std::thread::sleep;
use std::time::Duration;

use burn::nn::LinearConfig;
use burn::tensor::Device;
use firebrick_checkpoints::Folder;
use firebrick_datasets::Cursor;
use firebrick_strategies::{Composition, Setup, Zero};
use firebrick_world::Communicator;

use super::settings::{GlobalBatch, Settings};
use super::trainer_state::TrainerState;
use super::{Checkpoints, Layout, Saver, Snapshot, StateAt};
use crate::data::Fingerprints;
use crate::engine::agreement::any;
use crate::observe::log::Mark;
use crate::observe::progress::Progress;
use crate::optim::AdamW;
use crate::testing::on_ranks;
use crate::{Schedule, TrainError};

/// Begins the first save of a rank in this folder.
fn begun(world: &Communicator, folder: &Path) -> Saver {
    let device = Device::flex().autodiff();
    let model = LinearConfig::new(4, 4).init(&device);
    let mut setup = Setup::new(&model, &device).among(world.clone());
    let mut stages = Zero::stage(0).start(&mut setup).unwrap();
    let layout = Arc::new(Layout::of(&model, &mut stages, world));
    let policy = Checkpoints::every(1);
    let mut saver = Saver::new(policy, Folder::new(folder), "run".into(), world.clone(), layout);
    let settings = Settings {
        seed: 0,
        label_smoothing: 0.0,
        schedule: Schedule::constant(1e-3),
        rates_by_function: false,
        total_updates: 1,
        global_batch: GlobalBatch::Samples(1),
        train_samples: 1,
        data: Fingerprints::default(),
    };
    let state = TrainerState::new(1, settings, Progress::default(), Vec::new(), Mark::default(), None);
    let copy = |layout: &Arc<Layout>| {
        let optimizer = AdamW::new().init().unwrap();
        Ok::<_, TrainError>(Snapshot::take(layout, world, &model, None, &StateAt::Host(&optimizer), state)?)
    };
    saver.begin(1, Cursor::default(), None, true, copy).unwrap();
    saver
}

#[test]
fn a_checkpoint_is_published_after_the_files_that_it_tells_of() {
    let folder = tempfile::tempdir().unwrap();
    let checkpoints = || Folder::new(folder.path());
    on_ranks(2, |world| {
        let mut saver = begun(&world, folder.path());
        // Where a step tells all ranks.
        let poll = |saver: &mut Saver, holds| {
            saver.poll(any(&world, "busy", saver.is_busy(holds)).unwrap()).unwrap();
        };
        // The first rank is still writing its best model.
        for _ in 0..50 {
            poll(&mut saver, world.rank() == 0);
            sleep(Duration::from_millis(1));
        }
        assert!(saver.is_under_way() && checkpoints().list().unwrap().is_empty());
        while saver.is_under_way() {
            poll(&mut saver, false);
        }
        assert_eq!((saver.newest, &saver.failed), (Some(1), &None));
    });
    assert_eq!(checkpoints().list().unwrap().len(), 1);
}

#[test]
fn a_save_that_is_given_up_leaves_nothing_unless_all_ranks_have_written() {
    for all_have_written in [false, true] {
        let folder = tempfile::tempdir().unwrap();
        on_ranks(2, |world| {
            let mut saver = begun(&world, folder.path());
            if all_have_written {
                saver.poll(false).unwrap();
            }
            drop(saver);
        });
        let left = std::fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().file_name());
        let staged = left.filter(|name| name.to_string_lossy().starts_with('.')).count();
        let published = Folder::new(folder.path()).list().unwrap().len();
        assert_eq!((staged, published), (0, usize::from(all_have_written)));
    }
}
