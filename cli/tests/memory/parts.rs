//! Memory by its parts, as the trainer measures it.

use crate::alone;
use crate::support::*;
use burn::optim::AdamWConfig;
use firebrick::memory::Account;
use firebrick::{Accumulate, Amp, Data, Ema, Recompute, Report, Schedule, StepNumbers, Trainer};
use firebrick_models::{Gpt, GptConfig};

const ROWS: usize = 8;
const LENGTH: usize = 64;
const WIDTH: usize = 64;
/// Bytes of a block's input.
const INPUT: usize = ROWS * LENGTH * WIDTH * 4;
/// The most bytes that Burn's graph itself takes for each block.
const GRAPH: usize = 128 * 1024;

fn run(layers: usize, amp: Option<Amp>, recompute: Option<Recompute>) -> (Report, StepNumbers) {
    train(layers, Trainer::new().with(amp).with(recompute))
}

fn train(layers: usize, trainer: Trainer<Gpt>) -> (Report, StepNumbers) {
    let config = GptConfig { layers, heads: 4, width: WIDTH, dropout: 0.1, bias: true, tied: true };
    let model = config.init(VOCABULARY, LENGTH, &device().autodiff());
    // A row predicts all of its tokens except the first.
    let row = |i: usize| (0..=LENGTH).map(|j| ((i * 7 + j * j * 3 + j) % 10) as u32).collect();
    let data = Data::new(Rows((0..4 * ROWS).map(row).collect())).micro_batch(ROWS);
    let optimizer = AdamWConfig::new().init();
    let trained = trainer.steps(3).fit(model, optimizer, Schedule::constant(1e-3), data).unwrap();
    (trained.report, trained.last_step)
}

#[test]
fn each_part_is_what_it_should_be() {
    let _alone = alone();
    // The first run of a process makes allocations that last for the whole process.
    run(2, None, None);

    // Few blocks if a processor emulates the GPU.
    let layers = if is_cpu() { 12 } else { 6 };
    let (report, step) = run(layers, None, None);
    let parameters = report.parameters;
    assert_eq!(step.parameter_bytes, 4 * parameters);
    assert_eq!(step.gradient_bytes, 4 * parameters);
    // Burn's optimizer makes moments whose rows are padded.
    assert!(!is_unpadded() || report.optimizer_bytes == 8 * parameters, "{}", report.optimizer_bytes);
    // Measured as what the first update leaves in use, so other allocations in the meantime count too.
    let measured = step.optimizer_bytes as f64 / report.optimizer_bytes as f64;
    assert!((0.9..1.25).contains(&measured), "{measured}");
    assert!(step.peak_bytes > step.parameter_bytes + step.optimizer_bytes + step.activation_bytes * 9 / 10);

    // Each block keeps its input, and one block at a time is recomputed.
    let (recomputed, _) = run(layers, None, Some(Recompute::every_block()));
    let [all, inputs] = [&report, &recomputed].map(|report| report.activation_bytes);
    assert!(all > (if is_cpu() { 3 } else { 2 }) * inputs, "{all} {inputs}");
    let (deeper, _) = run(2 * layers, None, Some(Recompute::every_block()));
    let grown = deeper.activation_bytes.saturating_sub(inputs);
    assert!(grown < layers * (INPUT + GRAPH), "{grown} for {layers} blocks with inputs of {INPUT}");
    assert!(grown > (layers - 1) * INPUT, "{grown} for {layers} blocks with inputs of {INPUT}");

    // Activations take half the bytes, except those of softmax and norms.
    let (half, step) = run(layers, Some(Amp::f16()), None);
    assert_eq!(step.parameter_bytes, 6 * parameters);
    assert_eq!(step.gradient_bytes, 2 * parameters, "as the backward pass leaves them");
    let share = half.activation_bytes as f64 / all as f64;
    assert!((0.5..0.8).contains(&share), "{share}");

    // The gradients held over a step, and an average that belongs to neither master nor optimizer.
    let (summed, step) =
        train(layers, Trainer::new().with(Amp::f16()).with(Accumulate(2)).with(Ema::new(0.9)));
    assert_eq!(summed.gradient_bytes, 4 * parameters);
    assert_eq!([summed.master_bytes, summed.replica_bytes], [4 * parameters, 2 * parameters]);
    assert_eq!(summed.averaged_bytes, 4 * parameters);
    assert_eq!(step.parameter_bytes, 10 * parameters);
    let measured = step.optimizer_bytes as f64 / summed.optimizer_bytes as f64;
    assert!((0.9..1.25).contains(&measured), "{measured}");

    if device().memory_pool_usage().is_some() {
        return; // No account counts a device's pool.
    }
    // Runs as threads of one process, each with its own account, measure as if each were alone.
    let on_account = |layers: usize| {
        let account = Account::new();
        let _on_it = account.enter();
        let (report, step) = run(layers, None, None);
        [report.activation_bytes, report.peak_bytes, step.optimizer_bytes]
    };
    // On threads of their own too: the panels of matrix products stay with the thread that first needs them.
    let alone =
        [4, 12].map(|layers| std::thread::scope(|scope| scope.spawn(|| on_account(layers)).join().unwrap()));
    let together = std::thread::scope(|scope| {
        let runs = [4, 12].map(|layers| scope.spawn(move || on_account(layers)));
        runs.map(|run| run.join().unwrap())
    });
    for (alone, together) in alone.as_flattened().iter().zip(together.as_flattened()) {
        let ratio = *together as f64 / *alone as f64;
        assert!((0.95..1.05).contains(&ratio), "{together} beside another, {alone} alone");
    }
}
