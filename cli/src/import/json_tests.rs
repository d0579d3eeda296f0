//! Tests which JSON is accepted and which is rejected.

use super::*;

fn error(text: &str) -> String {
    fields("ds.json", text).unwrap_err().to_string()
}

#[test]
fn each_field_has_the_line_of_its_name() {
    let text = "\u{feff}{\n  \"a\": {\"b\":\n  1.5},\n\n\"c\" : [\n{\"d\": null}]}\n";
    let fields = fields("ds.json", text).unwrap();
    let fields: Vec<_> = fields.iter().map(|it| (it.path.as_str(), it.line, it.value.to_string())).collect();
    assert_eq!(fields, [("a.b", 2, "1.5".into()), ("c", 5, r#"[{"d":null}]"#.into())]);
}

#[test]
fn an_error_has_its_line_and_column() {
    assert_eq!(error("{\n \"a\": 1,\n}"), "ds.json:3:1: not JSON: trailing comma");
    assert!(error("").starts_with("ds.json:1:1: not JSON: EOF"), "{}", error(""));
    assert!(error("{} {}").contains("trailing characters"));
    assert!(error("{\n  // a comment\n}").ends_with("DeepSpeed reads them: take them out"));
    assert!(error("{\"a\": NaN}").contains("expected value"));
    assert!(error("{\"a\": 1e999}").contains("out of range"));
}

#[test]
fn a_name_that_is_there_twice_is_refused_at_any_depth() {
    let twice = "{\"fp16\": {\n\"enabled\": true,\n\"enabled\": false}}";
    assert_eq!(error(twice), "ds.json:3: `fp16.enabled` is given twice: keep one of the two");
    assert!(error("{\"a\": [[{\"b\": 1, \"b\": 2}]]}").contains("`a.b` is given twice"));
}

#[test]
fn depth_and_number_are_bounded() {
    assert!(error(&"[".repeat(500_000)).contains("recursion limit"));
    assert!(error(&"{\"a\":".repeat(100_000)).contains("recursion limit"));
    let many: Vec<_> = (0..=MOST_FIELDS).map(|field| format!("\"{field}\": 0")).collect();
    assert!(error(&format!("{{{}}}", many.join(",\n"))).starts_with("ds.json:5001: expected"));
    assert!(fields("ds.json", &format!("{{{}}}", many[1..].join(","))).is_ok());
    assert!(error(&format!("{{\n\"{}\": 0}}", "é".repeat(201))).contains("at most 200 characters in a name"));
    assert!(fields("ds.json", &format!("{{\"{}\": 0}}", "é".repeat(200))).is_ok());
}

#[test]
fn a_name_with_a_dot_is_no_path() {
    assert_eq!(joined("a", "b"), "a.b");
    assert_eq!(joined("", "a.b"), "\"a.b\"");
    assert_eq!(joined("a", "\u{1b}[31m"), "a.\"\\u{1b}[31m\"");
    assert_eq!(joined("a", ""), "a.\"\"");
}
