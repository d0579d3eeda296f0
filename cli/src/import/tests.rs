//! Tests with whole configurations found in the wild, and properties of every import.

use std::fs;

use proptest::prelude::*;
use proptest::sample::{Index, select};

use super::*;

/// A folder of `tests/import` with files and the expected run file and table.
macro_rules! golden {
    ($($name:ident: $arguments:expr, $unsupported:expr;)*) => {
        const CONFIGS: &[(&str, &str, Option<&str>)] = &[$((
            stringify!($name),
            include_str!(concat!("../../tests/import/", stringify!($name), "/ds_config.json")),
            $arguments,
        )),*];

        $(#[test]
        fn $name() {
            let (_, config, arguments) = CONFIGS.iter().find(|(name, ..)| *name == stringify!($name)).unwrap();
            let imported = import(config, *arguments).unwrap();
            let run_file = include_str!(concat!("../../tests/import/", stringify!($name), "/run.ron"));
            let table = include_str!(concat!("../../tests/import/", stringify!($name), "/table.txt"));
            assert_eq!(imported.run_file, run_file, "made:\n{}", imported.run_file);
            assert_eq!(imported.table(), table, "made:\n{}", imported.table());
            assert_eq!(imported.may_change_the_result().count(), $unsupported);
        })*
    };
}

golden! {
    accelerate_wsd: Some(include_str!("../../tests/import/accelerate_wsd/args.json")), 0;
    autocast_l2: None, 1;
    deepspeed_cifar: None, 0;
    hugging_face_zero2: Some(include_str!("../../tests/import/hugging_face_zero2/args.json")), 0;
    hugging_face_zero2_alone: None, 0;
    hugging_face_zero3_offload: Some(include_str!("../../tests/import/hugging_face_zero3_offload/args.json")), 0;
    lr_range_test: None, 0;
    megatron_gpt: None, 0;
    not_supported: None, 12;
    one_bit_adam: None, 4;
    one_cycle_sgd: None, 0;
    slips: None, 5;
    smallest: None, 0;
    zero_infinity: None, 0;
}

fn import(config: &str, arguments: Option<&str>) -> Result<Imported, ImportError> {
    let import = Import::of("ds_config.json", config);
    match arguments {
        Some(arguments) => import.training_arguments("args.json", arguments).run(),
        None => import.run(),
    }
}

/// Returns paths and values of a file's fields, found without the code under test.
fn leaves(text: &str) -> Vec<(String, String)> {
    fn walk(path: String, value: &serde_json::Value, found: &mut Vec<(String, String)>) {
        match value {
            serde_json::Value::Object(map) if path.is_empty() || !map.is_empty() => {
                for (name, value) in map {
                    walk(json::joined(&path, name), value, found);
                }
            }
            value => found.push((path, value.to_string())),
        }
    }
    let mut found = Vec::new();
    walk(String::new(), &serde_json::from_str(text).unwrap(), &mut found);
    found.sort();
    found
}

fn check(config: &str, arguments: Option<&str>) {
    let Ok(imported) = import(config, arguments) else { return };
    for (file, text) in [("ds_config.json", Some(config)), ("args.json", arguments)] {
        let rows = imported.rows.iter().filter(|row| row.file == file);
        let mut rows: Vec<_> = rows.map(|row| (row.path.clone(), row.value.clone())).collect();
        rows.sort();
        assert_eq!(rows, text.map(leaves).unwrap_or_default(), "{file}: each field once");
    }
    for text in [&imported.run_file, &imported.filled_in()] {
        let extensions = ron::extensions::Extensions::IMPLICIT_SOME;
        let options = ron::Options::default().with_default_extension(extensions);
        assert!(options.from_str::<ron::Value>(text).is_ok(), "{text}");
    }
    assert!(imported.rows.iter().all(|row| row.line >= 1 && !row.outcome.explained().is_empty()));
    assert!(!imported.table().contains('\u{1b}'));
}

#[test]
fn every_field_of_the_configurations_is_in_the_table_once() {
    for (_, config, arguments) in CONFIGS {
        check(config, *arguments);
        check(config, Some("{}"));
    }
}

/// Generates a replacement for a value.
fn slip() -> impl Strategy<Value = serde_json::Value> {
    let values = [
        "null",
        "true",
        "false",
        "0",
        "1",
        "-1",
        "3",
        "7",
        "0.5",
        "1e-5",
        "1e300",
        "-1e300",
        "5e8",
        "18446744073709551615",
        "\"auto\"",
        "\"\"",
        "\"cpu\"",
        "\"nvme\"",
        "\"none\"",
        "\"AdamW\"",
        "\"SGD\"",
        "\"Lion\"",
        "\"WarmupLR\"",
        "\"WarmupDecayLR\"",
        "\"WarmupCosineLR\"",
        "\"OneCycle\"",
        "\"LRRangeTest\"",
        "\"cosine\"",
        "\"polynomial\"",
        "\"cosine_with_restarts\"",
        "\"steps\"",
        "\"epoch\"",
        "\"\\u001b[2J\\n)\"",
        "[]",
        "[0.9]",
        "[0.9, 0.999]",
        "[1, 1]",
        "{}",
        "{\"enabled\": true}",
        "{\"enabled\": \"auto\"}",
        "{\"a.b\": {\"\": [{}]}}",
    ];
    select(values.map(|value| serde_json::from_str(value).unwrap()).to_vec())
}

/// Replaces one of the values below with `value`, or removes or renames it.
fn mutate(json: &mut serde_json::Value, at: &[Index], value: &serde_json::Value, how: usize) {
    let ([first, rest @ ..], serde_json::Value::Object(map)) = (at, &mut *json) else {
        *json = value.clone();
        return;
    };
    if map.is_empty() {
        map.insert("enabled".into(), value.clone());
        return;
    }
    let name = map.keys().nth(first.index(map.len())).unwrap().clone();
    match how {
        0 => drop(map.remove(&name)),
        1 => drop(map.insert(format!("{name}s"), value.clone())),
        _ => mutate(map.get_mut(&name).unwrap(), rest, value, how),
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn no_slip_in_a_configuration_is_lost(
        config in any::<Index>(),
        arguments in any::<Index>(),
        slips in prop::collection::vec((any::<bool>(), prop::collection::vec(any::<Index>(), 1..4), slip(), 0usize..9), 1..6),
    ) {
        let (_, text, own) = CONFIGS[config.index(CONFIGS.len())];
        let others: Vec<_> = CONFIGS.iter().map(|(_, _, arguments)| *arguments).chain([own]).collect();
        let given = others[arguments.index(others.len())];
        let mut config: serde_json::Value = serde_json::from_str(text).unwrap();
        let mut arguments: Option<serde_json::Value> = given.map(|text| serde_json::from_str(text).unwrap());
        for (in_arguments, at, value, how) in &slips {
            match (&mut arguments, in_arguments) {
                (Some(arguments), true) => mutate(arguments, at, value, *how),
                _ => mutate(&mut config, at, value, *how),
            }
        }
        check(&config.to_string(), arguments.map(|arguments| arguments.to_string()).as_deref());
    }

    #[test]
    fn no_text_is_a_panic(config in ".{0,200}", cut in any::<Index>(), arguments in any::<Option<String>>()) {
        let note = |result: Result<Imported, ImportError>| {
            result.err().is_none_or(|error| !error.to_string().is_empty())
        };
        prop_assert!(note(import(&config, arguments.as_deref())));
        let whole = CONFIGS[cut.index(CONFIGS.len())].1;
        let cut: String = whole.chars().take(cut.index(whole.len())).collect();
        prop_assert!(note(import(&cut, None)));
    }
}

#[test]
fn files_that_are_no_configuration_are_refused() {
    let large = " ".repeat(MOST_BYTES as usize + 1);
    assert!(matches!(import(&large, None), Err(ImportError::TooLarge { .. })));
    assert!(matches!(import("{}", Some(&large)), Err(ImportError::TooLarge { .. })));
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("large.json");
    fs::write(&path, &large).unwrap();
    assert!(matches!(read_file(&path), Err(ImportError::TooLarge { .. })));
    fs::write(&path, [b'"', 0xff, b'"']).unwrap();
    assert!(read_file(&path).unwrap_err().to_string().ends_with("cannot read it: it is not UTF-8 text"));
    assert!(matches!(read_file(folder.path()), Err(ImportError::Read { .. })));
    fs::write(&path, "{}").unwrap();
    assert_eq!(read_file(&path).as_deref(), Ok("{}"));
}
