//! Rotations that are scaled for longer contexts, compared with transformers; see `tests/golden/rotations.py`.

use burn::optim::GradientsParams;
use burn::tensor::{Int, Tensor, TensorData};
use firebrick::datasets::TokenBatch;
use firebrick::{Objective, Pass};
use firebrick_models::decoding::{Decoding, Prompt};
use firebrick_models::{Continues, Llama, LlamaConfig};
use serde::Deserialize;
use serde_json::{Map, Value, json};

use crate::support::golden_models::{Case, device, folder, gradient_norms, path};
use crate::support::is_cpu;

#[derive(Deserialize)]
struct Golden {
    models: Vec<Model>,
}

/// The weights of a folder with other settings.
#[derive(Deserialize)]
struct Model {
    name: String,
    folder: String,
    settings: Map<String, Value>,
    rows: Vec<Row>,
    written: Written,
}

/// What the model computes of a single row.
#[derive(Deserialize)]
struct Row {
    tokens: Vec<u32>,
    /// Those of the last tokens.
    logits: Vec<f32>,
    loss: f64,
    /// The norm of all gradients together.
    gradient_norm: f64,
}

/// The likeliest continuation of the first row.
#[derive(Deserialize)]
struct Written {
    tokens: Vec<u32>,
    log_probability: f64,
}

fn config(model: &Model) -> LlamaConfig {
    let file = std::fs::read(path(&model.folder).join("config.json")).unwrap();
    let mut fields: Map<String, Value> = serde_json::from_slice(&file).unwrap();
    fields.extend(model.settings.clone());
    fields.retain(|_, value| !value.is_null());
    serde_json::from_value(Value::Object(fields)).unwrap()
}

fn case(rows: &[&Row], side: &str) -> Case {
    let rows: Vec<_> = rows.iter().map(|row| &row.tokens).collect();
    let case =
        json!({"task": "causal", "side": side, "rows": rows, "logits": [], "loss": 0, "gradient_norms": {}});
    serde_json::from_value(case).unwrap()
}

/// Some rows are longer than the context of the original training.
#[test]
fn scaled_rotations_are_those_of_transformers() {
    let slack = if is_cpu() { 1.0 } else { 100.0 };
    let golden: Golden = serde_json::from_str(include_str!("../golden/models/rotations.json")).unwrap();
    assert_eq!(golden.models.len(), 7);
    for given in &golden.models {
        let config = config(given);
        let model = folder(&given.folder).load::<Llama>(&config, &device()).unwrap().model;
        let loss = |batch: TokenBatch| model.loss(batch, &Pass::evaluate(&device())).sum;
        let is_near = |found: f64, expected: f64, most: f64| (found / expected - 1.0).abs() < slack * most;

        for row in &given.rows {
            let what = format!("{}, {} tokens", given.name, row.tokens.len());
            let ids: Vec<i64> = row.tokens.iter().map(|id| i64::from(*id)).collect();
            let ids = Tensor::<2, Int>::from_data(TensorData::new(ids, [1, row.tokens.len()]), &device());
            let logits = model.forward(ids, &Pass::evaluate(&device()));
            let [_, length, vocabulary] = logits.dims();
            let last = row.logits.len() / vocabulary;
            let logits: Vec<f32> = logits.narrow(1, length - last, last).into_data().iter().collect();
            let furthest = logits.iter().zip(&row.logits).fold(0f32, |most, (a, b)| most.max((a - b).abs()));
            assert!(
                logits.len() == row.logits.len() && f64::from(furthest) < slack * 1e-5,
                "{what}: {furthest:e}"
            );

            let found = loss(case(&[row], "right").causal());
            let value = found.clone().into_scalar::<f64>();
            assert!(is_near(value, row.loss, 1e-5), "{what}: loss {value}, expected {}", row.loss);
            let grads = GradientsParams::from_grads(found.backward(), &model);
            let squares = gradient_norms(&model, &config, &grads).into_values().map(|norm| norm * norm);
            let norm = squares.sum::<f64>().sqrt();
            assert!(is_near(norm, row.gradient_norm, 1e-4), "{what}: {norm}, expected {}", row.gradient_norm);
        }

        // Rows of one batch have the results of rows alone, whatever stands beside them.
        let all: Vec<_> = given.rows.iter().collect();
        let expected: f64 = all.iter().map(|row| row.loss).sum();
        let batches =
            [case(&all, "right").causal(), case(&all, "left").causal(), case(&all, "right").packed()];
        for (which, batch) in batches.into_iter().enumerate() {
            let found = loss(batch).into_scalar::<f64>();
            assert!(is_near(found, expected, 1e-5), "{}, batch {which}: {found} {expected}", given.name);
        }

        let decoding = Decoding { max_new_tokens: given.written.tokens.len(), ..Decoding::default() };
        let prompts = [0, 3].map(|row| Prompt::new(row, given.rows[row as usize].tokens.clone()));
        let text = &model.continued(&prompts, &decoding).unwrap()[0][0];
        assert_eq!(text.tokens, given.written.tokens, "{}", given.name);
        let (found, expected) = (text.log_probability, given.written.log_probability);
        assert!(is_near(found, expected, 1e-5), "{}: {found} {expected}", given.name);
    }
}
