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

/// The templates' folder: that of the tests, or another one that `chat.py` rendered.
fn folder() -> String {
    std::env::var("FIREBRICK_CHAT_TEMPLATES").unwrap_or_else(|_| FOLDER.into())
}

fn golden() -> BTreeMap<String, Vec<Case>> {
    serde_json::from_str(&fs::read_to_string(format!("{}/chat.json", folder())).unwrap()).unwrap()
}

fn records() -> Vec<Record> {
    let reader = JsonlReader::new(Path::new(FOLDER).join("conversations.jsonl").as_path());
    reader.open(0).unwrap().map(Result::unwrap).collect()
}

fn template(name: &str) -> ChatTemplate {
    let source = fs::read_to_string(format!("{}/{name}.jinja", folder())).unwrap();
    let template = ChatTemplate::new(name, &source).unwrap();
    template.with_token("bos_token", "<s>").with_token("eos_token", "</s>")
}

#[test]
fn texts_equal_transformers() {
    let (mut compared, mut wrong) = (0, Vec::new());
    for (name, cases) in golden() {
        let template = template(&name);
        for (number, (record, case)) in records().iter().zip(cases).enumerate() {
            let chat = ChatFormat::of(record).unwrap().conversation(record).unwrap();
            for (expected, prompt) in [(case.text, false), (case.prompt, true)] {
                let found = template.render(&chat, prompt).map(|chat| chat.text);
                let found = found.map_err(|error| error.to_string());
                let is_equal = match &expected {
                    Rendered::Text(text) => {
                        compared += 1;
                        found.as_ref() == Ok(text)
                    }
                    // Python words its own errors; those of templates are the same.
                    Rendered::Failed { error } => {
                        let own = error.contains("roles") || error.contains("tool");
                        found.as_ref().is_err_and(|said| !own || said.contains(error))
                    }
                };
                if !is_equal {
                    wrong.push(format!(
                        "{name}, conversation {number}\n  expected {expected:?}\n  found    {found:?}"
                    ));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(compared > 100, "{compared}");
}

#[test]
fn answers_equal_transformers() {
    let (mut compared, mut wrong) = (0, Vec::new());
    for (name, cases) in golden() {
        let template = template(&name);
        for (number, (record, case)) in records().iter().zip(cases).enumerate() {
            let Some(answers) = case.answers else { continue };
            let chat = ChatFormat::of(record).unwrap().conversation(record).unwrap();
            let rendered = template.render(&chat, false).unwrap();
            let expected: Vec<Range<usize>> = answers.into_iter().map(|[start, end]| start..end).collect();
            compared += expected.len();
            let found = template.answers(&chat, &rendered).map_err(|error| error.to_string());
            if found.as_ref() != Ok(&expected) {
                let text = &rendered.text;
                wrong.push(format!(
                    "{name}, conversation {number}: {text:?}\n  expected {expected:?}\n  found    {found:?}"
                ));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(compared > 50, "{compared}");
}

/// Each character is a token, so the labels say which characters count.
#[test]
fn labels_are_the_answers() {
    let Some(cases) = golden().remove("chatml_marked") else { return };
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
