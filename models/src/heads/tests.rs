//! Records of several rows, evaluated by ranks that share a model.

use std::sync::{Arc, Mutex};

use burn::module::Module;
use burn::tensor::FloatDType;
use firebrick::{Evaluation, Objective};
use firebrick_datasets::collators::{
    ClassifiedTokens, Label, LabeledBatch, LabeledTokens, Labels, SequenceBatch, SequenceClassification,
    Target, TokenClassification, Tokens,
};
use firebrick_datasets::{Collator, Drawn, Encoder, Tokenizer};
use firebrick_strategies::{Communicator, Composition, KeepPadding, Pass, Setup, Zero};

use super::in_step;
use super::token_classifier::evaluation;
use crate::pretrained::Pretrained;
use crate::{BertConfig, BertSequenceClassifier, BertTokenClassifier, TokenScores, testing};

const LABELS: [&str; 3] = ["O", "B-LOC", "I-LOC"];

/// The rows of the only record of each rank.
const ROWS: [usize; 3] = [4, 1, 2];

fn config() -> BertConfig {
    let config = BertConfig {
        vocab_size: 12,
        hidden_size: 8,
        num_hidden_layers: 2,
        num_attention_heads: 2,
        intermediate_size: 8,
        max_position_embeddings: 8,
        ..Default::default()
    };
    config.with_labels(LABELS)
}

fn encoder() -> Encoder {
    Encoder::new(Arc::new(Tokenizer::characters("abcdefghijk").unwrap()))
}

fn drawn<S>(samples: impl Iterator<Item = S>) -> Vec<Drawn<S>> {
    samples.map(|sample| Drawn { epoch: 0, index: 0, sample: Arc::new(sample) }).collect()
}

fn tokens(row: usize) -> Tokens {
    Tokens { ids: (0..4).map(|at| (row * 5 + at) as u32 % 12).collect(), type_ids: vec![0; 4] }
}

fn labeled(rows: usize) -> LabeledBatch {
    let task = TokenClassification::new(encoder(), Labels::new(LABELS).unwrap()).pad_id(0);
    let samples = (0..rows).map(|row| LabeledTokens {
        words: (0..4).map(|at| Some(row as u32 * 4 + at)).collect(),
        first: row == 0,
        ..LabeledTokens::new(tokens(row), vec![row as i32 % 3, 1, 2, 0])
    });
    task.collate(&drawn(samples)).unwrap()
}

fn classified(rows: usize) -> SequenceBatch {
    let task = SequenceClassification::new(encoder(), Target::Class(Labels::new(LABELS).unwrap())).pad_id(0);
    let samples = (0..rows).map(|row| ClassifiedTokens {
        first: row == 0,
        ..ClassifiedTokens::new(tokens(row), Label::Class(1))
    });
    task.collate(&drawn(samples)).unwrap()
}

/// Runs `evaluate` on ranks that share the model as in stage 3 of `Zero`, where each block is gathered by all of them.
fn on_sharing_ranks<M: Module + Sync + 'static, T: Send>(
    model: &M,
    evaluate: impl Fn(&M, &Pass, &Communicator) -> T + Sync,
) -> Vec<T> {
    let device = testing::device().autodiff();
    let ranks = Mutex::new(vec![model.clone(); ROWS.len()]);
    testing::on_ranks(ROWS.len(), |world| {
        let model = ranks.lock().unwrap().pop().unwrap().fork(&device);
        let mut setup = Setup::new(&model, &device).among(world.clone());
        drop(KeepPadding {}.start(&mut setup).unwrap());
        let mut stage = Zero::stage(3).replicate_below(1).start(&mut setup).unwrap();
        let pass = setup.into_pass().evaluating(FloatDType::F32);
        let master = stage.init_master(model).unwrap();
        let replica = stage.publish(master.clone()).unwrap();
        let shared = stage.evaluator(&master, replica).unwrap().valid();
        let (entered, pass) = pass.enter(&shared).unwrap();
        let result = evaluate(&entered, &pass, &world);
        pass.check().unwrap();
        result
    })
}

fn assert_alike(shared: Evaluation, alone: Evaluation) {
    assert_eq!((&shared.counts, shared.loss.items), (&alone.counts, alone.loss.items));
    let [shared, alone] = [shared, alone].map(|evaluated| evaluated.loss.sum.into_scalar::<f32>());
    assert!((shared - alone).abs() < 1e-5, "{shared} {alone}");
}

/// Each rank computes the rows of its record one at a time, and runs the model as often as the rank with the longest one.
#[test]
fn ranks_that_share_a_model_compute_few_rows_at_once() {
    let model = testing::fixed(&BertTokenClassifier::init(&config(), &testing::device().autodiff()));
    let scores = TokenScores::new(LABELS);
    let runs = on_sharing_ranks(&model, |model, pass, world| {
        let runs = Mutex::new(Vec::new());
        evaluation(&labeled(ROWS[world.rank()]), &scores, pass, |inputs, _| {
            runs.lock().unwrap().push(inputs.shape()[0]);
            model.forward(inputs, pass)
        });
        runs.into_inner().unwrap()
    });
    assert_eq!(runs, [[1; 4]; 3]);
}

#[test]
fn ranks_that_share_a_model_score_records_as_one_alone() {
    let device = testing::device();
    let alone = Pass::evaluate(&device);
    let tagger = testing::fixed(&BertTokenClassifier::init(&config(), &device.clone().autodiff()));
    let shared =
        on_sharing_ranks(&tagger, |model, pass, world| model.evaluate(labeled(ROWS[world.rank()]), pass));
    for (shared, rows) in shared.into_iter().zip(ROWS) {
        assert_alike(shared, tagger.valid().evaluate(labeled(rows), &alone));
    }
    let classifier = testing::fixed(&BertSequenceClassifier::init(&config(), &device.autodiff()));
    let shared = on_sharing_ranks(&classifier, |model, pass, world| {
        model.evaluate(classified(ROWS[world.rank()]), pass)
    });
    for (shared, rows) in shared.into_iter().zip(ROWS) {
        assert_alike(shared, classifier.valid().evaluate(classified(rows), &alone));
    }
}

/// What has nothing to run on is not run, and keeps its place.
#[test]
fn parts_keep_their_order() {
    let computed =
        in_step(&[1, 0, 3], &Pass::evaluate(&testing::device()), |part| *part > 0, |part| part * 2);
    assert_eq!(computed, [Some(2), None, Some(6)]);
}
