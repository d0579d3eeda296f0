//! `firebrick schema` against the run files of the examples.

use std::fs;
use std::path::PathBuf;

use firebrick_cli::Run;
use serde_json::{Value, json};

use crate::small_run::at_root;

fn schema() -> Value {
    let output = at_root().arg("schema").assert().success().get_output().stdout.clone();
    serde_json::from_slice(&output).unwrap()
}

/// Returns the run of each example, as JSON.
fn examples() -> Vec<(PathBuf, Value)> {
    let paths = fs::read_dir("../examples").unwrap().map(|entry| entry.unwrap().path());
    let runs = paths.filter(|path| path.extension().is_some_and(|extension| extension == "ron"));
    // Two of them describe data only.
    let rest =
        ["model=Pretrained(\"x\")", "optimizer=AdamW()", "schedule=Constant(lr: 1.0)", "steps=1", "output=x"];
    runs.map(|path| {
        let run = Run::read(&path, &[""; 0]).unwrap_or_else(|_| Run::read(&path, &rest).unwrap());
        (path, serde_json::to_value(run).unwrap())
    })
    .collect()
}

/// Returns the first place of a value that a schema does not allow, by the keywords that the schema of a run file has.
fn problem(schema: &Value, value: &Value, place: &str) -> Option<String> {
    if schema == true {
        return None;
    }
    for (keyword, setting) in schema.as_object().unwrap() {
        let is_good = match keyword.as_str() {
            "type" => match setting.as_str().unwrap() {
                "boolean" => value.is_boolean(),
                "integer" => value.is_i64() || value.is_u64(),
                "number" => value.is_number(),
                "string" => value.is_string(),
                "null" => value.is_null(),
                "array" => value.is_array(),
                "object" => value.is_object(),
                other => panic!("{other}"),
            },
            "enum" => setting.as_array().unwrap().contains(value),
            "minimum" => value.as_f64().is_none_or(|value| value >= setting.as_f64().unwrap()),
            "minItems" => {
                value.as_array().is_none_or(|items| items.len() >= setting.as_u64().unwrap() as usize)
            }
            "maxItems" => {
                value.as_array().is_none_or(|items| items.len() <= setting.as_u64().unwrap() as usize)
            }
            "required" => {
                setting.as_array().unwrap().iter().all(|name| value.get(name.as_str().unwrap()).is_some())
            }
            "anyOf" => {
                setting.as_array().unwrap().iter().any(|choice| problem(choice, value, place).is_none())
            }
            "items" => {
                let mut items = value.as_array().into_iter().flatten();
                if let Some(problem) = items.find_map(|item| problem(setting, item, &format!("{place}/item")))
                {
                    return Some(problem);
                }
                true
            }
            "properties" => {
                let mut fields = value.as_object().into_iter().flatten();
                let of = |(name, field)| problem(setting.get(name)?, field, &format!("{place}/{name}"));
                if let Some(problem) = fields.find_map(of) {
                    return Some(problem);
                }
                true
            }
            "additionalProperties" => {
                let known = |name: &String| schema["properties"].get(name).is_some();
                match setting.as_bool() {
                    Some(false) => value.as_object().is_none_or(|fields| fields.keys().all(known)),
                    _ => true,
                }
            }
            "$schema" | "$comment" | "title" | "description" => true,
            other => panic!("{other}"),
        };
        if !is_good {
            return Some(format!("{place}: {keyword} {setting}: {value}"));
        }
    }
    None
}

#[test]
fn each_example_is_valid_and_a_made_up_field_is_not() {
    let schema = schema();
    let examples = examples();
    assert!(examples.len() > 7, "{}", examples.len());
    for (path, run) in examples {
        assert_eq!(problem(&schema, &run, ""), None, "{}", path.display());
        for place in ["", "/data", "/batch", "/checkpoints", "/optimizer/AdamW", "/task/CausalLm"] {
            let mut wrong = run.clone();
            let Some(Value::Object(fields)) = wrong.pointer_mut(place) else { continue };
            fields.insert("made_up".into(), json!(1));
            assert!(problem(&schema, &wrong, "").is_some(), "{}: {place}/made_up", path.display());
        }
        for (place, value) in
            [("/seed", json!("one")), ("/optimizer", json!("Adamw")), ("/model", json!({"Gpd": {}}))]
        {
            let mut wrong = run.clone();
            *wrong.pointer_mut(place).unwrap() = value;
            assert!(problem(&schema, &wrong, "").is_some(), "{}: {place}", path.display());
        }
    }
}

#[test]
fn all_registered_names_are_in_it() {
    let text = schema().to_string();
    for name in [
        "AdamW8bit",
        "Lora",
        "WarmupCosineLR",
        "Pretrained",
        "Seq2Seq",
        "keep_f32",
        "evaluate_every",
        "min_8bit_size",
    ] {
        assert!(text.contains(&format!("\"{name}\"")), "{name}");
    }
}
