//! The manifest: a checkpoint's files with their sizes and digests.

use std::collections::BTreeMap;
use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::digest::Hex;
use crate::disk::name_of;
use crate::error::{CheckpointError, Result};
use crate::file_names::{
    Holds, MANIFEST, MAX_RANKS, REPLACED, rank_file, step_folder, step_of, trainer_file,
};
use crate::header::check_name;
use crate::regular::{read_small, real_folder};
use crate::{Algorithm, Digest, FORMAT, PackedMatrices};

/// The maximum bytes of a manifest.
pub(crate) const MAX_MANIFEST: u64 = 64 << 20;
/// The maximum bytes of the trainer's text.
pub(crate) const MAX_TRAINER: u64 = 16 << 20;
/// The maximum bytes of the run's id, and of the program's version.
const MAX_LABEL: usize = 256;

/// One file of a checkpoint. In JSON the digest's field is named after its function: `blake3`, or `sha256` in format 1.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "FileFields", into = "FileFields")]
pub struct FileEntry {
    /// The file's name in the folder.
    pub name: String,
    /// The file's size in bytes.
    pub bytes: u64,
    /// The digest of its bytes.
    pub sum: Digest,
}

/// The JSON fields of [`FileEntry`].
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct FileFields {
    name: String,
    bytes: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    sha256: Option<Hex>,
    #[serde(skip_serializing_if = "Option::is_none")]
    blake3: Option<Hex>,
}

impl TryFrom<FileFields> for FileEntry {
    type Error = String;

    fn try_from(fields: FileFields) -> Result<Self, String> {
        let FileFields { name, bytes, sha256, blake3 } = fields;
        Ok(Self { name, bytes, sum: Digest::of_fields(sha256, blake3)? })
    }
}

impl From<FileEntry> for FileFields {
    fn from(entry: FileEntry) -> Self {
        let (sha256, blake3) = entry.sum.into_fields();
        Self { name: entry.name, bytes: entry.bytes, sha256, blake3 }
    }
}

/// The content of `manifest.json`.
///
/// It has a single valid encoding: a reader accepts exactly the bytes that the writer would produce.
///
/// ```
/// use firebrick_checkpoints::Manifest;
///
/// let manifest = Manifest::new("run-1", 1000, 4, "0.1.0").metric(3.21);
/// assert_eq!((manifest.step, manifest.world_size), (1000, 4));
/// ```
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Manifest {
    /// The format version: [`FORMAT`], or an older one if the manifest was read.
    pub format: u32,
    /// The id of the run that saved it.
    pub run: String,
    /// The run's number of updates so far.
    pub step: u64,
    /// The number of ranks that saved it.
    pub world_size: usize,
    /// The version of the program that saved it.
    pub program: String,
    /// Numbers the checkpoints published in a folder, from 1: the highest is the newest, even after a run went back to
    /// an earlier step. Publishing sets it.
    pub sequence: u64,
    /// The metric of the checkpoint, such as the validation loss. A non-finite number counts as none.
    #[serde(with = "metric")]
    pub metric: Option<f64>,
    /// Tied weights: maps the path of each alias to the path under which the tensor is saved.
    pub aliases: BTreeMap<String, String>,
    /// For adapted matrices: the scale of the product of the factors `PATH.lora.a` and `PATH.lora.b` before it is added
    /// to `PATH`.
    #[serde(with = "metric", default, skip_serializing_if = "Option::is_none")]
    pub lora_scale: Option<f64>,
    /// Matrices that are saved packed, if there are any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub packed: Option<PackedMatrices>,
    /// Whether all numbers in its tensors, and its losses, are finite as far as is known. An unsound checkpoint
    /// never replaces a sound one: see [`Keep`](crate::Keep).
    #[serde(default = "yes", skip_serializing_if = "is_yes")]
    pub sound: bool,
    /// The files, sorted by name.
    pub files: Vec<FileEntry>,
}

fn yes() -> bool {
    true
}

fn is_yes(sound: &bool) -> bool {
    *sound
}

/// The file's content. Its own digest detects changes that are still valid JSON, such as a flipped bit in the run's id.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Sealed {
    manifest: Manifest,
    #[serde(skip_serializing_if = "Option::is_none")]
    sha256: Option<Hex>,
    #[serde(skip_serializing_if = "Option::is_none")]
    blake3: Option<Hex>,
}

/// The part of the file's content that gives its version.
#[derive(Deserialize)]
struct Versioned {
    manifest: Version,
}

#[derive(Deserialize)]
struct Version {
    format: u32,
}

impl Manifest {
    /// Creates a manifest without files from a run's id, a step, a world size and the program's version.
    pub fn new(run: &str, step: u64, world_size: usize, program: &str) -> Self {
        Self {
            format: FORMAT,
            run: run.into(),
            step,
            world_size,
            program: program.into(),
            sequence: 0,
            metric: None,
            aliases: BTreeMap::new(),
            lora_scale: None,
            packed: None,
            sound: true,
            files: Vec::new(),
        }
    }

    /// Adds the files of one rank or several.
    pub fn files(mut self, files: impl IntoIterator<Item = FileEntry>) -> Self {
        self.files.extend(files);
        self
    }

    /// Adds tied weights: the path of each alias, and the path under which the tensor is saved.
    pub fn aliases(mut self, aliases: impl IntoIterator<Item = (String, String)>) -> Self {
        self.aliases.extend(aliases);
        self
    }

    /// Sets the metric, such as the validation loss. A non-finite number counts as none.
    pub fn metric(self, metric: f64) -> Self {
        Self { metric: Some(metric).filter(|metric| metric.is_finite()), ..self }
    }

    /// Sets the scale of the products of low-rank factors, if there are any.
    pub fn lora_scale(self, scale: impl Into<Option<f64>>) -> Self {
        Self { lora_scale: scale.into(), ..self }
    }

    /// Sets the matrices that are saved packed, if there are any.
    pub fn packed(self, packed: impl Into<Option<PackedMatrices>>) -> Self {
        Self { packed: packed.into(), ..self }
    }

    /// Sets whether all of its numbers and losses are finite.
    pub fn sound(self, sound: bool) -> Self {
        Self { sound, ..self }
    }

    /// Returns the total bytes of its files.
    pub fn bytes(&self) -> u64 {
        self.files.iter().fold(0, |sum, file| sum.saturating_add(file.bytes))
    }

    /// Encodes the manifest, with the digest of its compact JSON.
    pub fn to_json(&self) -> Vec<u8> {
        let (sha256, blake3) = self.sum().into_fields();
        let sealed = Sealed { manifest: self.clone(), sha256, blake3 };
        // Only a map with non-string keys, or a failing writer, could make this fail.
        let mut json = serde_json::to_vec_pretty(&sealed).unwrap_or_default();
        json.push(b'\n');
        json
    }

    fn sum(&self) -> Digest {
        Digest::with(self.algorithm(), &serde_json::to_vec(self).unwrap_or_default())
    }

    /// Returns the hash function of its files.
    pub fn algorithm(&self) -> Algorithm {
        // A manifest of an unknown version is neither read nor published.
        Algorithm::of_format(self.format).unwrap_or(Algorithm::Blake3)
    }

    /// Returns the name of the trainer's file: [`TRAINER`](crate::TRAINER), or
    /// [`TRAINER_IN_RON`](crate::TRAINER_IN_RON) in an older format.
    pub fn trainer_file(&self) -> &'static str {
        trainer_file(self.format)
    }

    /// Decodes and checks a manifest. `path` is for errors.
    ///
    /// # Errors
    ///
    /// [`CheckpointError::Format`] for an unknown version, [`CheckpointError::Sum`] if the manifest's own digest does
    /// not match, [`CheckpointError::Damaged`] for everything else.
    pub fn from_json(json: &[u8], path: &Path) -> Result<Self> {
        let damaged = |error: serde_json::Error| {
            CheckpointError::damaged(path, "a manifest of firebrick", error.to_string())
        };
        // A newer version may have other fields, so its number comes first.
        let versioned: Versioned = serde_json::from_slice(json).map_err(damaged)?;
        let format = versioned.manifest.format;
        if Algorithm::of_format(format).is_none() {
            return Err(CheckpointError::Format { path: path.into(), found: format });
        }
        let Sealed { manifest, sha256, blake3 } = serde_json::from_slice(json).map_err(damaged)?;
        let wrong = |found: String| CheckpointError::damaged(path, "a manifest of firebrick", found);
        let expected = Digest::of_fields(sha256, blake3).map_err(wrong)?;
        let found = manifest.sum();
        if found.algorithm() != expected.algorithm() {
            let asked = format!("the {} of format {format}", found.algorithm());
            return Err(CheckpointError::damaged(path, asked, format!("a {}", expected.algorithm())));
        }
        if found != expected {
            return Err(CheckpointError::Sum { path: path.into(), expected, found });
        }
        manifest.check().map_err(|(expected, found)| CheckpointError::damaged(path, expected, found))?;
        if manifest.to_json() != json {
            let found = "the same values in a different encoding";
            return Err(CheckpointError::damaged(path, "a manifest as firebrick writes it", found));
        }
        Ok(manifest)
    }

    /// Returns the format version of a checkpoint's folder if the version is unknown.
    pub(crate) fn unknown_format(folder: &Path) -> Option<u32> {
        match Self::read(folder) {
            Err(CheckpointError::Format { found, .. }) => Some(found),
            _ => None,
        }
    }

    /// Reads the manifest of a checkpoint's folder, whose name must be that of its step.
    pub(crate) fn read(folder: &Path) -> Result<Self> {
        real_folder(folder)?;
        let path = folder.join(MANIFEST);
        let manifest = Self::from_json(&read_small(&path, MAX_MANIFEST)?, &path)?;
        let expected = step_folder(manifest.step);
        let name = match folder.file_name() {
            Some(_) => name_of(folder),
            // A path such as `.`, which still is a folder with a name.
            None => name_of(&folder.canonicalize().unwrap_or_default()),
        };
        if name.strip_prefix(REPLACED).unwrap_or(&name) != expected {
            // Either the folder's name or the manifest is wrong.
            return Err(match step_of(&name) {
                Some(_) => CheckpointError::damaged(
                    &path,
                    format!("the manifest of {name}"),
                    format!("that of {expected}"),
                ),
                None => CheckpointError::FolderName { path: folder.into(), expected },
            });
        }
        Ok(manifest)
    }

    /// Checks all fields. The error says what was expected and what was found.
    pub(crate) fn check(&self) -> Result<(), (String, String)> {
        let wrong = |expected: &str, found: String| Err((expected.to_owned(), found));
        if Algorithm::of_format(self.format).is_none() {
            return wrong(&format!("a `format` of at most {FORMAT}"), self.format.to_string());
        }
        for (label, text) in [("run", &self.run), ("program", &self.program)] {
            if text.is_empty() || text.len() > MAX_LABEL || text.chars().any(char::is_control) {
                return wrong(&format!("`{label}` of 1 to {MAX_LABEL} bytes without control characters"), {
                    format!("{} bytes", text.len())
                });
            }
        }
        if !(1..=MAX_RANKS).contains(&self.world_size) {
            return wrong("`world_size` between 1 and 99999", self.world_size.to_string());
        }
        if self.metric.is_some_and(|metric| !metric.is_finite()) {
            return wrong("a finite `metric`, or none", format!("{:?}", self.metric));
        }
        if self.lora_scale.is_some_and(|scale| !scale.is_finite()) {
            return wrong("a finite `lora_scale`, or none", format!("{:?}", self.lora_scale));
        }
        if let Some(packed) = &self.packed {
            packed.check()?;
        }
        self.check_files()?;
        for (alias, saved) in &self.aliases {
            for path in [alias, saved] {
                check_name(path).or_else(|why| wrong("paths as aliases", why))?;
            }
            if self.aliases.contains_key(saved) {
                return wrong("aliases of saved tensors", format!("`{alias}` as an alias of an alias"));
            }
        }
        Ok(())
    }

    /// Checks that each rank's files are named once, and nothing else is.
    fn check_files(&self) -> Result<(), (String, String)> {
        let ranks = self.world_size;
        let (without, with) = (2 * ranks + 1, 3 * ranks + 1);
        if ![without, with].contains(&self.files.len()) {
            let expected = format!("{without} files of {ranks} ranks, or {with} with averages");
            return Err((expected, self.files.len().to_string()));
        }
        let kinds = if self.files.len() == with {
            &[Holds::Average, Holds::Optimizer, Holds::Parameters][..]
        } else {
            &[Holds::Optimizer, Holds::Parameters]
        };
        let files = kinds.iter().flat_map(|&holds| (0..ranks).map(move |rank| rank_file(holds, rank, ranks)));
        for (file, expected) in self.files.iter().zip(files.chain([self.trainer_file().to_owned()])) {
            if file.name != expected {
                let found: String = file.name.chars().take(80).collect();
                return Err((format!("the file `{expected}`"), format!("{found:?}")));
            }
        }
        let algorithm = self.algorithm();
        if let Some(file) = self.files.iter().find(|file| file.sum.algorithm() != algorithm) {
            let expected = format!("a {algorithm} of `{}`, as format {} has them", file.name, self.format);
            return Err((expected, format!("a {}", file.sum.algorithm())));
        }
        let trainer = self.files.last().map_or(0, |file| file.bytes);
        if trainer > MAX_TRAINER {
            let file = self.trainer_file();
            return Err((format!("`{file}` of at most {MAX_TRAINER} bytes"), format!("{trainer} bytes")));
        }
        let sum = self.files.iter().try_fold(0u64, |sum, file| sum.checked_add(file.bytes));
        match sum {
            Some(_) => Ok(()),
            None => Err(("files of less than 2^64 bytes in total".into(), "more than 2^64 bytes".into())),
        }
    }
}

/// Stores a number as text, with the shortest digits that parse back exactly: JSON readers round.
mod metric {
    use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

    pub(super) fn serialize<S: Serializer>(metric: &Option<f64>, serializer: S) -> Result<S::Ok, S::Error> {
        metric.map(|metric| metric.to_string()).serialize(serializer)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<f64>, D::Error> {
        let text = Option::<String>::deserialize(deserializer)?;
        text.map(|text| text.parse().map_err(de::Error::custom)).transpose()
    }
}
