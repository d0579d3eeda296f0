//! Small templates: Jinja2's tests and filters, and how Python writes values.

use std::fs;

use firebrick_datasets::{ChatTemplate, Conversation};

#[test]
fn small_templates_equal_jinja2() {
    let rows = fs::read_to_string("tests/golden/jinja/jinja.json").unwrap();
    let rows: Vec<(String, Option<String>)> = serde_json::from_str(&rows).unwrap();
    assert!(rows.len() > 500, "{}", rows.len());
    let mut wrong = Vec::new();
    for (source, expected) in &rows {
        let template = ChatTemplate::new("golden", source);
        let found = template.and_then(|template| template.render(&Conversation::default(), false));
        let found = found.map(|chat| chat.text).map_err(|error| error.to_string());
        // Python words its own errors.
        if found.as_ref().ok() != expected.as_ref() {
            wrong.push(format!("{source}\n  expected {expected:?}\n  found    {found:?}"));
        }
    }
    assert!(wrong.is_empty(), "{} of {} rows differ:\n{}", wrong.len(), rows.len(), wrong.join("\n"));
}
