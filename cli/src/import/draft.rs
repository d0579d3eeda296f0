//! A run file under construction.

use super::inputs::Known;

/// The value of a field of the run file, or one strategy.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Item {
    /// The value, as RON.
    pub ron: String,
    /// Whether the user must check the value first.
    pub fill_in: bool,
    /// A comment after the value, or empty.
    pub note: String,
}

impl Item {
    pub fn certain(ron: impl Into<String>) -> Self {
        Self { ron: ron.into(), fill_in: false, note: String::new() }
    }

    pub fn suggested(ron: impl Into<String>) -> Self {
        Self { fill_in: true, ..Self::certain(ron) }
    }

    pub fn of(ron: Known<String>) -> Self {
        Self { fill_in: ron.suggested, ..Self::certain(ron.value) }
    }

    pub fn noted(self, note: impl Into<String>) -> Self {
        Self { note: note.into(), ..self }
    }

    pub fn left_open_if(self, fill_in: bool) -> Self {
        Self { fill_in: self.fill_in || fill_in, ..self }
    }
}

/// A run file: its fields in their order.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Draft {
    /// Names and values of the fields that precede the strategies.
    pub fields: Vec<(&'static str, Item)>,
    /// The strategies, in the order in which they process the gradients.
    pub strategies: Vec<Item>,
    /// The output folder.
    pub output: Option<Item>,
}

impl Draft {
    pub fn add(&mut self, name: &'static str, item: impl Into<Option<Item>>) {
        self.fields.extend(item.into().map(|item| (name, item)));
    }

    /// Returns the text of the file. `sources` names the files that it was made from.
    pub fn text(&self, sources: &str) -> String {
        let mut text = format!("// Made of {} by `firebrick import`.\n", one_line(sources));
        let open = self.fields.iter().map(|(_, item)| item).chain(&self.strategies).chain(&self.output);
        if open.clone().any(|item| item.fill_in) {
            text += "// Lines marked `fill in:` have settings that these files lack: correct each, and remove its mark.\n";
        }
        text += "(\n";
        for (name, item) in &self.fields {
            line(&mut text, "    ", Some(name), item);
        }
        if self.strategies.is_empty() {
            text += "    strategies: [],\n";
        } else {
            text += "    strategies: [\n";
            for item in &self.strategies {
                line(&mut text, "        ", None, item);
            }
            text += "    ],\n";
        }
        if let Some(output) = &self.output {
            line(&mut text, "    ", Some("output"), output);
        }
        text + ")\n"
    }
}

fn line(text: &mut String, indent: &str, name: Option<&str>, item: &Item) {
    let mark = if item.fill_in { "// fill in: " } else { "" };
    let name = name.map(|name| format!("{name}: ")).unwrap_or_default();
    let note = match item.note.is_empty() {
        true => String::new(),
        false => format!(" // {}", one_line(&item.note)),
    };
    *text += &format!("{indent}{mark}{name}{},{note}\n", item.ron);
}

/// Keeps a comment on one line, whatever the name of a file contains.
fn one_line(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect()
}

/// Returns the text without its marks: a complete run file with placeholder values.
pub(super) fn filled_in(text: &str) -> String {
    let line = |line: &str| match line.trim_start().strip_prefix("// fill in: ") {
        Some(rest) => format!("{rest}\n"),
        None => format!("{line}\n"),
    };
    text.lines().map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_marked_line_is_a_comment() {
        let mut draft = Draft::default();
        draft.add("seed", Item::certain("42"));
        draft.add("steps", Item::suggested("10").noted("as long as\nyou like"));
        draft.add("ranks", None);
        draft.strategies = vec![Item::certain("Amp(bf16)"), Item::suggested("Clip(norm: 1.0)")];
        draft.output = Some(Item::certain("\"out\""));
        let text = draft.text("ds.json\n)");
        let expected = "\
// Made of ds.json ) by `firebrick import`.
// Lines marked `fill in:` have settings that these files lack: correct each, and remove its mark.
(
    seed: 42,
    // fill in: steps: 10, // as long as you like
    strategies: [
        Amp(bf16),
        // fill in: Clip(norm: 1.0),
    ],
    output: \"out\",
)
";
        assert_eq!(text, expected);
        assert!(filled_in(&text).contains("\nsteps: 10, // as long"));
        assert!(ron::from_str::<ron::Value>(&text).is_ok());
        assert!(!Draft::default().text("a").contains("fill in"));
    }
}
