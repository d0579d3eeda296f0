//! Compares one update of 50 million parameters in f32 by the fused optimizers with Burn's own, and with a plain copy
//! of the same number of bytes. All variants take turns in one run. The fastest round of each counts, because other
//! work on the machine only adds time.
//!
//! `cargo bench --bench fused_optimizers`, or with fewer rounds: `cargo bench --bench fused_optimizers -- 3`.
//!
//! **Bytes** is the number of bytes that an update must move: it reads parameter, gradient and moments, and writes
//! parameter and moments. That is 28 per parameter for AdamW (16 read, 12 written), 20 for Lion and for SGD with
//! momentum (12 and 8), 12 for plain SGD (8 and 4), 26 for AdamW with bf16 gradients, and 30 if it writes a bf16
//! replica too. The **copy** moves the same number, half of them read and half written: each core copies its own part
//! with one `memcpy` into memory that has been written before. For copies of this size the C library stores past the
//! caches; ordinary stores would be slower.
//!
//! Compared **with Burn**, both sides get gradients that nothing else holds, as in training, and free them within the
//! measured time. Compared **with the copy**, the gradients are kept, because a copy frees nothing.
//!
//! `fused_adamw_torch.py` runs this program as `serve OPTIMIZER`. It then makes one update per line of input, and
//! prints the seconds that the update took.

use std::io::{BufRead, Write};
use std::time::Instant;

use burn::module::{Module, Param};
use burn::optim::{AdamWConfig, GradientsParams, LionConfig, SgdConfig, momentum::MomentumConfig};
use burn::tensor::{Device, FloatDType, Tensor, TensorData};
use firebrick::kernels::optim::{Replicas, Together, copies};
use firebrick::strategies::optim::{AdamW, Lion, ModelOptimizer, Sgd};

/// Number of square matrices of this width: 50.3 million parameters.
const MATRICES: usize = 12;
const WIDTH: usize = 2048;
const PARAMETERS: usize = MATRICES * WIDTH * WIDTH;

#[derive(Module, Debug)]
struct Weights {
    matrices: Vec<Param<Tensor<2>>>,
}

fn matrix(seed: usize, device: &Device) -> Tensor<2> {
    let values: Vec<f32> = (0..WIDTH * WIDTH).map(|i| ((i * 7 + seed) as f32 * 0.37).sin() * 0.1).collect();
    Tensor::from_data(TensorData::new(values, [WIDTH, WIDTH]), device)
}

/// A model in training, and the gradients of each of its updates.
struct Training {
    model: Option<Weights>,
    optimizer: ModelOptimizer,
    grads: Vec<Tensor<2>>,
}

impl Training {
    fn new(optimizer: impl Into<ModelOptimizer>) -> Self {
        let device = Device::flex();
        let param = |seed| Param::from_tensor(matrix(seed, &device.clone().autodiff()));
        let model = Weights { matrices: (0..MATRICES).map(param).collect() };
        let grads = (0..MATRICES).map(|seed| matrix(100 + seed, &device)).collect();
        Self { model: Some(model), optimizer: optimizer.into(), grads }
    }

    fn in_dtype(mut self, dtype: FloatDType) -> Self {
        self.grads = self.grads.into_iter().map(|grad| grad.cast(dtype)).collect();
        self
    }

    /// Returns the seconds of an update that keeps its gradients.
    fn kept(&mut self) -> f64 {
        let grads = self.grads.clone();
        self.update(grads, Together::new()).0
    }

    /// Returns the seconds of an update that owns its gradients and frees them.
    fn freed(&mut self) -> f64 {
        // Adding zero creates a new tensor.
        let grads = self.grads.iter().map(|grad| grad.clone().add_scalar(0.0)).collect();
        self.update(grads, Together::new()).0
    }

    /// Returns the seconds of an update, and the copies that it wrote.
    fn update(&mut self, tensors: Vec<Tensor<2>>, mut together: Together) -> (f64, Option<Replicas>) {
        let model = self.model.take().expect("the model is back after each update");
        let mut grads = GradientsParams::new();
        for (param, grad) in model.matrices.iter().zip(tensors) {
            grads.register(param.id, grad);
        }
        let start = Instant::now();
        self.model = Some(self.optimizer.update(1e-3, model, grads, &mut together));
        let replicas = together.launch();
        (start.elapsed().as_secs_f64(), replicas)
    }
}

/// A copy that moves this many bytes: it reads half of them and writes half.
struct Copy {
    from: Vec<u8>,
    to: Vec<u8>,
}

impl Copy {
    fn moving(bytes: usize) -> Self {
        Self { from: vec![1; bytes / 2], to: vec![2; bytes / 2] }
    }

    fn seconds(&mut self) -> f64 {
        let part = self.from.len().div_ceil(rayon::current_num_threads());
        let start = Instant::now();
        rayon::scope(|scope| {
            for (from, to) in self.from.chunks(part).zip(self.to.chunks_mut(part)) {
                scope.spawn(|_| to.copy_from_slice(from));
            }
        });
        start.elapsed().as_secs_f64()
    }
}

/// Returns the fastest of several rounds of each variant, in turns, after one untimed round.
fn fastest<const N: usize>(rounds: usize, mut variants: [&mut dyn FnMut() -> f64; N]) -> [f64; N] {
    let mut best = [f64::INFINITY; N];
    for round in 0..=rounds {
        for (variant, best) in variants.iter_mut().zip(&mut best) {
            let seconds = variant();
            if round > 0 {
                *best = best.min(seconds);
            }
        }
    }
    best
}

fn row(
    name: &str,
    bytes: usize,
    rounds: usize,
    ours: &mut Training,
    burns: Option<burn::optim::ModuleOptimizer>,
) {
    let mut copy = Copy::moving(bytes * PARAMETERS);
    let before = copies();
    let [copying, kept] = fastest(rounds, [&mut || copy.seconds(), &mut || ours.kept()]);
    drop(copy);
    let speed = (bytes * PARAMETERS) as f64 / kept / 1e9;
    let beside_burn = burns.map(|burns| {
        let mut burns = Training::new(burns);
        let [ours, burns] = fastest(rounds, [&mut || ours.freed(), &mut || burns.freed()]);
        format!("{:8.1} {:10.1}", burns * 1e3, burns / ours)
    });
    assert_eq!(copies(), before, "an update copied what it should have changed in place");
    let (ms, share) = (kept * 1e3, copying / kept);
    println!("{name:28} {bytes:5} {ms:8.1} {speed:7.1} {share:11.2}   {}", beside_burn.unwrap_or_default());
}

fn table(rounds: usize) {
    println!("{PARAMETERS} parameters, {} threads", rayon::current_num_threads());
    println!(
        "{:28} {:>5} {:>8} {:>7} {:>11}   {:>8} {:>10}",
        "", "bytes", "ms", "GB/s", "beside copy", "Burn, ms", "Burn/ours"
    );
    let momentum = MomentumConfig::new().with_dampening(0.0);
    let burns_sgd = SgdConfig::new().with_momentum(Some(momentum)).init();
    let adamw = || Training::new(ours("adamw"));
    row("AdamW", 28, rounds, &mut adamw(), Some(AdamWConfig::new().with_epsilon(1e-8).init()));
    row("Lion", 20, rounds, &mut Training::new(Lion::new().init().unwrap()), Some(LionConfig::new().init()));
    row("SGD with momentum", 20, rounds, &mut Training::new(ours("sgd")), Some(burns_sgd));
    row("SGD", 12, rounds, &mut Training::new(Sgd::new().init().unwrap()), Some(SgdConfig::new().init()));
    row("AdamW, bf16 gradients", 26, rounds, &mut adamw().in_dtype(FloatDType::BF16), None);
    replica(rounds);
}

/// Compares the pass that also writes a bf16 replica with the pass alone and a cast after it.
fn replica(rounds: usize) {
    let [mut one, mut two] = [(); 2].map(|()| Training::new(ours("adamw")));
    let together = &mut || {
        let start = Instant::now();
        let grads = one.grads.clone();
        let (_, replicas) = one.update(grads, Together::new().writing(FloatDType::BF16));
        assert_eq!(replicas.map(|replicas| replicas.len()), Some(MATRICES));
        start.elapsed().as_secs_f64()
    };
    let after = &mut || {
        let start = Instant::now();
        two.kept();
        let cast = |param: &Param<Tensor<2>>| firebrick::kernels::cast(param.val(), FloatDType::BF16);
        let model = two.model.as_ref().expect("the model is back after each update");
        let replicas: Vec<_> = model.matrices.iter().map(cast).collect();
        let seconds = start.elapsed().as_secs_f64();
        drop(replicas);
        seconds
    };
    let [together, after] = fastest(rounds, [together, after]);
    let (ms, beside) = (together * 1e3, after * 1e3);
    println!(
        "AdamW with a bf16 replica {ms:18.1} ms; with a cast after it {beside:.1} ms, ratio {:.2}",
        after / together
    );
}

fn ours(name: &str) -> ModelOptimizer {
    match name {
        "sgd" => Sgd::new().momentum(0.9).init().unwrap(),
        _ => AdamW::new().weight_decay(0.01).init().unwrap(),
    }
}

/// Makes one update per line of input.
fn serve(name: &str) {
    let mut training = Training::new(ours(name));
    let (input, mut output) = (std::io::stdin().lock(), std::io::stdout().lock());
    for _ in input.lines().map_while(Result::ok) {
        let answered = writeln!(output, "{}", training.kept()).and_then(|()| output.flush());
        if answered.is_err() {
            return;
        }
    }
}

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).filter(|argument| argument != "--bench").collect();
    match arguments.first().map(String::as_str) {
        Some("serve") => serve(arguments.get(1).map_or("adamw", String::as_str)),
        given => table(given.and_then(|rounds| rounds.parse().ok()).unwrap_or(10)),
    }
}
