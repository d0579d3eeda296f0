//! Tests the values of fields and their outcomes.

use super::*;

fn source() -> Source {
    Source::parse(
        "ds.json",
        "{\"a\": {\"b\": 5e8, \"c\": \"auto\", \"d\": null},\n \"e\": [1, {\"f\": 2}], \"g\": {}, \"h\": 1.5}",
    )
    .unwrap()
}

#[test]
fn an_object_with_fields_is_no_field() {
    let paths: Vec<_> = source().fields.into_iter().map(|field| field.path).collect();
    assert_eq!(paths, ["a.b", "a.c", "a.d", "e", "g", "h"]);
}

#[test]
fn numbers_are_read_as_python_writes_them() {
    let source = source();
    assert_eq!(source.count("a.b", 1, 1_000_000_000), Ok(Given::Is(500_000_000)));
    assert_eq!(source.count("a.c", 1, 9), Ok(Given::Auto));
    assert_eq!(
        [source.count("a.d", 1, 9), source.count("x", 1, 9)],
        [Ok(Given::Missing), Ok(Given::Missing)]
    );
    let said = |path| source.count(path, 1, 9).unwrap_err().to_string();
    assert_eq!(said("h"), "ds.json:2: `h` must be a whole number from 1 to 9, found 1.5");
    assert_eq!(said("a.b"), "ds.json:1: `a.b` must be a whole number from 1 to 9, found 500000000.0");
    assert_eq!(said("e"), "ds.json:2: `e` must be a whole number from 1 to 9, found [1,{\"f\":2}]");
}

#[test]
fn the_first_outcome_stays() {
    let mut source = source();
    source.settle("a.b", Outcome::taken("1"));
    source.settle_below("a", &Outcome::no_effect("2"));
    source.settle("a.c", Outcome::taken("3"));
    let said: Vec<_> = source.fields.into_iter().map(|field| field.outcome).collect();
    assert_eq!(said[..3], [Some(Outcome::taken("1")), Some(Outcome::no_effect("2")), None]);
}

#[test]
fn a_file_is_an_object_and_long_values_are_cut() {
    let error = Source::parse("ds.json", "[1]").unwrap_err().to_string();
    assert_eq!(error, "ds.json:1: `the whole file` must be an object, `{..}`, found [1]");
    assert_eq!(shortened(&"é".repeat(41), 40), "é".repeat(40) + "...");
    assert_eq!(shortened("\u{9b}31m", 40), "\\u{9b}31m");
}
