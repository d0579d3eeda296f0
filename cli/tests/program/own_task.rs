//! A program that adds a task of its own to `firebrick`, with a collator of its own.

use std::fs;
use std::sync::Arc;

use firebrick::datasets::collators::{CausalLm, CausalSample};
use firebrick::datasets::{Collator, DataError, Drawn, Record, TokenBatch, Value as Field};
use firebrick_cli::{Asks, DataConfig, LoadError, Loaded, Loading, Paths, Task, Writing};
use firebrick_models::decoding::Decoding;
use firebrick_models::inference::Question;
use firebrick_strategies::SettingError;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::own_program::{self, program};
use crate::small_run::{RUN, folder_of};

/// `Backwards(field: "text")` in a run file: predicts the next token of texts that are read from their end.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Backwards {
    field: String,
}

/// Reverses texts before another collator reads them.
struct Reversing {
    field: String,
    collator: CausalLm,
}

impl Collator for Reversing {
    type Sample = CausalSample;
    type Batch = TokenBatch;

    fn encode(&self, record: &Record) -> Result<Vec<CausalSample>, DataError> {
        let text: String = record.text(&self.field)?.chars().rev().collect();
        let reversed = vec![("text".into(), Field::Text(text.as_str().into()))];
        self.collator.encode(&Record::new(record.place().clone(), reversed))
    }

    fn length(&self, sample: &CausalSample) -> usize {
        self.collator.length(sample)
    }

    fn padded(&self, samples: &[Arc<CausalSample>]) -> usize {
        self.collator.padded(samples)
    }

    fn collate(&self, samples: &[Drawn<CausalSample>]) -> Result<TokenBatch, DataError> {
        self.collator.collate(samples)
    }
}

impl Task for Backwards {
    fn check(&self, _: &DataConfig) -> Result<(), SettingError> {
        SettingError::require(!self.field.is_empty(), "field", "a field's name", "\"\"")
    }

    fn check_data(&self, data: &DataConfig) -> Result<(), SettingError> {
        SettingError::require(data.stride.is_none(), "stride", "left out where `field` is reversed", "given")
    }

    fn texts<'r>(&self, record: &'r Record) -> Result<Vec<&'r str>, DataError> {
        Ok(vec![record.text(&self.field)?])
    }

    fn load(&self, loading: &Loading<'_>) -> Result<Loaded, LoadError> {
        let tokenizer = loading.tokenizer()?;
        let collator = CausalLm::new(loading.encoder(&tokenizer, None)).padding(loading.padding(&tokenizer));
        let batches = loading.batches(Reversing { field: self.field.clone(), collator })?;
        Ok(loading.loaded(tokenizer, batches))
    }

    fn learned_as(&self) -> Option<&'static str> {
        Some("CausalLm")
    }

    fn unread(&self) -> usize {
        1
    }
}

impl Asks for Backwards {
    fn question(&self, record: &Record) -> Result<(Question, Option<Value>), DataError> {
        Ok((Question::Text(record.text(&self.field)?.chars().rev().collect()), None))
    }

    fn writing(&self) -> Option<Writing> {
        Some(Writing::Continuation)
    }
}

#[test]
fn a_program_trains_on_a_task_of_its_own() {
    let folder = folder_of(RUN, 1);
    let path = |name: &str| folder.path().join(name).display().to_string();
    fs::write(path("text.jsonl"), "{\"title\": \"to be or not\"}\n".repeat(40)).unwrap();
    let file = path("run.ron");
    let data = format!("data=(path: {:?}, tokenizer: Characters, max_length: 16)", path("text.jsonl"));
    let output = format!("output={:?}", path("out"));
    let own = [&*data, &output, "task=Backwards(field: \"title\")", "model.dropout=0.0", "steps=40"];
    let run = |command: &str, more: &[&str]| own_program::run(&[command, &file], &[&own[..], more].concat());
    assert!(run("train", &[]));
    assert!(run("plan", &[]));
    assert!(run("data", &[]));
    assert!(!run("train", &["task.field=\"text\""]));

    // The model learned texts from their end.
    let asked = folder.path().join("asked.jsonl");
    fs::write(&asked, "{\"title\": \"or not\"}\n").unwrap();
    let trained = program().open(&folder.path().join("out"), None, &[""; 0]).unwrap();
    let (mut answers, decoding) = (Vec::new(), Decoding { max_new_tokens: 6, ..Decoding::default() });
    trained.predict(Some(Paths::One(asked)), None, &decoding, &mut answers, |_| ()).unwrap();
    let answers = String::from_utf8(answers).unwrap();
    assert!(answers.contains("\"predicted\":\" eb ot\""), "{answers}");

    // The schema of the program has it, with its settings.
    let schema = program().schema();
    let tasks = schema["properties"]["task"]["anyOf"].as_array().unwrap();
    let own = tasks.iter().find_map(|task| task["properties"].get("Backwards")).unwrap();
    assert_eq!(own["properties"]["field"]["type"], "string", "{own}");

    // The run file in the output folder names it, and so do the errors.
    let saved = fs::read_to_string(folder.path().join("out/run.ron")).unwrap();
    assert!(saved.contains("task: Backwards(\n"), "{saved}");
    for (set, expected) in [
        ("task=Backward()", "unknown name `Backward` (did you mean `Backwards`?)"),
        ("task.fields=\"a\"", "unknown name `fields` (did you mean `field`?)"),
        ("task.field=\"\"", "`task.field` must be a field's name, found \"\""),
        ("data.stride=2", "`data.stride` must be left out where `task.field` is reversed, found given"),
        ("model=T5(layers: 1, heads: 1, width: 4)", "expected one that learns `Backwards`: `Gpt`, `Llama`"),
    ] {
        let said = match program().parse("run.ron", &saved, &[set]) {
            Ok(run) => run.plan(None, |_| ()).unwrap_err().to_string(),
            Err(error) => error.to_string(),
        };
        assert!(said.contains(expected), "{said}");
    }
}
