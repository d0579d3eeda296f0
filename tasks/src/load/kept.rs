//! Tokens and vocabularies of earlier runs, from the [cache](crate::token_cache).

use std::fs::{self, File};
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::SystemTime;

use firebrick_datasets::{
    Collator, Fingerprint, Fingerprinted, InMemory, Keeping, Malformed, Skipped, Stream, Tokenizer,
};
use serde::{Deserialize, Serialize};

use super::{Loading, Opened, Part};
use crate::LoadError;
use crate::token_cache::{Entry, EntryWriter};
use firebrick::observe::report::TruncatedTexts;

/// Names the way in which this version reads and tokenizes. Raise the number when samples of the same data, tokenizer
/// and settings change: `samples_are_those_of_this_version` tells.
const VERSION: &str = concat!(env!("CARGO_PKG_VERSION"), " 2");

/// Number of samples of a frame.
const FRAME: usize = 512;

/// Number of ids of a frame's sample, where the ids are one long text.
const IDS: usize = 1 << 16;

/// What reading some data found, besides its samples.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct About {
    /// The fingerprint of the records.
    print: Option<Fingerprint>,
    /// Number of malformed records that were skipped, and the first messages.
    skipped: u64,
    messages: Vec<String>,
    /// Number of texts that were cut, and of tokens that they lost.
    cut: (u64, u64),
    /// Number of samples of each part, if the samples are streamed.
    counts: Vec<usize>,
    /// Number of records that yielded no sample.
    #[serde(default, skip_serializing_if = "is_none")]
    left_out: u64,
}

fn is_none(records: &u64) -> bool {
    *records == 0
}

/// Where an entry is, and what it holds.
#[derive(Debug)]
pub(super) struct CachePlace {
    key: Fingerprint,
    what: String,
    /// The files that the key is about, as they were when they were hashed.
    files: Vec<(Arc<Path>, Stamp)>,
}

/// Changes when a file is written.
type Stamp = (u64, Option<SystemTime>);

impl CachePlace {
    /// Returns the place of an entry that depends on these settings alone.
    pub fn of(what: String, settings: &impl Serialize) -> Option<Self> {
        let key = Fingerprint::of(serde_json::to_vec(&(VERSION, settings)).ok()?);
        Some(Self { key, what, files: Vec::new() })
    }

    /// Whether the files were not written since they were hashed.
    fn holds(&self) -> bool {
        self.files.iter().all(|(path, known)| stamp(path).is_ok_and(|now| now == *known))
    }
}

impl Loading<'_> {
    /// Returns the place of what is made from the records of some files, or `None` if the run uses no cache or a file
    /// cannot be hashed. `settings` is a hash of how records become samples.
    pub(super) fn place_of(
        &self,
        what: &str,
        kind: &str,
        settings: Fingerprint,
        opened: &Opened<'_>,
    ) -> Option<CachePlace> {
        self.cache.as_ref()?;
        let format = opened.format.cloned().map_or_else(|| opened.paths.format(), Ok).ok()?;
        let mut files = Vec::new();
        let mut contents = Vec::new();
        for path in format.files(opened.paths.as_slice()).ok()? {
            let known = stamp(&path).ok()?;
            contents.push((
                path.extension().map(|ending| ending.to_string_lossy().into_owned()),
                hash(&path).ok()?,
            ));
            files.push((path, known));
        }
        // The messages of skipped records name the files.
        let names = (self.config.malformed == Malformed::Skip).then_some(opened.paths);
        let settings = (kind, settings, &format, self.config.malformed, names, contents);
        let what = format!("{what} of {}", opened.paths.summary());
        Some(CachePlace { files, ..CachePlace::of(what, &settings)? })
    }

    /// Reads an entry. Whatever keeps it from being read is said, and the tokens are made again.
    pub(super) fn found<T>(
        &self,
        place: &CachePlace,
        read: impl FnOnce(&mut Entry) -> io::Result<T>,
    ) -> Option<T> {
        let cache = self.cache.as_ref()?;
        let read = match cache.open(place.key) {
            Ok(None) => return None,
            Ok(Some(mut entry)) => read(&mut entry),
            Err(error) => Err(error),
        };
        let what = &place.what;
        match &read {
            Ok(_) => self.say(&format!("from the cache: {what}")),
            Err(error) => self.say(&format!("{what} in the cache cannot be used, since {error}: made again")),
        }
        read.ok()
    }

    /// Adds an entry. Says if that fails, the first time, and goes on.
    pub(super) fn keep(&self, place: &CachePlace, fill: impl FnOnce(&mut EntryWriter) -> io::Result<()>) {
        let Some(cache) = self.cache.as_ref().filter(|_| place.holds()) else { return };
        if let Err(error) = cache.add(place.key, &place.what, fill)
            && !self.cache_failed.replace(true)
        {
            self.say(&format!(
                "warning: later runs tokenize again, since nothing can be kept for them: {error}"
            ));
        }
    }

    /// Returns the samples of files, from the cache or from the files. `data` says which part of the data they are.
    pub(super) fn samples_of<C: Collator>(
        &self,
        (part, data): (Part, &str),
        opened: Opened<'_>,
        collator: &Arc<C>,
    ) -> Result<InMemory<C::Sample>, LoadError> {
        let keeping = self.cache.as_ref().and_then(|_| collator.keeping());
        let place =
            |keeping: &Keeping<_>| self.place_of("the tokens", "samples", keeping.settings(), &opened);
        let kept = keeping.as_ref().and_then(|keeping| Some((place(keeping)?, keeping)));
        if let Some((place, keeping)) = &kept
            && let Some((about, samples)) = self.found(place, |entry| read(entry, keeping))
        {
            self.note((part, data), about);
            return Ok(InMemory::new(samples));
        }
        let (samples, about) = self.noting((part, data), opened, |reader, skipped| {
            Ok(self.source(Box::new(reader), collator, skipped).load(self.progress("samples"))?)
        })?;
        if let Some((place, keeping)) = &kept {
            self.keep(place, |writer| write(writer, &about, keeping, &samples));
        }
        Ok(samples)
    }

    /// Returns the samples of files as a stream, with the counts of an earlier run if the cache has them.
    pub(super) fn stream_of<C: Collator>(
        &self,
        opened: Opened<'_>,
        window: usize,
        collator: &Arc<C>,
    ) -> Result<Stream<C>, LoadError> {
        let keeping = self.cache.as_ref().and_then(|_| collator.keeping());
        let place = keeping.and_then(|keeping| {
            self.place_of("the number of samples", "counts", keeping.settings(), &opened)
        });
        if let Some(place) = &place
            && let Some(about) = self.found(place, read_about)
        {
            let counts = about.counts.clone();
            self.note((Part::Train, self.settled.part()), about);
            let source = self.source(opened.reader, collator, self.skipped.clone());
            return Ok(Stream::counted(source, window, &counts)?);
        }
        let (stream, about) =
            self.noting((Part::Train, self.settled.part()), opened, |reader, skipped| {
                let source = self.source(Box::new(reader), collator, skipped);
                Ok(Stream::open(source, window, self.progress("samples"))?)
            })?;
        if let Some(place) = &place {
            let about = About { counts: stream.counts(), ..about };
            self.keep(place, |writer| write_about(writer, &about));
        }
        Ok(stream)
    }

    /// Returns the ids of one long text, from the cache or by tokenizing it.
    pub(super) fn ids_of(
        &self,
        what: &str,
        text: &str,
        tokenizer: &Tokenizer,
    ) -> Result<Vec<u32>, LoadError> {
        let place = self.cache.as_ref().and_then(|_| tokenizer.settings()).and_then(|tokenizer| {
            CachePlace::of(format!("the tokens of {what}"), &("text", tokenizer, Fingerprint::of(text)))
        });
        let Some(place) = place else { return Ok(tokenizer.encode(text)?) };
        let keeping = Keeping::new(place.key);
        if let Some((_, ids)) = self.found(&place, |entry| read::<Vec<u32>>(entry, &keeping)) {
            return Ok(ids.concat());
        }
        let ids = tokenizer.encode(text)?;
        self.keep(&place, |writer| write_ids(writer, &About::default(), &keeping, &ids));
        Ok(ids)
    }

    /// Reads data with `read`, and notes its fingerprint, the records that are skipped and the texts that are cut.
    pub(super) fn noting<T>(
        &self,
        (part, data): (Part, &str),
        opened: Opened<'_>,
        read: impl FnOnce(Fingerprinted, Skipped) -> Result<T, LoadError>,
    ) -> Result<(T, About), LoadError> {
        let reader = self.prints.reader(part, opened.reader);
        let skipped = Skipped::default();
        let before = (self.truncated.texts(), self.truncated.tokens());
        let done = read(reader.clone(), skipped.clone())?;
        let about = About {
            print: reader.fingerprint(),
            skipped: skipped.count(),
            messages: skipped.messages(),
            cut: (self.truncated.texts() - before.0, self.truncated.tokens() - before.1),
            counts: Vec::new(),
            left_out: skipped.left_out(),
        };
        self.skipped.extend(about.skipped, about.messages.clone());
        self.skipped.leave_out(about.left_out);
        self.note_cut(data, about.cut);
        Ok((done, about))
    }

    /// Notes what an earlier run found in data that is not read.
    pub(super) fn note(&self, (part, data): (Part, &str), about: About) {
        about.print.iter().for_each(|print| self.prints.add(part, *print));
        self.skipped.extend(about.skipped, about.messages);
        self.skipped.leave_out(about.left_out);
        self.note_cut(data, about.cut);
    }

    fn note_cut(&self, data: &str, (texts, tokens): (u64, u64)) {
        if texts > 0 {
            self.cut_texts.borrow_mut().push(TruncatedTexts { data: data.into(), texts, tokens });
        }
    }
}

fn stamp(path: &Path) -> io::Result<Stamp> {
    let metadata = fs::metadata(path)?;
    match metadata.is_file() {
        true => Ok((metadata.len(), metadata.modified().ok())),
        false => Err(io::ErrorKind::InvalidInput.into()),
    }
}

fn hash(path: &Path) -> io::Result<Fingerprint> {
    let mut hasher = blake3::Hasher::new();
    hasher.update_reader(File::open(path)?)?;
    Ok((&hasher).into())
}

/// Reads what data holds besides samples, and the samples.
pub(super) fn read<S>(entry: &mut Entry, keeping: &Keeping<S>) -> io::Result<(About, Vec<S>)> {
    let about = read_about(entry)?;
    let mut samples = Vec::new();
    while let Some(frame) = entry.frame()? {
        samples.extend(keeping.read(&frame).ok_or_else(unreadable)?);
    }
    Ok((about, samples))
}

fn read_about(entry: &mut Entry) -> io::Result<About> {
    let about = entry.frame()?.ok_or_else(unreadable)?;
    serde_json::from_slice(&about).map_err(|_| unreadable())
}

fn unreadable() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, "it holds something else")
}

fn write<S: Send + Sync + 'static>(
    writer: &mut EntryWriter,
    about: &About,
    keeping: &Keeping<S>,
    samples: &InMemory<S>,
) -> io::Result<()> {
    write_about(writer, about)?;
    let samples: Vec<_> = samples.iter().cloned().collect();
    samples.chunks(FRAME).try_for_each(|some| writer.frame(&keeping.write(some).ok_or_else(unreadable)?))
}

/// Writes the ids of a long text, as samples of some thousand ids.
pub(super) fn write_ids(
    writer: &mut EntryWriter,
    about: &About,
    keeping: &Keeping<Vec<u32>>,
    ids: &[u32],
) -> io::Result<()> {
    write_about(writer, about)?;
    ids.chunks(IDS)
        .try_for_each(|part| writer.frame(&keeping.write(&[Arc::new(part.to_vec())]).ok_or_else(unreadable)?))
}

fn write_about(writer: &mut EntryWriter, about: &About) -> io::Result<()> {
    writer.frame(&serde_json::to_vec(about)?)
}
