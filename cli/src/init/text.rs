//! The text of a drafted run file.

use std::path::Path;

use crate::Suggestion;

/// What a drafted run file has.
pub(super) struct Draft<'a> {
    pub task: &'a str,
    pub path: &'a Path,
    /// Whether the path is one that the user must replace.
    pub is_placeholder: bool,
    pub valid: Option<&'a Path>,
    pub format: Option<&'a str>,
    /// Bytes of the data.
    pub bytes: u64,
    /// The folder of the model.
    pub folder: Option<&'a Path>,
    /// The entry of a fresh model, if there is no folder.
    pub fresh: String,
    pub suggestion: &'a Suggestion,
}

/// A field of a RON struct, with its comment.
struct Line<'a>(&'a str, String, String);

impl Draft<'_> {
    /// Returns the text.
    pub fn text(&self) -> String {
        let name = snake_case(self.task);
        let mut text = format!(
            "// A run of `{}`, written by `firebrick init`. Save it as run.ron, and:\n\
             //   firebrick data run.ron      shows the first batches as the model sees them\n\
             //   firebrick plan run.ron      says what the run needs, and whether that fits\n\
             //   firebrick train run.ron     trains it; `--steps 3` tries it\n\
             // `firebrick schema` lists all fields.\n(\n",
            self.task
        );
        let settings = self.suggestion.task.iter().map(|(name, value)| format!("{name}: {value}"));
        let settings = settings.collect::<Vec<_>>().join(", ");
        lines(&mut text, 4, [Line("task", format!("{}({settings})", self.task), String::new())]);
        text += "    data: (\n";
        lines(&mut text, 8, self.data());
        text += "    ),\n";
        lines(&mut text, 4, self.training());
        text += "    // In any order. `Amp(bf16)` saves memory, and on most GPUs time.\n";
        lines(
            &mut text,
            4,
            [
                Line("strategies", "[Clip(norm: 1.0)]".into(), String::new()),
                Line("output", quoted(Path::new(&format!("runs/{name}"))), "an earlier run is kept".into()),
            ],
        );
        text + ")\n"
    }

    fn data(&self) -> Vec<Line<'_>> {
        let line = |name, value: String, note: &str| Line(name, value, note.into());
        let mark = if self.is_placeholder { "fill in: your data" } else { "" };
        let mut data = vec![line("path", quoted(self.path), mark)];
        data.extend(self.format.map(|format| line("format", format.into(), "")));
        data.push(match self.valid {
            Some(valid) => line("valid", quoted(valid), ""),
            None => line("valid_fraction", "0.1".into(), "the end of the data, for evaluation"),
        });
        match self.folder {
            Some(folder) => data.push(line("tokenizer", format!("File({})", quoted(folder)), "")),
            None => {
                let vocabulary = match self.bytes {
                    0..100_000 => 400,
                    100_000..5_000_000 => 1024,
                    5_000_000..100_000_000 => 8192,
                    _ => 32_000,
                };
                let note = "trained on the data before the model is";
                data.push(line("tokenizer", format!("Bpe(vocabulary: {vocabulary})"), note));
                data.extend(self.suggestion.special.map(|special| line("special", special.into(), "")));
            }
        }
        data.extend(
            self.suggestion.data.iter().map(|(name, value, note)| Line(name, value.clone(), note.clone())),
        );
        data
    }

    fn training(&self) -> Vec<Line<'_>> {
        let line = |name, value: &str, note: &str| Line(name, value.into(), note.into());
        let (model, lr) = match self.folder {
            Some(folder) => (line("model", &format!("Pretrained({})", quoted(folder)), ""), "5e-5"),
            None => (line("model", &self.fresh, "fresh weights; small, for a first try"), "1e-3"),
        };
        let mut lines = vec![
            model,
            line("optimizer", "AdamW(weight_decay: 0.01)", ""),
            line("schedule", &format!("Linear(lr: {lr}, warmup: Ratio(0.1))"), "a tenth of the run warms up"),
            line("batch", "(micro: 16)", "samples of a micro-batch; `accumulate: 4` makes an update of four"),
            line("epochs", "3", "passes over the data; or `steps`, updates"),
        ];
        let best = self.suggestion.best_by;
        lines.extend(best.map(|metric| line("best_by", &format!("{metric:?}"), "selects the best model")));
        lines.push(line(
            "checkpoints",
            "(every: 500)",
            "`firebrick train run.ron --resume auto` continues from one",
        ));
        lines
    }
}

fn lines<'a>(text: &mut String, indent: usize, fields: impl IntoIterator<Item = Line<'a>>) {
    for Line(name, value, note) in fields {
        let note = if note.is_empty() { note } else { format!(" // {note}") };
        *text += &format!("{:indent$}{name}: {value},{note}\n", "");
    }
}

/// Returns a path as a RON string.
fn quoted(path: &Path) -> String {
    format!("{:?}", path.to_string_lossy())
}

fn snake_case(name: &str) -> String {
    let mut snake = String::new();
    for c in name.chars() {
        if c.is_uppercase() && !snake.is_empty() {
            snake.push('_');
        }
        snake.extend(c.to_lowercase());
    }
    snake
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tasks_have_folders_of_their_names() {
        assert_eq!(snake_case("TokenClassification"), "token_classification");
    }
}
