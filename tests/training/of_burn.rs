//! Data sets, batchers and models written for Burn and burn-train train here as they are, under strategies, on several
//! ranks, and resumed within an epoch.

use burn::data::dataloader::batcher::Batcher;
use burn::data::dataset::InMemDataset;
use burn::module::Module;
use burn::nn::{Linear, LinearConfig, loss::CrossEntropyLossConfig};
use burn::optim::{AdamWConfig, GradientsParams};
use burn::store::{ModuleSnapshot, SafetensorsStore};
use burn::tensor::activation::relu;
use burn::tensor::{Device, FloatDType, Int, Tensor};
use burn::train::{ClassificationOutput, InferenceStep, TrainOutput, TrainStep};
use firebrick::datasets::{Batch, Batches};
use firebrick::of_burn::{Collated, Counts, FromBurn};
use firebrick::{
    Accumulate, Amp, Checkpoints, Clip, Data, Loss, Objective, Pass, Resume, Schedule, Trainer, World, Zero,
};

use crate::support::resuming::saved;
use crate::support::{device, difference, map_waves, parameters};

/// A point in the plane, and its class.
type Point = ([f32; 2], i32);

#[derive(Clone)]
struct Points {
    at: Tensor<2>,
    classes: Tensor<1, Int>,
}

#[derive(Clone, Copy)]
struct Stacked;

impl Batcher<Point, Points> for Stacked {
    fn batch(&self, items: Vec<Point>, device: &Device) -> Points {
        let at: Vec<f32> = items.iter().flat_map(|(at, _)| *at).collect();
        let classes: Vec<i32> = items.iter().map(|(_, class)| *class).collect();
        let at = Tensor::<1>::from_data(at.as_slice(), device).reshape([-1, 2]);
        Points { at, classes: Tensor::from_data(classes.as_slice(), device) }
    }
}

/// 22 points: the last global batch of an epoch is ragged.
fn points() -> InMemDataset<Point> {
    let point = |i: u32| {
        let at = [0.6, 1.7].map(|turn| (i as f32 * turn).sin());
        (at, i32::from(at[0] > at[1]) + i32::from(at[1] > 0.5))
    };
    InMemDataset::new((0..22).map(point).collect())
}

#[derive(Module, Debug)]
struct Net {
    hidden: Linear,
    head: Linear,
}

impl Net {
    fn new(device: &Device) -> Self {
        let model =
            Self { hidden: LinearConfig::new(2, 8).init(device), head: LinearConfig::new(8, 3).init(device) };
        map_waves(model)
    }

    fn forward(&self, points: Points) -> ClassificationOutput {
        let Points { at, classes } = points;
        let output = self.head.forward(relu(self.hidden.forward(at)));
        let loss =
            CrossEntropyLossConfig::new().init(&output.device()).forward(output.clone(), classes.clone());
        ClassificationOutput::new(loss, output, classes)
    }
}

impl TrainStep for Net {
    type Input = Points;
    type Output = ClassificationOutput;

    fn step(&self, points: Points) -> TrainOutput<ClassificationOutput> {
        let output = self.forward(points);
        TrainOutput::new(self, output.loss.backward(), output)
    }
}

impl InferenceStep for Net {
    type Input = Points;
    type Output = ClassificationOutput;

    fn step(&self, points: Points) -> ClassificationOutput {
        self.forward(points)
    }
}

impl Objective<Collated<Point, Points>> for Net {
    fn loss(&self, batch: Collated<Point, Points>, pass: &Pass) -> Loss {
        let items = batch.items();
        let Points { at, classes } = batch.on(pass.device());
        let output = self.forward(Points { at: at.cast(pass.dtype()), classes });
        Loss { sum: output.loss.cast(FloatDType::F32) * items as f32, items }
    }
}

fn optimizer() -> burn::optim::ModuleOptimizer {
    AdamWConfig::new().init()
}

/// Trains burn-train's steps over three epochs.
fn stepped(trainer: Trainer<Net>) -> firebrick::Trained<Net> {
    let data = Data::for_steps(points(), Stacked).valid(FromBurn::new(points(), Stacked).for_steps());
    let model = Net::new(&device().autodiff());
    trainer.epochs(3).fit(model, optimizer(), Schedule::constant(1e-2), data.micro_batch(4)).unwrap()
}

#[test]
fn steps_train_what_a_plain_loop_trains() {
    let found = stepped(Trainer::new().with(Accumulate(2)));
    // The loop of a Burn user, with batches of 8, 8 and 6 points.
    let device = device().autodiff();
    let (mut model, mut optimizer) = (Net::new(&device), optimizer());
    let stream = FromBurn::new(points(), Stacked).shuffled(42);
    for epoch in 0..3 {
        for positions in [0..8, 8..16, 16..22] {
            let points = stream.batch(epoch, positions).unwrap().on(&device);
            let grads = model.forward(points).loss.backward();
            let grads = GradientsParams::from_grads(grads, &model);
            model = optimizer.step(1e-2, model, grads);
        }
    }
    let apart = difference(&parameters(&found.model), &parameters(&model));
    assert!(apart < 1e-6, "{apart}");
    assert_eq!(found.report.steps, 9);

    // The accuracy is that of all points, and the loss their mean.
    let all = stream.batch(0, 0..22).unwrap().on(&device);
    let ClassificationOutput { loss, output, targets } = model.forward(all);
    let right = output.argmax(1).reshape([-1]).equal(targets).int().sum().into_scalar::<i64>();
    assert!((found.report.valid_scores["accuracy"] - right as f64 / 0.22).abs() < 1e-4);
    assert!((found.report.valid_loss.unwrap() - loss.into_scalar::<f64>()).abs() < 1e-6);
}

#[test]
fn strategies_and_ranks_keep_the_steps() {
    let plain = parameters(&stepped(Trainer::new().with(Accumulate(2))).model);
    let two = World::threads(2);
    let sharded = stepped(Trainer::new().with(Accumulate(1)).with(Zero::stage(1).over(two.clone())));
    assert!(difference(&parameters(&sharded.model), &plain) < 1e-6);
    let whole = stepped(Trainer::new().with(Zero::stage(2).over(two)).with(Accumulate(1)));
    assert!(difference(&parameters(&whole.model), &plain) < 1e-6);
    // Strategies see the gradients of the steps.
    let clipped = stepped(Trainer::new().with(Accumulate(2)).with(Clip::norm(1e-3)));
    assert!(difference(&parameters(&clipped.model), &plain) > 1e-4);
}

#[test]
fn an_objective_of_its_own_trains_the_same_and_in_bf16() {
    let train = |trainer: Trainer<_>| {
        let model = Net::new(&device().autodiff());
        let data = Data::from_burn(points(), Stacked).micro_batch(4);
        trainer.epochs(3).fit(model, optimizer(), Schedule::constant(1e-2), data).unwrap().model
    };
    let own = parameters(&train(Trainer::new().with(Accumulate(2))));
    let steps = parameters(&stepped(Trainer::new().with(Accumulate(2))).model);
    assert!(difference(&own, &steps) < 1e-6);
    if crate::support::has_bf16() {
        let half = parameters(&train(Trainer::new().with(Accumulate(2)).with(Amp::bf16())));
        assert!(difference(&own, &half) < 0.05);
    }
}

#[test]
fn a_run_resumes_within_an_epoch() {
    let folder = tempfile::tempdir().unwrap();
    let train = |name: &str, resume: Option<Resume>| {
        let trainer = Trainer::new().with(Accumulate(2)).epochs(3).output(folder.path().join(name));
        let trainer = trainer.checkpoints(Checkpoints::every(2).keep_last(9));
        let trainer = resume.into_iter().fold(trainer, |trainer, from| trainer.resume(from));
        let data = Data::from_burn(points(), Stacked).micro_batch(4);
        let model = Net::new(&device().autodiff());
        parameters(&trainer.fit(model, optimizer(), Schedule::constant(1e-2), data).unwrap().model)
    };
    let whole = train("whole", None);
    // Step 4 is the first of the second epoch's three.
    let from = Resume::Path(saved(&folder.path().join("whole"), 4));
    assert!(
        difference(&train("part", Some(from)), &whole) < if crate::support::is_cpu() { 1e-12 } else { 1e-5 }
    );
}

/// Counts two items for each sample, as if it had two labels.
struct Twice;

impl Counts<Point> for Twice {
    fn items(&self, _: &Point) -> usize {
        2
    }
}

#[test]
fn the_divisor_counts_what_the_loss_sums() {
    let train = |stream: FromBurn<Point, Points>| {
        let data = Data::new(stream.shuffled(42).for_steps()).micro_batch(4);
        let trainer = Trainer::new().with(Accumulate(2)).epochs(1);
        let model = Net::new(&device().autodiff());
        trainer.fit(model, optimizer(), Schedule::constant(1e-2), data).unwrap()
    };
    let once = train(FromBurn::new(points(), Stacked));
    let twice = train(FromBurn::new(points(), Stacked).counted_by(Twice));
    assert!(difference(&parameters(&twice.model), &parameters(&once.model)) < 1e-6);
    assert!((twice.report.train_loss - once.report.train_loss).abs() < 1e-6);
}

#[test]
fn a_trained_model_is_saved_and_loaded_as_burn_does() {
    let folder = tempfile::tempdir().unwrap();
    let trained = stepped(Trainer::new().with(Accumulate(2))).model;
    let expected = parameters(&trained);
    let file = folder.path().join("model.bpk");
    trained.clone().save_file(&file).unwrap();
    let mut store = SafetensorsStore::from_file(folder.path().join("model.safetensors"));
    trained.save_into(&mut store).unwrap();

    let fresh = || Net {
        hidden: LinearConfig::new(2, 8).init(&device()),
        head: LinearConfig::new(8, 3).init(&device()),
    };
    let mut loaded = fresh();
    assert_ne!(parameters(&loaded), expected);
    loaded = loaded.load_file(&file);
    assert_eq!(parameters(&loaded), expected);
    let mut other = fresh();
    other.load_from(&mut store).unwrap();
    assert_eq!(parameters(&other), expected);

    // A loaded model trains on.
    let data = Data::for_steps(points(), Stacked).micro_batch(22);
    let model = loaded.train();
    let on = Trainer::new().steps(1).fit(model, optimizer(), Schedule::constant(1e-2), data).unwrap();
    let moved = difference(&parameters(&on.model), &expected);
    assert!((1e-3..5e-2).contains(&moved), "{moved}");
}
