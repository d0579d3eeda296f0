//! The timeline of a step shows what runs beside what.

use std::fs;
use std::sync::mpsc::{Sender, channel};

use firebrick::observe::timeline::{RankTimeline, StepTimeline, file_name};
use firebrick::strategies::Composition;
use firebrick::world::{Activity, Collective, Event, Lane, Link};
use firebrick::{Data, Observer, Recompute, Schedule, TrainError, Trainer, World, Zero};
use firebrick_models::{Gpt, GptConfig};

use crate::support::{Rows, VOCABULARY, adamw, device};

const LAYERS: usize = 4;

/// Bytes per second at which the gradients of a block take about a tenth of a second: far longer than anything computes.
const SLOW: f64 = 250e3;

struct Timelines(Sender<StepTimeline>);

impl Observer for Timelines {
    fn timeline(&mut self, timeline: &StepTimeline) {
        self.0.send(timeline.clone()).unwrap();
    }
}

fn model() -> Gpt {
    let config = GptConfig { layers: LAYERS, heads: 2, width: 32, dropout: 0.0, bias: true, tied: true };
    config.init(VOCABULARY, 16, &device().autodiff())
}

/// Trains three steps, and returns the timelines of those that the trainer records.
fn recorded<S: Composition<Gpt>>(
    trainer: Trainer<Gpt>,
    strategies: S,
) -> Result<Vec<StepTimeline>, TrainError> {
    let (sender, timelines) = channel();
    let trainer = trainer.with(strategies).steps(3).observe(Timelines(sender));
    let data = Data::new(Rows::ragged(16)).micro_batch(2);
    trainer.fit(model(), adamw(), Schedule::constant(1e-3), data)?;
    Ok(timelines.into_iter().collect())
}

/// Returns the events of an activity of a block.
fn of(rank: &RankTimeline, activity: Activity, block: usize) -> Vec<Event> {
    let name = format!("blocks.{block}");
    let found = rank.events.iter().filter(|event| event.activity == activity && event.name == name);
    found.cloned().collect()
}

fn only(rank: &RankTimeline, activity: Activity, block: usize) -> Event {
    let found = of(rank, activity, block);
    assert_eq!(found.len(), 1, "{activity} of block {block}: {:#?}", rank.events);
    found.into_iter().next().unwrap()
}

/// Checks that an exchange begins before a block does, and that the rank waits for it only after that: whatever the machine
/// does besides, and however far apart the ranks are. Returns whether it was under way when the block began.
#[track_caller]
fn is_beside(exchange: &Event, wait: &Event, block: &Event) -> bool {
    assert!(exchange.start <= block.start, "{exchange:?} begins after {block:?}");
    assert!(wait.start >= block.start, "{wait:?} begins before {block:?}");
    exchange.end > block.start
}

/// The third step of two ranks over a slow link: the first update waits for all parameters, to measure the optimizer's state.
fn over_a_slow_link(zero: Zero) -> Vec<RankTimeline> {
    let world = World::threads(2).over_link(Link::new(SLOW));
    let trainer = Trainer::new().over(world).timeline([3]);
    let mut found = recorded(trainer, zero).unwrap();
    assert_eq!((found.len(), found[0].step, found[0].ranks.len()), (1, 3, 2));
    found.remove(0).ranks
}

#[test]
fn the_gradients_of_a_block_travel_while_the_next_block_computes() {
    let sums = Collective::ReduceScatter;
    for (stage, first) in [(2, Activity::Backward), (3, Activity::Rerun)] {
        let mut beside = Vec::new();
        for rank in over_a_slow_link(Zero::stage(stage)) {
            for block in 1..LAYERS {
                let [sum, wait] =
                    [Activity::Exchange(sums), Activity::Wait(sums)].map(|of| only(&rank, of, block));
                beside.push(is_beside(&sum, &wait, &only(&rank, first, block - 1)));
            }
            // Nothing waits for small parameters before the end.
            let last = only(&rank, Activity::Backward, 0);
            let waits = (0..LAYERS).flat_map(|block| of(&rank, Activity::Wait(Collective::AllReduce), block));
            waits.for_each(|wait| {
                assert!(wait.start >= last.end, "{wait:?} begins before the end of {last:?}")
            });
        }
        assert!(beside.contains(&true), "stage {stage}: no sum was under way");
    }
}

#[test]
fn the_parameters_of_a_block_travel_while_the_one_before_computes() {
    let gathers = Collective::AllGather;
    let mut beside = Vec::new();
    for rank in over_a_slow_link(Zero::stage(3)) {
        // Forward and backward; the last block is kept for the backward pass.
        let nth = |block, nth: usize| {
            [Activity::Exchange(gathers), Activity::Wait(gathers)]
                .map(|activity| of(&rank, activity, block)[nth].clone())
        };
        for block in 0..LAYERS - 1 {
            let [next, wait] = nth(block + 1, 0);
            beside.push(is_beside(&next, &wait, &only(&rank, Activity::Forward, block)));
        }
        for block in 1..LAYERS {
            let [next, wait] = nth(block - 1, 1);
            beside.push(is_beside(&next, &wait, &only(&rank, Activity::Rerun, block)));
        }
        assert_eq!(of(&rank, Activity::Exchange(gathers), LAYERS - 1).len(), 1);
    }
    assert!(beside.contains(&true), "no gather was under way");
}

#[test]
fn new_parameters_travel_while_the_next_forward_pass_computes() {
    let gathers = Collective::AllGather;
    for stage in [1, 2] {
        let mut beside = Vec::new();
        // A bucket for each matrix.
        for rank in over_a_slow_link(Zero::stage(stage).bucket_bytes(1)) {
            let of = |activity| rank.events.iter().filter(move |event| event.activity == activity);
            let (exchanges, waits): (Vec<_>, Vec<_>) =
                (of(Activity::Exchange(gathers)).collect(), of(Activity::Wait(gathers)).collect());
            // They belong to the update of the step before, and each is waited for when it is read.
            assert!(exchanges.iter().all(|exchange| exchange.start == 0.0), "{exchanges:#?}");
            let matrices = 4 * LAYERS;
            assert!(waits.len() >= matrices, "{waits:#?}");
            for block in 0..LAYERS {
                let forward = only(&rank, Activity::Forward, block);
                let later = waits.iter().filter(|wait| wait.start > forward.start).count();
                assert!(
                    later >= matrices - 4 * (block + 1),
                    "{later} waits after the begin of block {block}"
                );
                beside.push(exchanges.iter().any(|exchange| exchange.end > forward.start));
            }
        }
        assert!(beside.contains(&true), "stage {stage}: no gather was under way");
    }
}

#[test]
fn blocks_compute_within_the_passes_in_order() {
    for recompute in [None, Some(Recompute::every_block())] {
        let replays = recompute.is_some();
        let found = recorded(Trainer::new().timeline([1, 2]), recompute).unwrap();
        assert_eq!(found.iter().map(|found| found.step).collect::<Vec<_>>(), [1, 2]);
        for rank in found.into_iter().flat_map(|found| found.ranks) {
            let whole = |activity| {
                let mut found = rank
                    .events
                    .iter()
                    .filter(|event| event.activity == activity && !event.name.contains("blocks"));
                let event = found.next().unwrap_or_else(|| panic!("{activity}")).clone();
                assert!(found.next().is_none());
                event
            };
            let [forward, backward, update] =
                [Activity::Forward, Activity::Backward, Activity::Update].map(whole);
            let blocks = |activity| (0..LAYERS).map(|block| only(&rank, activity, block)).collect::<Vec<_>>();
            let (mut inside, mut back) = (blocks(Activity::Forward), blocks(Activity::Backward));
            back.reverse();
            inside.insert(0, Event { end: forward.start, ..forward.clone() });
            inside.push(Event { start: forward.end, ..forward });
            inside.push(Event { end: backward.start, ..backward.clone() });
            inside.append(&mut back);
            inside.push(Event { start: backward.end, ..backward });
            inside.push(update);
            for pair in inside.windows(2) {
                assert!(pair[0].end <= pair[1].start, "{:?} overlaps {:?}", pair[0], pair[1]);
            }
            assert_eq!(of(&rank, Activity::Rerun, 0).len(), usize::from(replays));
            // One rank exchanges nothing.
            assert!(rank.events.iter().all(|event| event.activity.lane() == Lane::Computation));
            assert!(rank.events.iter().all(|event| event.end <= rank.seconds));
        }
    }
}

#[test]
fn the_output_folder_has_a_file_for_each_recorded_step() {
    let folder = tempfile::tempdir().unwrap();
    let output = folder.path().join("run");
    let trainer = Trainer::new().over(World::threads(2)).output(&output).timeline([1, 2]);
    let found = recorded(trainer, Zero::stage(2)).unwrap();
    for timeline in &found {
        let text = fs::read_to_string(output.join(file_name(timeline.step))).unwrap();
        let read = StepTimeline::parse(&text).unwrap();
        assert_eq!(read.ranks.len(), 2);
        for (read, rank) in read.ranks.iter().zip(&timeline.ranks) {
            let names = |rank: &RankTimeline| -> Vec<_> {
                rank.events.iter().map(|event| (event.name.clone(), event.activity, event.bytes)).collect()
            };
            assert_eq!(names(read), names(rank));
        }
    }
    assert_eq!(found.len(), 2);
}

#[test]
fn the_update_before_the_first_cannot_be_recorded() {
    let error = recorded(Trainer::new().timeline([3, 0]), None::<Recompute>).unwrap_err();
    assert!(matches!(&error, TrainError::Setting(error) if error.setting == "timeline"), "{error}");
}
