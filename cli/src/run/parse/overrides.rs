//! Overrides of a run file's fields, from `--set` or from an option of their own.

use std::ops::Range;

use firebrick_datasets::counted;

use super::super::Run;
use super::super::from_run_file::FromRunFile;
use super::super::ron_path::{self, PathError};
use super::{Flaw, parse_text};
use crate::{Caret, RunError};
use firebrick::schedule::Shortened;

/// The option that most overrides come from.
const SET: &str = "--set ";

/// An override of a field.
#[derive(Clone, Debug)]
pub(crate) struct Override {
    /// The override as it was given, with its option.
    shown: String,
    /// Where the path begins in `shown`, if it has one.
    path_at: Option<usize>,
    /// Where the value begins in `shown`.
    value_at: usize,
    field: Field,
    /// The value, in RON.
    value: String,
    /// The field that this one replaces.
    instead_of: Option<&'static str>,
}

/// The field that is overridden.
#[derive(Clone, Debug)]
enum Field {
    Path(String),
    /// The highest rate of the schedule, whose name depends on the kind.
    Rate,
}

/// A text after an override, and where the new value is.
struct Changed {
    text: String,
    value: Range<usize>,
}

impl Override {
    /// Reads `path=value` of `--set`.
    pub fn set(text: &str) -> Result<Self, RunError> {
        Self::of_option(SET, text)
    }

    /// Reads `path=value` of an option, which `option` names with a blank behind it.
    pub fn of_option(option: &str, text: &str) -> Result<Self, RunError> {
        let shown = format!("{option}{text}");
        let Some((path, value)) = text.split_once('=') else {
            let caret = Caret::in_option(&shown, shown.len());
            let reason = "expected path=value, as in `batch.micro=4`".into();
            return Err(RunError::Set { set: shown, reason, caret });
        };
        let blanks = |text: &str| text.len() - text.trim_start().len();
        Ok(Self {
            path_at: Some(option.len() + blanks(path)),
            value_at: option.len() + path.len() + 1 + blanks(value),
            field: Field::Path(path.trim().into()),
            value: value.trim().into(),
            instead_of: None,
            shown,
        })
    }

    /// The value of an option that sets the field at `path` to `value`, instead of the other field.
    pub fn option(
        option: &str,
        given: &str,
        path: &str,
        value: String,
        instead_of: Option<&'static str>,
    ) -> Self {
        let field = Field::Path(path.into());
        let shown = format!("{option} {given}");
        Self { shown, path_at: None, value_at: option.len() + 1, field, value, instead_of }
    }

    /// `--lr`: the highest rate of the schedule, whatever its kind.
    pub fn rate(rate: f64) -> Self {
        let option = Self::option("--lr", &format!("{rate:?}"), "schedule.lr", format!("{rate:?}"), None);
        Self { field: Field::Rate, ..option }
    }

    /// Whether this override sets the field or a value that contains it.
    pub fn sets(&self, field: &str) -> bool {
        let path = self.path();
        field.strip_prefix(path).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
    }

    /// Whether this override sets more of the schedule than its highest rate, which has one of these names.
    pub fn sets_phases(&self, rate: &[&str]) -> bool {
        match (&self.field, self.path().strip_prefix("schedule")) {
            (Field::Path(_), Some(rest)) => !rest.strip_prefix('.').is_some_and(|name| rate.contains(&name)),
            _ => false,
        }
    }

    fn path(&self) -> &str {
        match &self.field {
            Field::Path(path) => path,
            Field::Rate => "schedule.lr",
        }
    }

    /// Applies the override to a text that parsed as `before`, and returns the new text and what it parses as.
    ///
    /// A value that is not RON of the field's type is taken as a text, if the field takes one: `output=runs/x`.
    pub(super) fn apply<T: FromRunFile>(
        &self,
        text: &str,
        before: &Result<T, Flaw>,
    ) -> Result<(String, Result<T, Flaw>), RunError> {
        let path = match (&self.field, before) {
            (Field::Path(path), _) => path.clone(),
            (Field::Rate, Ok(run)) => rate_path(text, run),
            (Field::Rate, Err(_)) => "schedule.lr".into(),
        };
        let text = match self.instead_of.filter(|other| ron_path::bytes_of(text, other).is_some()) {
            Some(other) => ron_path::set(text, other, "None").map_err(|error| self.path_error(&error))?,
            None => text.to_string(),
        };
        let raw = change(&text, &path, &self.value).map(|changed| {
            let run = parse_text::<T>(&changed.text);
            (changed, run)
        });
        if let Ok((changed, run @ Ok(_))) = raw {
            return Ok((changed.text, run));
        }
        let is_text = !self.value.is_empty() && !self.value.starts_with(['(', '[', '{', '"', '\'']);
        let quoted = ron::to_string(&self.value).ok().filter(|_| is_text && self.path_at.is_some());
        let mut of_text = None;
        if let Some(Ok(changed)) = quoted.map(|quoted| change(&text, &path, &quoted)) {
            let run = parse_text::<T>(&changed.text);
            // Further overrides may add what the file still lacks.
            let lacks =
                |flaw: &Flaw| flaw.reason.starts_with("the field `") && flaw.reason.ends_with("missing");
            let raw_lacks = matches!(&raw, Ok((_, Err(flaw))) if lacks(flaw));
            if !raw_lacks && run.as_ref().map_or_else(lacks, |_| true) {
                return Ok((changed.text, run));
            }
            // What is no RON value was meant as a text, such as `2G`, and the error of the text says what it lacks.
            of_text = run.err().filter(|_| ron::from_str::<ron::Value>(&self.value).is_err());
        }
        match (raw, before) {
            // A file that is malformed by itself is the file's error, not the override's.
            (Err(PathError::Syntax { .. }), Err(_)) => {
                let run = parse_text(&text);
                Ok((text, run))
            }
            (Err(error), _) => Err(self.path_error(&error)),
            (Ok((changed, Err(flaw))), Ok(_)) => {
                if let Some(Flaw { reason, .. }) = of_text {
                    return Err(self.error(self.value_at, reason));
                }
                let at = match changed.value.contains(&flaw.at) {
                    true => self.at(flaw.at - changed.value.start),
                    false => self.at_segment(&flaw.reason),
                };
                Err(self.error(at, flaw.reason))
            }
            (Ok((changed, run)), _) => Ok((changed.text, run)),
        }
    }

    /// Returns the error for a value that cannot be, at a field of this run file.
    pub fn impossible(&self, text: &str, field: &str, reason: String) -> RunError {
        let places = ron_path::bytes_of(text, field).zip(ron_path::bytes_of(text, self.path()));
        let at = places.map_or(0, |(field, value)| field.start.saturating_sub(value.start));
        self.error(self.at(at), reason)
    }

    /// Returns the place in `shown` of a byte of the value. An option's value is not its RON.
    fn at(&self, of_value: usize) -> usize {
        self.value_at + if self.path_at.is_some() { of_value } else { 0 }
    }

    /// Returns the place in `shown` of the part of the path that an error is about, or else of the value.
    fn at_segment(&self, reason: &str) -> usize {
        let named = reason.strip_prefix("unknown name `").and_then(|rest| rest.split('`').next());
        let last = self.path().rsplit('.').next().unwrap_or_default();
        match (self.path_at, named == Some(last)) {
            (Some(path_at), true) => path_at + self.path().len() - last.len(),
            _ => self.value_at,
        }
    }

    fn path_error(&self, error: &PathError) -> RunError {
        let at = match (error.place(), self.path_at) {
            (ron_path::ErrorPlace::Path(at), Some(path_at)) => path_at + at,
            (ron_path::ErrorPlace::Value(at), _) => self.at(at),
            (ron_path::ErrorPlace::Path(_), None) => self.value_at,
        };
        self.error(at, error.to_string())
    }

    fn error(&self, at: usize, reason: String) -> RunError {
        let caret = Caret::in_option(&self.shown, at);
        RunError::Set { set: self.shown.clone(), reason, caret }
    }
}

fn change(text: &str, path: &str, value: &str) -> Result<Changed, PathError> {
    let text = ron_path::set(text, path, value)?;
    let value = ron_path::bytes_of(&text, path).unwrap_or_default();
    Ok(Changed { text, value })
}

/// Returns the path of the schedule's highest rate, by the name that it has in this text.
fn rate_path<T: FromRunFile>(text: &str, run: &T) -> String {
    let names = run.rate_settings();
    let mut paths = names.iter().map(|name| format!("schedule.{name}"));
    let written = paths.find(|path| ron_path::bytes_of(text, path).is_some());
    written.unwrap_or_else(|| format!("schedule.{}", names.first().unwrap_or(&"lr")))
}

impl Run {
    /// Shortens a schedule whose phases do not end within a run that an override has shortened to `updates`, and
    /// returns a line for each of them.
    pub(crate) fn shorten_schedule(&mut self, updates: u64) -> Vec<String> {
        let (schedule, shortened) = self.schedule.shortened(updates);
        self.schedule = schedule;
        let line = |Shortened { setting, from, to }| {
            format!(
                "the schedule's `{setting}` is shortened from {from} to {}, because the run has {updates}",
                counted(to, "update")
            )
        };
        shortened.into_iter().map(line).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::run::Registries;

    const FILE: &str = r#"(
    data: (path: "a.txt", tokenizer: Characters, block: 8),
    model: Gpt(layers: 1, heads: 2, width: 8),
    optimizer: AdamW(),
    schedule: WarmupLR(warmup_max_lr: 1e-2, warmup_num_steps: 9),
    batch: (micro_tokens: 64),
    epochs: 4,
    output: "out",
)"#;

    fn parse(file: &str, overrides: &[Override]) -> Result<Run, RunError> {
        Ok(super::super::parse(Registries::built_in(), "run.ron", file, overrides)?.run)
    }

    fn set(sets: &[&str]) -> Result<Run, RunError> {
        Run::parse("run.ron", FILE, sets)
    }

    #[test]
    fn an_option_replaces_what_it_excludes() {
        let steps = Override::option("--steps", "30", "steps", "30".into(), Some("epochs"));
        let batch = Override::option("--batch", "2", "batch.micro", "2".into(), Some("batch.micro_tokens"));
        let run = parse(FILE, &[steps.clone(), batch, Override::rate(0.5)]).unwrap();
        assert_eq!((run.steps, run.epochs), (Some(30), None));
        assert_eq!((run.batch.micro, run.batch.micro_tokens), (Some(2), None));
        assert_eq!(run.schedule.peak(), 0.5);
        let epochs = Override::option("--epochs", "2", "epochs", "2".into(), Some("steps"));
        let run = parse(FILE, &[steps, epochs]).unwrap();
        assert_eq!((run.steps, run.epochs), (None, Some(2)));
        for (kind, peak) in [
            ("LRRangeTest(lr_range_test_min_lr: 1e-3, lr_range_test_step_size: 5)", 0.5),
            ("OneCycle(cycle_min_lr: 0.0, cycle_max_lr: 1.0, cycle_first_step_size: 2)", 0.5),
            ("Cosine(lr: 1.0)", 0.5),
        ] {
            let schedule = "WarmupLR(warmup_max_lr: 1e-2, warmup_num_steps: 9)";
            let run = parse(&FILE.replace(schedule, kind), &[Override::rate(0.5)]).unwrap();
            assert_eq!(run.schedule.peak(), peak, "{kind}");
        }
    }

    #[test]
    fn a_text_needs_no_quotes() {
        let run =
            set(&["data.path=in/some text.txt", "output=runs/x", "device=cuda:1", "best_by=f1"]).unwrap();
        assert_eq!(run.data.path, Some(crate::Paths::One("in/some text.txt".into())));
        assert_eq!((run.output.to_str(), run.device.as_str()), (Some("runs/x"), "cuda:1"));
        assert_eq!(run.best_by.as_deref(), Some("f1"));
        assert_eq!(
            set(&["device_budget=2GB"]).unwrap().device_budget,
            Some(firebrick::ByteSize(2_000_000_000))
        );
        // What is RON of the field's type is read as such.
        assert_eq!(set(&["best_by=None"]).unwrap().best_by, None);
        assert_eq!(set(&["output=\"b\""]).unwrap().output.to_str(), Some("b"));
        // A file may lack what overrides add.
        let lacking = FILE.replace("path: \"a.txt\", ", "").replace("    output: \"out\",\n", "");
        let run = Run::parse("run.ron", &lacking, &["data.path=b.txt", "output=x"]).unwrap();
        assert_eq!(run.output.to_str(), Some("x"));
        for wrong in ["steps=many", "data.block=wide", "strategies=[Clip", "optimizer=Foo"] {
            set(&[wrong]).unwrap_err();
        }
    }

    #[test]
    fn the_caret_of_an_override_stands_below_its_mistake() {
        for (wrong, under) in [
            ("batch.mirco=4", "mirco=4"),
            ("seed=1)", ")"),
            ("strategies=[Clip(nrom: 1.0)]", "nrom: 1.0)]"),
            ("strategies.3=Amp(bf16)", "strategies.3=Amp(bf16)"),
            ("model.layers.x=1", "x=1"),
            ("epochs=0", "0"),
            ("model=Gpt(layers: 0, heads: 2, width: 8)", "0, heads: 2, width: 8)"),
            ("seed", ""),
        ] {
            let error = set(&[wrong]).unwrap_err().to_string();
            let lines: Vec<_> = error.lines().collect();
            let [.., shown, caret] = lines.as_slice() else { panic!("{error}") };
            let column = caret.find('^').unwrap();
            assert_eq!(&shown[column..], under, "{error}");
        }
    }

    #[test]
    fn a_warmup_is_shortened_only_for_a_length_of_the_command_line() {
        let file = FILE.replace("epochs: 4", "steps: 40");
        let steps = |sets: &[&str]| Run::parse("run.ron", &file, sets);
        let run = steps(&["steps=5"]).unwrap();
        assert_eq!(run.schedule.warmup_updates(5), 0);
        // A warmup that fits stays, and one that was asked for too is refused.
        assert_eq!(steps(&["steps=10"]).unwrap().schedule.warmup_updates(10), 9);
        assert!(steps(&["steps=5", "schedule.warmup_num_steps=7"]).is_err());
        assert_eq!(steps(&["schedule.warmup_max_lr=0.5", "steps=5"]).unwrap().schedule.warmup_updates(5), 0);
        assert!(Run::parse("run.ron", &file.replace("40", "5"), &[""; 0]).is_err());
    }
}
