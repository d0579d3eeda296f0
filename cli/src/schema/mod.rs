//! A JSON Schema of the run file, made from the types that read it.
//!
//! ```text
//! mod.rs     the schema
//! probe.rs   asks a type what it reads
//! fields.rs  the meaning of fields, from the guide
//! ```
//!
//! There is no list of fields here: each type is asked for its own, so that the optimizers, strategies, schedules,
//! models and tasks of the program that runs are in the schema too.

mod fields;
mod probe;

use std::cell::RefCell;

use serde::Deserialize;
use serde_json::{Map, Value, json};

use crate::Run;
use probe::{Asked, Probe, Step};

/// Deeper values are not described, in case that a type contains itself.
const DEEPEST: usize = 12;

/// Returns the JSON Schema of a run file.
///
/// RON and JSON have the same values: a struct is an object, and a name with settings, such as `AdamW(weight_decay:
/// 0.1)`, is an object with this name as its only field, `{"AdamW": {"weight_decay": 0.1}}`. A name without settings
/// is a string.
pub fn schema() -> Value {
    let mut schema = place(&mut Vec::new());
    if let Value::Object(schema) = &mut schema {
        let comment = "RON and JSON have the same values: `AdamW(weight_decay: 0.1)` is {\"AdamW\": {\"weight_decay\": 0.1}}, \
                       `Characters` is \"Characters\", and `Some` is left out.";
        let about = [
            ("$schema", json!("https://json-schema.org/draft/2020-12/schema")),
            ("title", json!("A run file of Firebrick")),
            ("$comment", json!(comment)),
        ];
        schema.extend(about.map(|(name, value)| (name.to_owned(), value)));
    }
    schema
}

/// Asks the run what it reads at a path.
fn ask(path: &[Step]) -> (Option<Asked>, String) {
    let asked = RefCell::new(None);
    let end = Run::deserialize(Probe::new(path, &asked)).err().map(|stop| stop.0);
    (asked.into_inner(), end.unwrap_or_default())
}

/// Returns the schema of what stands at a path.
fn place(path: &mut Vec<Step>) -> Value {
    let (Some(asked), end) = ask(path) else { return json!(true) };
    if path.len() >= DEEPEST {
        return json!(true);
    }
    let mut schema = match asked {
        Asked::Bool => json!({"type": "boolean"}),
        Asked::Integer(None) => json!({"type": "integer"}),
        Asked::Integer(Some(least)) => json!({"type": "integer", "minimum": least}),
        Asked::Number => json!({"type": "number"}),
        Asked::Text => json!({"type": "string"}),
        Asked::Unit => json!({"type": "null"}),
        Asked::Newtype => at(path, Step::Inside),
        Asked::Option => {
            let given = at(path, Step::Given);
            match given {
                Value::Bool(_) => given,
                given => json!({"anyOf": [given, {"type": "null"}]}),
            }
        }
        Asked::List => json!({"type": "array", "items": at(path, Step::Item)}),
        Asked::Tuple(length) => {
            json!({"type": "array", "items": at(path, Step::Item), "minItems": length, "maxItems": length})
        }
        Asked::Map => json!({"type": "object", "additionalProperties": at(path, Step::Value)}),
        Asked::Struct(fields) => structure(path, fields),
        Asked::Enum(variants) => choice(path, variants),
        // Of an untagged enum, only the error tells what it expects.
        Asked::Any(words) if words == "any value" => json!({"description": end}),
        Asked::Any(words) => json!({"description": format!("expected {words}")}),
    };
    if let (Some(meaning), Value::Object(schema)) = (fields::meaning(path), &mut schema) {
        schema.insert("description".into(), json!(meaning));
    }
    schema
}

fn at(path: &mut Vec<Step>, step: Step) -> Value {
    path.push(step);
    let schema = place(path);
    path.pop();
    schema
}

/// Returns the schema of a struct. A field that asks for no value is a name that may stand for the whole struct, as in
/// `Amp(bf16)`.
fn structure(path: &mut Vec<Step>, fields: &'static [&'static str]) -> Value {
    let (mut properties, mut names) = (Map::new(), Vec::new());
    for field in fields {
        path.push(Step::Field(field));
        match ask(path) {
            (Some(_), _) => drop(properties.insert(field.to_string(), place(path))),
            (None, _) => names.push(*field),
        }
        path.pop();
    }
    let object = json!({"type": "object", "properties": properties, "additionalProperties": false});
    match names.is_empty() {
        true => object,
        false => json!({"anyOf": [object, {"enum": names}]}),
    }
}

/// Returns the schema of an enum: names by themselves, and names with settings.
fn choice(path: &mut Vec<Step>, variants: &'static [&'static str]) -> Value {
    let (mut names, mut choices) = (Vec::new(), Vec::new());
    for name in variants {
        path.push(Step::Variant(name));
        match ask(path).0 {
            Some(Asked::Unit) | None => names.push(*name),
            Some(_) => {
                let mut properties = Map::new();
                properties.insert(name.to_string(), place(path));
                choices.push(json!({
                    "type": "object", "properties": properties, "required": [name], "additionalProperties": false
                }));
            }
        }
        path.pop();
    }
    if !names.is_empty() {
        choices.insert(0, json!({"enum": names}));
    }
    json!({"anyOf": choices})
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_described_by_what_reads_them() {
        let schema = schema();
        let properties = &schema["properties"];
        assert_eq!(properties["seed"]["type"], "integer");
        assert!(properties["seed"]["description"].as_str().unwrap().contains("seeds the weights"));
        assert_eq!(schema["additionalProperties"], json!(false));
        let of = |place: &Value, name: &str| {
            let choices = place["anyOf"].as_array().unwrap();
            choices.iter().find_map(|choice| choice["properties"].get(name)).unwrap().clone()
        };
        let adam = of(&properties["optimizer"], "AdamW");
        assert_eq!(adam["properties"]["weight_decay"]["type"], "number");
        let betas = json!({"type": "array", "items": {"type": "number"}, "minItems": 2, "maxItems": 2});
        assert_eq!(adam["properties"]["betas"], betas);
        let amp = of(&properties["strategies"]["items"], "Amp");
        assert!(amp["anyOf"][1]["enum"].as_array().unwrap().contains(&json!("bf16")), "{amp}");
        assert!(amp["anyOf"][0]["properties"].get("loss_scale").is_some(), "{amp}");
        let cosine = of(&properties["schedule"], "Cosine");
        assert!(
            cosine["properties"]["warmup"]["description"].as_str().unwrap().contains("Ratio(0.06)"),
            "{cosine}"
        );
        let path = &properties["data"]["properties"]["path"];
        assert!(path.to_string().contains("a file, a folder, a pattern"), "{path}");
    }

    /// A field that the guide lacks has no description.
    #[test]
    fn each_field_of_a_run_has_a_meaning() {
        let schema = schema();
        let properties = |place: &Value| place["properties"].as_object().unwrap().clone();
        let run = properties(&schema);
        let of_data = properties(&run["data"]);
        let of_batch = properties(&run["batch"]);
        let sections = ["data", "batch", "model", "optimizer", "param_groups", "layer_decay", "schedule"];
        let fields = run.iter().filter(|(name, _)| !sections.contains(&name.as_str()));
        for (name, field) in fields.chain(&of_data).chain(&of_batch) {
            assert!(field["description"].is_string(), "docs/run_file.md has no row for `{name}`");
        }
    }
}
