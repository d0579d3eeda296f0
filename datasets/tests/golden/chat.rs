//! Chat templates: texts and the assistant's parts, as transformers and jinja2 render them.

use std::{collections::BTreeMap, fs, ops::Range, path::Path, sync::Arc};

use firebrick_datasets::collators::{CausalLm, Chat};
use firebrick_datasets::{
    ChatFormat, ChatTemplate, Collator, Encoder, JsonlReader, Reader, Record, Tokenizer,
};
use serde::Deserialize;

const FOLDER: &str = "tests/golden/chat";

#[derive(Debug, Deserialize)]
struct Case {
    text: Rendered,
    prompt: Rendered,
    answers: Option<Vec<[usize; 2]>>,
}

#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum Rendered {
    Text(String),
    Failed { error: String },
}

fn golden() -> BTreeMap<String, Vec<Case>> {
    serde_json::from_str(&fs::read_to_string(format!("{FOLDER}/chat.json")).unwrap()).unwrap()
}

fn records() -> Vec<Record> {
    let reader = JsonlReader::new(Path::new(FOLDER).join("conversations.jsonl").as_path());
    reader.open(0).unwrap().map(Result::unwrap).collect()
}

fn template(name: &str) -> ChatTemplate {
    let source = fs::read_to_string(format!("{FOLDER}/{name}.jinja")).unwrap();
    let template = ChatTemplate::new(name, &source).unwrap();
    template.with_token("bos_token", "<s>").with_token("eos_token", "</s>")
}

#[test]
fn texts_equal_transformers() {
    let mut compared = 0;
    for (name, cases) in golden() {
        let template = template(&name);
        for (number, (record, case)) in records().iter().zip(cases).enumerate() {
            let chat = ChatFormat::of(record).unwrap().conversation(record).unwrap();
            for (expected, prompt) in [(case.text, false), (case.prompt, true)] {
                let rendered = template.render(&chat, prompt);
                match expected {
                    Rendered::Text(text) => {
                        assert_eq!(rendered.unwrap().text, text, "{name}, conversation {number}");
                        compared += 1;
                    }
                    // Python words its own errors; those of templates are the same.
                    Rendered::Failed { error } => {
                        let said = rendered.unwrap_err().to_string();
                        let own = error.contains("roles") || error.contains("tool");
                        assert!(
                            !own || said.contains(&error),
                            "{name}, conversation {number}: {said}, not {error}"
                        );
                    }
                }
            }
        }
    }
    assert!(compared > 100, "{compared}");
}

#[test]
fn answers_equal_transformers() {
    let mut compared = 0;
    for (name, cases) in golden() {
        let template = template(&name);
        for (number, (record, case)) in records().iter().zip(cases).enumerate() {
            let Some(answers) = case.answers else { continue };
            let chat = ChatFormat::of(record).unwrap().conversation(record).unwrap();
            let rendered = template.render(&chat, false).unwrap();
            let expected: Vec<Range<usize>> = answers.into_iter().map(|[start, end]| start..end).collect();
            assert_eq!(
                template.answers(&chat, &rendered).unwrap(),
                expected,
                "{name}, conversation {number}: {:?}",
                rendered.text
            );
            compared += expected.len();
        }
    }
    assert!(compared > 50, "{compared}");
}

/// Each character is a token, so the labels say which characters count.
#[test]
fn labels_are_the_answers() {
    let cases = golden().remove("chatml_marked").unwrap();
    let all: String = cases
        .iter()
        .filter_map(|case| match &case.text {
            Rendered::Text(text) => Some(text.as_str()),
            Rendered::Failed { .. } => None,
        })
        .collect();
    let tokenizer = Arc::new(Tokenizer::characters(&all).unwrap());
    let task = CausalLm::new(Encoder::new(tokenizer.clone())).chat(Chat::new(template("chatml_marked")));
    for (record, case) in records().iter().zip(cases) {
        let (Rendered::Text(text), Some(answers)) = (case.text, case.answers) else { continue };
        let Some(sample) = task.encode(record).unwrap().pop() else {
            assert!(answers.is_empty());
            continue;
        };
        assert_eq!(tokenizer.decode(&sample.ids).unwrap(), text);
        let unlearned =
            |at: usize| at < sample.prompt || sample.unlearned.iter().any(|part| part.contains(&at));
        for (at, (byte, _)) in text.char_indices().enumerate() {
            let counts = answers.iter().any(|&[start, end]| (start..end).contains(&byte));
            assert_eq!(!unlearned(at), counts, "character {at} of {text:?}");
        }
    }
}
