//! Measures the blocks of a model before its ranks divide them into the stages of a pipeline.

use burn::tensor::{Device, FloatDType};
use firebrick_datasets::Batch;
use firebrick_strategies::{Paths, Setup};
use firebrick_world::{Activity, Communicator, Event, Timeline};
use tracing::info;

use super::dry_run::{at_rest, first_batch};
use crate::gather::gather;
use crate::memory::reset_peak;
use crate::{Data, Objective, TrainError};

/// Returns how many microseconds each block takes forward, as the first rank measures the first micro-batch with the whole model, in
/// f32. What comes before the blocks counts with the first one, and what is behind them with the last one. `None` without a sample.
///
/// # Errors
///
/// The data cannot be read, or another rank is lost.
pub(crate) fn block_times<M, B>(
    model: &M,
    device: Option<&Device>,
    data: &Data<B>,
    world: &Communicator,
) -> Result<Option<Vec<usize>>, TrainError>
where
    M: Objective<B> + 'static,
    B: Batch,
{
    let device = device.cloned().or_else(|| model.devices().first().cloned()).unwrap_or_default();
    // The ranks of one machine would slow one another.
    let own = if world.rank() == 0 { measured(model, &device, data)? } else { None };
    let times = gather(world, "the times of blocks", &own)?.into_iter().next().flatten();
    if let Some(times) = times.as_ref().filter(|_| world.rank() == 0) {
        let times: Vec<_> = times.iter().map(|micros| format!("{:.1}", *micros as f64 / 1e3)).collect();
        info!("the blocks take {} ms forward, which decides what stages have", times.join(", "));
    }
    Ok(times)
}

fn measured<M, B>(model: &M, device: &Device, data: &Data<B>) -> Result<Option<Vec<usize>>, TrainError>
where
    M: Objective<B> + 'static,
    B: Batch,
{
    let home = device.clone().inner();
    let pass = Setup::new(model, device).into_pass().evaluating(FloatDType::F32);
    let timeline = Timeline::awaiting(&home);
    let pass = pass.timed_by(timeline.clone());
    let is_autodiff = model.devices().iter().all(Device::is_autodiff);
    let model = if is_autodiff { model.clone().valid() } else { model.clone() };
    let model = at_rest(model.fork(&home));
    let mut found = None;
    // A first pass also compiles kernels and allocates memory.
    for _ in 0..2 {
        let Some(batch) = first_batch(&data.train, data, 1)? else { return Ok(None) };
        timeline.begin();
        let all = timeline.span(Activity::Forward, String::new);
        drop(model.evaluate(batch, &pass.apart()));
        drop(all);
        found = Some(of_blocks(&Paths::of(&model), &timeline.end()));
    }
    // The memory of the trial is not part of the run's peak.
    reset_peak();
    Ok(found)
}

/// Returns the microseconds from the end of the block before to the end of each one, of which the last one lasts until all has ended.
fn of_blocks(paths: &Paths, events: &[Event]) -> Vec<usize> {
    let (mut times, mut last, mut before) = (vec![0.0; paths.blocks().count()], 0, 0.0);
    for event in events {
        let Some(block) = paths.blocks().position(|path| path == event.name) else { continue };
        times[block] += event.end - before;
        (last, before) = (block, event.end);
    }
    let end = events.iter().map(|event| event.end).fold(before, f64::max);
    if let Some(last) = times.get_mut(last) {
        *last += end - before;
    }
    times.into_iter().map(|seconds| (seconds * 1e6).round() as usize).collect()
}

#[cfg(test)]
mod tests {
    use burn::nn::LinearConfig;

    use super::*;

    #[test]
    fn what_is_between_blocks_counts_with_the_next_one_and_the_rest_with_the_last_one() {
        let device = crate::testing::device();
        let paths = Paths::of(&vec![LinearConfig::new(2, 2).init(&device); 3]);
        let names: Vec<_> = paths.blocks().map(str::to_string).collect();
        let event = |name: &str, start, end| Event {
            name: name.into(),
            activity: Activity::Forward,
            start,
            end,
            bytes: 0,
        };
        let events = [
            event("", 0.0, 0.010),
            event(&names[0], 0.001, 0.002),
            event(&names[1], 0.002, 0.004),
            event("a block within", 0.002, 0.003),
            event(&names[2], 0.005, 0.006),
        ];
        assert_eq!(of_blocks(&paths, &events), [2000, 2000, 6000]);
        assert_eq!(of_blocks(&paths, &[]), [0, 0, 0]);
    }
}
