//! Which checkpoint a run continues from.

use std::convert::Infallible;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use firebrick_checkpoints::{Folder, Saved};

use super::ResumeError;

/// The checkpoint to continue from.
///
/// ```
/// use firebrick::Resume;
///
/// assert_eq!("latest".parse(), Ok(Resume::Latest));
/// assert_eq!("step-1000".parse(), Ok(Resume::Step(1000)));
/// assert_eq!("runs/a/checkpoints/step-00001000".parse(), Ok(Resume::Path("runs/a/checkpoints/step-00001000".into())));
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Resume {
    /// The newest complete checkpoint in the output folder.
    Latest,
    /// The newest sound checkpoint in the output folder. If nothing was saved there yet, the run starts from the
    /// beginning. Use this for a job that may be restarted.
    ///
    /// Checkpoints that are damaged or in an unknown format are skipped with a warning. If all are, that is an error:
    /// a run never starts over next to its own checkpoints.
    Auto,
    /// The checkpoint in the output folder that was saved after this many updates.
    Step(u64),
    /// A checkpoint in another folder, or the newest checkpoint of the run with this output folder.
    Path(PathBuf),
}

impl FromStr for Resume {
    type Err = Infallible;

    /// Parses `latest`, `auto` or `step-N`; anything else is a path.
    fn from_str(text: &str) -> Result<Self, Infallible> {
        let step = text.strip_prefix("step-").and_then(|step| step.parse().ok());
        Ok(match (text, step) {
            ("latest", _) => Self::Latest,
            ("auto", _) => Self::Auto,
            (_, Some(step)) => Self::Step(step),
            _ => Self::Path(text.into()),
        })
    }
}

impl Resume {
    /// Finds the checkpoint's folder; `None` if the run starts from the beginning.
    pub fn find(&self, output: &Path) -> Result<Option<PathBuf>, ResumeError> {
        let Self::Path(path) = self else { return Ok(self.find_own(output)?.map(|saved| saved.path)) };
        let of_run = path.join(FOLDER);
        match of_run.is_dir() || of_run.is_symlink() {
            true => Ok(Some(newest(of_run)?.path)),
            false if path.exists() => require_checkpoint(path).map(|()| Some(path.clone())),
            false => Err(ResumeError::NoPath { path: path.clone(), nearest: nearest_word(path) }),
        }
    }

    /// The `tokenizer.json` in the folder of the checkpoint's run, if it exists.
    pub fn tokenizer(&self, output: &Path) -> Option<PathBuf> {
        // Opening the checkpoint reports whatever is wrong with it.
        let checkpoint = self.find(output).ok()??;
        // A path of fewer than three components names its parent folders only once it is canonical.
        let whole = match checkpoint.components().count() {
            ..3 => checkpoint.canonicalize().ok()?,
            _ => checkpoint,
        };
        let file = whole.parent()?.parent()?.join("tokenizer.json");
        file.is_file().then_some(file)
    }

    /// The checkpoint in the output folder; `None` if it is to be found elsewhere.
    pub(super) fn find_own(&self, output: &Path) -> Result<Option<Saved>, ResumeError> {
        let own = output.join(FOLDER);
        match self {
            Self::Path(_) => Ok(None),
            Self::Latest => newest(own).map(Some),
            Self::Auto => match newest(own) {
                Ok(saved) => Ok(Some(saved)),
                Err(ResumeError::NoCheckpoint { .. }) => Ok(None),
                Err(error) => Err(error),
            },
            Self::Step(step) => {
                let mut saved = Folder::new(&own).list()?;
                match saved.iter().position(|saved| saved.step == *step) {
                    Some(place) => Ok(Some(saved.swap_remove(place))),
                    None => {
                        let steps = saved.iter().map(|saved| saved.step).collect();
                        Err(ResumeError::NoStep { folder: own, step: *step, steps })
                    }
                }
            }
        }
    }
}

/// Rejects a path that names neither a checkpoint nor one that is damaged.
fn require_checkpoint(path: &Path) -> Result<(), ResumeError> {
    let found = match path.is_dir() {
        true if path.join("manifest.json").exists() => return Ok(()),
        // Opening it reports what is missing.
        true if path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("step-")) => {
            return Ok(());
        }
        true if path.file_name().is_some_and(|name| name == FOLDER) => {
            "a run's folder of checkpoints: name the run's output folder, or one of the checkpoints"
        }
        true => "a folder that is not a checkpoint, and has no folder `checkpoints`",
        false => "a file",
    };
    Err(ResumeError::NotCheckpoint { path: path.into(), found })
}

/// Returns the word that is meant by a mistyped one.
fn nearest_word(path: &Path) -> Option<String> {
    let text = path.to_str()?.to_lowercase();
    let digits = text.trim_start_matches(|c: char| !c.is_ascii_digit());
    let step = format!("step-{digits}");
    let words = ["latest", "auto", step.as_str()].map(|word| (strsim::jaro_winkler(&text, word), word));
    let (alike, word) = words.into_iter().max_by(|a, b| a.0.total_cmp(&b.0))?;
    // The same word again is no help: its number is too large for a number of updates.
    (alike > 0.8 && !word.ends_with('-') && word != path.to_str()?).then(|| word.to_string())
}

/// The folder of a run's checkpoints, within its output folder.
pub const FOLDER: &str = "checkpoints";

/// The newest complete checkpoint, without verifying its checksums.
fn newest(folder: PathBuf) -> Result<Saved, ResumeError> {
    let all = Folder::new(&folder);
    match (all.latest()?, all.incomplete()?) {
        (Some(newest), _) => Ok(newest),
        (None, problems) if problems.is_empty() => Err(ResumeError::NoCheckpoint { folder }),
        (None, problems) => {
            let problems = problems.iter().map(ToString::to_string).collect();
            Err(ResumeError::NoneSound { folder, problems })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mistyped_word_has_the_nearest_one_in_its_error() {
        for (given, meant) in [
            ("stpe-4", "(did you mean `step-4`?)"),
            ("step4", "(did you mean `step-4`?)"),
            ("Latest", "(did you mean `latest`?)"),
            ("lates", "(did you mean `latest`?)"),
            ("atuo", "(did you mean `auto`?)"),
            ("runs/a", "nothing here to resume from: write `latest`"),
            ("step-99999999999999999999", "nothing here to resume from: write `latest`"),
        ] {
            let resume: Resume = given.parse().unwrap_or_else(|never| match never {});
            let error = resume.find(Path::new("run")).unwrap_err().to_string();
            assert!(error.contains(meant), "{error}");
        }
    }

    #[test]
    fn a_path_without_a_checkpoint_is_refused_with_what_is_there() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        for name in ["empty", "own/checkpoints"] {
            std::fs::create_dir_all(at(name)).unwrap();
        }
        std::fs::write(at("file"), "").unwrap();
        for (name, said) in [
            ("empty", "found a folder that is not a checkpoint, and has no folder `checkpoints`"),
            ("own/checkpoints", "name the run's output folder"),
            ("file", "found a file"),
        ] {
            let error = Resume::Path(at(name)).find(Path::new("run")).unwrap_err().to_string();
            assert!(error.contains(said) && error.contains("expected a checkpoint"), "{name}: {error}");
        }
        let error = Resume::Path(at("own")).find(Path::new("run")).unwrap_err();
        assert!(matches!(error, ResumeError::NoCheckpoint { .. }), "{error}");
    }
}
