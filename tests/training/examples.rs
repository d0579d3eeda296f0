//! Runs the examples in Rust for a few steps.

use std::path::Path;

#[path = "../../examples/compose.rs"]
#[allow(dead_code)]
mod compose;
#[path = "../../examples/masked_lm.rs"]
#[allow(dead_code)]
mod masked_lm;
#[path = "../../examples/seq2seq.rs"]
#[allow(dead_code)]
mod seq2seq;
#[path = "../../examples/token_classification.rs"]
#[allow(dead_code)]
mod token_classification;

#[test]
fn compose_in_rust() {
    compose::main().unwrap();
}

#[test]
fn masked_lm_in_rust() {
    let [first, later] = [1, 3].map(|epochs| masked_lm::fill_in(epochs).unwrap().valid_loss.unwrap());
    assert!(later < first, "{later} {first}");
}

#[test]
fn seq2seq_in_rust() {
    let texts = seq2seq::learn_numbers(1, &["seven", "two hundred"]).unwrap();
    assert_eq!(texts.len(), 2);
}

/// Returns the validation losses in a run's log.
fn valid_losses(output: &Path) -> Vec<f64> {
    let log = std::fs::read_to_string(output.join("metrics.jsonl")).unwrap();
    let lines = log.lines().map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap());
    lines.filter(|line| line["kind"] == "valid").map(|line| line["loss"].as_f64().unwrap()).collect()
}

/// Fine-tunes a tiny BERT with fresh weights and a tokenizer on sentences that name people.
#[test]
fn token_classification_in_rust() {
    use burn::tensor::Device;
    use firebrick_models::pretrained::{Folder, Pretrained, save};
    use firebrick_models::{BertConfig, BertMaskedLm, BertTokenClassifier};

    let folder = tempfile::tempdir().unwrap();
    let [model, train, valid] = ["bert", "train.conll", "valid.conll"].map(|name| folder.path().join(name));
    let config = BertConfig {
        vocab_size: 500,
        hidden_size: 32,
        num_hidden_layers: 2,
        num_attention_heads: 2,
        intermediate_size: 64,
        ..Default::default()
    };
    save(&BertMaskedLm::init(&config, &Device::flex()), &config, &model).unwrap();
    let golden = Path::new("datasets/tests/golden/wordpiece");
    for file in ["tokenizer.json", "tokenizer_config.json"] {
        std::fs::copy(golden.join(file), model.join(file)).unwrap();
    }
    let sentence = "Maria\tB-PER\nbakes\tO\nbread\tO\nfor\tO\nPeter\tB-PER\nBell\tI-PER\n\n";
    std::fs::write(&train, sentence.repeat(64)).unwrap();
    std::fs::write(&valid, sentence.repeat(4)).unwrap();

    let output = folder.path().join("run");
    let report = token_classification::fine_tune(&model, [&train, &valid], &output, 1).unwrap();
    assert_eq!(report.steps, 3 * 4);
    // The result of so few updates depends on the random weights, but each epoch improves it in any case.
    let losses = valid_losses(&output);
    assert!(losses.len() == 3 && losses.is_sorted_by(|before, after| after < before), "{losses:?}");
    assert!(report.valid_scores.contains_key("f1"), "{:?}", report.valid_scores);
    let saved = Folder::open(output.join("pretrained")).unwrap();
    let config = saved.config::<BertConfig>().unwrap();
    assert_eq!(config.label_names().len(), 3);
    assert!(saved.load::<BertTokenClassifier>(&config, &Device::flex()).unwrap().fresh.is_empty());
}
