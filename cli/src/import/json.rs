//! Reads the fields of a JSON file with their lines, without losing any.

use std::collections::HashSet;

use serde_json::Value as Json;

use super::{ImportError, Outcome};
use crate::run::ron_scan::{self, Group, Shape, Value};

/// A limit far above any configuration. So few fields can be searched one by one.
pub(super) const MOST_FIELDS: usize = 5000;

/// The most characters of a field name, which paths repeat.
pub(super) const LONGEST_NAME: usize = 200;

/// A value without fields of its own: text, a number, a list, or an empty object.
#[derive(Debug)]
pub(super) struct Field {
    pub path: String,
    pub line: usize,
    pub value: Json,
    /// `None` until an outcome is recorded.
    pub outcome: Option<Outcome>,
}

/// Returns the fields of the object in a file. An object with fields is no field of its own.
///
/// # Errors
///
/// The file is not JSON or no object, a name occurs twice in an object, or there are too many fields.
pub(super) fn fields(file: &str, text: &str) -> Result<Vec<Field>, ImportError> {
    let text = text.trim_start_matches('\u{feff}');
    let json: Json = serde_json::from_str(text).map_err(|error| syntax(file, text, &error))?;
    // Brackets, separators and strings of JSON are those of RON.
    let (Json::Object(_), Ok(Value { shape: Shape::Group(group), .. })) = (&json, ron_scan::lone_value(text))
    else {
        return Err(ImportError::Value {
            file: file.into(),
            line: 1,
            field: "the whole file".into(),
            expected: "an object, `{..}`".into(),
            found: shortened(&json.to_string(), 40),
        });
    };
    let mut reader = Reader { file, text, at: 0, line: 1, names: 0, fields: Vec::new() };
    reader.entries(&group, "", false)?;
    Ok(reader.fields)
}

fn syntax(file: &str, text: &str, error: &serde_json::Error) -> ImportError {
    let (line, column) = (error.line().max(1), error.column().max(1));
    let said = error.to_string();
    let said = said.rsplit_once(" at line ").map_or(said.as_str(), |(said, _)| said);
    let begun = text.lines().nth(line - 1).unwrap_or_default().trim_start();
    let hint = match begun.starts_with(['/', '#']) || begun.contains(" //") || begun.contains(" #") {
        true => "; JSON has no comments, although DeepSpeed reads them: take them out",
        false => "",
    };
    ImportError::Syntax { file: file.into(), line, column, reason: format!("not JSON: {said}{hint}") }
}

/// Returns the path of a field in an object. A name that could be mistaken for a path is quoted.
pub(super) fn joined(path: &str, name: &str) -> String {
    let is_plain = |c: char| c.is_alphanumeric() || "_-/@+".contains(c);
    let name = match !name.is_empty() && name.chars().all(is_plain) {
        true => name.to_string(),
        false => format!("{name:?}"),
    };
    if path.is_empty() { name } else { format!("{path}.{name}") }
}

/// Returns the beginning of a value, with control characters escaped for the terminal.
pub(super) fn shortened(json: &str, most: usize) -> String {
    let shown = |text: &str| -> String {
        text.chars()
            .flat_map(|c| if c.is_control() { c.escape_default().collect() } else { vec![c] })
            .collect()
    };
    match json.char_indices().nth(most) {
        None => shown(json),
        Some((end, _)) => shown(&json[..end]) + "...",
    }
}

struct Reader<'a> {
    file: &'a str,
    text: &'a str,
    /// The place up to which lines are counted.
    at: usize,
    /// The line there.
    line: usize,
    /// Names so far.
    names: usize,
    fields: Vec<Field>,
}

impl Reader<'_> {
    /// Reads the entries of an object or a list. What is within a list belongs to the list's field.
    fn entries(&mut self, group: &Group, parent: &str, in_list: bool) -> Result<(), ImportError> {
        let mut names = HashSet::new();
        for entry in &group.entries {
            let mut path = parent.to_string();
            if let Some(key) = &entry.key {
                let name: String = serde_json::from_str(&self.text[key.span.clone()]).unwrap_or_default();
                self.line += self.text[self.at..key.span.start].matches('\n').count();
                (self.at, self.names, path) = (key.span.start, self.names + 1, joined(parent, &name));
                let (file, line) = (self.file.to_string(), self.line);
                if name.chars().nth(LONGEST_NAME).is_some() {
                    let what = "characters in a name";
                    return Err(ImportError::NoConfiguration { file, line, most: LONGEST_NAME, what });
                }
                if self.names > MOST_FIELDS {
                    return Err(ImportError::NoConfiguration {
                        file,
                        line,
                        most: MOST_FIELDS,
                        what: "fields",
                    });
                }
                if !names.insert(name) {
                    return Err(ImportError::Twice { file, line, field: path });
                }
            }
            let value = &entry.value;
            let within = match &value.shape {
                Shape::Group(within) if !within.entries.is_empty() => Some(within),
                _ => None,
            };
            if !in_list && within.is_none_or(|within| within.close == ']') {
                let value = serde_json::from_str(&self.text[value.span.clone()]).unwrap_or_default();
                self.fields.push(Field { path: path.clone(), line: self.line, value, outcome: None });
            }
            if let Some(within) = within {
                self.entries(within, &path, in_list || within.close == ']')?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn error(text: &str) -> String {
        fields("ds.json", text).unwrap_err().to_string()
    }

    #[test]
    fn each_field_has_the_line_of_its_name() {
        let text = "\u{feff}{\n  \"a\": {\"b\":\n  1.5},\n\n\"c\" : [\n{\"d\": null}]}\n";
        let fields = fields("ds.json", text).unwrap();
        let fields: Vec<_> =
            fields.iter().map(|it| (it.path.as_str(), it.line, it.value.to_string())).collect();
        assert_eq!(fields, [("a.b", 2, "1.5".into()), ("c", 5, r#"[{"d":null}]"#.into())]);
    }

    #[test]
    fn an_error_has_its_line_and_column() {
        assert_eq!(error("{\n \"a\": 1,\n}"), "ds.json:3:1: not JSON: trailing comma");
        assert!(error("").starts_with("ds.json:1:1: not JSON: EOF"), "{}", error(""));
        assert!(error("{} {}").contains("trailing characters"));
        assert!(error("{\n  // a comment\n}").ends_with("DeepSpeed reads them: take them out"));
        assert!(error("{\"a\": NaN}").contains("expected value"));
        assert!(error("{\"a\": 1e999}").contains("out of range"));
    }

    #[test]
    fn a_name_that_is_there_twice_is_refused_at_any_depth() {
        let twice = "{\"fp16\": {\n\"enabled\": true,\n\"enabled\": false}}";
        assert_eq!(error(twice), "ds.json:3: `fp16.enabled` is given twice: keep one of the two");
        assert!(error("{\"a\": [[{\"b\": 1, \"b\": 2}]]}").contains("`a.b` is given twice"));
    }

    #[test]
    fn depth_and_number_are_bounded() {
        assert!(error(&"[".repeat(500_000)).contains("recursion limit"));
        assert!(error(&"{\"a\":".repeat(100_000)).contains("recursion limit"));
        let many: Vec<_> = (0..=MOST_FIELDS).map(|field| format!("\"{field}\": 0")).collect();
        assert!(error(&format!("{{{}}}", many.join(",\n"))).starts_with("ds.json:5001: expected"));
        assert!(fields("ds.json", &format!("{{{}}}", many[1..].join(","))).is_ok());
        assert!(
            error(&format!("{{\n\"{}\": 0}}", "é".repeat(201))).contains("at most 200 characters in a name")
        );
        assert!(fields("ds.json", &format!("{{\"{}\": 0}}", "é".repeat(200))).is_ok());
    }

    #[test]
    fn a_name_with_a_dot_is_no_path() {
        assert_eq!(joined("a", "b"), "a.b");
        assert_eq!(joined("", "a.b"), "\"a.b\"");
        assert_eq!(joined("a", "\u{1b}[31m"), "a.\"\\u{1b}[31m\"");
        assert_eq!(joined("a", ""), "a.\"\"");
    }
}
