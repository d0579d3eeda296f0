//! Formats the outcomes as a table.

use super::Row;
use super::json::shortened;

/// The most characters of the path column; a longer path shifts the rest of its line.
const PATH: usize = 56;

/// The most characters of a value.
const VALUE: usize = 20;

/// Formats all rows by file, with a summary.
pub(super) fn table(rows: &[Row]) -> String {
    let width = |cells: &dyn Fn(&Row) -> String, most| {
        rows.iter().map(|row| cells(row).chars().count()).filter(|width| *width <= most).max().unwrap_or(0)
    };
    let value = |row: &Row| shortened(&row.value, VALUE);
    let (paths, values) = (width(&|row| row.path.clone(), PATH), width(&value, usize::MAX));
    let (mut text, mut file) = (String::new(), "");
    for row in rows {
        if row.file != file {
            file = &row.file;
            text += &format!("{file:?}\n").replace('"', "");
        }
        text += &format!(
            "  {:<paths$}  {:<values$}  {:<13}  {}\n",
            row.path,
            value(row),
            row.outcome.name(),
            row.outcome.explained()
        );
    }
    text + &summary(rows)
}

/// Summarizes the outcomes, as in `9 fields: 5 taken, 3 without effect, 1 not supported`.
fn summary(rows: &[Row]) -> String {
    let counts = [
        ("taken", "taken"),
        ("no effect", "without effect"),
        ("fill in", "to fill in"),
        ("not supported", "not supported"),
        ("unknown", "unknown"),
    ]
    .map(|(name, shown)| (rows.iter().filter(|row| row.outcome.name() == name).count(), shown));
    let counted = counts.into_iter().filter(|(count, _)| *count > 0);
    let counts: Vec<_> = counted.map(|(count, shown)| format!("{count} {shown}")).collect();
    let fields = if rows.len() == 1 { "field" } else { "fields" };
    match counts.is_empty() {
        true => format!("{} {fields}\n", rows.len()),
        false => format!("{} {fields}: {}\n", rows.len(), counts.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::import::Outcome;

    #[test]
    fn rows_stand_below_their_file_and_are_counted() {
        let row = |file: &str, path: &str, value: &str, outcome| {
            let (file, path, value) = (file.into(), path.into(), value.into());
            Row { file, line: 1, path, value, outcome }
        };
        let rows = [
            row("ds.json", "bf16.enabled", "true", Outcome::taken("strategies: Amp(bf16)")),
            row("ds.json", "steps_per_print", "2000", Outcome::no_effect("all are shown")),
            row("args.json", "adafactor", "true", Outcome::refused("AdamW")),
            row("args.json", "lerning_rate", "1e-3", Outcome::Unknown(Some("learning_rate".into()))),
            row("args.json", "qwertz", "\"\u{1b}[2J\"", Outcome::Unknown(None)),
        ];
        let expected = "\
ds.json
  bf16.enabled     true         taken          strategies: Amp(bf16)
  steps_per_print  2000         no effect      all are shown
args.json
  adafactor        true         not supported  instead: AdamW
  lerning_rate     1e-3         unknown        did you mean `learning_rate`?
  qwertz           \"\\u{1b}[2J\"  unknown        no field of this name is known: take it out
5 fields: 1 taken, 1 without effect, 1 not supported, 2 unknown
";
        assert_eq!(table(&rows), expected);
        assert_eq!(table(&[]), "0 fields\n");
    }
}
