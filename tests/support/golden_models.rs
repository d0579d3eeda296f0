//! Cases of `tests/golden/models/*.json`: batches as the collators build them, and the results of transformers.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use burn::module::{Module, ModuleVisitor, Param};
use burn::optim::GradientsParams;
use burn::tensor::{Device, Tensor};
use firebrick::datasets::collators::{
    CausalLm, CausalSample, ClassifiedTokens, Label, LabeledBatch, LabeledTokens, Labels, Packing, Seq2Seq,
    Seq2SeqBatch, Seq2SeqSample, SequenceBatch, SequenceClassification, Target, TokenClassification, Tokens,
};
use firebrick::datasets::{Collator, Drawn, Encoder, Padding, Side, TokenBatch, Tokenizer};
use firebrick_models::pretrained::{Folder, Pretrained};
use serde::Deserialize;
use serde_json::Value;

/// The files with cases.
const GOLDEN: [&str; 6] = [
    include_str!("../golden/models/bart.json"),
    include_str!("../golden/models/cases.json"),
    include_str!("../golden/models/decoders.json"),
    include_str!("../golden/models/encoders.json"),
    include_str!("../golden/models/gemma.json"),
    include_str!("../golden/models/seq2seq.json"),
];

#[derive(Deserialize)]
struct Golden {
    models: Vec<Cases>,
}

#[derive(Deserialize)]
struct Cases {
    folder: String,
    cases: Vec<Case>,
    #[serde(default)]
    texts: Vec<Texts>,
}

/// What a model writes from the rows of its first case.
#[derive(Deserialize)]
pub struct Texts {
    /// The settings of transformers.
    pub settings: BTreeMap<String, Option<u32>>,
    /// The best text of each row, to its end token.
    pub tokens: Vec<Vec<u32>>,
    /// The score of each text in beam search.
    pub scores: Option<Vec<f64>>,
}

/// One batch of ragged rows, padded on one side, with its results.
#[derive(Clone, Deserialize)]
pub struct Case {
    pub task: String,
    pub side: String,
    pub rows: Vec<Vec<u32>>,
    #[serde(default)]
    pub types: Vec<Vec<u32>>,
    #[serde(default)]
    pub targets: Vec<Vec<u32>>,
    #[serde(default)]
    pub labels: Vec<Value>,
    /// The tokens that fill rows, and that decoders start with.
    #[serde(default)]
    pub pad: u32,
    #[serde(default)]
    pub start: u32,
    /// Logits of the real tokens, row after row, or those of whole rows.
    pub logits: Vec<f32>,
    /// The summed loss.
    pub loss: f64,
    /// A share of the labels that is spread over all classes, and the loss with it.
    #[serde(default)]
    pub smoothing: f64,
    #[serde(default)]
    pub smoothed_loss: f64,
    pub gradient_norms: BTreeMap<String, f64>,
}

/// Returns the path of a folder.
pub fn path(name: &str) -> PathBuf {
    std::path::absolute(Path::new("tests/golden/models").join(name)).unwrap()
}

pub fn folder(name: &str) -> Folder {
    Folder::open(path(name)).unwrap()
}

pub fn cases(folder: &str) -> Vec<Case> {
    of(folder).cases
}

pub fn texts(folder: &str) -> Vec<Texts> {
    of(folder).texts
}

fn of(folder: &str) -> Cases {
    let mut golden = GOLDEN.iter().flat_map(|text| serde_json::from_str::<Golden>(text).unwrap().models);
    golden.find(|model| model.folder == folder).unwrap()
}

impl Case {
    fn padding(&self) -> Padding {
        Padding::default().side(if self.side == "left" { Side::Left } else { Side::Right })
    }

    fn tokens(&self, row: usize) -> Tokens {
        Tokens { ids: self.rows[row].clone(), type_ids: self.types[row].clone() }
    }

    /// Builds a batch with a label for each token.
    pub fn labeled(&self, pad: u32) -> LabeledBatch {
        let task = TokenClassification::new(encoder(), Labels::new(["a", "b"]).unwrap());
        let sample = |(row, labels): (usize, &Value)| {
            let labels = serde_json::from_value(labels.clone()).unwrap();
            LabeledTokens::new(self.tokens(row), labels)
        };
        let samples = self.labels.iter().enumerate().map(sample);
        task.padding(self.padding()).pad_id(pad).collate(&drawn(samples)).unwrap()
    }

    /// Builds a batch with a label for each row.
    pub fn classified(&self, pad: u32) -> SequenceBatch {
        let labels = || Labels::new(["a", "b", "c"]).unwrap();
        let (target, read): (_, fn(&Value) -> Label) = match &*self.task {
            "class" => (Target::Class(labels()), |label| Label::Class(label.as_i64().unwrap() as i32)),
            "classes" => (Target::Classes(labels()), |list| {
                Label::Classes(serde_json::from_value(list.clone()).unwrap())
            }),
            _ => (Target::Number, |number| Label::Number(number.as_f64().unwrap() as f32)),
        };
        let sample = |(row, label): (usize, &Value)| ClassifiedTokens::new(self.tokens(row), read(label));
        let task = SequenceClassification::new(encoder(), target).padding(self.padding()).pad_id(pad);
        task.collate(&drawn(self.labels.iter().enumerate().map(sample))).unwrap()
    }

    /// Builds a batch in which each token after the first is a label.
    pub fn causal(&self) -> TokenBatch {
        let samples = self.rows.iter().map(|ids| CausalSample { ids: ids.clone(), ..Default::default() });
        CausalLm::new(encoder()).padding(self.padding()).pad_id(0).collate(&drawn(samples)).unwrap()
    }

    /// Builds a batch of the same tokens, with two samples in a row.
    pub fn packed(&self) -> TokenBatch {
        let sample = |ids: &Vec<u32>| Arc::new(CausalSample { ids: ids.clone(), ..Default::default() });
        let packs = self.rows.chunks(2).map(|rows| rows.iter().map(sample).collect::<Vec<_>>());
        Packing::new(CausalLm::new(encoder()).pad_id(0), 40).collate(&drawn(packs)).unwrap()
    }

    /// Builds a batch of sources and targets.
    pub fn seq2seq(&self) -> Seq2SeqBatch {
        let sample = |(source, target): (&Vec<u32>, &Vec<u32>)| {
            let source = Tokens { ids: source.clone(), type_ids: vec![0; source.len()] };
            Seq2SeqSample { source, target: target.clone(), ..Seq2SeqSample::default() }
        };
        let task = Seq2Seq::new(encoder(), encoder()).padding(self.padding(), self.padding());
        let task = task.pad_id(self.pad).start_id(self.start);
        task.collate(&drawn(self.rows.iter().zip(&self.targets).map(sample))).unwrap()
    }

    /// Selects the logits of the real tokens of `rows` from `[rows, length, classes]`.
    pub fn real(&self, logits: Tensor<3>, rows: &[Vec<u32>]) -> Vec<f32> {
        let [_, length, _] = logits.dims();
        let of_row = |(row, tokens): (usize, &Vec<u32>)| {
            let start = if self.side == "left" { length - tokens.len() } else { 0 };
            let logits = logits.clone().narrow(0, row, 1).narrow(1, start, tokens.len());
            logits.into_data().iter::<f32>().collect::<Vec<_>>()
        };
        rows.iter().enumerate().flat_map(of_row).collect()
    }
}

fn encoder() -> Encoder {
    Encoder::new(Arc::new(Tokenizer::characters("ab").unwrap()))
}

fn drawn<S>(samples: impl Iterator<Item = S>) -> Vec<Drawn<S>> {
    samples.map(|sample| Drawn { epoch: 0, index: 0, sample: Arc::new(sample) }).collect()
}

/// Returns the gradient norm of each parameter that has a gradient, by its name in the saved file.
pub fn gradient_norms<M: Pretrained>(
    model: &M,
    config: &M::Config,
    grads: &GradientsParams,
) -> BTreeMap<String, f64> {
    struct Norms<'a> {
        path: Vec<String>,
        grads: &'a GradientsParams,
        norms: BTreeMap<String, f64>,
    }
    impl ModuleVisitor for Norms<'_> {
        fn enter_module(&mut self, name: &str, _: &str) {
            self.path.push(name.to_owned());
        }

        fn exit_module(&mut self, _: &str, _: &str) {
            self.path.pop();
        }

        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
            if let Some(grad) = self.grads.get::<D>(param.id) {
                let squares = grad.into_data().iter::<f64>().map(|x| x * x).sum::<f64>();
                self.norms.insert(self.path.join("."), squares.sqrt());
            }
        }
    }
    let mut found = Norms { path: vec![], grads, norms: BTreeMap::new() };
    model.visit(&mut found);
    let keys = M::keys(config);
    let names: BTreeMap<_, _> = keys.names().collect();
    found.norms.into_iter().map(|(path, norm)| (names[&*path].to_owned(), norm)).collect()
}

/// Returns the bits of all parameters.
pub fn bits<M: Module>(model: &M) -> Vec<u32> {
    struct Bits(Vec<u32>);
    impl ModuleVisitor for Bits {
        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
            self.0.extend(param.base().into_data().iter::<f32>().map(f32::to_bits));
        }
    }
    let mut bits = Bits(Vec::new());
    model.visit(&mut bits);
    bits.0
}

/// Returns the device of the tests, with autodiff.
pub fn device() -> Device {
    super::device().autodiff()
}
