//! Ranks that share the tokens of a batch compute together what one rank computes alone.

use std::sync::Arc;

use burn::module::{ModuleVisitor, Param};
use burn::tensor::{FloatDType, Gradients, Tensor};
use firebrick::{Evaluation, Loss, Objective};
use firebrick_datasets::{Batch, Side};
use firebrick_strategies::{Composition, Draws, Mesh, Pass, Recompute, SegmentPlan, Setup};

use super::{batch, config, llama_config, modernbert_config, texts};
use crate::pretrained::Pretrained;
use crate::testing::on_ranks;
use crate::{BertMaskedLm, GptConfig, Llama, ModernBertMaskedLm, Pooling, testing};

/// The sums of a pass: of the loss, of the counts of an evaluation, and of the gradients of all parameters.
#[derive(Clone, Debug, Default)]
struct Sums {
    loss: f64,
    counts: Vec<f64>,
    gradients: Vec<f64>,
}

impl Sums {
    fn of<M: Objective<B>, B: Batch + Clone>(model: &M, batch: &B, pass: &Pass) -> Self {
        let pass = pass.drawing(Draws { seed: 3, epoch: 1, first: 40 });
        let Loss { sum, items } = model.loss(batch.clone(), &pass);
        assert_eq!(items, batch.items());
        let loss = sum.clone().into_scalar::<f64>();
        let mut grads = sum.backward();
        struct Each<'a>(&'a mut Gradients, Vec<f64>);
        impl ModuleVisitor for Each<'_> {
            fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
                let grad = param.val().grad_remove(self.0).map_or_else(
                    || vec![0.0; param.val().shape().num_elements()],
                    |grad| grad.into_data().iter().collect(),
                );
                self.1.extend(grad);
            }
        }
        let mut each = Each(&mut grads, Vec::new());
        model.visit(&mut each);
        let Evaluation { counts, .. } = model.evaluate(batch.clone(), &pass.evaluating(FloatDType::F32));
        pass.check().unwrap();
        Self { loss, counts, gradients: each.1 }
    }

    fn add(mut self, other: &Self) -> Self {
        let add = |all: &mut Vec<f64>, more: &[f64]| match all.is_empty() {
            true => all.extend(more),
            false => all.iter_mut().zip(more).for_each(|(sum, more)| *sum += more),
        };
        self.loss += other.loss;
        add(&mut self.counts, &other.counts);
        add(&mut self.gradients, &other.gradients);
        self
    }
}

/// Compares the sums of ranks that share a batch with those of one rank.
fn agrees<M, B>(model: &M, batch: &B, recomputes: bool)
where
    M: Objective<B> + Sync + 'static,
    B: Batch + Clone + Sync,
{
    let device = testing::device().autodiff();
    let model = testing::fixed(model);
    let alone = {
        let mut plan = SegmentPlan::of(&model);
        plan.keep_padding();
        Sums::of(&model, batch, &Pass::train(&device).planned(Arc::new(plan)))
    };
    for ranks in [2, 3] {
        let all = on_ranks(ranks, |world| {
            let model = model.clone().fork(&device);
            let mut setup = Setup::new(&model, &device).among(world);
            drop(Mesh::new().context(ranks).start(&mut setup).unwrap());
            if recomputes {
                drop(Recompute::every_block().start(&mut setup).unwrap());
            }
            Sums::of(&model, batch, &setup.into_pass())
        });
        let found = all.iter().fold(Sums::default(), Sums::add);
        let near = |found: f64, expected: f64, of: f64| (found - expected).abs() <= 1e-5 * of;
        assert!(near(found.loss, alone.loss, alone.loss), "{ranks} ranks: {} {}", found.loss, alone.loss);
        for (found, expected) in found.counts.iter().zip(&alone.counts) {
            assert!(near(*found, *expected, *expected), "{ranks} ranks: {found} {expected}");
        }
        assert_eq!(found.gradients.len(), alone.gradients.len());
        let most = alone.gradients.iter().fold(0.0, |most: f64, value| most.max(value.abs()));
        for (found, expected) in found.gradients.iter().zip(&alone.gradients) {
            assert!(near(*found, *expected, most), "{ranks} ranks: {found} {expected} of {most}");
        }
    }
}

/// Rows that no number of chunks divides, padded on each side, a token alone, and several texts in a row.
fn rows() -> Vec<firebrick_datasets::TokenBatch> {
    let alone: &[&[usize]] = &[&[17, 4, 26]];
    let packs: &[&[usize]] = &[&[9, 3, 5], &[14, 2, 8]];
    vec![
        texts(alone, Side::Right, false),
        texts(alone, Side::Left, false),
        texts(packs, Side::Right, true),
        texts(&[&[2]], Side::Right, false),
        texts(&[&[24, 24]], Side::Right, false),
    ]
}

#[test]
fn ranks_share_the_tokens_of_decoders() {
    let device = testing::device().autodiff();
    for (dropout, tied) in [(0.0, true), (0.2, false)] {
        let shape = GptConfig { layers: 2, heads: 2, width: 16, dropout, bias: true, tied };
        let gpt = shape.init(30, 32, &device);
        for batch in rows() {
            agrees(&gpt, &batch, false);
            agrees(&gpt, &batch, true);
        }
    }
    // With shared keys and windows, bounded scores, and normalised heads.
    for model_type in ["llama", "mistral", "gemma2", "gemma3_text"] {
        let llama = Llama::init(&llama_config(model_type), &device);
        for batch in rows() {
            agrees(&llama, &batch, false);
        }
    }
}

#[test]
fn ranks_share_the_tokens_of_encoders() {
    let device = testing::device().autodiff();
    let modern = modernbert_config(Pooling::Mean);
    for (lengths, side) in
        [(&[17, 4, 11][..], Side::Right), (&[17, 4, 11], Side::Left), (&[24, 24], Side::Right)]
    {
        let batch = batch(lengths, side);
        for model_type in ["bert", "roberta", "distilbert", "electra"] {
            agrees(&BertMaskedLm::init(&config(model_type), &device), &batch, false);
        }
        agrees(&ModernBertMaskedLm::init(&modern, &device), &batch, true);
    }
}
