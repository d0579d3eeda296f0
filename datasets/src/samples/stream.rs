//! Samples read from files as they are needed.

use std::{
    collections::VecDeque,
    fmt,
    sync::{Arc, Mutex, PoisonError},
};

use super::{
    Permutation, Samples,
    source::{PartSamples, Source},
};
use crate::{Collator, DataError, Drawn};

/// Windows that are kept in memory: that of the batch that is trained on, and those of batches that
/// are computed ahead.
const KEPT: usize = 4;

/// Orders of different things from one seed.
const PART_ORDER: u64 = 0x7061_7274;

/// Samples that are read from files as they are needed, for data larger than memory.
///
/// # The windowed shuffle
///
/// A stream cannot be shuffled as a whole. With [`shuffled`](Self::shuffled), each epoch reads the parts
/// (files) in another order; what is read is cut into windows of so many samples; and the samples of
/// a window come in another order. Both orders are a [`Permutation`] by the seed and the epoch, so
/// what comes at a position is a function of it: the cursor is as small as for data in memory, and to
/// continue there, only the window's beginning has to be read again. A sample never moves
/// further than to the end of its window: if neighbours in a file are alike, let the window be larger
/// than such a run, or have many files.
///
/// # What it takes
///
/// Opening it reads all files once, to count the samples of each part; so a malformed record is found before
/// training begins, and not after hours. Then it holds up to four windows of samples, which
/// workers that ask for neighbouring batches share. Let a window be larger than the batches that are
/// under way at once: what is asked for after its window was given up is read again from the
/// beginning of its part. The files must not change.
pub struct Stream<C: Collator> {
    source: Source<C>,
    /// For each part its first sample, in the order of the files; and the end of the last one.
    starts: Arc<[usize]>,
    samples: usize,
    window: usize,
    seed: Option<u64>,
    state: Mutex<State<C>>,
}

struct State<C: Collator> {
    windows: VecDeque<(WindowId, Arc<Window<C::Sample>>)>,
    /// The reading that can be continued, and the sample that it is at.
    reading: Option<Reading<C>>,
}

/// Epoch and number.
type WindowId = (u64, usize);

/// The samples of a window, in the order of the files.
struct Window<S> {
    samples: Vec<(u64, Arc<S>)>,
    /// Why the samples after those could not be read.
    failure: Option<DataError>,
}

struct Reading<C: Collator> {
    epoch: u64,
    /// Parts begun, in the epoch's order.
    begun: usize,
    /// The part, and the next sample of it.
    part: usize,
    at: usize,
    samples: Option<PartSamples<C>>,
    /// The next sample of the epoch.
    position: usize,
}

impl<C: Collator> Stream<C> {
    /// Reads the source once to count its samples, and then serves them in the order of the files.
    /// `window` samples are read at a time. `progress` is told now and then how many were counted.
    ///
    /// # Errors
    ///
    /// [`DataError::Zero`] if `window` is 0, and whatever reading can run into.
    pub fn open(
        source: Source<C>,
        window: usize,
        mut progress: impl FnMut(usize),
    ) -> Result<Self, DataError> {
        if window == 0 {
            return Err(DataError::Zero { setting: "window" });
        }
        let mut starts = vec![0];
        let mut samples = 0;
        for part in 0..source.parts() {
            for sample in source.open(part)? {
                sample?;
                samples += 1;
                if samples % 4096 == 0 {
                    progress(samples);
                }
            }
            starts.push(samples);
        }
        // What is read again is not counted again.
        let source = source.counting_no_more();
        let state = Mutex::new(State { windows: VecDeque::new(), reading: None });
        Ok(Self { source, starts: starts.into(), samples, window, seed: None, state })
    }

    /// Shuffles parts and windows by a seed and the epoch.
    pub fn shuffled(mut self, seed: u64) -> Self {
        self.seed = Some(seed);
        self
    }

    /// The source, which knows the records that were skipped.
    pub fn source(&self) -> &Source<C> {
        &self.source
    }

    fn parts(&self) -> usize {
        self.starts.len() - 1
    }

    /// The samples of a part.
    fn count(&self, part: usize) -> usize {
        self.starts[part + 1] - self.starts[part]
    }

    /// The part that is read as the `nth` of an epoch.
    fn part(&self, epoch: u64, nth: usize) -> usize {
        match self.seed {
            Some(seed) => Permutation::new(self.parts(), seed ^ PART_ORDER, epoch).at(nth),
            None => nth,
        }
    }

    /// The window, from memory or from the files.
    fn window(&self, id: WindowId) -> Result<Arc<Window<C::Sample>>, DataError> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(at) = state.windows.iter().position(|(of, _)| *of == id)
            && let Some((_, window)) = state.windows.remove(at)
        {
            // The one used last is given up last.
            state.windows.push_back((id, Arc::clone(&window)));
            return Ok(window);
        }
        let (epoch, number) = id;
        let start = number * self.window;
        let mut reading = match state.reading.take() {
            Some(reading) if reading.epoch == epoch && reading.position == start => reading,
            _ => self.seek(epoch, start)?,
        };
        let mut window = Window { samples: Vec::with_capacity(self.size(number)), failure: None };
        while window.samples.len() < self.size(number) {
            match self.read(&mut reading) {
                Ok(sample) => window.samples.push(sample),
                Err(error) => {
                    // The samples before it are good. It is not kept, so that reading is tried again.
                    window.failure = Some(error);
                    return Ok(Arc::new(window));
                }
            }
        }
        let window = Arc::new(window);
        state.reading = Some(reading);
        if state.windows.len() == KEPT {
            state.windows.pop_front();
        }
        state.windows.push_back((id, Arc::clone(&window)));
        Ok(window)
    }

    /// The samples of a window.
    fn size(&self, number: usize) -> usize {
        self.window.min(self.samples - number * self.window)
    }

    /// Begins to read at a position of an epoch.
    fn seek(&self, epoch: u64, position: usize) -> Result<Reading<C>, DataError> {
        let (mut begun, mut before) = (0, 0);
        while begun < self.parts() && before + self.count(self.part(epoch, begun)) <= position {
            before += self.count(self.part(epoch, begun));
            begun += 1;
        }
        let mut reading = Reading { epoch, begun, part: 0, at: 0, samples: None, position: before };
        while reading.position < position {
            self.read(&mut reading)?;
        }
        Ok(reading)
    }

    /// The next sample, with its index in the order of the files.
    fn read(&self, reading: &mut Reading<C>) -> Result<(u64, Arc<C::Sample>), DataError> {
        loop {
            if let Some(sample) = reading.samples.as_mut().and_then(Iterator::next) {
                let sample = sample?;
                // The part has grown: what comes now is not what was counted.
                if reading.at == self.count(reading.part) {
                    return Err(self.changed(reading));
                }
                let index = (self.starts[reading.part] + reading.at) as u64;
                reading.at += 1;
                reading.position += 1;
                return Ok((index, Arc::new(sample)));
            }
            let ended = reading.samples.is_some();
            if ended && reading.at < self.count(reading.part) || reading.begun == self.parts() {
                return Err(self.changed(reading));
            }
            reading.part = self.part(reading.epoch, reading.begun);
            reading.begun += 1;
            reading.at = 0;
            reading.samples = Some(self.source.open(reading.part)?);
        }
    }

    fn changed(&self, reading: &Reading<C>) -> DataError {
        DataError::Changed { part: reading.part, counted: self.count(reading.part), read: reading.at }
    }
}

impl<C: Collator> Samples for Stream<C> {
    type Sample = C::Sample;

    fn samples(&self, _epoch: u64) -> usize {
        self.samples
    }

    fn sample(&self, epoch: u64, position: usize) -> Result<Drawn<C::Sample>, DataError> {
        if position >= self.samples {
            return Err(DataError::out_of_range(epoch, position, self.samples));
        }
        let (number, offset) = (position / self.window, position % self.window);
        let window = self.window((epoch, number))?;
        let place = match self.seed {
            Some(seed) => {
                Permutation::new(self.size(number), seed, epoch ^ (number as u64).rotate_left(32)).at(offset)
            }
            None => offset,
        };
        match window.samples.get(place) {
            Some((index, sample)) => Ok(Drawn { epoch, index: *index, sample: Arc::clone(sample) }),
            // Nobody else has this window: one that failed is not kept.
            None => Err(Arc::into_inner(window)
                .and_then(|window| window.failure)
                .unwrap_or_else(|| DataError::out_of_range(epoch, position, self.samples))),
        }
    }
}

impl<C: Collator> fmt::Debug for Stream<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut fields = f.debug_struct("Stream");
        fields.field("source", &self.source).field("samples", &self.samples);
        fields.field("window", &self.window).field("seed", &self.seed).finish_non_exhaustive()
    }
}

#[cfg(test)]
#[path = "stream_tests.rs"]
mod tests;
