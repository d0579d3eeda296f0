//! The first batches of data, as one reads them, and what the data is like in numbers.

mod cells;
mod histogram;
mod legible;

use std::fmt::Write;

use firebrick_datasets::counted;
use serde::Serialize;

pub use cells::{Cell, TokenKind};
pub use legible::{Grid, Legible, Names, Row};

/// Micro-batches that are looked at, at most: of a large corpus, the first ones tell enough.
const MOST: usize = 5000;

/// What one looks at before spending hours of training.
#[derive(Clone, Debug)]
pub struct Preview {
    batches: Vec<ShownBatch>,
    /// The data in numbers.
    pub numbers: Numbers,
}

/// The data in numbers, over the micro-batches that were looked at.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Numbers {
    /// Micro-batches that were looked at.
    pub batches: usize,
    /// Whether these are all of the first epoch.
    pub complete: bool,
    /// Samples in them.
    pub samples: usize,
    /// Tokens in them, padding left out.
    pub tokens: usize,
    /// Positions that are padding.
    pub padding: usize,
    /// Labels that count in the loss.
    pub supervised: usize,
    /// The tokens of each sample.
    #[serde(skip)]
    pub lengths: Vec<usize>,
    /// Of the shortest and the longest sample.
    pub shortest: usize,
    /// The longest.
    pub longest: usize,
}

#[derive(Clone, Debug)]
struct ShownBatch {
    head: String,
    supervised: String,
    rows: Vec<Row>,
    left_out: usize,
}

/// How a preview is drawn.
#[derive(Clone, Copy, Debug)]
pub struct Look {
    /// Columns of a line.
    pub width: usize,
    /// Whether there are colours.
    pub color: bool,
}

impl Preview {
    /// Looks at micro-batches, 5,000 at most; keeps the first `batches` of them, `rows` rows of each, to be shown.
    ///
    /// # Errors
    ///
    /// The first error among the micro-batches.
    pub fn of<B: Legible, E>(
        micro_batches: impl IntoIterator<Item = Result<B, E>>,
        names: &Names,
        batches: usize,
        rows: usize,
    ) -> Result<Self, E> {
        let mut shown = Vec::new();
        let mut numbers = Numbers { complete: true, ..Numbers::default() };
        for batch in micro_batches {
            let batch = batch?;
            if numbers.batches == MOST {
                numbers.complete = false;
                break;
            }
            if shown.len() < batches {
                shown.push(ShownBatch::of(&batch, names, shown.len(), rows));
            }
            numbers.add(&batch);
        }
        numbers.shortest = numbers.lengths.iter().copied().min().unwrap_or(0);
        numbers.longest = numbers.lengths.iter().copied().max().unwrap_or(0);
        Ok(Self { batches: shown, numbers })
    }

    /// As text for a terminal.
    pub fn draw(&self, look: Look) -> String {
        let mut text = String::new();
        for batch in &self.batches {
            batch.draw(look, &mut text);
        }
        self.numbers.draw(look, &mut text);
        text
    }
}

impl ShownBatch {
    fn of<B: Legible>(batch: &B, names: &Names, number: usize, rows: usize) -> Self {
        let shapes: Vec<String> = batch
            .grids()
            .iter()
            .map(|Grid { shape: [rows, length], .. }| format!("{rows} × {length}"))
            .collect();
        let head = format!(
            "batch {number}: {} tokens, {:.1}% padding, ",
            shapes.join(" and "),
            share(batch.positions() - batch.tokens(), batch.positions()),
        );
        let supervised = format!("{} supervised", batch.items());
        let left_out = batch.samples().saturating_sub(rows);
        Self { head, supervised, rows: batch.rows(names, rows), left_out }
    }

    fn draw(&self, look: Look, text: &mut String) {
        let bold = anstyle::Style::new().bold();
        let mut cells = self.rows.iter().flat_map(|row| &row.sequences);
        let supervised = match cells.all(|(_, cells)| cells::are_learned(cells)) {
            true => cells::LEARNED,
            false => bold,
        };
        let Self { head, supervised: count, .. } = self;
        let _ = match look.color {
            true => writeln!(text, "{bold}{head}{bold:#}{supervised}{count}{supervised:#}"),
            false => writeln!(text, "{head}{count}"),
        };
        for (number, row) in self.rows.iter().enumerate() {
            for (sequence, (name, cells)) in row.sequences.iter().enumerate() {
                let number = if sequence == 0 { number.to_string() } else { String::new() };
                let margin = format!("{number:>3} {name:<width$}", width = row.widest_name());
                let indent = margin.chars().count() + 1;
                for (line, cells) in
                    cells::lines(cells, look.width.saturating_sub(indent), look.color).iter().enumerate()
                {
                    let margin = if line == 0 { margin.as_str() } else { "" };
                    let _ = writeln!(text, "{margin:<indent$}{cells}");
                }
            }
            if let Some(note) = &row.note {
                let _ = writeln!(text, "    → {}", cells::short(note));
            }
        }
        if self.left_out > 0 {
            let _ = writeln!(text, "    … and {} more", self.left_out);
        }
        text.push('\n');
    }
}

impl Numbers {
    fn add<B: Legible>(&mut self, batch: &B) {
        self.batches += 1;
        self.samples += batch.samples();
        self.tokens += batch.tokens();
        self.padding += batch.positions() - batch.tokens();
        self.supervised += batch.items();
        self.lengths.extend(batch.lengths());
    }

    fn draw(&self, look: Look, text: &mut String) {
        let _ = writeln!(text, "tokens of a sample");
        for line in histogram::lines(&self.lengths, look.width.saturating_sub(2).min(100)) {
            let _ = writeln!(text, "  {line}");
        }
        let _ = writeln!(
            text,
            "\nsamples      {}, in {}{}\ntokens       {}\npadding      {:.1}% of {}\nsupervised   {}, {:.1}% of the tokens",
            self.samples,
            if self.complete { "" } else { "the first " },
            counted(self.batches, "micro-batch"),
            self.tokens,
            share(self.padding, self.tokens + self.padding),
            counted(self.tokens + self.padding, "position"),
            counted(self.supervised, "label"),
            share(self.supervised, self.tokens),
        );
    }
}

/// In percent.
fn share(part: usize, of: usize) -> f64 {
    part as f64 / of.max(1) as f64 * 100.0
}
