//! Reads the fields of a TOML file with their lines.

use serde::Deserialize;
use serde_json::Value as Json;
use toml::Spanned;
use toml::de::{DeTable, DeValue, Error, ValueDeserializer};

use super::ImportError;
use super::json::{Field, LONGEST_NAME, MOST_FIELDS, joined};

/// Returns the fields of the tables in a file, in their order. A table with fields is no field of its own.
///
/// # Errors
///
/// The file is not TOML, a name is too long, or there are too many fields.
pub(super) fn fields(file: &str, text: &str) -> Result<Vec<Field>, ImportError> {
    let table = DeTable::parse(text).map_err(|error| syntax(file, text, &error))?;
    let lines = text.match_indices('\n').map(|(at, _)| at).collect();
    let mut reader = Reader { file, text, lines, fields: Vec::new() };
    reader.entries(table.into_inner(), "")?;
    reader.fields.sort_by_key(|(at, _)| *at);
    Ok(reader.fields.into_iter().map(|(_, field)| field).collect())
}

fn syntax(file: &str, text: &str, error: &Error) -> ImportError {
    let before = &text[..error.span().map_or(0, |span| text.floor_char_boundary(span.start))];
    let line = 1 + before.matches('\n').count();
    let column = 1 + before.rsplit('\n').next().unwrap_or_default().chars().count();
    ImportError::Syntax { file: file.into(), line, column, reason: format!("not TOML: {}", error.message()) }
}

struct Reader<'a> {
    file: &'a str,
    text: &'a str,
    /// Where lines end.
    lines: Vec<usize>,
    /// Each with the place of its name.
    fields: Vec<(usize, Field)>,
}

impl Reader<'_> {
    fn entries(&mut self, table: DeTable, parent: &str) -> Result<(), ImportError> {
        for (name, value) in table {
            let at = name.span().start;
            let line = 1 + self.lines.partition_point(|end| *end < at);
            let beyond =
                |most, what| ImportError::NoConfiguration { file: self.file.into(), line, most, what };
            if name.get_ref().chars().nth(LONGEST_NAME).is_some() {
                return Err(beyond(LONGEST_NAME, "characters in a name"));
            }
            if self.fields.len() == MOST_FIELDS {
                return Err(beyond(MOST_FIELDS, "fields"));
            }
            let path = joined(parent, name.get_ref());
            let span = value.span();
            let value = match value.into_inner() {
                DeValue::Table(within) if !within.is_empty() => {
                    self.entries(within, &path)?;
                    continue;
                }
                DeValue::Datetime(time) => Json::String(time.to_string()),
                other => Json::deserialize(ValueDeserializer::from(Spanned::new(span, other)))
                    .map_err(|error| syntax(self.file, self.text, &error))?,
            };
            self.fields.push((at, Field { path, line, value, outcome: None }));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn error(text: &str) -> String {
        fields("train.toml", text).unwrap_err().to_string()
    }

    #[test]
    fn each_field_has_the_line_of_its_name() {
        let text =
            "# a comment\n[b]\nd = 1_000\n\n[a.c]\n\"x.y\" = [1,\n 2]\nt = 2026-11-30\nempty = {}\n[e]\n";
        let fields = fields("train.toml", text).unwrap();
        let fields: Vec<_> =
            fields.iter().map(|it| (it.path.as_str(), it.line, it.value.to_string())).collect();
        let expected = [
            ("b.d", 3, "1000"),
            ("a.c.\"x.y\"", 6, "[1,2]"),
            ("a.c.t", 8, "\"2026-11-30\""),
            ("a.c.empty", 9, "{}"),
            ("e", 10, "{}"),
        ];
        assert_eq!(fields, expected.map(|(path, line, value)| (path, line, value.to_string())));
    }

    #[test]
    fn an_error_has_its_line_and_column() {
        let found = error("[parallelism]\ntensor_parallel_degree = two\n");
        assert!(found.starts_with("train.toml:2:26: not TOML: "), "{found}");
        assert!(
            error("a = 1\na = 2").starts_with("train.toml:2:1: not TOML: duplicate key"),
            "{}",
            error("a = 1\na = 2")
        );
    }

    #[test]
    fn depth_and_number_are_bounded() {
        assert!(error(&format!("a = {}", "[".repeat(500_000))).contains("not TOML"));
        assert!(error(&format!("{}a = 1", "a.".repeat(500_000))).contains("recursion limit"));
        let many: String = (0..=MOST_FIELDS).map(|field| format!("f{field} = 0\n")).collect();
        assert!(error(&many).contains("expected a configuration of at most 5000 fields"));
        assert!(error(&format!("{} = 0", "e".repeat(201))).contains("at most 200 characters in a name"));
        assert!(error("a = 99999999999999999999").contains("not TOML"));
    }
}
