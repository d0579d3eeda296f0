//! Learns the sine with a small network of your own: `cargo run --release`.

use burn::data::{dataloader::batcher::Batcher, dataset::InMemDataset};
use burn::module::Module;
use burn::nn::{Linear, LinearConfig};
use burn::optim::AdamWConfig;
use burn::tensor::{Device, FloatDType, Tensor};
use firebrick::datasets::Batch;
use firebrick::of_burn::Collated;
use firebrick::{
    Accumulate, Amp, Clip, Data, Loss, Objective, Pass, Schedule, Show, TrainError, Trained, Trainer,
};

/// Two layers.
#[derive(Module, Debug)]
pub struct Net {
    hidden: Linear,
    output: Linear,
}

/// Stacks numbers as a column `[batch, 1]`.
struct Column;

impl Batcher<f32, Tensor<2>> for Column {
    fn batch(&self, items: Vec<f32>, device: &Device) -> Tensor<2> {
        Tensor::<1>::from_floats(items.as_slice(), device).unsqueeze_dim(1)
    }
}

impl Objective<Collated<f32, Tensor<2>>> for Net {
    fn loss(&self, batch: Collated<f32, Tensor<2>>, pass: &Pass) -> Loss {
        let items = batch.items();
        let x = batch.on(pass.device());
        // Under `Amp` the weights are bf16, and so must be the input; the loss is f32 again.
        let hidden = self.hidden.forward(x.clone().cast(pass.dtype())).tanh();
        let y = self.output.forward(hidden).cast(FloatDType::F32);
        Loss { sum: (y - x.sin()).square().sum(), items }
    }
}

/// Trains for some epochs.
pub fn train(epochs: u64) -> Result<Trained<Net>, TrainError> {
    let device = Device::flex().autodiff();
    let net = Net {
        hidden: LinearConfig::new(1, 32).init(&device),
        output: LinearConfig::new(32, 1).init(&device),
    };
    let numbers = InMemDataset::new((0..1000).map(|i| i as f32 / 160.0).collect());
    let data = Data::from_burn(numbers, Column).micro_batch(25);

    Trainer::new()
        .with(Amp::bf16()) // compute in bf16, keep f32 master weights
        .with(Accumulate(2)) // 2 micro-batches of 25 make one update
        .with(Clip::norm(1.0)) // clip by the global norm
        .epochs(epochs)
        .show(Show::Lines)
        .fit(net, AdamWConfig::new().init(), Schedule::cosine(1e-2), data)
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let trained = train(40)?;
    println!("mean squared error {:.5}", trained.report.train_loss);
    trained.model.save_file("sine.bpk")?; // a file of Burn's, for `load_file`
    Ok(())
}
