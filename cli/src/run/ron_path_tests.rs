//! Tests of the locator and, through it, of the scanner.

use std::ops::Range;

use proptest::prelude::*;
use proptest::sample::Index;

use super::*;

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
    assert_eq!(line(RUN, start_of(RUN, "model.layers")), 5);
    assert_eq!(line(RUN, start_of(RUN, "model.nothing.more")), 4);
    assert_eq!(line(RUN, start_of(RUN, "strategies.7")), 10);
    assert_eq!(line(RUN, start_of(RUN, "")), 3);
    assert_eq!(start_of("(\n  a: 1,\n  b: \"x\n)", "a"), 14);
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
        ("strategies.3", "line 10: `strategies` has 3 element(s); expected an index below 3, found `3`"),
        ("strategies.x", "line 10: `strategies` has 3 element(s); expected an index below 3, found `x`"),
        ("strategies.-1", "line 10: `strategies` has 3 element(s); expected an index below 3, found `-1`"),
        ("model.layers.x", "line 5: `model.layers` is `4`; expected a struct, list or map that has `x`"),
        ("none.x", "line 13: `none` is `None`; expected a struct, list or map that has `x`"),
    ];
    for (path, expected) in cases {
        assert_eq!(message(find(RUN, path)), expected);
        assert_eq!(message(set(RUN, path, "1")), expected);
    }
    assert_eq!(
        message(find("[1]", "1")),
        "line 1: the document has 1 element(s); expected an index below 1, found `1`"
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

/// A document with the paths of all its values.
#[derive(Debug, Clone)]
struct Sample {
    text: String,
    paths: Vec<String>,
}

fn leaf() -> impl Strategy<Value = String> {
    let fixed = [
        "4",
        "-1.5e-3",
        "Ema",
        "None",
        "true",
        "'('",
        "b'\"'",
        "1..=5",
        "b'('..=b')'",
        "\"a)\\\"é\"",
        "r#\")\"]\"#",
        "()",
        "[]",
    ];
    prop_oneof![
        prop::sample::select(fixed.to_vec()).prop_map(str::to_string),
        any::<String>().prop_map(|text| format!("{text:?}")),
    ]
}

fn space() -> impl Strategy<Value = &'static str> {
    prop::sample::select(vec!["", " ", "\n  ", " // ) é\n", "/* ( /* \" */ */", "\r\n"])
}

/// Writes a group; `shape` selects a list, tuple, struct, named struct or map.
fn group(parts: Vec<(Sample, &str, &str)>, shape: usize, comma: bool) -> Sample {
    let (open, close) = [("[", "]"), ("T(", ")"), ("(", ")"), ("Gpt /* ( */ (", ")"), ("{", "}")][shape];
    let mut sample = Sample { text: open.into(), paths: vec![] };
    let count = parts.len();
    for (i, (part, before, after)) in parts.into_iter().enumerate() {
        let (name, key) = match shape {
            0 | 1 => (i.to_string(), String::new()),
            4 => (format!("k {i}"), format!("\"k {i}\" :")),
            _ => (format!("f{i}"), format!("f{i}{after}:")),
        };
        sample.paths.push(name.clone());
        sample.paths.extend(part.paths.iter().map(|path| format!("{name}.{path}")));
        let comma = if comma || i + 1 < count { "," } else { "" };
        sample.text += &[before, &key, before, &part.text, after, comma].concat();
    }
    sample.text += close;
    sample
}

fn sample() -> impl Strategy<Value = Sample> {
    let leaf = leaf().prop_map(|text| Sample { text, paths: vec![] });
    let tree = leaf.prop_recursive(4, 24, 4, |inner| {
        let parts = prop::collection::vec((inner.clone(), space(), space()), 1..4);
        let groups =
            (parts, 0..5usize, any::<bool>()).prop_map(|(parts, shape, comma)| group(parts, shape, comma));
        let some = inner.prop_map(|part| Sample { text: format!("Some({})", part.text), ..part });
        prop_oneof![4 => groups, 1 => some]
    });
    let parts = prop::collection::vec((tree, space(), space()), 1..4);
    (parts, any::<bool>()).prop_map(|(parts, comma)| group(parts, 2, comma))
}

/// Generates text from the parts that RON is made of.
fn ronish() -> impl Strategy<Value = String> {
    prop_oneof![
        prop::collection::vec(piece(), 0..24).prop_map(|pieces| pieces.concat()),
        any::<String>(),
        broken(),
    ]
}

fn piece() -> impl Strategy<Value = &'static str> {
    let pieces = "( ) [ ] { } , : \" ' \\ # r b / * // /* */ \n é a Some( 1 .. = #![ - _ \u{2028} \
        u{41} a: r#\" \"# br\" b' r#a";
    prop::sample::select(pieces.split(' ').chain([" "]).collect::<Vec<_>>())
}

/// Generates a document with a character missing or something inserted.
fn broken() -> impl Strategy<Value = String> {
    (sample(), any::<Index>(), piece(), any::<bool>()).prop_map(|(sample, at, piece, leave_out)| {
        let mut chars: Vec<String> = sample.text.chars().map(String::from).collect();
        let at = at.index(chars.len());
        if leave_out {
            chars.remove(at);
        } else {
            chars.insert(at, piece.to_string());
        }
        chars.concat()
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    #[test]
    fn never_panics(
        document in ronish(),
        path in prop_oneof![ronish(), "f[0-2](.[fk 0-2]{1,3}){0,3}"],
        value in ronish(),
    ) {
        let _ = find(&document, &path);
        let _ = set(&document, &path, &value);
        let _ = set("(a: 1)", &path, &value);
        start_of(&document, &path);
    }

    #[test]
    fn reads_whatever_ron_reads(text in ronish()) {
        if ron::from_str::<ron::Value>(&text).is_ok() {
            prop_assert!(ron_scan::document(&text).is_ok());
        }
    }

    #[test]
    fn a_value_that_is_set_is_found_and_all_else_stays(
        sample in sample(),
        at: Index,
        new in leaf(),
        add: bool,
    ) {
        let Sample { text: document, paths } = sample;
        let target = if add { "added".to_string() } else { at.get(&paths).clone() };
        let changed = set(&document, &target, &new).expect("a path that can be set");
        let found = find(&changed, &target).expect("the value just set");
        prop_assert_eq!(&changed[found.span.clone()], &new);
        prop_assert_eq!(found.line, 1 + changed[..found.span.start].matches('\n').count());
        if !add {
            let old = find(&document, &target).expect("a path of the document").span;
            prop_assert_eq!(&changed[..found.span.start], &document[..old.start]);
            prop_assert_eq!(&changed[found.span.end..], &document[old.end..]);
        }
        let mut kept = changed.chars();
        prop_assert!(!add || document.chars().all(|c| kept.any(|k| k == c)));
        let within = |outer: &str, path: &str| format!("{path}.").starts_with(&format!("{outer}."));
        for path in paths.iter().filter(|path| !within(&target, path) && !within(path, &target)) {
            prop_assert_eq!(text(&changed, path), text(&document, path));
        }
        let reads = |text: &str| ron::from_str::<ron::Value>(text).is_ok();
        prop_assert!(reads(&document) && reads(&changed), "{}", changed);
    }
}
