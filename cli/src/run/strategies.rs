//! The strategies of a run file.

use burn::tensor::FloatDType;
use firebrick::AnyModel;
use firebrick_strategies::{Accumulate, AccumulateIn, Composed, Effects, Float, NamedStrategy, Order, Zero};

use super::{Run, extensions};

/// A strategy of the list: one of the [registered strategies](firebrick_strategies::Strategies).
pub type RunStrategy = NamedStrategy<AnyModel>;

/// Returns the strategies as the trainer takes them.
pub(crate) fn recipes(strategies: &[RunStrategy]) -> Composed<AnyModel> {
    strategies.iter().cloned().collect()
}

/// Returns the strategies in the [order](Order) in which gradients pass through them.
pub(crate) fn in_order(strategies: Vec<RunStrategy>) -> Vec<RunStrategy> {
    // A list with a technique twice is rejected before it trains.
    Order::sorted(strategies.clone(), |strategy| strategy.effects()).unwrap_or(strategies)
}

/// Returns the first of the strategies' effects that is of interest.
pub(crate) fn first_effect<T>(strategies: &[RunStrategy], of: impl Fn(Effects) -> Option<T>) -> Option<T> {
    strategies.iter().find_map(|strategy| of(strategy.effects()))
}

/// Writes a strategy as in a run file, on one line.
pub(crate) fn written(strategy: &RunStrategy) -> String {
    let options = ron::Options::default().with_default_extension(extensions());
    let pretty = ron::ser::PrettyConfig::new().depth_limit(0).separate_tuple_members(false);
    // A value that was read from a run file can be written to one.
    options.to_string_pretty(strategy, pretty).unwrap_or_default()
}

/// Writes the list as a line of a run file: `strategies: [Amp(bf16), Clip(norm: 1.0)],`.
pub(crate) fn strategies_line(strategies: &[RunStrategy]) -> String {
    let written: Vec<String> = strategies.iter().map(written).collect();
    format!("strategies: [{}],", written.join(", "))
}

/// Returns the sum of so many micro-batches, held in `dtype`.
pub(crate) fn sum(micro_batches: usize, dtype: FloatDType) -> RunStrategy {
    match dtype {
        FloatDType::F32 => RunStrategy::new("Accumulate", Accumulate(micro_batches)),
        dtype => RunStrategy::new("AccumulateIn", AccumulateIn::from((micro_batches, Float::from(dtype)))),
    }
}

/// Returns data-parallel training that shards nothing.
pub(crate) fn data_parallel() -> RunStrategy {
    RunStrategy::new("Zero", Zero::stage(0))
}

impl Run {
    /// Returns the strategies with those that the rest of the run file implies, in their order. `batch.accumulate` becomes an
    /// [`Accumulate`]. Several ranks without a [`Zero`] get one of stage 0. Several ranks with `batch.micro_tokens` also get
    /// an `Accumulate` if there is none, since a rank's part of a global batch may need several micro-batches.
    pub fn composed(&self) -> Vec<RunStrategy> {
        let mut strategies = self.strategies.clone();
        let needs_sum = self.steps_vary() && first_effect(&strategies, |effects| effects.sums).is_none();
        if let Some(micro_batches) = self.batch.accumulate.or(needs_sum.then_some(1)) {
            let dtype = self.batch.accumulate_dtype.map_or(FloatDType::F32, FloatDType::from);
            strategies.push(sum(micro_batches, dtype));
        }
        if self.number_of_ranks() > 1 && first_effect(&strategies, |effects| effects.reduces).is_none() {
            strategies.push(data_parallel());
        }
        in_order(strategies)
    }
}

#[cfg(test)]
#[path = "strategies_tests.rs"]
mod tests;
