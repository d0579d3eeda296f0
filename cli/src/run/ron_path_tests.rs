//! Tests of the locator and, through it, of the scanner.

use std::ops::Range;

use super::*;

#[path = "ron_path_properties.rs"]
mod properties;

const RUN: &str = r##"#![enable(implicit_some)]
// A run: ( [ { " '
Run(
    model: Gpt(
        layers: 4, // not (5
        width: 64
    ),
    /* outer /* inner ) */ still " */
    data: (path: r#"a "quoted" (name"#, split: [0.9, 0.1,], mark: '(', tick: '\''),
    strategies: [Amp(bf16), Clip(norm: 1.0), Ema],
    clip: Some(Some((norm: 2e-3))),
    names: {"a b": 1, "q\"": (x: 2), "ü": 3},
    raw: b"\")", byte: b'\'', range: 1..=5, r#type: "é", empty: (), none: None,
)
"##;

/// The place of a value in its document.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Found {
    /// The value's bytes.
    span: Range<usize>,
    /// The 1-based line on which the value begins.
    line: usize,
}

/// Returns the byte range of the value at `path`, and its line.
///
/// Segments are separated by dots: names of fields, string keys of maps, or indices into lists and tuples. Names before
/// a parenthesis are skipped: in `model: Gpt(layers: 4)`, the 4 is `model.layers`. So is `Some`: in
/// `clip: Some((norm: 1.0))`, the number is `clip.norm`, while `clip` is all of `Some((norm: 1.0))`.
///
/// # Errors
/// The document is malformed, or has no such value.
fn find(document: &str, path: &str) -> Result<Found, PathError> {
    let root = scan(document)?;
    let segments = split(path)?;
    let walk = Walk::new(document, &root, &segments);
    if walk.depth < segments.len() {
        return Err(walk.error(&segments));
    }
    let span = walk.value.span.clone();
    Ok(Found { line: line(document, span.start), span })
}

fn text<'a>(document: &'a str, path: &str) -> &'a str {
    let found = find(document, path).expect("a path that exists");
    &document[found.span]
}

fn message(result: Result<impl std::fmt::Debug, PathError>) -> String {
    result.expect_err("an error").to_string()
}

#[test]
fn finds_values_of_every_kind() {
    let cases = [
        ("model.layers", "4"),
        ("model.width", "64"),
        ("data.path", "r#\"a \"quoted\" (name\"#"),
        ("data.split.1", "0.1"),
        ("data.mark", "'('"),
        ("data.tick", "'\\''"),
        ("strategies.0", "Amp(bf16)"),
        ("strategies.0.0", "bf16"),
        ("strategies.1.norm", "1.0"),
        ("strategies.2", "Ema"),
        ("clip", "Some(Some((norm: 2e-3)))"),
        ("clip.norm", "2e-3"),
        ("names.a b", "1"),
        ("names.q\".x", "2"),
        ("names.ü", "3"),
        ("raw", "b\"\\\")\""),
        ("byte", "b'\\''"),
        ("range", "1..=5"),
        ("type", "\"é\""),
        ("r#type", "\"é\""),
        ("empty", "()"),
    ];
    for (path, expected) in cases {
        assert_eq!(text(RUN, path), expected, "{path}");
    }
}

#[test]
fn finds_lines() {
    assert_eq!(find(RUN, "model.width").map(|found| found.line), Ok(6));
    let from = |path: &str| &RUN[start_of(RUN, path)..];
    assert!(from("model.layers").starts_with("4, // not"));
    assert!(from("model.nothing.more").starts_with("Gpt(\n"));
    assert!(from("strategies.7").starts_with("[Amp(bf16)"));
    assert!(from("").starts_with("Run(\n"));
    assert_eq!(line(RUN, start_of(RUN, "model.layers")), 5);
    assert_eq!(line(RUN, start_of(RUN, "model.nothing.more")), 4);
    assert_eq!(line(RUN, start_of(RUN, "strategies.7")), 10);
    assert_eq!(line(RUN, start_of(RUN, "")), 3);
    assert_eq!(start_of("(\n  a: 1,\n  b: \"x\n)", "a"), 15);
}

#[test]
fn replaces_values() {
    let document = "(a: Gpt(n: 1), s: [Amp(bf16), Ema], c: Cosine(lr: 1) /* c */)";
    let cases = [
        ("a.n", "4", "(a: Gpt(n: 4), s: [Amp(bf16), Ema], c: Cosine(lr: 1) /* c */)"),
        ("s.0", "Clip(norm: 1.0)", "(a: Gpt(n: 1), s: [Clip(norm: 1.0), Ema], c: Cosine(lr: 1) /* c */)"),
        ("c", " Flat // why", "(a: Gpt(n: 1), s: [Amp(bf16), Ema], c: Flat /* c */)"),
        ("s", "[]", "(a: Gpt(n: 1), s: [], c: Cosine(lr: 1) /* c */)"),
    ];
    for (path, value, expected) in cases {
        assert_eq!(set(document, path, value).as_deref(), Ok(expected));
    }
}

#[test]
fn adds_fields() {
    let cases = [
        ("()", "a", "(a: 1)"),
        ("Run( )", "a", "Run(a: 1 )"),
        ("(/* none */)", "a", "(/* none */ a: 1)"),
        ("(\n)", "a", "(\n    a: 1,\n)"),
        ("(b: 2)", "a", "(b: 2, a: 1)"),
        ("(b: 2,)", "a", "(b: 2, a: 1)"),
        ("(b: 2 /* c */)", "a", "(b: 2, /* c */ a: 1)"),
        ("(\n  b: 2 // c\n)", "a", "(\n  b: 2, // c\n  a: 1,\n)"),
        ("(\n  b: 2, // c\n  // d\n)", "a", "(\n  b: 2, // c\n  // d\n  a: 1,\n)"),
        ("(\r\n\tb: 2\r\n)", "a", "(\r\n\tb: 2,\r\n\ta: 1,\r\n)"),
        ("(\n  m: G(\n  ),\n)", "m.a", "(\n  m: G(\n      a: 1,\n  ),\n)"),
        ("(c: Some((b: 2)))", "c.a", "(c: Some((b: 2, a: 1)))"),
        ("{\"b\": 2}", "a b\"", "{\"b\": 2, \"a b\\\"\": 1}"),
        ("{}", "a", "{\"a\": 1}"),
    ];
    for (document, path, expected) in cases {
        assert_eq!(set(document, path, "1").as_deref(), Ok(expected), "{document}");
    }
}

#[test]
fn explains_paths_that_lead_nowhere() {
    let cases = [
        ("", "the path ``: expected a field or an index as segment 1, found nothing"),
        ("a..b", "the path `a..b`: expected a field or an index as segment 2, found nothing"),
        ("model.x.y", "line 4: `model` has no `x`; expected one of `layers`, `width`"),
        ("empty.x.y", "line 13: `empty` has no `x`; expected nothing, as it is empty"),
        ("model.0", "line 4: `model` has no `0`; expected one of `layers`, `width`"),
        ("strategies.3", "line 10: `strategies` has 3 elements; expected an index below 3, found `3`"),
        ("strategies.x", "line 10: `strategies` has 3 elements; expected an index below 3, found `x`"),
        ("strategies.-1", "line 10: `strategies` has 3 elements; expected an index below 3, found `-1`"),
        ("model.layers.x", "line 5: `model.layers` is `4`; expected a struct, list or map that has `x`"),
        ("none.x", "line 13: `none` is `None`; expected a struct, list or map that has `x`"),
    ];
    for (path, expected) in cases {
        assert_eq!(message(find(RUN, path)), expected);
        assert_eq!(message(set(RUN, path, "1")), expected);
    }
    assert_eq!(
        message(find("[1]", "1")),
        "line 1: the document has 1 element; expected an index below 1, found `1`"
    );
    for (document, path) in [("(a: 1)", "b c"), ("(a: 1)", "b)"), ("{1: 2}", "b")] {
        assert!(matches!(set(document, path, "1"), Err(PathError::Missing { .. })), "{path}");
    }
}

#[test]
fn refuses_values_that_are_not_one_value() {
    for value in [
        "",
        " // 1",
        "1)",
        "1, b: 2",
        "1 2",
        "(1",
        "\"a",
        "[1]]",
        "a: 1",
        "(a: 1, 2)",
        "{1}",
        "#![enable(x)] 1",
    ] {
        assert!(matches!(set("(a: 0)", "a", value), Err(PathError::Value { .. })), "{value}");
    }
    assert_eq!(
        message(set("(a: 0)", "a", "1)")),
        "the value `1)`: expected nothing after the value, found `)`"
    );
}

#[test]
fn refuses_malformed_documents_with_their_line() {
    let cases = [
        ("", 1),
        ("(\na: 1", 2),
        ("(\na: \"x\n)\n", 2),
        ("(\n\n/* /* */ )", 3),
        ("(\na: 1]", 2),
        ("(a: 1,\nb)", 2),
        ("(a: 1)\n)", 2),
        ("(a: r#\"x\")", 1),
        ("(a: 'xy')", 1),
        ("(\n1: 2)", 2),
        ("(\na: 1 b: 2)", 2),
        ("#[x] ()", 1),
        ("é\\", 1),
    ];
    for (document, expected) in cases {
        match find(document, "a") {
            Err(PathError::Syntax { line, .. }) => assert_eq!(line, expected, "{document}"),
            other => panic!("{document}: {other:?}"),
        }
    }
    assert_eq!(
        message(find("(\n(\n1", "a")),
        "line 3: expected `,`, or `)` for the bracket of line 2, found the end"
    );
    assert!(matches!(find(&"[".repeat(100_000), "0"), Err(PathError::Syntax { .. })));
    assert!(find(&"/*".repeat(100_000), "0").is_err());
}
