//! Trains a convolutional classifier of your own on a data set of Burn's:
//!
//!     cargo run --example own_model

use std::sync::Arc;

use burn::data::dataloader::batcher::Batcher;
use burn::data::dataset::InMemDataset;
use burn::data::dataset::transform::{Mapper, MapperDataset, PartialDataset};
use burn::module::Module;
use burn::nn::conv::{Conv2d, Conv2dConfig};
use burn::nn::pool::{AdaptiveAvgPool2d, AdaptiveAvgPool2dConfig};
use burn::nn::{Linear, LinearConfig};
use burn::optim::AdamWConfig;
use burn::tensor::activation::{log_softmax, relu};
use burn::tensor::{Device, FloatDType, Int, Tensor};
use burn::train::metric::{AccuracyInput, AccuracyMetric};
use firebrick::datasets::Batch;
use firebrick::of_burn::{BurnMetric, Collated, FromBurn};
use firebrick::{
    Accumulate, Amp, Data, Evaluation, Loss, Objective, Pass, Report, Schedule, Score, Show, TrainError,
    Trainer, World, Zero,
};

const SIDE: usize = 16;
const CLASSES: usize = 3;

/// A gray image of a disk, a square or a cross, at some place and of some size.
#[derive(Clone, Debug)]
pub struct Image {
    pixels: Vec<f32>,
    class: usize,
}

/// Draws the image with a number.
struct Draw;

impl Mapper<u32, Image> for Draw {
    fn map(&self, number: &u32) -> Image {
        let random = |what: u32| (number * 999 + what).wrapping_mul(0x9e37_79b1).rotate_left(15) % 1000;
        let class = *number as usize % CLASSES;
        let [x, y] = [0, 1].map(|axis| 5 + random(axis) as i32 % 6);
        let radius = 2 + random(2) as i32 % 3;
        let is_inside = |at: i32| {
            let (right, down) = ((at % SIDE as i32 - x).abs(), (at / SIDE as i32 - y).abs());
            match class {
                0 => right * right + down * down <= radius * radius,
                1 => right.max(down) <= radius,
                _ => right.min(down) == 0 && right.max(down) <= radius,
            }
        };
        let noise = |at: i32| (random(3 + at as u32) as f32 / 1000.0 - 0.5) * 0.2;
        let pixel = |at| f32::from(u8::from(is_inside(at))) + noise(at);
        Image { pixels: (0..(SIDE * SIDE) as i32).map(pixel).collect(), class }
    }
}

/// Stacks images.
#[derive(Clone)]
pub struct Stacked;

/// Images `[batch, 1, side, side]` and their classes `[batch]`.
pub struct Images {
    images: Tensor<4>,
    classes: Tensor<1, Int>,
}

impl Batcher<Image, Images> for Stacked {
    fn batch(&self, items: Vec<Image>, device: &Device) -> Images {
        let pixels: Vec<f32> = items.iter().flat_map(|image| image.pixels.iter().copied()).collect();
        let classes: Vec<i32> = items.iter().map(|image| image.class as i32).collect();
        Images {
            images: Tensor::<1>::from_data(pixels.as_slice(), device).reshape([
                -1,
                1,
                SIDE as i32,
                SIDE as i32,
            ]),
            classes: Tensor::from_data(classes.as_slice(), device),
        }
    }
}

/// Two convolutions and a linear layer: an ordinary Burn model.
#[derive(Module, Debug)]
pub struct Classifier {
    first: Conv2d,
    second: Conv2d,
    pool: AdaptiveAvgPool2d,
    head: Linear,
}

impl Classifier {
    /// Creates the model with fresh weights.
    pub fn new(device: &Device) -> Self {
        Self {
            first: Conv2dConfig::new([1, 8], [3, 3]).with_stride([2, 2]).init(device),
            second: Conv2dConfig::new([8, 16], [3, 3]).init(device),
            pool: AdaptiveAvgPool2dConfig::new([2, 2]).init(),
            head: LinearConfig::new(16 * 4, CLASSES).init(device),
        }
    }

    /// Returns logits `[batch, classes]`.
    fn forward(&self, images: Tensor<4>) -> Tensor<2> {
        let x = relu(self.second.forward(relu(self.first.forward(images))));
        self.head.forward(self.pool.forward(x).flatten(1, 3))
    }

    /// Returns logits in f32, the classes, and the summed cross-entropy.
    fn compare(&self, batch: Collated<Image, Images>, pass: &Pass) -> (Tensor<2>, Tensor<1, Int>, Loss) {
        let items = batch.items();
        let Images { images, classes } = batch.on(pass.device());
        // Under `Amp` the weights are bf16, and so must be the images; the loss is f32 again.
        let logits = self.forward(images.cast(pass.dtype())).cast(FloatDType::F32);
        let of_class = log_softmax(logits.clone(), 1).gather(1, classes.clone().reshape([-1, 1]));
        (logits, classes, Loss { sum: -of_class.sum(), items })
    }
}

impl Objective<Collated<Image, Images>> for Classifier {
    fn loss(&self, batch: Collated<Image, Images>, pass: &Pass) -> Loss {
        self.compare(batch, pass).2
    }

    // A metric of burn-train's, and a score of its own: how often the right class is one of the best two.
    fn evaluate(&self, batch: Collated<Image, Images>, pass: &Pass) -> Evaluation {
        let (logits, classes, loss) = self.compare(batch, pass);
        let best_two = logits.clone().argtopk(2, 1);
        let found = best_two.equal(classes.clone().reshape([-1, 1])).int().sum().into_scalar::<i64>();
        let [right, all] = accuracy().counts(&AccuracyInput::new(logits, classes));
        Evaluation { counts: vec![right, all, found as f64, loss.items as f64], loss }
    }

    fn scores(&self, counts: &[f64]) -> Vec<Score> {
        let top_two = match *counts {
            [_, _, found, all] => found / all,
            _ => f64::NAN,
        };
        vec![accuracy().score(counts.get(..2).unwrap_or_default()), Score::higher("top_two", top_two)]
    }
}

fn accuracy() -> BurnMetric<AccuracyMetric> {
    BurnMetric::new("accuracy", AccuracyMetric::new())
}

/// Trains on two ranks, which are threads.
pub fn train(epochs: u64) -> Result<Report, TrainError> {
    // Burn's data sets: images that are drawn when they are read, the last of them to evaluate on.
    let all = Arc::new(MapperDataset::new(InMemDataset::new((0..1200).collect()), Draw));
    let data = Data::from_burn(PartialDataset::new(all.clone(), 0, 960), Stacked)
        .valid(FromBurn::new(PartialDataset::new(all, 960, 1200), Stacked))
        .micro_batch(8);

    let trained = Trainer::new()
        .with(Amp::bf16()) // compute in bf16, keep f32 master weights
        .with(Accumulate(2)) // 2 micro-batches of 8 on each of 2 ranks make one update of 32
        .with(Zero::stage(1).over(World::threads(2)))
        .epochs(epochs)
        .best_by("top_two")
        .show(Show::Lines)
        .fit(
            Classifier::new(&Device::flex().autodiff()),
            AdamWConfig::new().init(),
            Schedule::cosine(1e-2).warmup(10),
            data,
        )?;
    Ok(trained.report)
}

/// Trains, and prints the scores.
pub fn main() -> Result<(), TrainError> {
    println!("{:?}", train(6)?.valid_scores);
    Ok(())
}
