//! Parses a run file and its overrides into a checked run.

use std::path::Path;

use ron::error::{Error as RonError, SpannedError};

use super::check;
use super::extensions::extensions;
use super::problem::FromRunFile;
use super::{DataRun, Run, RunError, ron_path};
use firebrick::ByteSize;

/// A run file is small; anything larger is a different file, named by mistake.
const MOST_BYTES: u64 = 1 << 20;

impl DataRun {
    /// Reads the data part of a run file; [`Run::read`] reads the whole.
    ///
    /// # Errors
    ///
    /// Those of [`Run::read`] that concern the data.
    pub fn read(path: &Path, overrides: &[impl AsRef<str>]) -> Result<Self, RunError> {
        read(path, overrides)
    }

    /// Like [`read`](Self::read), but parses the given text of a file called `file`.
    ///
    /// # Errors
    ///
    /// Those of [`read`](Self::read).
    pub fn parse(file: &str, text: &str, overrides: &[impl AsRef<str>]) -> Result<Self, RunError> {
        parse(file, text, overrides)
    }
}

impl Run {
    /// Reads a run file and applies overrides of the form `path=value`, whose values are RON.
    ///
    /// # Errors
    ///
    /// The error names what is wrong, the file, the line, the nearest known name, and what is expected there.
    pub fn read(path: &Path, overrides: &[impl AsRef<str>]) -> Result<Self, RunError> {
        read(path, overrides)
    }

    /// Like [`read`](Self::read), but parses the given text of a file called `file`.
    ///
    /// # Errors
    ///
    /// Those of [`read`](Self::read).
    pub fn parse(file: &str, text: &str, overrides: &[impl AsRef<str>]) -> Result<Self, RunError> {
        parse(file, text, overrides)
    }

    /// Writes the run as RON, with every field.
    pub fn to_ron(&self) -> String {
        let pretty = ron::ser::PrettyConfig::new().extensions(extensions());
        // A struct of numbers, strings and lists can always be written.
        ron::ser::to_string_pretty(self, pretty).unwrap_or_default()
    }
}

fn read<T: FromRunFile>(path: &Path, overrides: &[impl AsRef<str>]) -> Result<T, RunError> {
    let failed = |reason: String| RunError::Read { path: path.into(), reason };
    let about = std::fs::metadata(path).map_err(|error| failed(error.to_string()))?;
    if !about.is_file() || about.len() > MOST_BYTES {
        return Err(failed(format!("expected a text file of at most {MOST_BYTES} bytes")));
    }
    let text = std::fs::read_to_string(path).map_err(|error| failed(error.to_string()))?;
    let text = text.trim_start_matches('\u{feff}');
    parse(&path.display().to_string(), text, overrides)
}

fn parse<T: FromRunFile>(file: &str, text: &str, overrides: &[impl AsRef<str>]) -> Result<T, RunError> {
    let mut text = text.to_string();
    let mut run: Result<T, _> = parse_text(file, &text);
    for set in overrides {
        let set = set.as_ref();
        let failed = |reason: String| RunError::Set { set: set.into(), reason };
        let changed = apply(&text, set).map_err(|reason| {
            // A file that is malformed by itself is the file's error, not the override's.
            match &run {
                Err(RunError::Syntax { .. }) if reason.starts_with("line") => None,
                _ => Some(failed(reason)),
            }
        });
        text = match changed {
            Ok(changed) => changed,
            Err(Some(error)) => return Err(error),
            Err(None) => return run,
        };
        let before = std::mem::replace(&mut run, parse_text(file, &text));
        if let (Ok(_), Err(RunError::Syntax { reason, .. })) = (before, &run) {
            let value = set.split_once('=').map_or("", |(_, value)| value);
            return Err(failed(format!("{reason}{}", quoting_hint(set, value))));
        }
    }
    let run = run?;
    match check::check(&run, file, &text) {
        Err(RunError::Value { field, expected, found, .. }) if set_by(overrides, &field).is_some() => {
            let set = set_by(overrides, &field).unwrap_or_default();
            Err(RunError::Set { set, reason: format!("`{field}` must be {expected}, found {found}") })
        }
        checked => checked.map(|()| run),
    }
}

/// Returns the override that set this field or a value that contains it.
fn set_by(overrides: &[impl AsRef<str>], field: &str) -> Option<String> {
    let part_of =
        |path: &str| field.strip_prefix(path).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'));
    let mut sets = overrides.iter().rev().map(AsRef::as_ref);
    let set = sets.find(|set| set.split_once('=').is_some_and(|(path, _)| part_of(path.trim())))?;
    Some(set.into())
}

fn apply(text: &str, set: &str) -> Result<String, String> {
    let Some((path, value)) = set.split_once('=') else {
        return Err("expected path=value, as in `batch.micro=4`".into());
    };
    ron_path::set(text, path.trim(), value).map_err(|error| format!("{error}{}", quoting_hint(set, value)))
}

/// Returns a hint for the most common mistake, a string without quotes: the shell removes one pair of them.
fn quoting_hint(set: &str, value: &str) -> String {
    let is_size = value.parse::<f64>().is_err() && value.parse::<ByteSize>().is_ok();
    let bare = is_size || value.starts_with(|first: char| first.is_alphabetic() || "./~".contains(first));
    match (bare && !value.contains(['(', '[', '"']), set.split_once('=')) {
        (true, Some((path, _))) => format!("; a text needs quotes, as in --set '{path}=\"{value}\"'"),
        _ => String::new(),
    }
}

fn parse_text<T: FromRunFile>(file: &str, text: &str) -> Result<T, RunError> {
    let options = ron::Options::default().with_default_extension(extensions());
    options.from_str(text).map_err(|SpannedError { code, span }| {
        // Our scanner knows which bracket is still open; RON itself knows the fields of a run.
        let broken = ron_path::first_mistake(text);
        RunError::Syntax {
            file: file.into(),
            line: broken.as_ref().map_or(span.start.line, |(line, _)| *line),
            reason: other_language(text)
                .or_else(|| broken.map(|(_, reason)| reason))
                .or_else(|| fraction(&code, text, span.start.line, span.start.col))
                .unwrap_or_else(|| explain(&code, text, span.start.line)),
        }
    })
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
    let is_read = before > 0 || error.to_string().starts_with("Invalid digit");
    let whole = number.starts_with(|c: char| c.is_ascii_digit() || c == '-') && is_read;
    let value: f64 = number.parse().ok().filter(|_| whole && number.contains(['.', 'e', 'E']))?;
    let fix = match value.fract() == 0.0 && value.abs() < 1e15 {
        true => format!("write it as `{value}`"),
        false => "write one".into(),
    };
    Some(format!("expected a whole number, found `{number}`: {fix}"))
}

/// Returns RON's reason with the line it concerns, or with the nearest known name if a name is unknown.
///
/// Reads the text of the error rather than its kind, because an error in a [registered](firebrick_strategies::registry)
/// recipe arrives as a text.
fn explain(error: &RonError, text: &str, line: usize) -> String {
    let told = error.to_string();
    let names: Vec<&str> = told.split('`').skip(1).step_by(2).collect();
    let is_unknown = ["Unexpected field named", "Unexpected variant named", "Unexpected enum variant named"]
        .iter()
        .any(|start| told.starts_with(start));
    if let (true, Some((before, _))) = (is_unknown, told.split_once(", expected ")) {
        let (found, known) = (names[0], &names[before.matches('`').count() / 2..]);
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
    if told.starts_with("Unexpected missing field named") {
        return format!("the field `{}` is missing", names[0]);
    }
    if told.starts_with("Unexpected duplicate field named") {
        return format!("the field `{}` is given twice", names[0]);
    }
    let place = text.lines().nth(line.saturating_sub(1)).unwrap_or_default().trim();
    let place: String = place.chars().take(80).collect();
    format!("{told}, in `{place}`")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reason(text: &str) -> String {
        DataRun::parse("run.ron", text, &[""; 0]).unwrap_err().to_string()
    }

    #[test]
    fn other_languages_are_told() {
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
    fn fractions_and_exponents_where_a_whole_number_stands() {
        for (number, fix) in [("3.5", "write one"), ("4.0", "write it as `4`"), ("1e3", "write it as `1000`")]
        {
            let text = format!("(task: CausalLm(), data: (path: \"a\", block: {number}), batch: (micro: 1))");
            let expected = format!("expected a whole number, found `{number}`: {fix}");
            assert!(reason(&text).contains(&expected), "{}", reason(&text));
        }
    }

    #[test]
    fn a_name_in_other_capitals_is_told_with_the_right_one() {
        let file = include_str!("../../../examples/tinyshakespeare.ron");
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
            let error = Run::parse("run.ron", file, &[set]).unwrap_err().to_string();
            assert!(error.contains(&format!("did you mean `{name}`?")), "{set}: {error}");
        }
    }
}
