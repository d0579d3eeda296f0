//! Samples that are read from files on demand.

use std::{
    collections::VecDeque,
    fmt,
    sync::{Arc, Mutex, PoisonError},
};

use super::{
    Permutation, Samples,
    source::{PartSamples, Source},
};
use crate::{Collator, DataError, Drawn, ReadError, SampleError};

/// The number of windows held in memory: those of the current training batch and of batches that are computed ahead.
const KEPT: usize = 4;

/// Separates this order from others with the same seed.
const PART_ORDER: u64 = 0x7061_7274;

/// Samples that are read from files on demand, for data larger than memory.
///
/// # The windowed shuffle
///
/// A stream cannot be shuffled as a whole. With [`shuffled`](Self::shuffled), each epoch reads the parts (files) in a
/// different order, cuts the samples into windows, and shuffles the samples within each window. Both orders are a
/// [`Permutation`] by the seed and the epoch, so the sample at a position is a function of the position: the cursor is
/// as small as for data in memory, and to resume, only the current window has to be read again from its beginning. A
/// sample never leaves its window: if neighbouring samples in a file are similar, choose a window larger than such a
/// group, or split the data into many files.
///
/// # Cost
///
/// Opening a stream reads all files once to count the samples of each part, so malformed records are found before
/// training begins rather than hours later. The stream then holds up to four windows of samples, shared by workers that
/// request neighbouring batches. Choose a window larger than the batches under way at once: a sample whose window was
/// dropped is read again from the beginning of its part. The files must not change.
pub struct Stream<C: Collator> {
    source: Source<C>,
    /// The first sample of each part, in the order of the files, and the end of the last part.
    starts: Arc<[usize]>,
    samples: usize,
    window: usize,
    seed: Option<u64>,
    state: Mutex<WindowCache<C>>,
}

struct WindowCache<C: Collator> {
    windows: VecDeque<(WindowId, Arc<Window<C::Sample>>)>,
    /// The reader that can continue, and its position.
    reading: Option<Reading<C>>,
}

/// An epoch and the number of a window in it.
type WindowId = (u64, usize);

/// The samples of a window, in the order of the files.
struct Window<S> {
    samples: Vec<(u64, Arc<S>)>,
    /// The error that prevented reading the samples after those.
    failure: Option<DataError>,
}

struct Reading<C: Collator> {
    epoch: u64,
    /// The number of parts begun, in the epoch's order.
    begun: usize,
    /// The current part and its next sample.
    part: usize,
    at: usize,
    samples: Option<PartSamples<C>>,
    /// The next position in the epoch.
    position: usize,
}

impl<C: Collator> Stream<C> {
    /// Reads the source once to count its samples, and then yields them in the order of the files. It reads `window`
    /// samples at a time. `progress` is called now and then with the number of samples counted so far.
    ///
    /// # Errors
    ///
    /// [`DataError::Zero`] if `window` is 0, and any error from reading.
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
        Ok(Self::of(source, window, starts))
    }

    /// Like [`open`](Self::open), but takes the number of samples of each part from [`counts`](Self::counts) of an earlier
    /// stream, and reads nothing.
    ///
    /// # Errors
    ///
    /// [`DataError::Zero`] if `window` is 0, and [`ReadError::NoPart`](crate::ReadError::NoPart) if the source has
    /// another number of parts.
    pub fn counted(source: Source<C>, window: usize, counts: &[usize]) -> Result<Self, DataError> {
        if window == 0 {
            return Err(DataError::Zero { setting: "window" });
        }
        if counts.len() != source.parts() {
            return Err(ReadError::NoPart { part: counts.len(), parts: source.parts() }.into());
        }
        let ends = counts.iter().scan(0, |end, count| {
            *end += count;
            Some(*end)
        });
        let starts = std::iter::once(0).chain(ends).collect();
        Ok(Self::of(source, window, starts))
    }

    fn of(source: Source<C>, window: usize, starts: Vec<usize>) -> Self {
        // Records that are read again are not counted as skipped again.
        let source = source.counting_no_more();
        let state = Mutex::new(WindowCache { windows: VecDeque::new(), reading: None });
        let samples = starts.last().copied().unwrap_or(0);
        Self { source, starts: starts.into(), samples, window, seed: None, state }
    }

    /// Returns the number of samples of each part.
    pub fn counts(&self) -> Vec<usize> {
        self.starts.windows(2).map(|part| part[1] - part[0]).collect()
    }

    /// Shuffles parts and windows by the seed and the epoch.
    pub fn shuffled(self, seed: u64) -> Self {
        Self { seed: Some(seed), ..self }
    }

    /// Returns the source, which counts the skipped records.
    pub fn source(&self) -> &Source<C> {
        &self.source
    }

    fn parts(&self) -> usize {
        self.starts.len() - 1
    }

    /// Returns the number of samples in a part.
    fn count(&self, part: usize) -> usize {
        self.starts[part + 1] - self.starts[part]
    }

    /// Returns the part that is the `nth` of an epoch.
    fn part(&self, epoch: u64, nth: usize) -> usize {
        match self.seed {
            Some(seed) => Permutation::new(self.parts(), seed ^ PART_ORDER, epoch).at(nth),
            None => nth,
        }
    }

    /// Returns a window, from memory or from the files.
    fn window(&self, id: WindowId) -> Result<Arc<Window<C::Sample>>, DataError> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(at) = state.windows.iter().position(|(of, _)| *of == id)
            && let Some((_, window)) = state.windows.remove(at)
        {
            // Evicts the most recently used window last.
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
                    // The samples before the error are valid. The window is not cached, so that the next request reads
                    // it again.
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

    /// Returns the number of samples in a window.
    fn size(&self, number: usize) -> usize {
        self.window.min(self.samples - number * self.window)
    }

    /// Starts reading at a position of an epoch.
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

    /// Returns the next sample, with its index in the order of the files.
    fn read(&self, reading: &mut Reading<C>) -> Result<(u64, Arc<C::Sample>), DataError> {
        loop {
            if let Some(sample) = reading.samples.as_mut().and_then(Iterator::next) {
                let sample = sample?;
                // The part has grown since it was counted.
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
        DataError::Sample(SampleError::Changed {
            part: reading.part,
            counted: self.count(reading.part),
            read: reading.at,
        })
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
            // The window has no other owner: a failed window is not cached.
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
