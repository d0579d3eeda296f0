//! A rank's shards that wait elsewhere are on their way two blocks before the ranks compute with them.

use std::collections::HashMap;
use std::sync::Mutex;
use std::thread::{self, ThreadId};

use burn::module::ModuleMapper;
use firebrick_strategies::{OffloadedParam, OffloadedParams, OffloadedRead, each_distinct_param};
use firebrick_world::{DeviceCollectives, host_device};

use super::transports::by_hand;
use super::*;

const BLOCKS: usize = 5;

/// What a rank does, with the number of the block.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Event {
    Read(usize),
    Run(usize),
}
use Event::{Read, Run};

/// A disk's part: shards that wait outside memory, and what happens to them.
#[derive(Debug, Default)]
struct Shelf {
    shards: HashMap<ParamId, (usize, Vec<usize>, Tensor<1>)>,
    events: Arc<Mutex<Vec<Event>>>,
    /// The threads that waited for a read.
    waited: Arc<Mutex<Vec<ThreadId>>>,
    /// The block that cannot be read: an error, or a panic if another thread than the pass waits for it.
    breaks: Option<usize>,
    in_a_thread: bool,
}

impl OffloadedParams for Shelf {
    fn param(&self, id: ParamId) -> Option<OffloadedParam> {
        let (_, shape, value) = self.shards.get(&id)?;
        Some(OffloadedParam { shape: shape.clone(), dtype: value.dtype(), is_trained: true })
    }

    fn begin_read(&self, ids: &[ParamId]) -> OffloadedRead {
        let block = self.shards[&ids[0]].0;
        self.events.lock().unwrap().push(Read(block));
        let found = ids.iter().map(|id| self.shards[id].2.clone()).collect();
        let (breaks, waited, in_a_thread) =
            (self.breaks == Some(block), self.waited.clone(), self.in_a_thread);
        OffloadedRead::new(move || {
            waited.lock().unwrap().push(thread::current().id());
            match breaks {
                true if in_a_thread => panic!("the disk is broken"),
                true => Err(StrategyError::OffloadedParam("the disk is broken".into())),
                false => Ok(found),
            }
        })
    }
}

/// Takes the values out of a model.
struct TakeAway;

impl ModuleMapper for TakeAway {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        let (id, value, _) = param.consume();
        let read = |_: &Device, _| panic!("a segment reads the shelf");
        Param::uninitialized(id, read, value.device(), true, value.shape())
    }
}

fn blocks() -> Vec<Linear> {
    let linear = |_| LinearConfig::new(WIDTH, WIDTH).with_bias(false).init(&device());
    map_params((0..BLOCKS).map(linear).collect(), &mut Waves(0.0))
}

/// Runs blocks forward, in an order. Returns the loss.
fn forward(model: &[Linear], order: &[usize], pass: &Pass, events: &Arc<Mutex<Vec<Event>>>) -> Tensor<1> {
    let x = Tensor::<2>::ones([2, WIDTH], pass.device());
    let step = |x, at: &usize| {
        let (at, events) = (*at, events.clone());
        pass.segment(&model[at], x, move |block: &Linear, x: Tensor<2>, _: &Pass| {
            events.lock().unwrap().push(Run(at));
            block.forward(x).tanh()
        })
    };
    order.iter().fold(x, step).sum()
}

/// What a rank did in each pass, the loss of each, and the first error of a pass.
type Found = (Vec<Vec<Event>>, Vec<f32>, Option<String>);

/// Runs passes over blocks, in an order and with or without a backward pass. `breaks` names a block whose shards cannot be read.
fn run(world: Communicator, passes: &[(&[usize], bool)], breaks: Option<usize>) -> Found {
    let (model, device) = (blocks(), device());
    let has_devices = world.exchanges_on(&device.clone().inner(), burn::tensor::DType::F32);
    // Shards that devices exchange go up beside the pass.
    let uploads = has_devices && !is_cpu();
    let mut setup = Setup::new(&model, &device).among(world);
    let stack = Composed::new().with(Zero::stage(3).replicate_below(1)).with(Offload::parameters());
    let mut stages = stack.start(&mut setup).unwrap();
    let pass = setup.into_pass();
    let master = stages.init_master(model).unwrap();
    let mut shelf = Shelf { breaks, in_a_thread: uploads, ..Shelf::default() };
    for (at, block) in stages.publish(master).unwrap().iter().enumerate() {
        each_distinct_param(block, |param| {
            let shard = param.flat().to_device(&host_device());
            shelf.shards.insert(param.id(), (at, param.shape(), shard));
        });
    }
    let replica = blocks_without_values(&shelf);
    let (events, waited) = (shelf.events.clone(), shelf.waited.clone());
    let pass = pass.reading(Arc::new(shelf));
    let (mut did, mut losses, mut failed) = (Vec::new(), Vec::new(), None);
    for (order, returns) in passes {
        let (entered, pass) = pass.enter(&replica).unwrap();
        let loss = forward(&entered, order, &pass, &events);
        losses.push(loss.clone().into_scalar::<f32>());
        let result = match returns {
            true => pass.gradients(loss.backward(), &entered, true).map(drop),
            false => {
                drop(loss);
                pass.check()
            }
        };
        failed = failed.or(result.err().map(|error| error.to_string()));
        drop((entered, pass));
        let events = std::mem::take(&mut *events.lock().unwrap());
        let waited = std::mem::take(&mut *waited.lock().unwrap());
        let reads = events.iter().filter(|event| matches!(event, Read(_))).count();
        assert_eq!(waited.len(), reads, "a read goes on when the pass is over");
        assert!(waited.iter().all(|thread| (*thread == thread::current().id()) != uploads));
        did.push(events);
    }
    (did, losses, failed)
}

/// Runs two ranks. `breaks` names the block whose shards the first one cannot read.
fn on_two(
    between: Option<DeviceCollectives>,
    passes: &'static [(&'static [usize], bool)],
    breaks: Option<usize>,
) -> Vec<Found> {
    let spawn = |world: Communicator| {
        let world = world.between_devices(between.clone());
        let breaks = breaks.filter(|_| world.rank() == 0);
        thread::spawn(move || run(world, passes, breaks))
    };
    let ranks: Vec<_> = World::threads(2).join().unwrap().into_iter().map(spawn).collect();
    ranks.into_iter().map(|rank| rank.join().unwrap()).collect()
}

/// Returns the blocks as they are on a rank whose shards wait on the shelf.
fn blocks_without_values(shelf: &Shelf) -> Vec<Linear> {
    let mut blocks: Vec<_> =
        shelf.shards.iter().map(|(id, (at, shape, value))| (*at, *id, shape, value)).collect();
    blocks.sort_unstable_by_key(|(at, ..)| *at);
    let linear = |(_, id, shape, value): (usize, ParamId, &Vec<usize>, &Tensor<1>)| {
        let weight = value.clone().reshape([shape[0], shape[1]]).to_device(&device());
        Linear { weight: Param::initialized(id, weight), bias: None }
    };
    blocks.into_iter().map(linear).collect::<Vec<_>>().map(&mut TakeAway)
}

const ALL: &[usize] = &[0, 1, 2, 3, 4];

#[test]
fn shards_are_read_two_blocks_before_they_are_needed() {
    // The fourth pass, like one that generates, goes on with the first blocks, and has no backward pass.
    const PASSES: &[(&[usize], bool)] = &[
        (ALL, true),
        (ALL, true),
        (&[0, 1], true),
        (&[0, 1, 2, 3, 4, 0, 1, 2], false),
        (ALL, true),
        (ALL, true),
    ];
    let plain = |(order, _): &(&[usize], bool)| {
        forward(&blocks(), order, &Pass::train(&device()), &Arc::default()).into_scalar::<f32>()
    };
    let expected: Vec<_> = PASSES.iter().map(plain).collect();
    let forward = [Read(0), Read(1), Read(2), Run(0), Read(3), Run(1), Read(4), Run(2), Run(3), Run(4)];
    // The last block stays. The first pass does not know yet what comes next.
    let backward = [Read(3), Read(2), Run(4), Read(1), Run(3), Read(0), Run(2), Run(1), Run(0)];
    let first = ALL.iter().flat_map(|at| [Read(*at), Run(*at)]).chain(backward).collect::<Vec<_>>();
    let whole = [&forward[..], &backward].concat();
    let cut = [&forward[..6], &[Read(0), Run(1), Run(0)]].concat();
    for between in [None, Some(by_hand(2))] {
        for (did, losses, failed) in on_two(between, PASSES, None) {
            assert_eq!(failed, None);
            assert!(distance(&losses, &expected) < 1e-5, "{losses:?}, not {expected:?}");
            assert_eq!([&did[0], &did[1], &did[2], &did[5]], [&first, &whole, &cut, &whole]);
        }
    }
}

/// The rank that cannot read its shards takes part in the gather, so that all ranks stay in step until it says so.
#[test]
fn shards_that_cannot_be_read_are_an_error_after_the_pass() {
    for between in [None, Some(by_hand(2))] {
        let found = on_two(between, &[(ALL, true)], Some(2));
        let error = found[0].2.as_ref().expect("the shards of a block are lost");
        assert!(error.contains("the disk is broken") || error.contains("has panicked"), "{error}");
        assert_eq!(found[1].2, None);
    }
}
