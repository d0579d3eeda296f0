//! File digests and the hash functions that compute them.

use std::fmt;
use std::str::FromStr;

use blake3::hazmat::{ChainingValue, HasherExt, Mode, merge_subtrees_non_root, merge_subtrees_root};
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

use crate::FORMAT;

/// The hash function for a checkpoint's files. The format version determines it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Algorithm {
    /// SHA-256, of format 1: read, but no longer written.
    Sha256,
    /// BLAKE3, from format 2 on: several times faster on any processor.
    Blake3,
}

impl Algorithm {
    /// Returns the hash function of a format version, if the version is known.
    pub fn of_format(format: u32) -> Option<Self> {
        match format {
            1 => Some(Self::Sha256),
            2 | FORMAT => Some(Self::Blake3),
            _ => None,
        }
    }
}

impl fmt::Display for Algorithm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Sha256 => "SHA-256",
            Self::Blake3 => "BLAKE3",
        })
    }
}

/// A digest, displayed as 64 lower-case hexadecimal digits.
///
/// ```
/// use firebrick_checkpoints::{Algorithm, Digest};
///
/// let sum = Digest::of(b"abc");
/// assert_eq!(sum.algorithm(), Algorithm::Blake3);
/// assert!(sum.to_string().starts_with("6437b3ac"));
/// assert!(Digest::with(Algorithm::Sha256, b"abc").to_string().starts_with("ba7816bf"));
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Digest {
    algorithm: Algorithm,
    sum: Hex,
}

impl Digest {
    /// Hashes some bytes with the function of the current format.
    pub fn of(bytes: &[u8]) -> Self {
        Self::with(Algorithm::Blake3, bytes)
    }

    /// Hashes some bytes with the given function.
    pub fn with(algorithm: Algorithm, bytes: &[u8]) -> Self {
        let mut hasher = Hasher::new(algorithm);
        hasher.update(bytes);
        hasher.finish()
    }

    /// Wraps a digest that is already known.
    pub fn from_bytes(algorithm: Algorithm, sum: [u8; 32]) -> Self {
        Self { algorithm, sum: Hex(sum) }
    }

    /// Returns the function that made it.
    pub fn algorithm(&self) -> Algorithm {
        self.algorithm
    }

    /// Reads a digest from the JSON fields of both functions, exactly one of which must be present.
    pub(crate) fn of_fields(sha256: Option<Hex>, blake3: Option<Hex>) -> Result<Self, String> {
        match (sha256, blake3) {
            (Some(sum), None) => Ok(Self { algorithm: Algorithm::Sha256, sum }),
            (None, Some(sum)) => Ok(Self { algorithm: Algorithm::Blake3, sum }),
            (None, None) => Err("missing field `blake3` or `sha256`".into()),
            (Some(_), Some(_)) => Err("expected one of the fields `blake3` and `sha256`, found both".into()),
        }
    }

    /// The inverse of [`of_fields`](Self::of_fields).
    pub(crate) fn into_fields(self) -> (Option<Hex>, Option<Hex>) {
        match self.algorithm {
            Algorithm::Sha256 => (Some(self.sum), None),
            Algorithm::Blake3 => (None, Some(self.sum)),
        }
    }
}

impl AsRef<[u8; 32]> for Digest {
    fn as_ref(&self) -> &[u8; 32] {
        &self.sum.0
    }
}

impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.sum)
    }
}

impl fmt::Debug for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {self}", self.algorithm)
    }
}

/// Hashes bytes incrementally.
pub(crate) enum Hasher {
    Sha256(Box<ring::digest::Context>),
    Blake3(Box<blake3::Hasher>),
}

impl Hasher {
    pub(crate) fn new(algorithm: Algorithm) -> Self {
        match algorithm {
            Algorithm::Sha256 => Self::Sha256(Box::new(ring::digest::Context::new(&ring::digest::SHA256))),
            Algorithm::Blake3 => Self::Blake3(Box::default()),
        }
    }

    pub(crate) fn update(&mut self, bytes: &[u8]) {
        match self {
            Self::Sha256(context) => context.update(bytes),
            Self::Blake3(hasher) => {
                hasher.update(bytes);
            }
        }
    }

    pub(crate) fn finish(self) -> Digest {
        match self {
            Self::Sha256(context) => {
                let mut sum = [0; 32];
                sum.copy_from_slice(context.finish().as_ref());
                Digest::from_bytes(Algorithm::Sha256, sum)
            }
            Self::Blake3(hasher) => Digest::from_bytes(Algorithm::Blake3, hasher.finalize().into()),
        }
    }
}

/// Bytes of the segments that are hashed in parallel: a power of two, as BLAKE3's tree requires.
pub(crate) const SEGMENT: u64 = 8 << 20;

/// Hashes one of several segments; [`of_segments`] combines the results into the file's BLAKE3.
pub(crate) struct SegmentHasher(Box<blake3::Hasher>);

impl SegmentHasher {
    /// Starts the segment at offset `start`, a multiple of [`SEGMENT`].
    pub(crate) fn new(start: u64) -> Self {
        let mut hasher = Box::<blake3::Hasher>::default();
        hasher.set_input_offset(start);
        Self(hasher)
    }

    pub(crate) fn update(&mut self, bytes: &[u8]) {
        self.0.update(bytes);
    }

    pub(crate) fn finish(self) -> ChainingValue {
        self.0.finalize_non_root()
    }
}

/// Combines at least two segments into their BLAKE3. Only the last may be shorter than [`SEGMENT`].
pub(crate) fn of_segments(segments: &[ChainingValue]) -> Digest {
    let (left, right) = halves(segments);
    let sum = merge_subtrees_root(&subtree(left), &subtree(right), Mode::Hash);
    Digest::from_bytes(Algorithm::Blake3, sum.into())
}

fn subtree(segments: &[ChainingValue]) -> ChainingValue {
    match segments {
        [segment] => *segment,
        _ => {
            let (left, right) = halves(segments);
            merge_subtrees_non_root(&subtree(left), &subtree(right), Mode::Hash)
        }
    }
}

/// Splits a node of BLAKE3's tree: the left half is the largest power of two that leaves a nonempty right half.
fn halves(segments: &[ChainingValue]) -> (&[ChainingValue], &[ChainingValue]) {
    segments.split_at(segments.len().next_power_of_two() / 2)
}

/// 32 bytes, written as 64 lower-case hexadecimal digits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Hex([u8; 32]);

impl fmt::Display for Hex {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&blake3::Hash::from(self.0).to_hex())
    }
}

impl FromStr for Hex {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let hash =
            blake3::Hash::from_hex(text).ok().filter(|_| !text.contains(|c: char| c.is_ascii_uppercase()));
        hash.map(|hash| Self(hash.into())).ok_or_else(|| {
            let found: String = text.chars().take(80).collect();
            format!("expected 64 lower-case hexadecimal digits, found {found:?}")
        })
    }
}

impl Serialize for Hex {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Hex {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn digests_match_published_test_vectors() {
        let [sha256, blake3] = [Algorithm::Sha256, Algorithm::Blake3]
            .map(|algorithm| move |bytes| Digest::with(algorithm, bytes));
        // FIPS 180-2, appendix B.1, and the empty message.
        let abc = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
        assert_eq!(sha256(b"abc").to_string(), abc);
        let empty = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";
        assert_eq!(sha256(b"").to_string(), empty);
        // BLAKE3's test vectors: the empty message, and 2049 bytes, which are three chunks.
        let empty = "af1349b9f5f9a1a6a0404dea36dcc9499bcb25c9adc112b7cc9a93cae41f3262";
        assert_eq!(blake3(b"").to_string(), empty);
        let counted: Vec<u8> = (0..2049).map(|at| (at % 251) as u8).collect();
        let sum = "5f4d72f40d7a5f82b15ca2b2e44b1de3c2ef86c426c95c1af0b6879522563030";
        assert_eq!(blake3(&counted).to_string(), sum);
    }

    #[test]
    fn segment_digests_merge_into_the_file_digest() {
        let segment = SEGMENT as usize;
        let bytes: Vec<u8> = (0..5 * segment).map(|at| (at % 251) as u8).collect();
        let lengths = [segment + 1, 2 * segment, 2 * segment + 1, 4 * segment - 1, 4 * segment, 5 * segment];
        for length in lengths {
            let segments = bytes[..length].chunks(segment).enumerate().map(|(index, segment)| {
                let mut hasher = SegmentHasher::new(index as u64 * SEGMENT);
                hasher.update(segment);
                hasher.finish()
            });
            let segments: Vec<_> = segments.collect();
            assert_eq!(of_segments(&segments), Digest::of(&bytes[..length]), "{length} bytes");
        }
    }

    #[test]
    fn only_lower_case_digests_are_accepted() {
        let sum = Digest::of(b"abc").to_string();
        assert_eq!(sum.parse(), Ok(Digest::of(b"abc").sum));
        for wrong in
            [sum.to_uppercase(), sum[1..].into(), format!("{sum}0"), sum.replace('b', "g"), "é".repeat(32)]
        {
            assert!(wrong.parse::<Hex>().unwrap_err().contains("expected 64"), "{wrong}");
        }
    }
}
