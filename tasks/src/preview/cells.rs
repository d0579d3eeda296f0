//! Tokens with what stands under them, as lines of a terminal.

use anstyle::{AnsiColor, Style};
use unicode_width::{UnicodeWidthChar, UnicodeWidthStr};

/// A token of a batch, and what the model is to say about it.
#[derive(Clone, Debug, PartialEq)]
pub struct Cell {
    /// The token.
    pub token: String,
    /// Its label; `None` where it does not count in the loss.
    pub label: Option<String>,
    /// What kind of token it is.
    pub kind: TokenKind,
}

/// What kind of token a cell shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TokenKind {
    /// A token of the text.
    Text,
    /// A token with a role, such as `[CLS]`.
    Special,
    /// A token that fills a row.
    Padding,
}

/// The longest token or label that is shown whole.
const WIDEST: usize = 24;

/// The style of tokens that count in the loss, where the labels are the tokens themselves.
pub(super) const LEARNED: Style = AnsiColor::Green.on_default().bold();

/// Whether colours alone say which tokens count, because each label is the token above it.
pub(super) fn are_learned(cells: &[Cell]) -> bool {
    cells.iter().all(|cell| cell.label.as_ref().is_none_or(|label| *label == cell.token))
}

/// Returns cells as lines no wider than `width` columns: pairs of tokens above and labels below, or, with colours, only
/// tokens if [colours alone say which count](are_learned).
pub(super) fn lines(cells: &[Cell], width: usize, color: bool) -> Vec<String> {
    let cells = folded(cells);
    let only_tokens = color && are_learned(&cells);
    let mut lines = Vec::new();
    let mut rest = &cells[..];
    while !rest.is_empty() {
        let fitting = fitting(rest, width);
        let (line, after) = rest.split_at(fitting);
        lines.push(above(line, color, only_tokens));
        if !only_tokens && line.iter().any(|cell| cell.label.is_some()) {
            lines.push(below(line, color));
        }
        rest = after;
    }
    lines
}

/// A run of padding as one cell: `<pad>×12`.
fn folded(cells: &[Cell]) -> Vec<Cell> {
    let alike = |a: &Cell, b: &Cell| a.kind == TokenKind::Padding && a == b;
    let fold = |run: &[Cell]| match run {
        [cell] => Some(cell.clone()),
        [cell, ..] => Some(Cell { token: format!("{}×{}", cell.token, run.len()), ..cell.clone() }),
        [] => None,
    };
    cells.chunk_by(alike).filter_map(fold).collect()
}

/// How many cells fit into a line: at least one.
fn fitting(cells: &[Cell], width: usize) -> usize {
    let ends = cells.iter().scan(0, |end, cell| {
        *end += columns(cell) + 1;
        Some(*end)
    });
    ends.take_while(|&end| end <= width + 1).count().max(1)
}

fn columns(cell: &Cell) -> usize {
    let label = cell.label.as_deref().map_or(0, |label| short(label).width());
    short(&cell.token).width().max(label)
}

fn above(cells: &[Cell], color: bool, only_tokens: bool) -> String {
    let cell = |cell: &Cell| {
        let style = match cell.kind {
            _ if only_tokens && cell.label.is_some() => LEARNED,
            TokenKind::Text => Style::new(),
            TokenKind::Special => AnsiColor::Cyan.on_default(),
            TokenKind::Padding => Style::new().dimmed(),
        };
        padded(&short(&cell.token), columns(cell), style, color)
    };
    cells.iter().map(cell).collect::<Vec<_>>().join(" ").trim_end().to_owned()
}

fn below(cells: &[Cell], color: bool) -> String {
    let cell = |cell: &Cell| match &cell.label {
        Some(label) => padded(&short(label), columns(cell), color_of(label), color),
        None => " ".repeat(columns(cell)),
    };
    cells.iter().map(cell).collect::<Vec<_>>().join(" ").trim_end().to_owned()
}

/// `O` is what most labels are, so it stands back. `B-PER` and `I-PER` have one colour.
fn color_of(label: &str) -> Style {
    const COLORS: [AnsiColor; 5] =
        [AnsiColor::Green, AnsiColor::Yellow, AnsiColor::Magenta, AnsiColor::Blue, AnsiColor::Red];
    if label == "O" {
        return Style::new().dimmed();
    }
    let name = label.split_once('-').map_or(label, |(_, name)| name);
    let sum: usize = name.bytes().map(usize::from).sum();
    COLORS[sum % COLORS.len()].on_default()
}

fn padded(text: &str, columns: usize, style: Style, color: bool) -> String {
    let blank = " ".repeat(columns.saturating_sub(text.width()));
    match color {
        true if style != Style::new() => format!("{style}{text}{style:#}{blank}"),
        _ => format!("{text}{blank}"),
    }
}

/// White space and control characters as something that is seen, and the middle left out of what is
/// too wide.
pub(super) fn short(text: &str) -> String {
    let visible = |character: char| match character {
        ' ' | '\u{2581}' => '␣',
        '\n' => '⏎',
        '\t' => '⇥',
        other if other.is_control() || other.width().is_none() => '·',
        other => other,
    };
    let text: String = text.chars().map(visible).collect();
    if text.width() <= WIDEST {
        return text;
    }
    let start: String = text.chars().take(WIDEST / 2 - 1).collect();
    let end: Vec<char> = text.chars().rev().take(WIDEST / 2 - 1).collect();
    start + "…" + &end.into_iter().rev().collect::<String>()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cell(token: &str, label: Option<&str>) -> Cell {
        Cell { token: token.into(), label: label.map(Into::into), kind: TokenKind::Text }
    }

    #[test]
    fn labels_stand_under_their_tokens() {
        let cells =
            [cell("[CLS]", None), cell("in", Some("O")), cell("東京", Some("B-LOC")), cell("!", Some("O"))];
        let expected = ["[CLS] in 東京  !", "      O  B-LOC O"];
        assert_eq!(lines(&cells, 80, false), expected);
    }

    #[test]
    fn padding_takes_one_cell() {
        let pad = Cell { kind: TokenKind::Padding, ..cell("<pad>", None) };
        let cells = [vec![cell("a", Some("x")), cell("a", Some("x"))], vec![pad; 12]].concat();
        assert_eq!(lines(&cells, 80, false), ["a a <pad>×12", "x x"]);
    }

    #[test]
    fn long_rows_are_wrapped() {
        let cells: Vec<Cell> = (0..10).map(|_| cell("four", Some("O"))).collect();
        let lines = lines(&cells, 14, false);
        assert_eq!(lines.len(), 8);
        assert!(lines.iter().all(|line| line.width() <= 14));
        assert_eq!(super::lines(&[cell("wide", None)], 2, false), ["wide"]);
    }

    #[test]
    fn invisible_characters_are_shown() {
        assert_eq!(short(" a\n\u{7}"), "␣a⏎·");
        let long = short(&"x".repeat(100));
        assert!(long.width() <= WIDEST && long.contains('…'));
    }

    #[test]
    fn learned_tokens_have_a_color_instead_of_a_label() {
        let cells = [cell("user", None), cell("red", Some("red")), cell("?", None)];
        assert_eq!(lines(&cells, 80, false), ["user red ?", "     red"]);
        assert_eq!(lines(&cells, 80, true), [format!("user {LEARNED}red{LEARNED:#} ?")]);
        // Another label than the token stands below it.
        let cells = [cell("user", None), cell("red", Some("blue"))];
        assert_eq!(lines(&cells, 80, true).len(), 2);
    }

    #[test]
    fn colors_are_reset() {
        let lines = lines(&[cell("a", Some("B-PER")), cell("b", Some("I-PER"))], 80, true);
        assert_eq!(lines[1].matches("\u{1b}[").count(), 4);
        let styles: Vec<_> = lines[1].split(' ').map(|cell| &cell[..5]).collect();
        assert_eq!(styles[0], styles[1]);
    }
}
