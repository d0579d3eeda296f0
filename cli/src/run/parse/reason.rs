//! What is wrong with a text that is not a run, and what to write instead.

use ron::error::{Error as RonError, Position, SpannedError};

use super::super::ron_path;
use super::super::ron_scan::{self, Entry, Group, Shape, Value};

/// Parses a changed text, and returns its error.
type Reparse<'a> = &'a dyn Fn(&str) -> Option<SpannedError>;

/// A name that no run file knows. RON's error for it lists the known ones.
const UNKNOWN: &str = "unknown_name_";

/// Returns the byte and the reason of an error.
pub(super) fn of(error: &SpannedError, text: &str, reparse: Reparse<'_>) -> (usize, String) {
    let SpannedError { code, span } = error;
    // Our scanner knows which bracket is still open; RON itself knows the fields of a run.
    let broken = ron_path::first_mistake(text);
    let start = offset(text, span.start).unwrap_or(text.len());
    let blanks = text[start..].len() - text[start..].trim_start().len();
    let at = match (&broken, unknown(code)) {
        (Some((at, _)), _) => *at,
        (None, Some((name, _))) => nearest(text, &name, start).unwrap_or(start + blanks),
        (None, None) => start + blanks,
    };
    let reason = other_language(text)
        .or_else(|| broken.map(|(_, reason)| reason))
        .or_else(|| fraction(code, text, span.start.line, span.start.col))
        .or_else(|| unnamed_setting(error, text, reparse))
        .or_else(|| text_for_name(error, text, reparse))
        .or_else(|| unlisted(error, text))
        .unwrap_or_else(|| explain(code, text, span.start.line));
    (at, reason)
}

/// Returns the place of a name that is nearest to a byte. RON's span of an unknown name may begin before or after it.
fn nearest(text: &str, name: &str, byte: usize) -> Option<usize> {
    let of_name = |c: char| c.is_alphanumeric() || c == '_';
    let places = text.match_indices(name).map(|(at, _)| at);
    let whole = |at: &usize| !text[..*at].ends_with(of_name) && !text[at + name.len()..].starts_with(of_name);
    places.filter(whole).min_by_key(|at| at.abs_diff(byte))
}

/// Returns where the parentheses of a name are missing, if that is the error.
pub(super) fn bare_name(SpannedError { code, span }: &SpannedError, text: &str) -> Option<usize> {
    if !code.to_string().starts_with("Expected opening `(`") {
        return None;
    }
    let before = text[..offset(text, span.start)?].trim_end();
    let name = before.rsplit(|c: char| !c.is_alphanumeric()).next()?;
    name.starts_with(|c: char| c.is_uppercase()).then_some(before.len())
}

/// Returns the error for a setting without its name, as in `Clip(1.0)`.
fn unnamed_setting(error: &SpannedError, text: &str, reparse: Reparse<'_>) -> Option<String> {
    if error.code.to_string().starts_with("Unexpected") {
        return None;
    }
    let document = ron_scan::document(text).ok()?;
    let group = innermost(&document, offset(text, error.span.start)?)?;
    let [Entry { key: None, value }, ..] = group.entries.as_slice() else { return None };
    let (before, after) = text.split_at(value.span.start);
    let named = |name: &str| format!("{before}{name}: {after}");
    let (found, known) = unknown(&reparse(&named(UNKNOWN))?.code)?;
    // The values of a list have no names.
    let takes_names = found == UNKNOWN && before.trim_end().ends_with('(');
    let name = takes_names.then(|| &text[group.name.clone()])?;
    let value_end = value.span.end;
    let is_read = |name: &&String| {
        let (text, end) = (named(name), value_end + name.len() + 2);
        reparse(&text).is_none_or(|error| offset(&text, error.span.start).unwrap_or(0) >= end)
    };
    let value = &text[value.span.clone()];
    let meant = known.iter().find(is_read).map(|meant| format!(": write `{name}({meant}: {value})`"));
    Some(format!(
        "expected settings by their names, found `{name}({value})`{}; its settings are {}",
        meant.unwrap_or_default(),
        known.join(", ")
    ))
}

/// Returns the error for a text where a name is expected, as in `tokenizer: "tokenizer.json"`.
fn text_for_name(error: &SpannedError, text: &str, reparse: Reparse<'_>) -> Option<String> {
    let at = offset(text, error.span.start)?;
    let rest = &text[at..];
    let length = (error.code.to_string() == RonError::ExpectedIdentifier.to_string())
        .then(|| rest.strip_prefix('"')?.find('"'))
        .flatten()?
        + 2;
    let (found, after) = rest.split_at(length);
    let replaced = |value: &str| format!("{}{value}{after}", &text[..at]);
    let (_, expected) = unknown(&reparse(&replaced(UNKNOWN))?.code)?;
    let content = found.trim_matches('"');
    let is_name = |name: &&String| name.eq_ignore_ascii_case(content);
    // A later error shows that the value is right.
    let is_read = |value: &str| {
        let text = replaced(value);
        let error = reparse(&text).map(|error| offset(&text, error.span.start).unwrap_or(0));
        error.is_none_or(|place| place >= at + value.len())
    };
    let meant = match expected.iter().find(is_name) {
        Some(name) => Some(name.to_string()),
        None => expected.iter().map(|name| format!("{name}({found})")).find(|value| is_read(value)),
    };
    let hint = meant.map_or(String::new(), |meant| format!(": write `{meant}`"));
    Some(format!("expected one of {}, found the text {found}{hint}", expected.join(", ")))
}

/// Returns the error for a value where a list is expected, as in `strategies: Clip(norm: 1.0)`.
fn unlisted(error: &SpannedError, text: &str) -> Option<String> {
    if !error.code.to_string().starts_with("Expected opening `[`") {
        return None;
    }
    let document = ron_scan::document(text).ok()?;
    // The span starts before the blanks that precede the value.
    let at = offset(text, error.span.end)?;
    let around = innermost(&document, offset(text, error.span.start)?)?;
    let mut values = around.entries.iter().map(|entry| &entry.value);
    let found = &text[values.find(|value| value.span.start == at)?.span.clone()];
    let list = if found == "None" { "[]".into() } else { format!("[{found}]") };
    Some(format!("expected a list, found `{found}`: write `{list}`"))
}

/// Returns the innermost group around a byte.
fn innermost(value: &Value, at: usize) -> Option<&Group> {
    let Shape::Group(group) = &value.shape else { return None };
    if !value.span.contains(&at) {
        return None;
    }
    let within = group.entries.iter().find_map(|entry| innermost(&entry.value, at));
    Some(within.unwrap_or(group))
}

/// Returns the byte of a position.
fn offset(text: &str, Position { line, col }: Position) -> Option<usize> {
    let before: usize = text.split_inclusive('\n').take(line.checked_sub(1)?).map(str::len).sum();
    let column: usize = text[before..].chars().take(col.checked_sub(1)?).map(char::len_utf8).sum();
    Some(before + column)
}

/// Returns the error for a file in a language other than RON, if its first line shows it.
fn other_language(text: &str) -> Option<String> {
    let blank = |line: &&str| !line.is_empty() && !line.starts_with("//") && !line.starts_with("# ");
    let first = text.lines().map(str::trim).find(blank)?;
    let is_name = |name: &str| {
        let plain = |c: char| c.is_alphanumeric() || "_-\"".contains(c);
        !name.is_empty() && name.chars().all(plain)
    };
    let named = |sign| first.split_once(sign).is_some_and(|(name, _): (&str, &str)| is_name(name.trim()));
    let language = match first {
        _ if first.starts_with('{') => "JSON",
        "---" => "YAML",
        _ if first.starts_with('[') || named('=') => "TOML",
        _ if named(':') => "YAML",
        _ => return None,
    };
    Some(format!(
        "expected RON, found what looks like {language}: write the run as `(task: CausalLm(), steps: 100, ..)`, \
         in parentheses and with commas between the fields (`firebrick import` reads configurations of other trainers)"
    ))
}

/// Returns the error for a number with a fraction or an exponent where RON expects an integer.
fn fraction(error: &RonError, text: &str, line: usize, column: usize) -> Option<String> {
    // A setting that may be something else than a number says itself what it expects.
    if error.to_string().starts_with("expected ") {
        return None;
    }
    let line: Vec<char> = text.lines().nth(line.checked_sub(1)?)?.chars().collect();
    let of_number = |c: &char| c.is_ascii_alphanumeric() || "._+-".contains(*c);
    let before = line.get(..column.checked_sub(1)?)?.iter().rev().take_while(|c| of_number(c)).count();
    let number: String = line[column - 1 - before..].iter().take_while(|c| of_number(c)).collect();
    // RON stops where the number is no longer whole. An error behind the number is about something else.
    let stops = before > 0 && line.get(column - 1).is_some_and(|c| ".eE".contains(*c));
    let is_read = stops || error.to_string().starts_with("Invalid digit");
    let whole = number.starts_with(|c: char| c.is_ascii_digit() || c == '-') && is_read;
    let value: f64 = number.parse().ok().filter(|_| whole && number.contains(['.', 'e', 'E']))?;
    let fix = match value.fract() == 0.0 && value.abs() < 1e15 {
        true => format!("write it as `{value}`"),
        false => "write one".into(),
    };
    Some(format!("expected a whole number, found `{number}`: {fix}"))
}

/// Returns the unknown name of an error and the known ones, if that is the error.
///
/// Reads the text of the error rather than its kind, because an error in a [registered](firebrick_strategies::registry)
/// recipe arrives as a text.
fn unknown(error: &RonError) -> Option<(String, Vec<String>)> {
    let said = error.to_string();
    let starts = ["Unexpected field named", "Unexpected variant named", "Unexpected enum variant named"];
    let (before, known) = said.split_once(", expected ")?;
    let quoted = |text: &str| text.split('`').skip(1).step_by(2).map(String::from).collect::<Vec<_>>();
    let found =
        quoted(before).into_iter().next().filter(|_| starts.iter().any(|start| said.starts_with(start)));
    Some((found?, quoted(known)))
}

/// Returns RON's reason with the line it concerns, or with the nearest known name if a name is unknown.
fn explain(error: &RonError, text: &str, line: usize) -> String {
    if let Some((found, known)) = unknown(error) {
        // `SGD` is as near to `Sgd` as can be.
        let lower = found.to_lowercase();
        let alike = |name: &str| strsim::jaro_winkler(&name.to_lowercase(), &lower);
        let nearest = known.iter().max_by(|a, b| alike(a).total_cmp(&alike(b)));
        let hint = match nearest {
            Some(name) if alike(name) > 0.7 => format!(" (did you mean `{name}`?)"),
            _ => String::new(),
        };
        return format!("unknown name `{found}`{hint}; expected one of {}", known.join(", "));
    }
    let said = error.to_string();
    let field = said.split('`').nth(1).unwrap_or_default();
    if said.starts_with("Unexpected missing field named") {
        return format!("the field `{field}` is missing");
    }
    if said.starts_with("Unexpected duplicate field named") {
        return format!("the field `{field}` is given twice");
    }
    let place = text.lines().nth(line.saturating_sub(1)).unwrap_or_default().trim();
    let place: String = place.chars().take(80).collect();
    format!("{said}, in `{place}`")
}

#[cfg(test)]
mod tests {
    use crate::{DataRun, Run};

    const FILE: &str = include_str!("../../../../examples/tinyshakespeare.ron");

    fn reason(text: &str) -> String {
        DataRun::parse("run.ron", text, &[""; 0]).unwrap_err().to_string()
    }

    #[test]
    fn other_languages_are_recognized() {
        for (text, language) in [
            ("# a run\ntask:\n  CausalLm: {}\n", "YAML"),
            ("---\ntask: x\n", "YAML"),
            ("{\"task\": 1}", "JSON"),
            ("[task]\nname = 1\n", "TOML"),
            ("steps = 3\n", "TOML"),
        ] {
            let reason = reason(text);
            assert!(
                reason.contains(&format!("looks like {language}: write the run as `(task: ")),
                "{reason}"
            );
        }
        assert!(!reason("// a: b\n(task: Causal())").contains("looks like"));
    }

    #[test]
    fn a_fraction_or_an_exponent_is_no_whole_number() {
        for (number, fix) in [("3.5", "write one"), ("4.0", "write it as `4`"), ("1e3", "write it as `1000`")]
        {
            let text = format!("(task: CausalLm(), data: (path: \"a\", block: {number}), batch: (micro: 1))");
            let expected = format!("expected a whole number, found `{number}`: {fix}");
            assert!(reason(&text).contains(&expected), "{}", reason(&text));
        }
    }

    #[test]
    fn a_name_in_other_capitals_has_the_right_one_in_its_error() {
        for (set, name) in [
            ("optimizer=SGD()", "Sgd"),
            ("optimizer=LAMB()", "Lamb"),
            ("optimizer=adamw()", "AdamW"),
            ("strategies=[LoRA(rank: 2)]", "Lora"),
            ("strategies=[EMA(decay: 0.9)]", "Ema"),
            ("strategies=[ZeRO(stage: 2)]", "Zero"),
            ("schedule=COSINE(lr: 1e-3)", "Cosine"),
            ("model=GPT(layers: 1)", "Gpt"),
        ] {
            let error = Run::parse("run.ron", FILE, &[set]).unwrap_err().to_string();
            assert!(error.contains(&format!("did you mean `{name}`?")), "{set}: {error}");
        }
    }

    #[test]
    fn a_setting_without_its_name_and_a_text_for_a_name_have_what_to_write() {
        for (set, expected) in [
            (
                "strategies=[Clip(1.0)]",
                "found `Clip(1.0)`: write `Clip(norm: 1.0)`; its settings are norm, value",
            ),
            ("strategies=[Zero(2)]", "write `Zero(stage: 2)`"),
            ("optimizer=Sgd(0.9)", "write `Sgd(momentum: 0.9)`"),
            ("schedule=Constant(1e-3)", "write `Constant(lr: 1e-3)`"),
            ("batch=(4)", "found `(4)`: write `(micro: 4)`"),
            ("strategies=[Amp(\"bf16\")]", "found `Amp(\"bf16\")`; its settings are "),
            ("strategies=[\"Clip\"]", "found the text \"Clip\": write `Clip`"),
            ("data.tokenizer=\"gpt2\"", "found the text \"gpt2\": write `File(\"gpt2\")`"),
            ("data.tokenizer=\"characters\"", "found the text \"characters\": write `Characters`"),
            ("model=\"gpt2\"", "write `Pretrained(\"gpt2\")`"),
            ("task=\"causallm\"", "write `CausalLm`"),
            ("schedule=Constant", "the field `lr` is missing"),
            ("schedule=Cosine(min_lr: 1.0)", "the field `lr` is missing"),
            ("param_groups=[(lr_scale: 1.0)]", "the field `paths` is missing"),
            ("param_groups=[(weight_decay: 1e-3)]", "the field `paths` is missing"),
            ("param_groups=[(lr_scale: 0.5, lr_scale: 0.5)]", "the field `lr_scale` is given twice"),
            (
                "param_groups=(paths: [\"a\"])",
                "expected a list, found `(paths: [\"a\"])`: write `[(paths: [\"a\"])]`",
            ),
            ("param_groups=[(paths: \"a\")]", "expected a list, found `\"a\"`: write `[\"a\"]`"),
            ("param_groups=None", "expected a list, found `None`: write `[]`"),
            (
                "strategies=Clip(norm: 1.0)",
                "expected a list, found `Clip(norm: 1.0)`: write `[Clip(norm: 1.0)]`",
            ),
        ] {
            let error = Run::parse("run.ron", FILE, &[set]).unwrap_err().to_string();
            assert!(error.contains(expected), "{set}: {error}");
        }
        let error = Run::parse("run.ron", FILE, &["optimizer=Foo"]).unwrap_err().to_string();
        assert!(error.contains("unknown name `Foo`"), "{error}");
    }

    #[test]
    fn a_name_alone_has_its_defaults() {
        let parse = |sets: &[&str]| Run::parse("run.ron", FILE, sets).unwrap();
        assert_eq!(
            parse(&["optimizer=AdamW", "task=CausalLm", "sample=None"]),
            parse(&["optimizer=AdamW()", "task=CausalLm()", "sample=None"])
        );
    }
}
