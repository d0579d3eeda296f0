//! Both files together: if a ds_config says "auto", Transformers' Trainer takes the training argument.

use std::fmt::Debug;

use super::source::{Setting, Source};
use super::{ImportError, Outcome};

/// The files, and the settings of the command line.
#[derive(Debug)]
pub(super) struct Inputs {
    pub ds: Source,
    /// The training arguments.
    pub args: Option<Source>,
    /// The requested number of ranks.
    pub ranks: Option<u64>,
    /// Whether there are only training arguments, so that `ds` is what Trainer computes without DeepSpeed.
    pub alone: bool,
}

/// A value, or a suggestion that the user must check.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Known<T> {
    pub value: T,
    /// Whether the files leave the value open.
    pub suggested: bool,
}

impl<T> Known<T> {
    pub fn certain(value: T) -> Self {
        Self { value, suggested: false }
    }

    pub fn suggested(value: T) -> Self {
        Self { value, suggested: true }
    }

    pub fn map<U>(self, then: impl FnOnce(T) -> U) -> Known<U> {
        Known { value: then(self.value), suggested: self.suggested }
    }
}

/// Formats a number as in a run file.
pub(super) fn shown(number: f64) -> String {
    format!("{number:?}")
}

impl Inputs {
    /// Records the outcome of a training argument.
    pub fn settle_argument(&mut self, name: &str, outcome: Outcome) {
        if let Some(args) = &mut self.args {
            args.settle(name, outcome);
        }
    }

    /// Reads a training argument; if it is missing from given training arguments, returns the default of Transformers.
    pub fn argument<T>(
        &self,
        read: impl Fn(&Source) -> Result<Setting<T>, ImportError>,
        name: &str,
        default: T,
    ) -> Result<Option<T>, ImportError> {
        let Some(args) = &self.args else { return Ok(None) };
        match read(args)? {
            Setting::Is(value) => Ok(Some(value)),
            Setting::Missing => Ok(Some(default)),
            Setting::Auto => {
                Err(args.wrong(name, "a value: the training arguments are what fills in \"auto\""))
            }
        }
    }

    /// Reads the number at `path` of the ds_config. If it is "auto", the training argument applies; without training
    /// arguments, Transformers' default is suggested. `to` describes the outcome, with `{}` for the number.
    ///
    /// # Errors
    ///
    /// A value is invalid, or both are given and differ.
    pub fn number(
        &mut self,
        path: &str,
        (argument, default): (&'static str, f64),
        (expected, holds): (&str, fn(f64) -> bool),
        to: &str,
    ) -> Result<Option<Known<f64>>, ImportError> {
        let given = self.ds.number(path, expected, holds)?;
        let read = |args: &Source| args.number(argument, expected, holds);
        self.merged(path, given, argument, default, read, |value| to.replace("{}", &shown(*value)))
    }

    /// Like [`number`](Self::number), for integers.
    pub fn count(
        &mut self,
        path: &str,
        (argument, default): (&'static str, u64),
        (least, most): (u64, u64),
        to: impl Fn(&u64) -> String,
    ) -> Result<Option<Known<u64>>, ImportError> {
        let given = self.ds.count(path, least, most)?;
        self.merged(path, given, argument, default, |args| args.count(argument, least, most), to)
    }

    /// Merges the values of both files, starting from the value at `path` of the ds_config.
    pub fn merged<T: Clone + Debug + PartialEq>(
        &mut self,
        path: &str,
        given: Setting<T>,
        argument: &'static str,
        default: T,
        read: impl Fn(&Source) -> Result<Setting<T>, ImportError>,
        to: impl Fn(&T) -> String,
    ) -> Result<Option<Known<T>>, ImportError> {
        match given {
            Setting::Missing => Ok(None),
            Setting::Is(value) => {
                if let Some(args) = &self.args
                    && let Setting::Is(other) = read(args)?
                    && other != value
                {
                    return Err(self.differ(path, argument));
                }
                self.ds.settle(path, Outcome::Taken(to(&value)));
                self.settle_argument(argument, Outcome::Taken(to(&value)));
                Ok(Some(Known::certain(value)))
            }
            Setting::Auto => match self.argument(read, argument, default.clone())? {
                Some(value) => {
                    self.ds.settle(path, Outcome::Taken(format!("{}, by `{argument}`", to(&value))));
                    self.settle_argument(argument, Outcome::Taken(to(&value)));
                    Ok(Some(Known::certain(value)))
                }
                None => {
                    let note = format!("{}, Transformers' default of `{argument}`", to(&default));
                    self.ds.settle(path, Outcome::FillIn(note));
                    Ok(Some(Known::suggested(default)))
                }
            },
        }
    }

    /// Returns the error for two files that contradict each other.
    pub fn differ(&self, path: &str, argument: &'static str) -> ImportError {
        let value = |source: &Source, path: &str| source.get(path).map(|field| field.value.to_string());
        let other = self.args.as_ref().and_then(|args| value(args, argument));
        ImportError::Differ {
            file: self.ds.file().into(),
            line: self.ds.get(path).map_or(1, |field| field.line),
            field: path.into(),
            argument,
            values: Box::new((value(&self.ds, path).unwrap_or_default(), other.unwrap_or_default())),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn inputs(ds: &str, args: Option<&str>) -> Inputs {
        let args = args.map(|text| Source::parse("args.json", text).unwrap());
        Inputs { ds: Source::parse("ds.json", ds).unwrap(), args, ranks: None, alone: false }
    }

    fn lr(inputs: &mut Inputs) -> Result<Option<Known<f64>>, String> {
        let range = ("above 0", (|lr| lr > 0.0) as fn(f64) -> bool);
        inputs.number("lr", ("learning_rate", 5e-5), range, "lr: {}").map_err(|error| error.to_string())
    }

    #[test]
    fn auto_is_the_argument_or_its_default_or_left_open() {
        let auto = "{\"lr\": \"auto\"}";
        let given = lr(&mut inputs(auto, Some("{\"learning_rate\": 1e-3}")));
        assert_eq!(given, Ok(Some(Known::certain(1e-3))));
        assert_eq!(lr(&mut inputs(auto, Some("{}"))), Ok(Some(Known::certain(5e-5))));
        let mut alone = inputs(auto, None);
        assert_eq!(lr(&mut alone), Ok(Some(Known::suggested(5e-5))));
        let note = "lr: 5e-5, Transformers' default of `learning_rate`".into();
        assert_eq!(alone.ds.fields[0].outcome, Some(Outcome::FillIn(note)));
        assert_eq!(lr(&mut inputs("{}", Some("{\"learning_rate\": 1e-3}"))), Ok(None));
    }

    #[test]
    fn a_different_argument_is_refused_and_a_default_is_not() {
        let one = "{\"lr\": 0.001}";
        assert_eq!(lr(&mut inputs(one, Some("{}"))), Ok(Some(Known::certain(1e-3))));
        assert_eq!(lr(&mut inputs(one, Some("{\"learning_rate\": 1e-3}"))), Ok(Some(Known::certain(1e-3))));
        assert_eq!(
            lr(&mut inputs(one, Some("{\"learning_rate\": 1e-4}"))).unwrap_err(),
            "ds.json:1: `lr` is 0.001, but `learning_rate` of the training arguments is 0.0001: \
             make them the same, or let the first be \"auto\""
        );
        let auto = lr(&mut inputs("{\"lr\": \"auto\"}", Some("{\"learning_rate\": \"auto\"}"))).unwrap_err();
        assert!(auto.contains("the training arguments are what fills in"), "{auto}");
    }
}
