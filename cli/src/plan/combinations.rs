//! The sensible combinations of strategies, cheapest first.

use burn::tensor::FloatDType;
use firebrick_strategies::{Amp, Offload, Offloads, OnDisk, Recompute, Zero};

use crate::run::insert_before_window;
use crate::{Run, RunStrategy};

/// A combination of strategies, listed in an order in which all of them fit.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Combination {
    /// The strategies as in a run file, including micro-batches and ranks.
    pub strategies: Vec<RunStrategy>,
    cost: (usize, bool, bool, u8, usize),
}

/// Returns all combinations for the run on its ranks, in the order of their cost.
///
/// The most expensive part of a combination determines its cost:
///
/// 1. mixed precision, which makes steps faster on most GPUs;
/// 2. ZeRO 1, which sends no more than data-parallel training;
/// 3. ZeRO 2, which sends gradients with each micro-batch;
/// 4. recompute, which adds a third of the computation;
/// 5. ZeRO 3, which adds the same third, and sends the parameters of blocks twice with each micro-batch;
/// 6. the optimizer on the host: gradients and parameters cross the bus once per update, and the CPU computes the
///    update;
/// 7. parameters on the host: they cross the bus twice with each micro-batch.
///
/// The run's other strategies and its own settings of these ones are kept.
pub(super) fn combinations(run: &Run, has_bf16: bool, has_f16: bool) -> Vec<Combination> {
    let own = Own::of(run);
    let unpacks = own.adapting.iter().any(|strategy| strategy.effects().quantizes.is_some());
    let mut all = Vec::new();
    for offload in [None, Some(Offloads::Optimizer), Some(Offloads::Parameters)] {
        for stage in 0..=if run.number_of_ranks() > 1 { 3 } else { 0 } {
            for recompute in [false, true] {
                let runs_again = stage == 3 || offload == Some(Offloads::Parameters) || unpacks;
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

/// Returns the run's own strategies with this stage of ZeRO in place of theirs, for several ranks, and with groups of
/// `within` ranks if they are given.
pub(super) fn at_stage(run: &Run, stage: u8, within: Option<usize>) -> Vec<RunStrategy> {
    let (reduces, mut list): (Vec<_>, Vec<_>) =
        run.composed().into_iter().partition(|strategy| strategy.effects().reduces.is_some());
    let zero = zero(reduces.first(), stage, within);
    match stage {
        // Stages 0 and 1 sum whole windows.
        0 | 1 => insert_before_window(&mut list, zero),
        _ => {
            let first = list.iter().position(|strategy| !strategy.effects().adapts).unwrap_or(list.len());
            list.insert(first, zero);
        }
    }
    list
}

/// Returns the run's own ZeRO in this stage, or one with the defaults.
fn zero(own: Option<&RunStrategy>, stage: u8, within: Option<usize>) -> RunStrategy {
    let own = own.and_then(RunStrategy::downcast_ref::<Zero>);
    let zero = own.map_or(Zero::stage(stage), |zero| zero.clone().at_stage(stage).in_one_copy());
    RunStrategy::new("Zero", if let Some(within) = within { zero.within(within) } else { zero })
}

/// The strategies that the run itself asks for.
#[derive(Default)]
struct Own {
    amp: Option<RunStrategy>,
    zero: Option<RunStrategy>,
    accumulate: Option<RunStrategy>,
    disk: Option<OnDisk>,
    /// The bytes of a bucket between host and device.
    moves: Option<usize>,
    /// Strategies that change the model before anything else acts.
    adapting: Vec<RunStrategy>,
    /// The other strategies, in their order, which come last.
    rest: Vec<RunStrategy>,
}

impl Own {
    fn of(run: &Run) -> Self {
        let mut own = Self::default();
        for strategy in run.composed() {
            let effects = strategy.effects();
            own.disk = own.disk.or(effects.on_disk);
            own.moves = own.moves.or(effects.moves);
            if effects.casts.is_some() {
                own.amp = Some(strategy);
            } else if effects.reduces.is_some() {
                own.zero = Some(strategy);
            } else if let Some(sums) = effects.sums {
                own.accumulate = (sums.micro_batches > 1).then_some(strategy);
            } else if effects.adapts {
                own.adapting.push(strategy);
            } else if effects.recomputes.is_none() && effects.offloads.is_none() {
                own.rest.push(strategy);
            }
        }
        own
    }

    /// No mixed precision, followed by the run's own, or by a half-precision dtype that the device supports.
    fn precisions(&self, has_bf16: bool, has_f16: bool) -> Vec<Option<RunStrategy>> {
        let is_half =
            |amp: &&RunStrategy| amp.effects().casts.is_some_and(|casts| casts.replica != FloatDType::F32);
        let half = match self.amp.as_ref().filter(is_half) {
            Some(amp) => Some(amp.clone()),
            None if has_bf16 => Some(RunStrategy::new("Amp", Amp::bf16())),
            None if has_f16 => Some(RunStrategy::new("Amp", Amp::f16())),
            None => None,
        };
        [None].into_iter().chain(half.map(Some)).collect()
    }

    /// Lists the strategies: those that process gradients block by block come first, those that need whole sums last.
    fn list(
        &self,
        offload: Option<Offloads>,
        stage: u8,
        recompute: bool,
        amp: Option<RunStrategy>,
    ) -> Vec<RunStrategy> {
        let zero = zero(self.zero.as_ref(), stage, None);
        let [first, last] = match stage {
            0 => [None, None],
            1 => [None, Some(zero)],
            _ => [Some(zero), None],
        };
        let offload = offload.map(|offloads| {
            let offload = self.moves.into_iter().fold(Offload::from(offloads), Offload::bucket_bytes);
            self.disk.iter().fold(offload, |offload, disk| offload.on(&disk.folder))
        });
        let offload = offload.map(|offload| RunStrategy::new("Offload", offload));
        let recompute = recompute.then(|| RunStrategy::new("Recompute", Recompute::every_block()));
        let list = [first, offload, amp, recompute, self.accumulate.clone(), last];
        self.adapting.clone().into_iter().chain(list.into_iter().flatten()).chain(self.rest.clone()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::run::strategies_line;

    fn lists(sets: &[&str], has_bf16: bool) -> Vec<String> {
        let run = Run::parse("file", include_str!("../../../examples/tinyshakespeare.ron"), sets).unwrap();
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
    fn a_disk_is_kept() {
        let sets = [r#"strategies=[Offload(keep: optimizer, on: "/nvme", bucket_bytes: 9)]"#, "ranks=1"];
        let found = lists(&sets, true);
        let offloaded: Vec<_> = found.iter().filter(|list| list.contains("Offload")).collect();
        assert_eq!(offloaded.len(), 6);
        assert!(offloaded.iter().all(|list| list.contains(r#"on: "/nvme", bucket_bytes: 9"#)), "{found:#?}");
    }

    #[test]
    fn ranks_share_before_blocks_are_run_again_and_each_list_is_one_that_can_be() {
        let sets = [
            "strategies=[Zero(stage: 2, replicate_below: 9), Accumulate(2), Clip(norm: 1.0), Lora(rank: 2)]",
            "ranks=2",
        ];
        let found = lists(&sets, true);
        assert_eq!(found.len(), 2 * (7 + 7 + 4));
        assert_eq!(found[0], "strategies: [Lora(rank: 2, alpha: 2.0), Accumulate(2), Clip(norm: 1.0)],");
        let first = |part: &str| found.iter().position(|list| list.contains(part)).unwrap();
        let order = ["Amp", "stage: 1", "stage: 2", "Recompute", "stage: 3", "(optimizer)", "(parameters)"]
            .map(first);
        assert!(order.is_sorted(), "{order:?}: {found:#?}");
        assert!(found.iter().all(|list| !list.contains("Zero") || list.contains("replicate_below: 9")));
    }

    #[test]
    fn another_stage_takes_the_place_that_it_needs() {
        let sets = [
            "strategies=[Lora(rank: 2), Amp(bf16), Zero(stage: 1, replicate_below: 9), Accumulate(2), Clip(norm: 1.0)]",
        ];
        let text = include_str!("../../../examples/tinyshakespeare.ron");
        let run = Run::parse("file", text, &[sets[0], "ranks=2"]).unwrap();
        let lists = [0, 1, 2, 3].map(|stage| strategies_line(&at_stage(&run, stage, None)));
        for (stage, list) in lists.iter().enumerate() {
            let zero = format!("Zero(stage: {stage}, replicate_below: 9)");
            let expected = match stage {
                0 | 1 => {
                    format!("Lora(rank: 2, alpha: 2.0), Amp(bf16), Accumulate(2), {zero}, Clip(norm: 1.0)")
                }
                _ => format!("Lora(rank: 2, alpha: 2.0), {zero}, Amp(bf16), Accumulate(2), Clip(norm: 1.0)"),
            };
            assert_eq!(*list, format!("strategies: [{expected}],"));
        }
        // A row of hybrid sharding stands beside these, in which all ranks share one copy.
        let hybrid =
            Run::parse("file", text, &["strategies=[Zero(stage: 3, within: 2)]", "ranks=4"]).unwrap();
        for (within, expected) in [(None, "Zero(stage: 3)"), (Some(4), "Zero(stage: 3, within: 4)")] {
            let list = strategies_line(&at_stage(&hybrid, 3, within));
            assert_eq!(list, format!("strategies: [{expected}],"));
        }
    }
}
