//! Ranks that share tokens or layers train to the same model as one rank with the same global batches.

use crate::support::many::*;
use crate::support::resuming::*;
use crate::support::{Bigram, Rows, adamw, device, difference, has_bf16, is_cpu, parameters};
use burn::module::{Module, Param};
use burn::nn::Linear;
use burn::tensor::{Device, Int, Tensor, TensorData};
use firebrick::datasets::{Batch, TokenBatch};
use firebrick::strategies::{Composed, StrategyError, TensorPlan};
use firebrick::world::Collective;
use firebrick::{
    Amp, Checkpoints, Clip, Data, Ema, Freeze, Lora, Loss, Mesh, Objective, Offload, Pass, RankReport,
    Recompute, Resume, Schedule, TrainError, Trainer, World, Zero,
};
use firebrick_models::Gpt;

/// f32 sums in another order, over 20 updates.
const TOLERANCE: f64 = 2e-6;

/// Ranks of which `context` share tokens, and `tensor` share layers, at a stage of ZeRO, with micro-batches to accumulate.
#[derive(Clone, Copy, Debug)]
struct Shape {
    ranks: usize,
    context: usize,
    tensor: usize,
    stage: u8,
    micro_batches: usize,
}

impl Shape {
    fn strategies(self) -> Composed<Gpt> {
        let zero = Zero::stage(self.stage).replicate_below(64);
        let mesh = Mesh::new().context(self.context).tensor(self.tensor);
        Composed::new().with(mesh).with(zero).with(accumulate(self.micro_batches))
    }

    fn run(self, setting: &Setting, with: &Composed<Gpt>) -> Outcome {
        let setting = Setting { per_batch: self.context * self.tensor, ..setting.clone() };
        setting.run(self.ranks, self.micro_batches, self.strategies().with(with.clone()))
    }

    fn setting(self) -> Setting {
        Setting::default().cut_for(self.ranks / self.context / self.tensor, self.micro_batches)
    }
}

/// The shapes of meshes with these numbers of ranks, of ranks that share tokens, and of ranks that share layers.
fn shapes(of_ranks: &[[usize; 3]]) -> impl Iterator<Item = Shape> {
    let all = (0..=3).flat_map(move |stage| of_ranks.iter().map(move |ranks| (stage, *ranks)));
    all.flat_map(|(stage, [ranks, context, tensor])| {
        [1, 3].map(|micro_batches| Shape { ranks, context, tensor, stage, micro_batches })
    })
}

/// Compares a run with that of one rank, which has what is `learned` alone.
fn follows(shape: Shape, setting: &Setting, learned: &Composed<Gpt>, executed: &Composed<Gpt>) {
    let found = shape.run(setting, &learned.clone().with(executed.clone()));
    let (losses, parameters) = apart(&found, &setting.run(1, 1, learned.clone()));
    let name = format!("{shape:?}, {learned:?}, {executed:?}");
    assert!(losses < TOLERANCE, "{name}: losses differ by {losses:e}");
    assert!(parameters < TOLERANCE, "{name}: parameters differ by {parameters:e}");
}

#[test]
fn ranks_that_share_tokens_follow_one_rank() {
    for shape in shapes(&[[2, 2, 1], [3, 3, 1], [4, 2, 1], [4, 4, 1], [6, 3, 1]]) {
        follows(shape, &shape.setting(), &Composed::new(), &Composed::new());
    }
}

/// The GPT has two heads.
#[test]
fn ranks_that_share_layers_follow_one_rank() {
    for shape in shapes(&[[2, 1, 2], [4, 1, 2], [6, 1, 2], [4, 2, 2], [8, 2, 2]]) {
        follows(shape, &shape.setting(), &Composed::new(), &Composed::new());
    }
}

/// The last global batch of an epoch has two rows, for three pairs of ranks.
#[test]
fn ranks_without_a_sample_in_the_last_step_take_part() {
    for (stage, (context, tensor)) in (0..=3).flat_map(|stage| [(2, 1), (1, 2)].map(|axes| (stage, axes))) {
        let shape = Shape { ranks: 6, context, tensor, stage, micro_batches: 1 };
        let setting = Setting { rows: 20, ..shape.setting() };
        follows(shape, &setting, &Composed::new(), &Composed::new());
    }
}

#[test]
fn tokens_and_layers_are_shared_under_each_technique() {
    let none = Composed::new;
    let learned: [Composed<Gpt>; 3] = [
        none().with(Clip::norm(0.05)),
        none().with(Ema::new(0.9)),
        none().with(Freeze::paths(["tokens"])).with(Clip::norm(0.05)),
    ];
    // The tables of tokens and of positions, of which `tokens` is divided, are outside blocks.
    let adapted: [Composed<Gpt>; 3] = [
        none().with(Lora::rank(2).alpha(4.0)),
        none().with(
            Lora::rank(2)
                .on(["*.widen.weight", "*.narrow.weight", "positions.weight"])
                .also(["*.bias", "tokens"]),
        ),
        none().with(Lora::rank(2).alpha(4.0).dropout(0.2).on_all_linear()).with(Clip::norm(0.05)),
    ];
    let executed: [Composed<Gpt>; 3] = [
        none().with(Recompute::every_block()),
        none().with(Offload::optimizer()),
        none().with(Offload::parameters()),
    ];
    for (stage, (context, tensor)) in
        [0, 1, 3].into_iter().flat_map(|stage| [(2, 1), (1, 2)].map(|axes| (stage, axes)))
    {
        let shape = Shape { ranks: 4, context, tensor, stage, micro_batches: 2 };
        let setting = Setting { steps: shape.setting().steps / 2, ..shape.setting() };
        learned.iter().for_each(|learned| follows(shape, &setting, learned, &none()));
        adapted.iter().for_each(|adapted| follows(shape, &setting, adapted, &none()));
        executed.iter().for_each(|executed| follows(shape, &setting, &none(), executed));
    }
}

#[test]
fn tokens_and_layers_are_shared_in_bf16() {
    if !has_bf16() {
        return;
    }
    for (stage, (context, tensor)) in [(0, (2, 1)), (2, (2, 1)), (0, (1, 2)), (2, (1, 2))] {
        let shape = Shape { ranks: 4, context, tensor, stage, micro_batches: 2 };
        let setting = shape.setting();
        let found = shape.run(&setting, &Composed::new().with(Amp::bf16()));
        let (losses, _) = apart(&found, &setting.run(1, 1, Amp::bf16()));
        assert!(losses < 1e-2, "{losses:e}");
    }
}

#[test]
fn evaluations_count_shared_samples_once() {
    for (context, tensor) in [(2, 1), (1, 2), (2, 2)] {
        let shape = Shape { ranks: 2 * context * tensor, context, tensor, stage: 1, micro_batches: 1 };
        let setting = Setting { evaluated: true, ..shape.setting() };
        let [found, alone] = [shape.run(&setting, &Composed::new()), setting.alone()];
        for (found, expected) in found.steps.iter().zip(&alone.steps) {
            assert_eq!((found.items, found.tokens), (expected.items, expected.tokens));
            assert!((found.gradient_norm - expected.gradient_norm).abs() < 1e-5 * expected.gradient_norm);
        }
        let perplexity = |run: &Outcome| run.report.valid_scores["perplexity"];
        let losses = [&found, &alone].map(|run| run.report.valid_loss.unwrap());
        for [found, expected] in [losses, [&found, &alone].map(perplexity)] {
            assert!((found - expected).abs() < 1e-5 * expected, "{found} {expected}");
        }
    }
}

/// What the second rank reports of updates on 4 rows of 8 tokens, which chunks of 2 and 4 ranks divide.
fn reported(ranks: usize, mesh: Mesh, recomputes: Option<Recompute>) -> RankReport {
    let rows = Rows((0..8).map(|row| (0..9).map(|at| ((row + at) % 10) as u32).collect()).collect());
    let trainer = Trainer::new().over(World::threads(ranks)).with(mesh).with(Zero::stage(0)).with(recomputes);
    let (model, data) = (crate::support::gpt(0.0, &device().autodiff()), Data::new(rows).micro_batch(4));
    let trained = trainer.steps(2).fit(model, adamw(), Schedule::constant(1e-3), data).unwrap();
    trained.report.ranks[1].clone()
}

fn elements(report: &RankReport, kind: Collective) -> f64 {
    report.per_step.get(&kind).map_or(0.0, |step| step.elements)
}

/// Each layer hands on the keys and values of all ranks but one forward, once more if it runs again, and in the backward pass, with
/// the gradients of those of all ranks.
#[test]
fn ranks_hand_on_keys_and_values_and_their_gradients() {
    let sent = |context: usize, recomputes: Option<Recompute>| {
        let report = reported(2 * context, Mesh::new().context(context), recomputes);
        [Collective::Shift, Collective::AllGather, Collective::ReduceScatter]
            .map(|kind| elements(&report, kind))
    };
    for context in [2, 4] {
        // 3 layers, 4 rows of 8 tokens, and a key and a value of 16 numbers each.
        let own = (3 * 4 * 8 * 2 * 16 / context) as f64;
        let others = (context - 1) as f64;
        let in_ring = |runs: f64| [(runs * others + others + context as f64) * own, 0.0, 0.0];
        assert_eq!(sent(context, None), in_ring(1.0));
        assert_eq!(sent(context, Some(Recompute::every_block())), in_ring(2.0));
    }
    assert_eq!(sent(1, None), [0.0; 3]);
}

/// A checkpoint is one of the model: a mesh goes on from any other.
#[test]
fn a_run_resumes_on_another_mesh() {
    let folder = tempfile::tempdir().unwrap();
    let way = |steps| Way {
        global: 12,
        steps,
        schedule: Schedule::constant(2e-3),
        checkpoints: Checkpoints::every(4),
        ..Way::on(1, 1)
    };
    let train = |way: Way, [ranks, context, tensor]: [usize; 3], stage: u8, lora: Option<Lora>, to: &str| {
        let mesh = Mesh::new().context(context).tensor(tensor);
        let strategies = Composed::new().with(mesh).with(Zero::stage(stage).replicate_below(16)).with(lora);
        Way { ranks, per_batch: context * tensor, ..way }.train(&folder.path().join(to), strategies).unwrap()
    };
    let meshes = [[1, 1, 1], [2, 2, 1], [4, 2, 1], [2, 1, 1], [3, 3, 1], [2, 1, 2], [4, 1, 2], [4, 2, 2]];
    let lora = || Lora::rank(2).on_all_linear().also(["*.bias"]);
    for (lora, meshes) in [(None, &meshes[..]), (Some(lora()), &meshes[4..])] {
        let whole = train(way(8), [1, 1, 1], 0, lora.clone(), &format!("whole {}", lora.is_some()));
        for (number, mesh) in meshes.iter().copied().enumerate() {
            let first = format!("{} {number}", lora.is_some());
            train(way(4), mesh, number as u8 % 4, lora.clone(), &first);
            for (onto, then) in meshes.iter().copied().enumerate() {
                let from = Resume::Path(saved(&folder.path().join(&first), 4));
                let stage = (number + onto) as u8 % 4;
                let part = train(way(8).from(from), then, stage, lora.clone(), &format!("{first}-{onto}"));
                let apart = difference(&part.parameters, &whole.parameters);
                assert!(apart < 1e-5, "{mesh:?} to {then:?}, {lora:?}: {apart}");
            }
        }
    }
}

/// A model of a user, whose tokens read nothing of one another.
#[derive(Module, Debug)]
struct Divided {
    inner: Bigram,
}

impl Objective<TokenBatch> for Divided {
    fn loss(&self, batch: TokenBatch, pass: &Pass) -> Loss {
        let [_, columns] = batch.shape();
        let (losses, mask) = self.inner.losses(batch.ids(pass.device()), batch.labels(pass.device()));
        let losses = losses * mask;
        let losses = match pass.context_columns(columns - 1) {
            None => losses,
            Some(shared) => {
                let own = shared.own.iter().filter(|column| **column < columns - 1);
                let own: Vec<i64> = own.map(|column| *column as i64).collect();
                losses.select(1, Tensor::<1, Int>::from_data(&own[..], pass.device()))
            }
        };
        Loss { sum: losses.sum(), items: batch.items() }
    }
}

#[test]
fn a_model_of_a_user_shares_its_tokens() {
    let run = |ranks: usize, context: usize| {
        let trainer = Trainer::new().over(World::threads(ranks)).with(Mesh::new().context(context));
        let data = Data::new(Rows::ragged(12)).micro_batch(4 / (ranks / context));
        let model = Divided { inner: Bigram::new(&device().autodiff()) };
        let trained = trainer
            .with(Zero::stage(2))
            .steps(9)
            .fit(model, adamw(), Schedule::constant(1e-2), data)
            .unwrap();
        parameters(&trained.model)
    };
    let alone = run(1, 1);
    for (ranks, context) in [(2, 2), (4, 2), (3, 3)] {
        let apart = difference(&run(ranks, context), &alone);
        assert!(apart < 1e-5, "{ranks} {context}: {apart}");
    }
}

/// A layer of a user, whose inner features ranks divide.
#[derive(Module, Debug)]
struct Layer {
    widen: Linear,
    narrow: Linear,
}

impl Layer {
    fn new(device: &Device) -> Self {
        let wave = |shape: [usize; 2]| {
            let values: Vec<f32> = (0..shape[0] * shape[1]).map(|at| (at as f32 * 1.7).sin() * 0.4).collect();
            let weight = Tensor::from_data(TensorData::new(values, shape), device).require_grad();
            Linear { weight: Param::from_tensor(weight), bias: None }
        };
        Self { widen: wave([1, 4]), narrow: wave([4, 1]) }
    }

    fn forward(&self, x: Tensor<3>, pass: &Pass) -> Tensor<3> {
        let inner = self.widen.forward(pass.before_columns(x.clone()));
        x + pass.after_rows(self.narrow.forward(inner.square()))
    }
}

/// A model of a user, whose layers each compute all positions.
#[derive(Module, Debug)]
struct Planned {
    inner: Bigram,
    layers: Vec<Layer>,
    #[module(skip)]
    in_segments: bool,
}

impl Objective<TokenBatch> for Planned {
    fn loss(&self, batch: TokenBatch, pass: &Pass) -> Loss {
        let (losses, mask) = self.inner.losses(batch.ids(pass.device()), batch.labels(pass.device()));
        let x: Tensor<3> = (losses * mask).unsqueeze_dim(2);
        let run = |layer: &Layer, x: Tensor<3>, pass: &Pass| layer.forward(x, pass);
        let y = self.layers.iter().fold(x, |x, layer| match self.in_segments {
            true => pass.segment(layer, x, run),
            false => run(layer, x, pass),
        });
        Loss { sum: y.square().sum().reshape([1]), items: batch.items() }
    }

    fn tensor_plan(&self) -> TensorPlan {
        TensorPlan::new().columns("layers.*.widen", [4]).rows("layers.*.narrow", 4)
    }
}

/// The factors that ranks have whole are summed although no positions are divided.
#[test]
fn a_model_of_a_user_divides_layers_with_factors() {
    let run = |ranks: usize, in_segments: bool, lora: Option<Lora>| {
        let device = device().autodiff();
        let model = Planned {
            inner: Bigram::new(&device),
            layers: vec![Layer::new(&device), Layer::new(&device)],
            in_segments,
        };
        let mesh = Mesh::new().tensor(ranks);
        let trainer = Trainer::new().over(World::threads(ranks)).with(mesh).with(Zero::stage(1)).with(lora);
        let data = Data::new(Rows::ragged(12)).micro_batch(4);
        let trained = trainer.steps(9).fit(model, adamw(), Schedule::constant(1e-2), data)?;
        Ok::<_, TrainError>(parameters(&trained.model))
    };
    let lora = || Lora::rank(2).on(["*.widen.weight", "*.narrow.weight"]);
    for lora in [None, Some(lora()), Some(lora().also(["inner"]))] {
        let alone = run(1, true, lora.clone()).unwrap();
        for ranks in [2, 4] {
            let apart = difference(&run(ranks, true, lora.clone()).unwrap(), &alone);
            assert!(apart < 1e-5, "{ranks} {lora:?}: {apart}");
        }
    }
    // Without factors, no gradient needs a segment to be summed in.
    assert!(run(2, false, None).is_ok());
    let error = run(2, false, Some(lora())).unwrap_err();
    assert!(matches!(error, TrainError::Strategy(StrategyError::DividedLayerOutsideSegment)), "{error}");
}

#[test]
fn what_cannot_share_tokens_is_refused() {
    let fit = |ranks: usize, mesh: Mesh| {
        let trainer = Trainer::new().over(World::threads(ranks)).with(Zero::stage(0)).with(mesh).steps(2);
        let data = Data::new(Rows::ragged(8)).micro_batch(2);
        trainer.fit(Bigram::new(&device().autodiff()), adamw(), Schedule::constant(1e-3), data)
    };
    assert!(fit(2, Mesh::new()).is_ok());
    let error = fit(2, Mesh::new().context(2)).unwrap_err();
    assert!(matches!(error, TrainError::TokensNotDivided), "{error}");
    assert!(fit(2, Mesh::new().data(2)).is_ok());
    let error = fit(2, Mesh::new().data(4)).unwrap_err().to_string();
    assert!(error.contains("`data` must be 2, which the other axes leave of 2 ranks, found 4"), "{error}");
    for (ranks, context) in [(3, 2), (2, 3), (2, 0)] {
        let error = fit(ranks, Mesh::new().context(context)).unwrap_err();
        let is_setting = matches!(
            &error,
            TrainError::Strategy(StrategyError::Setting { strategy: "Mesh", error }) if error.setting == "context"
        );
        assert!(is_setting, "{error}");
    }
}

/// An attention and a feed-forward layer each gather the states of all positions and scatter the sums of their outputs, and do
/// the opposite with gradients: as many elements as two all-reduces, of `2 n (t - 1) / t` each, would send (Korthikanti et al.,
/// 2022, section 4.2.2). The gradients of norms and of biases are summed; and so are the embeddings of tokens, the gradients
/// of the head's input, and three numbers for each label (Shoeybi et al., 2019, section 3).
#[test]
fn ranks_send_the_outputs_and_gradients_of_shared_layers() {
    let sent = |tensor: usize, recomputes: Option<Recompute>| {
        let report = reported(2, Mesh::new().tensor(tensor), recomputes);
        let bytes = [report.master_bytes, report.optimizer_bytes, report.gradient_bytes];
        let kinds = [Collective::AllGather, Collective::ReduceScatter, Collective::AllReduce];
        (kinds.map(|kind| elements(&report, kind)), bytes)
    };
    let (_, whole_bytes) = sent(1, None);
    // Each of two ranks has half of 4 rows of 8 positions with 16 numbers.
    let own = (4 * 8 * 16 / 2) as f64;
    // 3 blocks of an attention and a feed-forward layer.
    let each = 3.0 * 2.0 * own;
    // The gradients of the first block's input, the states of the last one, and the largest logit of each row.
    let at_ends = 2.0 * own + (4 * 8) as f64;
    // Of each block two norms and the biases of two row-parallel layers, and the last norm.
    let whole = (3 * 6 * 16 + 2 * 16) as f64;
    let besides = (2 * 4 * 8 * 16 + 3 * 4 * 8) as f64;
    let (found, parts) = sent(2, None);
    // What the first layers read is gathered once more for the gradients of their weights.
    assert_eq!(found, [3.0 * each + at_ends, 2.0 * each, whole + besides]);
    // A recomputed block has that already, and scatters again what its layers return.
    let found = sent(2, Some(Recompute::every_block())).0;
    assert_eq!(found, [3.0 * each + at_ends, 3.0 * each, whole + besides]);
    if !is_cpu() {
        return; // Elsewhere Burn does not expose storages, so views look like copies.
    }
    // Of a block's 16 x 48 + 16 x 16 + 2 x 16 x 64 weights and 48 + 64 biases, each rank has half. Of 11 tokens, the second has 5.
    let elsewhere = (3 * (16 * 48 + 16 * 16 + 2 * 16 * 64 + 48 + 64) / 2 + 6 * 16) * 4;
    // Master, two moments, gradients.
    let saved = [elsewhere, 2 * elsewhere, elsewhere];
    assert_eq!(parts, std::array::from_fn(|at| whole_bytes[at] - saved[at]));
}

#[test]
fn what_cannot_share_layers_is_refused() {
    let fit = |ranks: usize, mesh: Mesh, with: Composed<Gpt>| {
        let trainer =
            Trainer::new().over(World::threads(ranks)).with(Zero::stage(0)).with(mesh).with(with).steps(2);
        let data = Data::new(Rows::ragged(8)).micro_batch(2);
        let model = crate::support::gpt(0.0, &device().autodiff());
        trainer.fit(model, adamw(), Schedule::constant(1e-3), data)
    };
    let none = Composed::new;
    let error = |ranks, mesh, with| fit(ranks, mesh, with).unwrap_err().to_string();
    assert!(error(4, Mesh::new().tensor(4), none()).contains("`tensor` must be a divisor of 2, the heads"));
    assert!(
        error(3, Mesh::new().tensor(2), none()).contains("`tensor` must be a divisor of the number of ranks")
    );
    let both = error(6, Mesh::new().tensor(2).context(2), none());
    assert!(
        both.contains("`context` must be a divisor of the number of ranks over `tensor`, which is 3"),
        "{both}"
    );
    assert!(fit(4, Mesh::new().tensor(2).data(2), none()).is_ok());
    let left = error(4, Mesh::new().tensor(2).data(4), none());
    assert!(left.contains("`data` must be 2, which the other axes leave of 4 ranks, found 4"), "{left}");
    for (lora, says) in [
        (Lora::rank(2).dora(), "do not go with `dora` of Lora"),
        (
            Lora::rank(2).on(["tokens.weight"]),
            "`tensor` divides `tokens.weight`, which is outside the model's blocks",
        ),
    ] {
        let refused = error(2, Mesh::new().tensor(2), none().with(lora));
        assert!(refused.contains(says), "{refused}");
    }
    let trainer =
        Trainer::new().over(World::threads(2)).with(Zero::stage(0)).with(Mesh::new().tensor(2)).steps(2);
    let data = Data::new(Rows::ragged(8)).micro_batch(2);
    let unplanned = trainer.fit(Bigram::new(&device().autodiff()), adamw(), Schedule::constant(1e-3), data);
    assert!(matches!(unplanned.unwrap_err(), TrainError::Strategy(StrategyError::NoTensorPlan)));
}
