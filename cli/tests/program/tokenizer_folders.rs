//! The folder of a run opens in transformers with the same tokens that the model was trained on.
//!
//! With `FIREBRICK_SAVED=/tmp/saved`, the test keeps the folders there, with the texts' encodings, for
//! `tests/golden/opens_tokenizers.py`.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::small_run::at_root;
use firebrick_datasets::{Encoder, Input, Tokenizer};
use serde_json::{Value, json};

const TEXTS: [&str; 4] = ["the cat_and$the dog", " the  end", "cat", "dog and cat\n"];

/// A run by its name, the rest of its run file, and the tokenizer settings that its folder must have.
struct Case {
    name: &'static str,
    run: &'static str,
    max_length: Option<u64>,
    inputs: &'static [&'static str],
}

const NO_SEGMENTS: &[&str] = &["input_ids", "attention_mask"];
const SEGMENTS: &[&str] = &["input_ids", "token_type_ids", "attention_mask"];

const CASES: [Case; 11] = [
    Case {
        name: "gpt_characters",
        run: r#"task: CausalLm(), model: Gpt(layers: 1, heads: 1, width: 8),
            data: (path: "DATA/text.txt", tokenizer: Characters, block: 12)"#,
        max_length: Some(12),
        inputs: NO_SEGMENTS,
    },
    Case {
        name: "gpt_bpe",
        run: r#"task: CausalLm(rows: Samples), model: Gpt(layers: 1, heads: 1, width: 8),
            data: (path: "DATA/text.jsonl", tokenizer: Bpe(vocabulary: 260), max_length: 40,
            special: (pad: "<pad>", eos: "</s>"))"#,
        max_length: Some(39),
        inputs: NO_SEGMENTS,
    },
    Case {
        name: "gpt_file",
        run: r#"task: CausalLm(), model: Gpt(layers: 1, heads: 1, width: 8),
            data: (path: "DATA/text.txt", tokenizer: File("GOLDEN/bytebpe"), block: 12)"#,
        max_length: Some(12),
        inputs: NO_SEGMENTS,
    },
    Case {
        name: "llama_bpe",
        run: r#"task: CausalLm(), model: Llama(layers: 1, heads: 1, width: 8),
            data: (path: "DATA/text.txt", tokenizer: Bpe(vocabulary: 260), block: 12)"#,
        max_length: None,
        inputs: NO_SEGMENTS,
    },
    Case {
        name: "llama_unigram",
        run: r#"task: CausalLm(), model: Llama(layers: 1, heads: 1, width: 8),
            data: (path: "DATA/text.txt", tokenizer: File("GOLDEN/unigram"), block: 12)"#,
        max_length: Some(64),
        inputs: NO_SEGMENTS,
    },
    Case {
        name: "bert_bpe",
        run: r#"task: MaskedLm(), model: Bert(layers: 1, heads: 1, width: 8),
            data: (path: "DATA/text.jsonl", tokenizer: Bpe(vocabulary: 260), max_length: 24,
            special: (pad: "<pad>", mask: "<mask>", cls: "<cls>", sep: "<sep>"))"#,
        max_length: Some(24),
        inputs: SEGMENTS,
    },
    Case {
        name: "bert_wordpiece",
        run: r#"task: MaskedLm(), model: Bert(layers: 1, heads: 1, width: 8),
            data: (path: "DATA/text.jsonl", tokenizer: File("GOLDEN/wordpiece"), max_length: 24)"#,
        max_length: Some(24),
        inputs: SEGMENTS,
    },
    Case {
        name: "t5_bpe",
        run: r#"task: Seq2Seq(source: "text", target: "text"), model: T5(layers: 1, heads: 1, width: 8),
            data: (path: "DATA/text.jsonl", tokenizer: Bpe(vocabulary: 260), max_length: 24,
            special: (pad: "<pad>", eos: "</s>"))"#,
        max_length: None,
        inputs: NO_SEGMENTS,
    },
    Case {
        name: "t5_characters",
        run: r#"task: Seq2Seq(source: "text", target: "text"), model: T5(layers: 1, heads: 1, width: 8),
            data: (path: "DATA/text.jsonl", tokenizer: Characters, max_length: 24,
            special: (pad: "_", eos: "$"))"#,
        max_length: None,
        inputs: NO_SEGMENTS,
    },
    Case {
        name: "bart_bpe",
        run: r#"task: Seq2Seq(source: "text", target: "text"), model: Bart(layers: 1, heads: 1, width: 8),
            data: (path: "DATA/text.jsonl", tokenizer: Bpe(vocabulary: 260), max_length: 24,
            special: (pad: "<pad>", eos: "</s>"))"#,
        max_length: Some(24),
        inputs: NO_SEGMENTS,
    },
    // The model of one folder with the tokenizer of another.
    Case {
        name: "bert_other_tokenizer",
        run: r#"task: MaskedLm(), model: Pretrained("DATA/bert_wordpiece/pretrained"),
            data: (path: "DATA/text.jsonl", tokenizer: File("DATA/bert_bpe/pretrained"), max_length: 20)"#,
        max_length: Some(24),
        inputs: SEGMENTS,
    },
];

fn read(path: &Path) -> Value {
    serde_json::from_str(&fs::read_to_string(path).unwrap()).unwrap()
}

/// Returns the ids of the texts and of a pair, encoded by the tokenizer of this file.
fn encoded(tokenizer: &Path) -> Value {
    let encoder = Encoder::new(Arc::new(Tokenizer::from_file(tokenizer).unwrap()));
    let ids: Vec<_> = TEXTS.iter().map(|text| encoder.ids(text).unwrap()).collect();
    let pair = encoder.encode(Input::Text(TEXTS[0]), Some(Input::Text(TEXTS[2]))).unwrap().remove(0);
    json!({"texts": TEXTS, "ids": ids, "pair": pair.ids, "types": pair.type_ids})
}

#[test]
fn each_family_with_each_kind_of_tokenizer() {
    let folder = tempfile::tempdir().unwrap();
    let data = std::env::var_os("FIREBRICK_SAVED").map_or(folder.path().to_owned(), PathBuf::from);
    fs::create_dir_all(&data).unwrap();
    fs::write(data.join("text.txt"), TEXTS.join("\n").repeat(20)).unwrap();
    let records = TEXTS.iter().map(|text| json!({"text": text}).to_string() + "\n");
    fs::write(data.join("text.jsonl"), records.collect::<String>().repeat(8)).unwrap();
    let golden = fs::canonicalize("../datasets/tests/golden").unwrap();
    for Case { name, run, max_length, inputs } in CASES {
        let output = data.join(name);
        let run = format!(
            "({run}, optimizer: AdamW(), schedule: Constant(lr: 1e-3), batch: (micro: 2), steps: 1, output: {output:?})"
        );
        let run = run.replace("DATA", data.to_str().unwrap()).replace("GOLDEN", golden.to_str().unwrap());
        let file = data.join(format!("{name}.ron"));
        fs::write(&file, run).unwrap();
        let arguments = ["train", file.to_str().unwrap(), "--plain"];
        at_root().args(arguments).assert().success();

        let saved = output.join("pretrained");
        let config = read(&saved.join("tokenizer_config.json"));
        let class = config["tokenizer_class"].as_str().unwrap();
        assert!(["PreTrainedTokenizerFast", "TokenizersBackend"].contains(&class), "{name}: {config}");
        assert_eq!(config["model_max_length"], json!(max_length), "{name}: {config}");
        assert_eq!(config["model_input_names"], json!(inputs), "{name}: {config}");
        assert_eq!(config["clean_up_tokenization_spaces"], json!(false), "{name}: {config}");
        let ids = encoded(&output.join("tokenizer.json"));
        assert_eq!(encoded(&saved.join("tokenizer.json")), ids, "{name}");
        fs::write(saved.join("expected.json"), ids.to_string()).unwrap();
    }
}
