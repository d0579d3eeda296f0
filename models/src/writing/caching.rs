//! A decoder that continues from its cache of keys and values, as decoding drives it.

use burn::module::Module;
use burn::tensor::{FloatDType, Int, Tensor, TensorData, TensorReadError};
use firebrick::engine::agreement::any;
use firebrick::{TrainError, memory};
use firebrick_datasets::collators::Inputs;
use firebrick_kernels::Reads;
use firebrick_strategies::Pass;
use firebrick_world::{Communicator, is_host};

use crate::causal::PlacedTokens;
use crate::decoding::{DecodingError, NextToken, Prompt};
use crate::key_value::Past;

/// A decoder that has read some rows.
///
/// Rows are padded at the left, so that all of them continue in the same column.
pub(crate) struct Caching<'a, M> {
    model: &'a M,
    pass: Pass,
    /// Whether the pass has already entered the model.
    is_entered: bool,
    world: Option<&'a Communicator>,
    /// The vocabulary and positions of the whole model; `model` may be a shard.
    vocabulary: usize,
    positions: usize,
    /// The encoder's input, read before the first tokens of the rows.
    source: Option<&'a Inputs>,
    /// The tokens of each row.
    rows: Vec<Vec<u32>>,
    /// The start of each row, as a column of `past`.
    starts: Vec<usize>,
    past: Option<Past>,
}

impl<'a, M: ReadsOn> Caching<'a, M> {
    /// Creates a decoder that continues these prompts. Ranks that share the model create it together.
    ///
    /// # Errors
    ///
    /// A rank is lost.
    pub fn new(
        model: &'a M,
        pass: Pass,
        prompts: &[Prompt],
        source: Option<&'a Inputs>,
    ) -> Result<Self, TrainError> {
        let row = |prompt: &Prompt| if prompt.tokens.is_empty() { vec![0] } else { prompt.tokens.clone() };
        let rows = prompts.iter().map(row).collect();
        let (whole, _) = pass.enter(model)?;
        let (vocabulary, positions) = (whole.vocabulary(), whole.positions().unwrap_or(usize::MAX));
        let (starts, past, is_entered) = (Vec::new(), None, false);
        Ok(Self { model, pass, is_entered, world: None, vocabulary, positions, source, rows, starts, past })
    }

    /// Like [`new`](Self::new), inside a pass that has already entered the model. Ranks that share the model create
    /// it together.
    pub fn within(model: &'a M, pass: &'a Pass, prompts: &[Prompt], source: Option<&'a Inputs>) -> Self {
        let rows = prompts.iter().map(|prompt| prompt.tokens.clone()).collect();
        let (vocabulary, positions) = (model.vocabulary(), model.positions().unwrap_or(usize::MAX));
        let (starts, past, is_entered) = (Vec::new(), None, true);
        let (world, pass) = (pass.ranks(), pass.clone());
        Self { model, pass, is_entered, world, vocabulary, positions, source, rows, starts, past }
    }

    /// Enters the model for the next pass.
    fn enter(&self) -> Result<(M, Pass), TrainError> {
        match self.is_entered {
            true => Ok((self.model.clone(), self.pass.drawing(self.pass.draws()))),
            false => Ok(self.pass.enter(self.model)?),
        }
    }

    /// Sets the ranks that share the model.
    pub fn among(self, world: &'a Communicator) -> Self {
        Self { world: Some(world), ..self }
    }

    /// Reads all rows from their start, or as much of their ends as the model has positions. A source is not read again.
    fn read(&mut self) -> Result<Vec<f32>, TrainError> {
        let most = self.positions;
        let seen: Vec<&[u32]> = self.rows.iter().map(|row| &row[row.len().saturating_sub(most)..]).collect();
        let length = seen.iter().map(|row| row.len()).max().unwrap_or(0);
        self.starts = seen.iter().map(|row| length - row.len()).collect();
        let padded = |row: &[u32]| -> Vec<i64> {
            let ids = row.iter().map(|&id| i64::from(id));
            std::iter::repeat_n(0, length - row.len()).chain(ids).collect()
        };
        let ids = seen.into_iter().flat_map(padded).collect();
        self.past = self.past.take().and_then(Past::of_source);
        self.read_on(ids, length)
    }

    /// Reads `length` further columns of each row.
    fn read_on(&mut self, ids: Vec<i64>, length: usize) -> Result<Vec<f32>, TrainError> {
        let (rows, device) = (self.rows.len(), self.pass.device());
        let before = self.past.as_ref().map_or(0, Past::columns);
        let columns = before + length;
        let starts = || self.starts.iter().copied();
        let places = |start| (before..columns).map(move |column: usize| column.saturating_sub(start) as i64);
        let places: Vec<i64> = starts().flat_map(places).collect();
        // Padding reads padding.
        let reads = Reads::new([rows, length, columns], |row, query| {
            let (column, start) = (before + query, self.starts[row]);
            if column < start { 0..column + 1 } else { start..column + 1 }
        });
        let grid = |values| Tensor::<2, Int>::from_data(TensorData::new(values, [rows, length]), device);
        let read = PlacedTokens { ids: grid(ids), places: grid(places), reads, sample_lengths: None };
        let (model, pass) = self.enter()?;
        let (logits, past) = model.read_on(read, self.source, self.past.take(), &pass);
        pass.check()?;
        self.past = Some(past);
        let logits: Result<_, TensorReadError> =
            logits.cast(FloatDType::F32).try_into_data().map_err(Into::into);
        Ok(logits?.iter().collect())
    }

    /// Takes part in the other ranks' pass and discards the result.
    fn take_part(&self) -> Result<(), TrainError> {
        let (model, pass, rows) = (self.model, self.pass.clone(), vec![vec![0]]);
        // The encoder ran at the start, so the other ranks continue from its output.
        let past = self.past.clone().and_then(Past::of_source).map(|past| past.select(&[0]));
        let mut alike = Caching { model, pass, rows, starts: Vec::new(), past, ..*self };
        alike.read().map(drop)
    }
}

impl<M: ReadsOn> NextToken for Caching<'_, M> {
    type Error = TrainError;

    fn vocabulary(&self) -> usize {
        self.vocabulary
    }

    fn start(&mut self) -> Result<Vec<f32>, TrainError> {
        if self.rows.is_empty() {
            self.take_part()?;
            return Ok(Vec::new());
        }
        self.read()
    }

    fn require_room(&self, rows: usize, tokens: usize) -> Result<(), TrainError> {
        let Some(past) = &self.past else { return Ok(()) };
        let tokens = past.columns().saturating_add(tokens);
        let cache = match is_host(self.pass.device()) {
            true => past.bytes_per_token() * tokens.min(self.positions) as f64,
            false => 0.0,
        };
        // The host always holds the tokens, here and in the search, and the logits.
        let each = cache + 8.0 * tokens as f64 + 4.0 * self.vocabulary as f64;
        let needed = rows as f64 * each;
        match memory::of_machine() {
            Some(available) if needed > available as f64 => {
                Err(DecodingError::TooLarge { rows, tokens, needed, available }.into())
            }
            _ => Ok(()),
        }
    }

    fn append(&mut self, from: &[usize], tokens: &[u32]) -> Result<Vec<f32>, TrainError> {
        if from.is_empty() {
            self.take_part()?;
            return Ok(Vec::new());
        }
        let stays = from.iter().copied().eq(0..self.rows.len());
        let longer = |(&from, &token): (&usize, &u32)| {
            let mut row = self.rows[from].clone();
            row.push(token);
            row
        };
        self.rows = from.iter().zip(tokens).map(longer).collect();
        self.starts = from.iter().map(|&row| self.starts[row]).collect();
        let columns = self.past.as_ref().map_or(0, Past::columns) + 1;
        let places = columns - self.starts.iter().copied().min().unwrap_or(0);
        // Beyond the last position, those of all tokens shift, and so do their keys and values. Some models rotate all
        // tokens of a row by other angles once it exceeds a length.
        let rereads = places > self.positions || self.rows.iter().any(|row| self.model.rereads_at(row.len()));
        let past = self.past.take();
        let past = if rereads { past.and_then(Past::of_source) } else { past };
        self.past = if stays { past } else { past.map(|past| past.select(from)) };
        if rereads {
            return self.read();
        }
        self.read_on(tokens.iter().map(|&token| i64::from(token)).collect(), 1)
    }

    fn any_writes(&mut self, here: bool) -> Result<bool, TrainError> {
        match self.world {
            Some(world) => Ok(any(world, "whether a rank still generates", here)?),
            None => Ok(here),
        }
    }
}

/// A decoder that continues from its cache.
pub(crate) trait ReadsOn: Module {
    /// The number of tokens in its logits.
    fn vocabulary(&self) -> usize;

    /// The maximum number of positions in a row, if there is one.
    fn positions(&self) -> Option<usize>;

    /// Whether the cached keys of a row no longer hold once it grows to `length` tokens, so that it is read again.
    fn rereads_at(&self, length: usize) -> bool {
        let _ = length;
        false
    }

    /// The dtype in which its blocks compute, which is that of their weights.
    fn dtype(&self) -> FloatDType;

    /// Reads further columns, and returns the logits of the token after the last of them, `[batch, vocabulary]`.
    ///
    /// `read` holds the new columns; its mask covers all columns, first those in `past`, with shape
    /// `[1 or batch, 1, length, past + length]`. The returned cache includes the new columns. Without a `past`,
    /// `source` is the encoder's input, if the model has an encoder. A `past` may hold a source alone.
    fn read_on(
        &self,
        read: PlacedTokens,
        source: Option<&Inputs>,
        past: Option<Past>,
        pass: &Pass,
    ) -> (Tensor<2>, Past);
}
