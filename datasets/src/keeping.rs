//! Samples as bytes, for a cache between runs.

use std::fmt;
use std::sync::Arc;

use serde::{Serialize, de::DeserializeOwned};

use crate::Fingerprint;

/// How a collator's samples are kept between runs: what identifies them, and how they become bytes.
///
/// # Example
///
/// ```
/// use std::sync::Arc;
///
/// use firebrick_datasets::{Fingerprint, Keeping};
///
/// let keeping = Keeping::<Vec<u32>>::new(Fingerprint::of("ids in lower case"));
/// let bytes = keeping.write(&[Arc::new(vec![1, 70_000])]).unwrap();
/// assert_eq!(keeping.read(&bytes), Some(vec![vec![1, 70_000]]));
/// assert_eq!(keeping.read(&bytes[1..]), None);
/// ```
pub struct Keeping<S> {
    settings: Fingerprint,
    write: fn(&[Arc<S>]) -> Option<Vec<u8>>,
    read: fn(&[u8]) -> Option<Vec<S>>,
}

impl<S: Serialize + DeserializeOwned> Keeping<S> {
    /// Keeps samples as MessagePack. `settings` is a hash of everything that samples depend on besides the record: the
    /// kind of the collator, its settings, and [those of its encoder](crate::Encoder::settings).
    pub fn new(settings: Fingerprint) -> Self {
        let write = |samples: &[Arc<S>]| {
            let samples: Vec<&S> = samples.iter().map(|sample| &**sample).collect();
            rmp_serde::to_vec(&samples).ok()
        };
        Self { settings, write, read: |bytes| rmp_serde::from_slice(bytes).ok() }
    }
}

impl<S> Keeping<S> {
    /// Returns the hash of everything that samples depend on besides the record.
    pub fn settings(&self) -> Fingerprint {
        self.settings
    }

    /// Returns the bytes of some samples, or `None` if they cannot be written.
    pub fn write(&self, samples: &[Arc<S>]) -> Option<Vec<u8>> {
        (self.write)(samples)
    }

    /// Returns the samples of these bytes, or `None` if they are damaged.
    pub fn read(&self, bytes: &[u8]) -> Option<Vec<S>> {
        (self.read)(bytes)
    }
}

impl<S> fmt::Debug for Keeping<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Keeping").field("settings", &self.settings).finish_non_exhaustive()
    }
}
