//! A batch without its padding gives what it gives with it.

use std::sync::Arc;

use burn::module::{Module, ModuleVisitor, Param, ParamId};
use burn::tensor::{FloatDType, Gradients, Tensor};
use firebrick::{Evaluation, Loss, Objective};
use firebrick_datasets::collators::{
    CausalLm, CausalSample, ClassifiedTokens, Label, LabeledBatch, LabeledTokens, Labels, Packing, Seq2Seq,
    Seq2SeqBatch, Seq2SeqSample, SequenceBatch, SequenceClassification, Target, TokenClassification,
    Tokens as RowTokens,
};
use firebrick_datasets::{Batch, Collator, Drawn, Encoder, IGNORE, Padding, Side, TokenBatch, Tokenizer};
use firebrick_strategies::{
    Adaptation, Composition, Draws, Lora, ParamMap, Pass, SegmentPlan, map_params, relift,
};
use serde_json::json;

use crate::pretrained::Pretrained;
use crate::{
    Bart, BartConfig, BertConfig, BertMaskedLm, BertSequenceClassifier, BertTokenClassifier, GptConfig,
    Llama, LlamaConfig, ModernBertConfig, ModernBertMaskedLm, ModernBertSequenceClassifier,
    ModernBertTokenClassifier, Pooling, T5, T5Config, testing,
};

use pairs::{bart_config, pairs, t5_config};

const LENGTHS: [usize; 5] = [3, 9, 1, 70, 5];

fn config(model_type: &str) -> BertConfig {
    let config = BertConfig {
        model_type: model_type.into(),
        vocab_size: 30,
        hidden_size: 16,
        num_hidden_layers: 2,
        num_attention_heads: 2,
        intermediate_size: 32,
        max_position_embeddings: 90,
        hidden_dropout_prob: 0.2,
        attention_probs_dropout_prob: 0.2,
        ..Default::default()
    };
    config.with_labels(["O", "B-LOC", "I-LOC"])
}

/// A DeBERTa of the second and of the third version.
fn debertas() -> [BertConfig; 2] {
    let second = json!({
        "relative_attention": true, "pos_att_type": ["c2p"], "max_relative_positions": 4, "conv_kernel_size": 3,
        "conv_act": "gelu",
    });
    let third = json!({
        "relative_attention": true, "pos_att_type": "p2c|c2p", "position_buckets": 16, "share_att_key": true,
        "norm_rel_ebd": "layer_norm", "position_biased_input": false,
    });
    [second, third].map(|fields| {
        let rest = fields.as_object().unwrap().clone();
        BertConfig { rest, classifier_dropout: Some(0.2), ..config("deberta-v2") }
    })
}

/// Rows of these lengths with labels for every other token.
fn batch(lengths: &[usize], side: Side) -> LabeledBatch {
    let tokenizer = Tokenizer::characters("abcdefghijk").unwrap();
    let labels = Labels::new(["O", "B-LOC", "I-LOC"]).unwrap();
    let task = TokenClassification::new(Encoder::new(Arc::new(tokenizer)), labels);
    let task = task.pad_id(0).padding(Padding::default().side(side).multiple_of(8).unwrap());
    let row = |(row, &length): (usize, &usize)| {
        let ids = (0..length).map(|at| (2 + (row * 7 + at * 3) % 27) as u32).collect();
        let labels = (0..length).map(|at| if at % 2 == 0 { (at / 2 % 3) as i32 } else { IGNORE }).collect();
        let type_ids = (0..length).map(|at| u32::from(at > 4)).collect();
        let sample = Arc::new(LabeledTokens::new(RowTokens { ids, type_ids }, labels));
        Drawn { epoch: 0, index: row as u64, sample }
    };
    task.collate(&lengths.iter().enumerate().map(row).collect::<Vec<_>>()).unwrap()
}

/// Texts of these lengths with a class each.
fn classified(lengths: &[usize], side: Side) -> SequenceBatch {
    let tokenizer = Tokenizer::characters("abcdefghijk").unwrap();
    let labels = Labels::new(["O", "B-LOC", "I-LOC"]).unwrap();
    let task = SequenceClassification::new(Encoder::new(Arc::new(tokenizer)), Target::Class(labels));
    let task = task.pad_id(0).padding(Padding::default().side(side).multiple_of(8).unwrap());
    let row = |(row, &length): (usize, &usize)| {
        let ids = (0..length).map(|at| (2 + (row * 7 + at * 3) % 27) as u32).collect();
        let tokens = RowTokens { ids, type_ids: vec![0; length] };
        let sample = Arc::new(ClassifiedTokens::new(tokens, Label::Class(row as i32 % 3)));
        Drawn { epoch: 0, index: row as u64, sample }
    };
    task.collate(&lengths.iter().enumerate().map(row).collect::<Vec<_>>()).unwrap()
}

/// A pass that trains with dropout, and drops padding or not.
fn pass(keeps: bool, dtype: FloatDType) -> Pass {
    let mut plan = SegmentPlan::default();
    if keeps {
        plan.keep_padding();
    }
    let pass = Pass::train(&testing::device().autodiff()).planned(Arc::new(plan)).computing_in(dtype);
    pass.drawing(Draws { seed: 3, epoch: 1, first: 40 })
}

/// The gradients of all parameters.
fn gradients<M: Module>(model: &M, mut grads: Gradients) -> Vec<(String, Vec<f64>)> {
    struct Each<'a>(&'a mut Gradients, Vec<(String, Vec<f64>)>);
    impl ModuleVisitor for Each<'_> {
        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
            let grad = param.val().grad_remove(self.0);
            let values = grad.map(|grad| grad.into_data().iter().collect());
            self.1.push((param.id.to_string(), values.unwrap_or_default()));
        }
    }
    let mut each = Each(&mut grads, Vec::new());
    model.visit(&mut each);
    each.1
}

/// Loss, items, counts and gradients are those of the padded batch, to the rounding of the dtype.
fn agrees<M: Module + Objective<B>, B: Batch>(model: &M, batch: impl Fn() -> B, dtype: FloatDType) {
    agrees_to(if dtype == FloatDType::F32 { 1e-5 } else { 3e-2 }, model, batch, dtype);
}

fn agrees_to<M: Module + Objective<B>, B: Batch>(
    near: f64,
    model: &M,
    batch: impl Fn() -> B,
    dtype: FloatDType,
) {
    let model = testing::fixed(model);
    let [padded, ragged] = [true, false].map(|keeps| {
        let Loss { sum, items } = model.loss(batch(), &pass(keeps, dtype));
        let loss: f64 = sum.clone().into_scalar();
        (loss, items, gradients(&model, sum.backward()))
    });
    assert_eq!(padded.1, ragged.1);
    assert!((padded.0 - ragged.0).abs() <= near * padded.0.abs(), "{} {}", padded.0, ragged.0);
    let largest = |least, values: &[f64]| values.iter().fold(least, |most: f64, value| most.max(value.abs()));
    // Gradients that cancel out, as those of biases of keys do, are what rounding leaves of the others.
    let rounding =
        padded.2.iter().fold(0.0, |most, (_, values)| largest(most, values)) * 4.0 * f64::from(f32::EPSILON);
    for ((name, padded), (_, ragged)) in padded.2.iter().zip(&ragged.2) {
        assert_eq!(padded.len(), ragged.len(), "{name}");
        let most = largest(1e-3, padded);
        for (padded, ragged) in padded.iter().zip(ragged) {
            let apart = (padded - ragged).abs();
            assert!(apart <= near * most + rounding, "{name}: {padded} {ragged} of {most}");
        }
    }
    let evaluated = |keeps| {
        let Evaluation { counts, .. } = model.evaluate(batch(), &pass(keeps, dtype).evaluating(dtype));
        counts
    };
    if dtype == FloatDType::F32 {
        for (padded, ragged) in evaluated(true).iter().zip(evaluated(false)) {
            assert!((padded - ragged).abs() <= 1e-5 * padded.abs(), "{padded} {ragged}");
        }
    }
}

#[test]
fn encoders_compute_the_same_without_padding() {
    let device = testing::device().autodiff();
    for side in [Side::Right, Side::Left] {
        for config in ["bert", "roberta", "distilbert", "electra"].map(config).into_iter().chain(debertas()) {
            let classifier = BertTokenClassifier::init(&config, &device);
            agrees(&classifier, || batch(&LENGTHS, side), FloatDType::F32);
            agrees(&classifier, || batch(&LENGTHS, side), FloatDType::BF16);
            agrees(&classifier, || batch(&[2, 0, 8], side), FloatDType::F32);
            agrees(&classifier, || batch(&[8, 8], side), FloatDType::F32);
            agrees(&BertMaskedLm::init(&config, &device), || batch(&LENGTHS, side), FloatDType::F32);
            let classifier = BertSequenceClassifier::init(&config, &device);
            agrees(&classifier, || classified(&LENGTHS, side), FloatDType::F32);
            agrees(&classifier, || classified(&[2, 0, 8], side), FloatDType::F32);
        }
    }
}

fn modernbert_config(classifier_pooling: Pooling) -> ModernBertConfig {
    let config = ModernBertConfig {
        vocab_size: 30,
        hidden_size: 16,
        num_hidden_layers: 3,
        num_attention_heads: 2,
        intermediate_size: 24,
        attention_dropout: 0.2,
        embedding_dropout: 0.2,
        mlp_dropout: 0.2,
        classifier_dropout: 0.2,
        local_attention: 6,
        classifier_pooling,
        ..Default::default()
    };
    config.with_labels(["O", "B-LOC", "I-LOC"])
}

/// Padding farther from a row's tokens than the window reads nothing.
#[test]
fn windows_around_tokens_are_the_same_without_padding() {
    let device = testing::device().autodiff();
    let config = modernbert_config(Pooling::Mean);
    let tagger = ModernBertTokenClassifier::init(&config, &device);
    let masked = ModernBertMaskedLm::init(&config, &device);
    let pooled = [Pooling::Cls, Pooling::Mean]
        .map(|pooling| ModernBertSequenceClassifier::init(&modernbert_config(pooling), &device));
    for side in [Side::Right, Side::Left] {
        for dtype in [FloatDType::F32, FloatDType::BF16] {
            agrees(&tagger, || batch(&LENGTHS, side), dtype);
            agrees(&pooled[1], || classified(&LENGTHS, side), dtype);
        }
        agrees(&tagger, || batch(&[2, 0, 8], side), FloatDType::F32);
        agrees(&masked, || batch(&LENGTHS, side), FloatDType::F32);
        for classifier in &pooled {
            agrees(classifier, || classified(&LENGTHS, side), FloatDType::F32);
            agrees(classifier, || classified(&[2, 0, 8], side), FloatDType::F32);
        }
    }
}

/// Rows of texts of these lengths, one after the other in each.
fn texts(rows: &[&[usize]], side: Side, is_packed: bool) -> TokenBatch {
    let encoder = Encoder::new(Arc::new(Tokenizer::characters("abcdefghijk").unwrap()));
    let padding = Padding::default().side(side).multiple_of(8).unwrap();
    let causal = CausalLm::new(encoder).pad_id(0).padding(padding);
    let text = |(at, length): (usize, &usize)| {
        let ids = (0..*length).map(|place| (1 + (at * 7 + place * 3 + length) % 28) as u32).collect();
        Arc::new(CausalSample { ids, prompt: length / 5, ..Default::default() })
    };
    let packs = rows.iter().map(|row| row.iter().enumerate().map(text).collect::<Vec<_>>());
    if is_packed {
        let drawn = packs.map(|pack| Drawn { epoch: 0, index: 0, sample: Arc::new(pack) });
        return Packing::new(causal, 100).collate(&drawn.collect::<Vec<_>>()).unwrap();
    }
    let drawn = packs.flatten().map(|sample| Drawn { epoch: 0, index: 0, sample });
    causal.collate(&drawn.collect::<Vec<_>>()).unwrap()
}

fn llama_config(model_type: &str) -> LlamaConfig {
    LlamaConfig {
        model_type: model_type.into(),
        vocab_size: 30,
        hidden_size: 16,
        intermediate_size: 24,
        num_hidden_layers: 2,
        num_attention_heads: 4,
        num_key_value_heads: Some(2),
        head_dim: Some(4),
        attention_dropout: 0.2,
        sliding_window: Some(Some(7)),
        ..LlamaConfig::default()
    }
}

#[test]
fn decoders_compute_the_same_without_padding() {
    let device = testing::device().autodiff();
    let shape = GptConfig { layers: 2, heads: 2, width: 16, dropout: 0.2, bias: true, tied: true };
    let gpt = shape.init(30, 90, &device);
    let llamas = ["llama", "mistral", "gemma2", "gemma3_text"]
        .map(|model_type| Llama::init(&llama_config(model_type), &device));
    let alone: &[&[usize]] = &[&[3, 9, 1, 70, 5]];
    let packs: &[&[usize]] = &[&[3, 9], &[], &[2], &[60, 5, 15], &[1]];
    for side in [Side::Right, Side::Left] {
        // Rows without tokens, no padding, and rows that only hold a label.
        let others: &[&[&[usize]]] = &[&[&[2, 0, 8, 1]], &[&[8, 8]], &[&[1, 1]]];
        for (rows, is_packed) in [(alone, false), (packs, true)] {
            for dtype in [FloatDType::F32, FloatDType::BF16] {
                agrees(&gpt, || texts(rows, side, is_packed), dtype);
                llamas.iter().for_each(|llama| agrees(llama, || texts(rows, side, is_packed), dtype));
            }
        }
        for rows in others {
            agrees(&gpt, || texts(rows, side, false), FloatDType::F32);
            agrees(&llamas[1], || texts(rows, side, false), FloatDType::F32);
        }
    }
}

/// Returns the model with factors beside all linear layers, none of them 0, whose input is dropped.
fn dropping<M: Module + 'static>(model: M) -> (M, Adaptation) {
    struct Moved;
    impl ParamMap for Moved {
        fn map<const D: usize>(&mut self, _: ParamId, value: Tensor<D>) -> Tensor<D> {
            // Factors alone are trained.
            if value.is_require_grad() { relift(value.clone().inner() + 0.1, &value) } else { value }
        }
    }
    let mut adaptation = Adaptation::seeded(5);
    let lora = Lora::rank(2).dropout(0.3).on_all_linear();
    let adapted = lora.adapt(model, &mut adaptation).unwrap();
    (map_params(adapted, &mut Moved), adaptation)
}

/// Every layer drops the input of its factors, sample by sample.
#[test]
fn inputs_of_factors_are_dropped_the_same_without_padding() {
    fn drops<M: Module + Objective<B> + 'static, B: Batch>(model: M, batch: impl Fn() -> B) {
        let (model, adaptation) = dropping(model);
        // The gradients of factors are sums over a whole matrix.
        agrees_to(1e-4, &model, batch, FloatDType::F32);
        adaptation.check().unwrap();
    }
    let device = testing::device().autodiff();
    let modernbert = modernbert_config(Pooling::Mean);
    for side in [Side::Right, Side::Left] {
        for config in [config("bert"), config("electra")].into_iter().chain(debertas()) {
            drops(BertTokenClassifier::init(&config, &device), || batch(&LENGTHS, side));
            drops(BertMaskedLm::init(&config, &device), || batch(&LENGTHS, side));
            drops(BertSequenceClassifier::init(&config, &device), || classified(&LENGTHS, side));
        }
        drops(ModernBertTokenClassifier::init(&modernbert, &device), || batch(&LENGTHS, side));
        drops(ModernBertMaskedLm::init(&modernbert, &device), || batch(&LENGTHS, side));
        drops(ModernBertSequenceClassifier::init(&modernbert, &device), || classified(&LENGTHS, side));
        let rows = [[3, 9], [66, 1], [1, 70], [9, 4], [5, 30]];
        for other in [Side::Right, Side::Left] {
            let t5 = T5::init(&t5_config(0.2, "gated-gelu", false), &device);
            drops(t5, || pairs(&rows, [side, other]));
            drops(Bart::init(&bart_config(0.2), &device), || pairs(&rows, [side, other]));
        }
        let shape = GptConfig { layers: 2, heads: 2, width: 16, dropout: 0.2, bias: true, tied: true };
        drops(shape.init(30, 90, &device), || texts(&[&[3, 9, 1, 70, 5]], side, false));
        for model_type in ["llama", "gemma2"] {
            let llama = Llama::init(&llama_config(model_type), &device);
            drops(llama, || texts(&[&[3, 9, 1, 70, 5]], side, false));
        }
    }
}

/// The computed tokens are the real ones, unless a strategy keeps the padding.
#[test]
fn only_real_tokens_are_computed() {
    let batch = batch(&LENGTHS, Side::Right);
    let shape = |keeps| super::Tokens::of(batch.inputs(), &pass(keeps, FloatDType::F32)).shape();
    assert_eq!(shape(true), [5, 72]);
    if pass(false, FloatDType::F32).drops_padding() {
        assert_eq!(shape(false), [1, 88]);
    }
    let batch = pairs(&[[3, 9], [8, 1]], [Side::Right; 2]);
    let shapes =
        |keeps| super::Tokens::of_both(&batch, &pass(keeps, FloatDType::F32)).map(|tokens| tokens.shape());
    assert_eq!(shapes(true), [[2, 8], [2, 16]]);
    if pass(false, FloatDType::F32).drops_padding() {
        assert_eq!(shapes(false), [[1, 11], [1, 10]]);
    }
    let batch = texts(&[&[3, 9, 0, 1]], Side::Left, false);
    let shape = |keeps| super::Tokens::of_readers(&batch, &pass(keeps, FloatDType::F32), None).shape();
    assert_eq!(shape(true), [4, 15]);
    if pass(false, FloatDType::F32).drops_padding() {
        assert_eq!(shape(false), [1, 10]);
    }
}

#[path = "empty_tests.rs"]
mod empty;
#[path = "ragged_pairs_tests.rs"]
mod pairs;
#[path = "ragged_shared_tests.rs"]
mod shared;

#[path = "tensor_tests.rs"]
mod tensor;
