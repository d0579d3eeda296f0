//! The sensible combinations of strategies, the cheapest first.

use crate::{AmpConfig, OffloadConfig, Precision, RecomputeConfig, Run, StrategyConfig, ZeroConfig};

/// A combination, as a list in an order in which all of them fit.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Combination {
    /// As in a run file; micro-batches are among them, and the ranks.
    pub strategies: Vec<StrategyConfig>,
    cost: (usize, bool, bool, u8, usize),
}

/// All that there are for a run on so many ranks, in the order of what they cost.
///
/// What a combination's dearest part costs decides:
///
/// 1. mixed precision, which on most GPUs makes steps faster;
/// 2. ZeRO 1, which sends no more than data parallel training does;
/// 3. ZeRO 2, which sends gradients with each micro-batch;
/// 4. recompute, a third of the computation more;
/// 5. ZeRO 3, the same third, and the parameters sent twice more with each micro-batch;
/// 6. the optimizer on the host: gradients and parameters cross the bus once an update, which the processor makes;
/// 7. parameters on the host: they cross it twice with each micro-batch.
///
/// The run's other strategies, and the settings of those that it has, are kept.
pub(super) fn combinations(run: &Run, has_bf16: bool, has_f16: bool) -> Vec<Combination> {
    let own = Own::of(run);
    let mut all = Vec::new();
    for offload in [None, Some(OffloadConfig::optimizer), Some(OffloadConfig::parameters)] {
        for stage in 0..=if run.number_of_ranks() > 1 { 3 } else { 0 } {
            for recompute in [false, true] {
                let runs_again = stage == 3 || offload == Some(OffloadConfig::parameters);
                if recompute && runs_again {
                    continue;
                }
                for (dearer, amp) in own.precisions(has_bf16, has_f16).into_iter().enumerate() {
                    let cost =
                        (offload.map_or(0, |of| 1 + of as usize), stage == 3, recompute, stage, dearer);
                    all.push(Combination { strategies: own.list(offload, stage, recompute, amp), cost });
                }
            }
        }
    }
    all.sort_by_key(|one| one.cost);
    all
}

/// What a run says of its own.
struct Own {
    amp: Option<AmpConfig>,
    zero: Option<ZeroConfig>,
    accumulate: Option<StrategyConfig>,
    /// What changes the model before anything else acts.
    adapting: Vec<StrategyConfig>,
    /// In their order, after all others.
    rest: Vec<StrategyConfig>,
}

impl Own {
    fn of(run: &Run) -> Self {
        let mut own =
            Self { amp: None, zero: None, accumulate: None, adapting: Vec::new(), rest: Vec::new() };
        for strategy in run.composed() {
            match strategy {
                StrategyConfig::Amp(amp) => own.amp = Some(amp),
                StrategyConfig::Zero(zero) => own.zero = Some(zero),
                StrategyConfig::Accumulate(1) => (),
                StrategyConfig::Accumulate(_) | StrategyConfig::AccumulateIn(..) => {
                    own.accumulate = Some(strategy);
                }
                StrategyConfig::Recompute(_) | StrategyConfig::Offload(_) => (),
                StrategyConfig::Lora(_) | StrategyConfig::Freeze(_) => own.adapting.push(strategy),
                StrategyConfig::Clip(_) | StrategyConfig::Ema(_) => own.rest.push(strategy),
            }
        }
        own
    }

    /// None, and the run's own or what the device has.
    fn precisions(&self, has_bf16: bool, has_f16: bool) -> Vec<Option<AmpConfig>> {
        let half = match &self.amp {
            Some(amp) if amp.dtype != Precision::f32 => Some(amp.clone()),
            _ if has_bf16 => Some(Precision::bf16.into()),
            _ if has_f16 => Some(Precision::f16.into()),
            _ => None,
        };
        [None].into_iter().chain(half.map(Some)).collect()
    }

    /// What treats gradients block by block stands first, what needs whole sums last.
    fn list(
        &self,
        offload: Option<OffloadConfig>,
        stage: u8,
        recompute: bool,
        amp: Option<AmpConfig>,
    ) -> Vec<StrategyConfig> {
        let zero = self.zero.clone().unwrap_or(ZeroConfig::from(stage));
        let blocks = zero.blocks.clone().filter(|_| stage >= 2);
        let zero = StrategyConfig::Zero(ZeroConfig { stage, blocks, ..zero });
        let [first, last] = match stage {
            0 => [None, None],
            1 => [None, Some(zero)],
            _ => [Some(zero), None],
        };
        let recompute = recompute.then(|| StrategyConfig::Recompute(RecomputeConfig::every_block()));
        let list = [
            first,
            offload.map(StrategyConfig::Offload),
            amp.map(StrategyConfig::Amp),
            recompute,
            self.accumulate.clone(),
            last,
        ];
        self.adapting.clone().into_iter().chain(list.into_iter().flatten()).chain(self.rest.clone()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::run::strategies_line;

    fn lists(sets: &[&str], has_bf16: bool) -> Vec<String> {
        let run = Run::parse("file", include_str!("../../examples/tinyshakespeare.ron"), sets).unwrap();
        let all = combinations(&run, has_bf16, true);
        all.iter().map(|one| strategies_line(&one.strategies)).collect()
    }

    #[test]
    fn one_rank_divides_nothing_and_the_cheapest_come_first() {
        let expected = [
            "",
            "Amp(bf16)",
            "Recompute(every: 1)",
            "Amp(bf16), Recompute(every: 1)",
            "Offload(optimizer)",
            "Offload(optimizer), Amp(bf16)",
            "Offload(optimizer), Recompute(every: 1)",
            "Offload(optimizer), Amp(bf16), Recompute(every: 1)",
            "Offload(parameters)",
            "Offload(parameters), Amp(bf16)",
        ];
        let found = lists(&["strategies=[]", "ranks=1"], true);
        assert_eq!(found, expected.map(|list| format!("strategies: [{list}],")));
        assert!(lists(&["strategies=[]"], false)[1].contains("Amp(f16)"));
    }

    #[test]
    fn ranks_share_before_blocks_are_run_again_and_each_list_is_one_that_can_be() {
        let sets = [
            "strategies=[Zero(stage: 2, replicate_below: 9), Accumulate(2), Clip(norm: 1.0), Lora(rank: 2)]",
            "ranks=2",
        ];
        let found = lists(&sets, true);
        assert_eq!(found.len(), 2 * (7 + 7 + 4));
        assert_eq!(found[0], "strategies: [Lora(rank: 2), Accumulate(2), Clip(norm: 1.0)],");
        let first = |part: &str| found.iter().position(|list| list.contains(part)).unwrap();
        let order = ["Amp", "stage: 1", "stage: 2", "Recompute", "stage: 3", "(optimizer)", "(parameters)"]
            .map(first);
        assert!(order.is_sorted(), "{order:?}: {found:#?}");
        assert!(found.iter().all(|list| !list.contains("Zero") || list.contains("replicate_below: 9")));
    }
}
