//! How much of the devices a run uses: tokens per second of each, and the share of its peak.

use firebrick_world::Communicator;

use burn::tensor::Device;

use crate::TrainError;
use crate::gather::gather;
use crate::observe::numbers::StepNumbers;
use crate::observe::report::Report;
use crate::observe::tensorboard::host;

/// What model FLOPs utilization is computed from.
///
/// It is the share of the devices' peak that the run's operations need, `tokens/s · flops_per_token / (peak_flops ·
/// devices)`: Chowdhery et al., *PaLM: Scaling Language Modeling with Pathways*, 2022 (arXiv:2204.02311), appendix B.
/// Tokens are those of the data, without padding, and recomputed operations don't count, so a run that pads or recomputes
/// less has a higher utilization.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Utilization {
    /// Floating-point operations of the forward and backward pass, per token.
    pub flops_per_token: f64,
    /// The peak of a device, in floating-point operations per second; see
    /// [`device::peak_flops`](crate::device::peak_flops).
    pub peak_flops: f64,
}

/// The devices of a run.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Devices {
    count: usize,
    utilization: Option<Utilization>,
}

impl Devices {
    /// Counts the devices of all ranks, some of which may share one. Every rank calls it.
    ///
    /// # Errors
    ///
    /// A rank is lost.
    pub fn of(
        world: &Communicator,
        device: &Device,
        utilization: Option<Utilization>,
    ) -> Result<Self, TrainError> {
        let count = match world.size() {
            1 => 1,
            _ => {
                // Processes that see one device each have the same name for it, but it is another card.
                let own = (host(), crate::device::card(device), format!("{device:?}"));
                let mut all = gather(world, "the devices", &own)?;
                all.sort();
                all.dedup();
                all.len()
            }
        };
        Ok(Self { count, utilization })
    }

    pub fn are_several(&self) -> bool {
        self.count > 1
    }

    /// Whether their peak is known.
    pub fn have_peak(&self) -> bool {
        self.utilization.is_some()
    }

    /// Adds the numbers of each device to those of a step; tokens per second only if there are several.
    pub fn of_step(&self, step: StepNumbers) -> StepNumbers {
        let per_device = self.per_device(step.tokens_per_second);
        StepNumbers {
            tokens_per_second_per_device: self.are_several().then_some(per_device),
            mfu: self.mfu(step.tokens_per_second),
            ..step
        }
    }

    /// Adds the numbers of each device to those of a run.
    pub fn of_run(&self, report: Report) -> Report {
        Report {
            tokens_per_second_per_device: Some(self.per_device(report.tokens_per_second)),
            mfu: self.mfu(report.tokens_per_second),
            ..report
        }
    }

    fn per_device(&self, tokens_per_second: f64) -> f64 {
        tokens_per_second / self.count as f64
    }

    fn mfu(&self, tokens_per_second: f64) -> Option<f64> {
        let Utilization { flops_per_token, peak_flops } = self.utilization?;
        Some(self.per_device(tokens_per_second) * flops_per_token / peak_flops)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::on_ranks;

    #[test]
    fn devices_that_ranks_share_count_once() {
        let utilization = Some(Utilization { flops_per_token: 6e6, peak_flops: 1e9 });
        let found = on_ranks(3, |world| {
            let devices = Devices::of(&world, &Device::flex(), utilization).unwrap();
            devices.of_step(StepNumbers { tokens_per_second: 50.0, ..StepNumbers::default() })
        });
        for step in found {
            assert_eq!((step.tokens_per_second_per_device, step.mfu), (None, Some(0.3)));
        }
    }

    #[test]
    fn each_device_has_its_part() {
        let utilization = Some(Utilization { flops_per_token: 6e6, peak_flops: 1e9 });
        let two = Devices { count: 2, utilization };
        let step = two.of_step(StepNumbers { tokens_per_second: 50.0, ..StepNumbers::default() });
        assert_eq!((step.tokens_per_second_per_device, step.mfu), (Some(25.0), Some(0.15)));
        let unknown = Devices { utilization: None, ..two };
        let report = unknown.of_run(Report { tokens_per_second: 50.0, ..Report::default() });
        assert_eq!((report.tokens_per_second_per_device, report.mfu), (Some(25.0), None));
    }
}
