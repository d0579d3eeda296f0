//! Compares half precision with f32 on the CPU: single products and a whole training step, with Burn's operations and
//! with ours. Prints ratios of times measured in turns in one run.
//!
//! `cargo bench --bench half_matmul`, or with fewer rounds: `cargo bench --bench half_matmul -- 3`.

use std::time::Instant;

use burn::module::{Module, ParamId};
use burn::nn::{self, LinearConfig};
use burn::tensor::{Bool, Device, FloatDType, Tensor, TensorData, activation};
use firebrick::datasets::TokenBatch;
use firebrick::kernels::matmul;
use firebrick::strategies::{ParamMap, map_params, relift};
use firebrick::{Objective, Pass};
use firebrick_models::{GptConfig, Linear, Norm};

const DTYPES: [(FloatDType, &str); 2] = [(FloatDType::BF16, "bf16"), (FloatDType::F16, "f16")];

/// Returns the number of rounds, each of which runs all variants.
fn rounds() -> usize {
    let given = std::env::args().skip(1).find_map(|argument| argument.parse().ok());
    given.unwrap_or(20)
}

/// Returns the seconds of each variant in its fastest round, because other programs only add time.
fn fastest(variants: &mut [Box<dyn FnMut() + '_>]) -> Vec<f64> {
    let mut seconds = vec![f64::INFINITY; variants.len()];
    variants.iter_mut().for_each(|variant| variant());
    for _ in 0..rounds() {
        for (variant, seconds) in variants.iter_mut().zip(&mut seconds) {
            let start = Instant::now();
            variant();
            *seconds = seconds.min(start.elapsed().as_secs_f64());
        }
    }
    seconds
}

/// Prints one line per dtype; `variants` are f32, then Burn's and ours for each of [`DTYPES`].
fn print(name: &str, mut variants: Vec<Box<dyn FnMut() + '_>>) {
    let seconds = fastest(&mut variants);
    for ((_, dtype), pair) in DTYPES.iter().zip(seconds[1..].chunks(2)) {
        let [f32, burn, ours] = [seconds[0], pair[0], pair[1]];
        let (beside_burn, beside_ours, gain) = (burn / f32, ours / f32, burn / ours);
        println!("{name:42} {dtype:5} {beside_burn:8.2} {beside_ours:8.2} {gain:8.2}");
    }
}

/// Returns values between -1 and 1.
fn waves<const D: usize>(shape: [usize; D], device: &Device) -> Tensor<D> {
    let values: Vec<f32> = (0..shape.iter().product()).map(|i: usize| (i as f32 * 0.37).sin()).collect();
    Tensor::from_data(TensorData::new(values, shape), device)
}

fn products<const D: usize>(name: &str, lhs: [usize; D], rhs: [usize; D]) {
    let device = Device::flex().autodiff();
    let pair = |dtype| {
        let leaf = |shape| waves::<D>(shape, &device).cast(dtype).require_grad();
        (leaf(lhs), leaf(rhs))
    };
    let of = |dtype, own: bool| {
        let (lhs, rhs) = pair(dtype);
        move || match own {
            true => matmul(lhs.clone(), rhs.clone()),
            false => lhs.clone().matmul(rhs.clone()),
        }
    };
    let all = || {
        let halves = DTYPES.iter().flat_map(|&(dtype, _)| [(dtype, false), (dtype, true)]);
        [(FloatDType::F32, false)].into_iter().chain(halves)
    };
    let forward = |(dtype, own)| {
        let product = of(dtype, own);
        Box::new(move || drop(product())) as Box<dyn FnMut()>
    };
    print(&format!("{name}, forward"), all().map(forward).collect());
    let both = |(dtype, own)| {
        let product = of(dtype, own);
        Box::new(move || drop(product().backward())) as Box<dyn FnMut()>
    };
    print(&format!("{name}, with backward"), all().map(both).collect());
}

/// A transformer block in two versions: with our linear layers and products, or with Burn's.
#[derive(Module, Debug)]
struct Block {
    norms: [Norm; 2],
    ours: [Linear; 4],
    burns: [nn::Linear; 4],
    heads: usize,
}

impl Block {
    fn new(width: usize, heads: usize, device: &Device) -> Self {
        let layer = |from, to| LinearConfig::new(from, to).init(device);
        let burns =
            [layer(width, 3 * width), layer(width, width), layer(width, 4 * width), layer(4 * width, width)];
        let ours = burns.clone().map(|layer| Linear { weight: layer.weight, bias: layer.bias });
        let norms = [Norm::new(width, true, device), Norm::new(width, true, device)];
        Self { norms, ours, burns, heads }
    }

    fn linear(&self, at: usize, x: Tensor<3>, own: bool) -> Tensor<3> {
        // Without factors, a layer reads nothing of the pass.
        let pass = Pass::train(&x.device());
        if own { self.ours[at].forward(x, &pass) } else { self.burns[at].forward(x) }
    }

    fn forward(&self, x: Tensor<3>, masked: Tensor<4, Bool>, own: bool) -> Tensor<3> {
        let [batch, length, width] = x.dims();
        let dtype = FloatDType::from(x.dtype());
        let product = |lhs: Tensor<4>, rhs: Tensor<4>| if own { matmul(lhs, rhs) } else { lhs.matmul(rhs) };
        let to = |x: Tensor<4>, dtype| match own {
            true => firebrick::kernels::cast(x, dtype),
            false => x.cast(dtype),
        };
        let joined = self.linear(0, self.norms[0].forward(x.clone()), own);
        let part = |i: usize| -> Tensor<4> {
            let part = joined.clone().narrow(2, i * width, width);
            part.reshape([batch, length, self.heads, width / self.heads]).swap_dims(1, 2)
        };
        let scores = to(product(part(0) / 8.0, part(1).transpose()), FloatDType::F32);
        let weights = activation::softmax(scores.mask_fill(masked, f32::NEG_INFINITY), 3);
        let mixed = product(to(weights, dtype), part(2));
        let x = x + self.linear(1, mixed.swap_dims(1, 2).reshape([batch, length, width]), own);
        let hidden = activation::gelu(self.linear(2, self.norms[1].forward(x.clone()), own));
        x + self.linear(3, hidden, own)
    }
}

struct To(FloatDType);

impl ParamMap for To {
    fn map<const D: usize>(&mut self, _: ParamId, value: Tensor<D>) -> Tensor<D> {
        relift(value.clone().inner().cast(self.0), &value)
    }
}

fn blocks() {
    let device = Device::flex().autodiff();
    let (batch, length, width) = (4, 256, 256);
    let block = Block::new(width, 4, &device);
    let masked = Tensor::<2, Bool>::tril_mask([length, length], 0, &device).unsqueeze::<4>();
    let step = |dtype, own| {
        let (block, masked) = (map_params(block.clone(), &mut To(dtype)), masked.clone());
        let x = waves([batch, length, width], &device).cast(dtype).require_grad();
        Box::new(move || drop(block.forward(x.clone(), masked.clone(), own).sum().backward()))
            as Box<dyn FnMut()>
    };
    let halves = DTYPES.iter().flat_map(|&(dtype, _)| [step(dtype, false), step(dtype, true)]);
    print(
        "transformer block, with backward",
        [step(FloatDType::F32, false)].into_iter().chain(halves).collect(),
    );
}

fn gpt() {
    let device = Device::flex().autodiff();
    let config = GptConfig { layers: 4, heads: 4, width: 256, dropout: 0.0, bias: true, tied: true };
    let gpt = config.init(256, 256, &device);
    let step = |dtype| {
        let gpt = map_params(gpt.clone(), &mut To(dtype));
        let device = device.clone();
        Box::new(move || {
            let rows = (0..4).map(|row| (0..257).map(|at| (row * 7 + at * 3) % 256).collect()).collect();
            let batch = TokenBatch::from_rows(rows, 0).expect("rows of one length");
            drop(gpt.loss(batch, &Pass::train(&device)).sum.backward());
        }) as Box<dyn FnMut()>
    };
    let mut steps = vec![step(FloatDType::F32)];
    steps.extend(DTYPES.iter().map(|&(dtype, _)| step(dtype)));
    let seconds = fastest(&mut steps);
    for ((_, dtype), own) in DTYPES.iter().zip(&seconds[1..]) {
        println!("{:42} {dtype:5} {:>8} {:8.2}", "step of a Gpt, 4 layers", "", own / seconds[0]);
    }
}

fn main() {
    println!("{:42} {:5} {:>8} {:>8} {:>8}", "time beside f32", "", "Burn's", "ours", "gain");
    products("[2048, 256] x [256, 1024]", [2048, 256], [256, 1024]);
    products("[2048, 1024] x [1024, 256]", [2048, 1024], [1024, 256]);
    products("32 of [256, 64] x [64, 256]", [8, 4, 256, 64], [8, 4, 64, 256]);
    blocks();
    gpt();
}
