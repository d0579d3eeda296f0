//! A program that adds a model of its own to `firebrick`.

use std::fs;

use burn::module::Module;
use burn::nn::{Embedding, EmbeddingConfig};
use burn::tensor::{Device, Int, Tensor};
use firebrick::datasets::{Batch, TokenBatch};
use firebrick::{Loss, Objective, Pass, TrainError};
use firebrick_cli::Paths;
use firebrick_models::decoding::Decoding;
use firebrick_models::family::{Attention, Family, Sizes, Trainable};
use firebrick_models::inference::{Answer, Answers, Inference, Question};
use firebrick_models::pretrained::{HubConfig, KeyMap, Part, Pretrained, PretrainedError};
use firebrick_models::smoothed_cross_entropy;
use firebrick_strategies::SettingError;
use serde::{Deserialize, Serialize};

use crate::own_program::{self, program};
use crate::small_run::{RUN, folder_of};

/// Predicts a token from the one before it.
#[derive(Module, Debug)]
pub struct Bigram {
    /// `[vocabulary, vocabulary]`.
    logits: Embedding,
}

/// `Bigram(temperature: 2.0)` in a run file.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BigramShape {
    temperature: f64,
}

/// The `config.json`.
#[derive(Clone, Serialize, Deserialize)]
pub struct BigramConfig {
    model_type: String,
    vocab_size: usize,
    temperature: f64,
}

impl HubConfig for BigramConfig {
    const MODEL_TYPES: &'static [&'static str] = &["bigram"];

    fn check(&self) -> Result<(), PretrainedError> {
        Ok(())
    }
}

impl Family for BigramConfig {
    type Shape = BigramShape;

    const CHANGEABLE: &'static [&'static str] = &["temperature"];

    fn check_shape(shape: &BigramShape) -> Result<(), SettingError> {
        SettingError::require(shape.temperature > 0.0, "temperature", "above 0", shape.temperature)
    }

    fn fresh(shape: &BigramShape, sizes: Sizes<'_>) -> Self {
        let (vocab_size, temperature) = (sizes.vocabulary, shape.temperature);
        Self { model_type: "bigram".into(), vocab_size, temperature }
    }

    fn layers(&self) -> usize {
        1
    }

    fn with_layers(self, _: usize) -> Self {
        self
    }

    fn smallest(self) -> Self {
        Self { vocab_size: 1, ..self }
    }

    fn attention(&self) -> Vec<Attention> {
        Vec::new()
    }

    fn vocabulary(&self) -> usize {
        self.vocab_size
    }

    fn positions(&self) -> Option<usize> {
        None
    }
}

impl Bigram {
    /// Maps ids `[batch, length]` to logits `[batch, length, vocabulary]`.
    fn forward(&self, ids: Tensor<2, Int>) -> Tensor<3> {
        self.logits.forward(ids)
    }
}

impl Pretrained for Bigram {
    type Config = BigramConfig;

    fn architecture(_: &BigramConfig) -> &'static str {
        "Bigram"
    }

    fn init(config: &BigramConfig, device: &Device) -> Self {
        Self { logits: EmbeddingConfig::new(config.vocab_size, config.vocab_size).init(device) }
    }

    fn keys(_: &BigramConfig) -> KeyMap {
        KeyMap::new("").body(&[(Part::Embedding, "logits", "logits")])
    }
}

impl Objective<TokenBatch> for Bigram {
    fn loss(&self, batch: TokenBatch, pass: &Pass) -> Loss {
        let ([rows, length], device) = (batch.shape(), pass.device());
        let logits = self.forward(batch.ids(device).slice([0..rows, 0..length - 1]));
        let labels = batch.labels(device).slice([0..rows, 1..length]);
        let sum = smoothed_cross_entropy(logits.flatten(0, 1), labels.flatten(0, 1), pass);
        Loss { sum, items: batch.items() }
    }
}

impl Answers for Bigram {
    /// `predicted` is the most likely token after the text.
    fn answers(&self, questions: &[Question], inference: &Inference) -> Result<Vec<Answer>, TrainError> {
        let encoded = questions.iter().map(|question| inference.encode(question));
        let encoded = encoded.collect::<Result<Vec<_>, _>>()?;
        let rows: Vec<_> = encoded.iter().filter_map(|parts| parts.first()).collect();
        let logits =
            inference.of_tokens(&rows, |inputs, pass| self.forward(inputs.ids(pass.device()).clone()))?;
        let answers = logits.iter().map(|tokens| {
            let last = tokens.last().cloned().unwrap_or_default();
            let best = (0..).zip(last).max_by(|(_, a), (_, b)| a.total_cmp(b)).map_or(0, |(id, _)| id);
            let text = inference.tokenizer.decode(&[best])?;
            Ok(Answer::from_iter([("predicted".to_string(), text.into())]))
        });
        answers.collect()
    }
}

impl Trainable for Bigram {
    const TASK: &'static str = "CausalLm";

    type Batch = TokenBatch;
}

#[test]
fn a_program_trains_a_model_of_its_own() {
    let folder = folder_of(RUN, 40);
    let path = |name: &str| folder.path().join(name).display().to_string();
    let file = path("run.ron");
    let data = format!("data.path={:?}", path("text.txt"));
    let output = format!("output={:?}", path("out"));
    let own = [&*data, &output, "model=Bigram(temperature: 2.0)", "schedule=Constant(lr: 0.3)", "steps=8"];
    let run = |command: &str, more: &[&str]| own_program::run(&[command, &file], &[&own[..], more].concat());
    assert!(run("train", &["checkpoints=(every: 4)"]));
    assert!(!run("train", &["model.temperature=0.0"]));
    assert!(!run("train", &["task=MaskedLm()"]));
    assert!(run("plan", &[]));

    // The weights are a folder of its family, which answers and which another run trains on.
    let asked = folder.path().join("asked.jsonl");
    fs::write(&asked, "{\"text\": \"the q\"}\n").unwrap();
    let none: [&str; 0] = [];
    let trained = program().open(&folder.path().join("out"), None, &none).unwrap();
    let mut answers = Vec::new();
    trained.predict(Some(Paths::One(asked)), None, &Decoding::default(), &mut answers, |_| ()).unwrap();
    let answers = String::from_utf8(answers).unwrap();
    assert!(answers.contains("\"predicted\":\"u\""), "{answers}");
    let pretrained = format!("model=Pretrained({:?})", path("out/pretrained"));
    let again = format!("output={:?}", path("again"));
    assert!(run("train", &[&pretrained, &again]));

    // The run file in the output folder names it, and so do the errors.
    let saved = fs::read_to_string(folder.path().join("out/run.ron")).unwrap();
    let parse = |sets: &[&str]| program().parse("run.ron", &saved, sets).map_err(|error| error.to_string());
    assert!(saved.contains("model: Bigram(\n"), "{saved}");
    for (set, expected) in [
        (
            "model=Bigarm()",
            "unknown name `Bigarm` (did you mean `Bigram`?); expected one of Gpt, Llama, Bert, ModernBert, T5, Bart, Pretrained, Bigram",
        ),
        ("model.temperatuer=1.0", "unknown name `temperatuer` (did you mean `temperature`?)"),
        ("model.temperature=0.0", "`model.temperature` must be above 0, found 0"),
    ] {
        let said = parse(&[set]).unwrap_err();
        assert!(said.contains(expected), "{said}");
    }
    let task = parse(&["model=T5(layers: 1, heads: 1, width: 4)"]).unwrap();
    let said = task.plan(None, |_| ()).unwrap_err().to_string();
    let expected = "`Gpt`, `Llama`, `Bigram`, or `Pretrained` of gpt2, llama, mistral, qwen2, qwen3, phi3, gemma2, gemma3_text or bigram; found `T5`";
    assert!(said.contains(expected), "{said}");
}
