//! Ranks that share the tokens of a batch compute together what one rank computes alone.

use std::sync::Arc;

use burn::module::{ModuleVisitor, Param};
use burn::tensor::{FloatDType, Tensor};
use firebrick::{Evaluation, Loss, Objective};
use firebrick_datasets::collators::{
    CausalLm, CausalSample, LabeledBatch, LabeledTokens, Labels, Packing, TokenClassification, Tokens,
};
use firebrick_datasets::{Batch, Collator, Drawn, Encoder, IGNORE, Padding, Side, TokenBatch, Tokenizer};
use firebrick_strategies::{Composition, Draws, Mesh, Pass, Recompute, SegmentPlan, Setup};
use serde_json::json;

use crate::pretrained::Pretrained;
use crate::testing::on_ranks;
use crate::{
    BertConfig, BertMaskedLm, GptConfig, Llama, LlamaConfig, ModernBertConfig, ModernBertMaskedLm, testing,
};

/// Texts of these lengths in rows of so many each, padded on one side.
fn batch(lengths: &[usize], side: Side, in_row: usize) -> TokenBatch {
    let tokenizer = Arc::new(Tokenizer::characters("abcdefghijk").unwrap());
    let task = CausalLm::new(Encoder::new(tokenizer)).pad_id(0).padding(Padding::default().side(side));
    let text = |(text, &length): (usize, &usize)| {
        let ids = (0..length).map(|at| (2 + (text * 7 + at * 3 + at * at) % 27) as u32).collect();
        Arc::new(CausalSample { ids, ..CausalSample::default() })
    };
    let texts: Vec<_> = lengths.iter().enumerate().map(text).collect();
    if in_row == 1 {
        let drawn = texts.into_iter().map(|sample| Drawn { epoch: 0, index: 0, sample });
        return task.collate(&drawn.collect::<Vec<_>>()).unwrap();
    }
    let packs =
        texts.chunks(in_row).map(|pack| Drawn { epoch: 0, index: 0, sample: Arc::new(pack.to_vec()) });
    Packing::new(task, 100).collate(&packs.collect::<Vec<_>>()).unwrap()
}

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
        struct Each<'a>(&'a mut burn::tensor::Gradients, Vec<f64>);
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

/// Rows that no number of chunks divides, padded on each side, one token alone, and several samples in a row.
fn batches() -> Vec<TokenBatch> {
    vec![
        batch(&[17, 4, 11], Side::Right, 1),
        batch(&[17, 4, 11], Side::Left, 1),
        batch(&[9, 3, 5, 14, 2, 8], Side::Right, 3),
        batch(&[2], Side::Right, 1),
        batch(&[25, 25], Side::Right, 1),
    ]
}

fn llama(fields: serde_json::Value) -> Llama {
    let mut all = json!({
        "model_type": "llama", "vocab_size": 30, "hidden_size": 16, "intermediate_size": 24,
        "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
        "max_position_embeddings": 64,
    });
    all.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
    let config: LlamaConfig = serde_json::from_value(all).unwrap();
    Llama::init(&config, &testing::device().autodiff())
}

#[test]
fn ranks_share_the_tokens_of_a_gpt() {
    for (dropout, tied) in [(0.0, true), (0.2, false)] {
        let config = GptConfig { layers: 2, heads: 2, width: 16, dropout, bias: true, tied };
        let gpt = config.init(30, 26, &testing::device().autodiff());
        for batch in batches() {
            agrees(&gpt, &batch, false);
            agrees(&gpt, &batch, true);
        }
    }
}

#[test]
fn ranks_share_the_tokens_of_decoders_with_windows_and_shared_keys() {
    let window = json!({"model_type": "mistral", "sliding_window": 6, "attention_dropout": 0.2});
    for fields in [json!({}), json!({"attention_dropout": 0.2}), window] {
        let llama = llama(fields);
        for batch in batches() {
            agrees(&llama, &batch, false);
        }
    }
}

/// Rows of these lengths, of which each third token is masked.
fn masked(lengths: &[usize], side: Side) -> LabeledBatch {
    let tokenizer = Tokenizer::characters("abcdefghijk").unwrap();
    let task = TokenClassification::new(Encoder::new(Arc::new(tokenizer)), Labels::new(["O"]).unwrap());
    let task = task.pad_id(0).padding(Padding::default().side(side));
    let row = |(row, &length): (usize, &usize)| {
        let ids: Vec<u32> = (0..length).map(|at| (2 + (row * 7 + at * 3) % 27) as u32).collect();
        let labels = ids.iter().map(|id| if id % 3 == 0 { *id as i32 } else { IGNORE }).collect();
        let type_ids = (0..length).map(|at| u32::from(at > 4)).collect();
        let sample = Arc::new(LabeledTokens::new(Tokens { ids, type_ids }, labels));
        Drawn { epoch: 0, index: row as u64, sample }
    };
    task.collate(&lengths.iter().enumerate().map(row).collect::<Vec<_>>()).unwrap()
}

#[test]
fn ranks_share_the_tokens_of_encoders() {
    let device = testing::device().autodiff();
    let bert = |model_type: &str| BertConfig {
        model_type: model_type.into(),
        vocab_size: 30,
        hidden_size: 16,
        num_hidden_layers: 2,
        num_attention_heads: 2,
        intermediate_size: 32,
        max_position_embeddings: 40,
        hidden_dropout_prob: 0.2,
        attention_probs_dropout_prob: 0.2,
        ..Default::default()
    };
    let modern = ModernBertConfig {
        vocab_size: 30,
        hidden_size: 16,
        num_hidden_layers: 3,
        num_attention_heads: 2,
        intermediate_size: 24,
        attention_dropout: 0.2,
        embedding_dropout: 0.2,
        mlp_dropout: 0.2,
        local_attention: 6,
        ..Default::default()
    };
    for (lengths, side) in
        [(&[17, 4, 11][..], Side::Right), (&[17, 4, 11], Side::Left), (&[24, 24], Side::Right)]
    {
        let batch = masked(lengths, side);
        for model_type in ["bert", "roberta"] {
            agrees(&BertMaskedLm::init(&bert(model_type), &device), &batch, false);
        }
        agrees(&ModernBertMaskedLm::init(&modern, &device), &batch, true);
    }
}
