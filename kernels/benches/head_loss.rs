//! Compares the loss of an output layer with the same through whole logits in Burn's operations, and prints a line of
//! JSON for each: seconds, and the highest number of bytes that the process held beyond those before.

#[path = "../../benches/beside/mod.rs"]
mod beside;

use std::time::Instant;

use beside::{beside, finish};
use burn::tensor::activation::log_softmax;
use burn::tensor::{Device, Distribution, FloatDType, Int, Tensor, TensorData};
use firebrick_kernels::{Head, HeadWeight, cast, head_loss, matmul, memory};
use serde_json::json;

#[global_allocator]
static MEMORY: memory::Counting = memory::Counting;

/// Returns the loss as models computed it with Burn's operations.
fn composed(hidden: Tensor<2>, weight: Tensor<2>, labels: Tensor<1, Int>) -> Tensor<1> {
    let likelihoods = log_softmax(cast(matmul(hidden, weight.transpose()), FloatDType::F32), 1);
    likelihoods.gather(1, labels.unsqueeze_dim(1)).sum().neg()
}

fn compare(rows: usize, width: usize, classes: usize, dtype: FloatDType) {
    let device = Device::flex().autodiff();
    let random = |shape| {
        let x = Tensor::<2>::random(shape, Distribution::Normal(0.0, 0.02), &device);
        cast(x, dtype).detach().require_grad()
    };
    let (hidden, weight) = (random([rows, width]), random([classes, width]));
    let labels: Vec<i32> = (0..rows).map(|row| (row * 7 % classes) as i32).collect();
    let ids = Tensor::<1, Int>::from_data(TensorData::from(&*labels), &device);
    let ours = || {
        let head = Head { weight: HeadWeight::Embedding(weight.clone()), bias: None, cap: None };
        finish(head_loss(hidden.clone(), &head, &labels, 0.0), true);
    };
    let burns = || {
        finish(composed(hidden.clone(), weight.clone(), ids.clone()), true);
    };
    let [bytes, of_burn] = [&ours as &dyn Fn(), &burns].map(peak);
    let mut about = json!({
        "rows": rows, "width": width, "classes": classes, "dtype": format!("{dtype:?}"),
        "peak_bytes": bytes, "peak_bytes_burn": of_burn,
    });
    if rows * classes < 1 << 24 {
        return beside(about, ours, burns);
    }
    // A minute of turns would not tell more.
    for (name, run) in [("seconds", &ours as &dyn Fn()), ("seconds_burn", &burns)] {
        let started = Instant::now();
        run();
        about[name] = json!(started.elapsed().as_secs_f64());
    }
    println!("{about}");
}

/// Returns the most bytes in use while `run` runs, beyond those before.
fn peak(run: &dyn Fn()) -> usize {
    memory::reset_peak();
    let before = memory::Usage::of_process().map_or(0, |usage| usage.live);
    run();
    memory::Usage::of_process().map_or(0, |usage| usage.peak - before)
}

fn main() {
    // As the program does: otherwise the system clears each page again.
    memory::keep_freed();
    for dtype in [FloatDType::F32, FloatDType::BF16] {
        // A small GPT: 8 rows of 256 tokens.
        compare(8 * 256, 256, 1024, dtype);
    }
    // GPT-2: 4 rows of 256 tokens.
    compare(4 * 256, 768, 50_257, FloatDType::F32);
}
