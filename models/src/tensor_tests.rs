//! Ranks that share the layers of a model, or its blocks, train it as one rank does.

use std::ops::Range;

use burn::optim::SgdConfig;
use firebrick::{Clip, Data, Mesh, Objective, Recompute, Schedule, StepNumbers, Trainer, World, Zero};
use firebrick_datasets::{Batch, Batches, DataError, Side};
use firebrick_strategies::each_distinct_param;

use super::pairs::{bart_config, pairs, t5_config};
use super::{batch, classified, config, debertas, llama_config, modernbert_config, texts};
use crate::pretrained::Pretrained;
use crate::{
    Bart, BertMaskedLm, BertSequenceClassifier, BertTokenClassifier, GptConfig, Llama, ModernBertMaskedLm,
    ModernBertTokenClassifier, Pooling, T5, testing,
};

/// One batch after another.
struct OneByOne<B>(Vec<B>);

impl<B: Batch + Clone + Sync> Batches for OneByOne<B> {
    type Batch = B;

    fn samples(&self, _: u64) -> usize {
        self.0.len()
    }

    fn batch(&self, _: u64, at: Range<usize>) -> Result<B, DataError> {
        Ok(self.0[at.start].clone())
    }
}

/// The losses, norms and scores of some updates, and the parameters after them.
#[derive(Debug)]
struct Trained {
    numbers: Vec<f64>,
    parameters: Vec<f32>,
}

/// The ranks of a tensor axis, and of a pipeline axis.
type Axes = [usize; 2];

fn trained<M, B>(model: &M, batches: &[B], axes: Axes, recomputes: bool) -> Trained
where
    M: Objective<B> + 'static,
    B: Batch + Clone + Sync + 'static,
{
    let (sender, steps) = std::sync::mpsc::channel();
    let data = || OneByOne(batches.to_vec());
    let [tensor, pipeline] = axes;
    let stage = if recomputes && pipeline == 1 { 3 } else { 1 };
    let trained = Trainer::new()
        .over(World::threads(tensor * pipeline))
        .with(Mesh::new().tensor(tensor).pipeline(pipeline))
        .with(Zero::stage(stage))
        .with(Clip::norm(0.5))
        .with(recomputes.then(Recompute::every_block))
        .seed(5)
        .steps(6)
        .observe(move |step: &StepNumbers| sender.send((step.loss, step.gradient_norm)).unwrap())
        .fit(
            testing::fixed(model),
            SgdConfig::new().init(),
            Schedule::constant(0.05),
            Data::new(data()).valid(data()),
        )
        .unwrap();
    let mut numbers: Vec<f64> = steps.into_iter().flat_map(|(loss, norm)| [loss, norm]).collect();
    numbers.extend(trained.report.valid_loss);
    numbers.extend(trained.report.valid_scores.values());
    let mut parameters = Vec::new();
    each_distinct_param(&trained.model, |param| parameters.extend(param.to_host().iter::<f32>()));
    Trained { numbers, parameters }
}

/// Compares ranks that share the model with one that has all of it.
fn agrees<M, B>(model: &M, batches: &[B], axes: &[Axes])
where
    M: Objective<B> + 'static,
    B: Batch + Clone + Sync + 'static,
{
    let name = std::any::type_name::<M>();
    let alone = trained(model, batches, [1, 1], false);
    for (axes, recomputes) in axes.iter().flat_map(|axes| [(*axes, false), (*axes, true)]) {
        let found = trained(model, batches, axes, recomputes);
        let place = format!("{name} on {axes:?} ranks, recomputed: {recomputes}");
        assert_eq!(found.numbers.len(), alone.numbers.len());
        for (found, alone) in found.numbers.iter().zip(&alone.numbers) {
            assert!((found - alone).abs() <= 1e-5 * alone.abs(), "{place}: {found} {alone}");
        }
        assert_eq!(found.parameters.len(), alone.parameters.len());
        for (found, alone) in found.parameters.iter().zip(&alone.parameters) {
            assert!((found - alone).abs() <= 2e-6, "{place}: {found} {alone}");
        }
    }
}

#[test]
fn ranks_share_the_layers_of_decoders() {
    let device = testing::device().autodiff();
    let alone: &[&[usize]] = &[&[17, 4, 26]];
    let packs: &[&[usize]] = &[&[9, 3, 5], &[14, 2, 8]];
    let batches =
        [texts(alone, Side::Right, false), texts(alone, Side::Left, false), texts(packs, Side::Right, true)];
    for (dropout, tied) in [(0.0, true), (0.2, false)] {
        let shape = GptConfig { layers: 2, heads: 4, width: 16, dropout, bias: true, tied };
        agrees(&shape.init(30, 32, &device), &batches, &[[2, 1], [4, 1], [1, 2], [2, 2]]);
    }
    // With shared keys and windows, bounded scores, and normalised heads; joined projections.
    for model_type in ["llama", "mistral", "qwen2", "qwen3", "gemma2", "gemma3_text", "phi3"] {
        agrees(&Llama::init(&llama_config(model_type), &device), &batches, &[[2, 1], [1, 2]]);
    }
}

#[test]
fn ranks_share_the_layers_of_encoders() {
    let device = testing::device().autodiff();
    let batches = [batch(&[17, 4, 11], Side::Right), batch(&[24, 3], Side::Left)];
    let texts = [classified(&[17, 4, 11], Side::Right), classified(&[24, 3], Side::Left)];
    for model_type in ["bert", "roberta", "distilbert", "electra"] {
        agrees(&BertMaskedLm::init(&config(model_type), &device), &batches, &[[2, 1], [1, 2]]);
    }
    agrees(&BertTokenClassifier::init(&config("bert"), &device), &batches, &[[2, 1], [1, 2]]);
    // Its heads read distances, whose embedding all blocks share.
    let [_, deberta] = debertas();
    agrees(&BertTokenClassifier::init(&deberta, &device), &batches, &[[1, 2]]);
    agrees(&BertSequenceClassifier::init(&config("bert"), &device), &texts, &[[2, 1], [1, 2]]);
    let modern = modernbert_config(Pooling::Mean);
    agrees(&ModernBertMaskedLm::init(&modern, &device), &batches, &[[2, 1], [1, 2]]);
    agrees(&ModernBertTokenClassifier::init(&modern, &device), &batches, &[[2, 1], [1, 2]]);
}

#[test]
fn ranks_share_the_layers_of_encoders_and_their_decoders() {
    let device = testing::device().autodiff();
    let batches = [
        pairs(&[[17, 4], [3, 9], [0, 6]], [Side::Right; 2]),
        pairs(&[[5, 30], [9, 4]], [Side::Left, Side::Right]),
    ];
    for (gate, tied) in [("relu", true), ("gated-gelu", false)] {
        agrees(&T5::init(&t5_config(0.2, gate, tied), &device), &batches, &[[2, 1]]);
    }
    agrees(&Bart::init(&bart_config(0.2), &device), &batches, &[[2, 1]]);
}
