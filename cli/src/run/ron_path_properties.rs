//! Properties of the locator, on documents that are generated.

use proptest::prelude::*;
use proptest::sample::Index;

use super::*;

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
