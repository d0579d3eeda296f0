//! Between two steps each rank holds what the equations of ZeRO predict.

use crate::support::*;
use burn::module::{ModuleVisitor, Param, ParamId};
use burn::tensor::Tensor;
use firebrick::optim::AdamW;
use firebrick::strategies::Composed;
use firebrick::{Accumulate, Amp, Data, RankReport, Schedule, Trainer, World, Zero};
use firebrick_models::{Gpt, GptConfig};

const RANKS: usize = 4;
const LENGTH: usize = 16;

fn model() -> Gpt {
    let config = GptConfig { layers: 3, heads: 4, width: 64, dropout: 0.0, bias: true, tied: true };
    config.init(VOCABULARY * 6, LENGTH, &device().autodiff())
}

/// Elements that are sharded, with padding, and elements that each rank holds.
fn elements(stage: u8) -> (f64, f64) {
    struct Count(u8, Vec<ParamId>, usize, usize);
    impl ModuleVisitor for Count {
        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
            if self.1.contains(&param.id) {
                return;
            }
            self.1.push(param.id);
            let shape = param.shape();
            let elements = shape.num_elements();
            if self.0 == 0 || elements < 1024 || shape[0] < RANKS {
                self.3 += elements;
            } else {
                self.2 += elements / shape[0] * shape[0].next_multiple_of(RANKS);
            }
        }
    }
    let mut count = Count(stage, Vec::new(), 0, 0);
    burn::module::Module::visit(&model(), &mut count);
    (count.2 as f64, count.3 as f64)
}

fn ranks(stage: u8, half: bool, micro_batches: usize) -> Vec<RankReport> {
    let zero = |is_here: bool| is_here.then(|| Zero::stage(stage));
    let amp = half.then(Amp::bf16);
    // Stages 0 and 1 after whole gradients are accumulated.
    let strategies = Composed::new()
        .with(zero(stage >= 2))
        .with(amp)
        .with((micro_batches > 1).then_some(Accumulate(micro_batches)))
        .with(zero(stage < 2));
    let row = |i: usize| (0..=LENGTH).map(|j| ((i * 7 + j * j * 3 + j) % 10) as u32).collect();
    let data = Data::new(Rows((0..32).map(row).collect())).micro_batch(2);
    let trained = Trainer::new().over(World::threads(RANKS)).with(strategies).steps(2).fit(
        model(),
        AdamW::new().init().unwrap(),
        Schedule::constant(1e-3),
        data,
    );
    trained.unwrap().report.ranks
}

#[test]
fn bytes_between_steps_are_those_of_the_equations() {
    if !is_cpu() {
        return; // Elsewhere Burn does not expose storages, so views look like copies.
    }
    let n = RANKS as f64;
    for stage in 0..=3 {
        for (half, micro_batches) in [(false, 1), (false, 2), (true, 1), (true, 2)] {
            let (sharded, small) = elements(stage);
            // Bytes per element of the kept gradients.
            let g = if half && micro_batches == 1 { 2.0 } else { 4.0 };
            let each = match (stage, half) {
                (0, _) => 0.0,
                (1, false) => 8.0 + 8.0 / n,
                (2, false) => 4.0 + 12.0 / n,
                (_, false) => 16.0 / n,
                (1, true) => 2.0 + g + 12.0 / n,
                (2, true) => 2.0 + (12.0 + g) / n,
                (_, true) => (14.0 + g) / n,
            };
            let whole = if half { 14.0 + g } else { 16.0 };
            let expected = each * sharded + whole * small;
            for rank in ranks(stage, half, micro_batches) {
                let parts =
                    [rank.master_bytes, rank.replica_bytes, rank.gradient_bytes, rank.optimizer_bytes];
                let found = parts.iter().sum::<usize>() as f64;
                let name = format!("stage {stage}, bf16 {half}, {micro_batches} micro-batches: {rank:?}");
                assert!((found / expected - 1.0).abs() < 0.02, "{name}: {found} bytes, not {expected}");
            }
        }
    }
}
