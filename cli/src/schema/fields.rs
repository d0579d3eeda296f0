//! The meaning of fields, from the tables of the guide's page about the run file.

use super::probe::Step;

const PAGE: &str = include_str!("../../../docs/run_file.md");

/// Returns what the guide says about the field at a path, and its default.
pub(super) fn meaning(path: &[Step]) -> Option<String> {
    let mut names = Vec::new();
    for step in path {
        match step {
            Step::Field(name) => names.push(*name),
            Step::Given => {}
            _ => return None,
        }
    }
    let field = names.join(".");
    // The meaning stands beside the option and not also within it.
    if field.is_empty() || path.last() == Some(&Step::Given) {
        return None;
    }
    PAGE.lines().filter_map(row).find(|(fields, ..)| fields.contains(&field)).map(|(_, meaning, default)| {
        match default.is_empty() {
            true => meaning,
            false => format!("{meaning}. Default: {default}"),
        }
    })
}

/// Reads a row of a table: its fields, their meaning, and their default. A row may have several fields, of which the
/// later ones are written without the struct: `data.mix` and `mix_until`.
fn row(line: &str) -> Option<(Vec<String>, String, String)> {
    let mut cells =
        line.strip_prefix("| ")?.split(" | ").map(|cell| cell.trim().trim_end_matches('|').trim());
    let (first, meaning, default) = (cells.next()?, cells.next()?, cells.next().unwrap_or_default());
    let fields: Vec<String> = first.split('`').skip(1).step_by(2).map(str::to_owned).collect();
    let is_path = |field: &String| {
        !field.is_empty()
            && field.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || "._".contains(c))
    };
    (!fields.is_empty() && fields.iter().all(is_path)).then(|| (fields, meaning.into(), default.into()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_read_as_they_are_written() {
        let read = row("| `steps` or `epochs` | length of the run | 3 |").unwrap();
        assert_eq!(read, (vec!["steps".into(), "epochs".into()], "length of the run".into(), "3".into()));
        assert_eq!(row("| `data.path` | a file | |").unwrap().2, "");
        assert_eq!(row("| `AdamW(betas)` | (0.9, 0.999) |"), None);
        assert_eq!(row("|---|---|"), None);
        let given = [Step::Field("batch"), Step::Field("micro")];
        assert_eq!(meaning(&given).as_deref(), Some("samples of a micro-batch"));
        assert_eq!(meaning(&[Step::Variant("AdamW"), Step::Field("betas")]), None);
    }
}
