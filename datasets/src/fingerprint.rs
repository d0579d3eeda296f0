//! Detects changed data, independent of its names and location.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// The BLAKE3 hash of the content of some data.
///
/// It does not depend on the names, locations, timestamps or compression of files. A trainer saves it in its
/// checkpoints, so that a resumed run detects changed data.
///
/// ```
/// use firebrick_datasets::Fingerprint;
///
/// let one = Fingerprint::of("to be or not to be");
/// assert_eq!(one, Fingerprint::of("to be or not to be"));
/// assert_ne!(one, Fingerprint::of("to be or not to bee"));
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub struct Fingerprint([u8; 32]);

impl Fingerprint {
    /// Hashes bytes.
    pub fn of(bytes: impl AsRef<[u8]>) -> Self {
        Self(blake3::hash(bytes.as_ref()).into())
    }

    /// Hashes settings, as MessagePack with the names of fields. `None` if they cannot be written as such.
    #[cfg(feature = "text")]
    pub(crate) fn of_settings(settings: &impl Serialize) -> Option<Self> {
        Some(Self::of(rmp_serde::to_vec_named(settings).ok()?))
    }

    /// Combines the fingerprints of several parts, in order.
    pub fn of_all(parts: impl IntoIterator<Item = Self>) -> Self {
        let mut hasher = blake3::Hasher::new();
        for part in parts {
            hasher.update(&part.0);
        }
        (&hasher).into()
    }
}

/// Takes the hash of the bytes added so far.
impl From<&blake3::Hasher> for Fingerprint {
    fn from(hasher: &blake3::Hasher) -> Self {
        Self(hasher.finalize().into())
    }
}

/// Writes the first 12 hex digits, enough to distinguish fingerprints by eye.
impl fmt::Display for Fingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0[..6].iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for Fingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Fingerprint({self})")
    }
}

impl From<Fingerprint> for String {
    /// Returns all 64 hex digits.
    fn from(fingerprint: Fingerprint) -> Self {
        blake3::Hash::from(fingerprint.0).to_hex().to_string()
    }
}

impl FromStr for Fingerprint {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let hash = blake3::Hash::from_hex(text);
        hash.map(|hash| Self(hash.into())).map_err(|error| format!("expected 64 hexadecimal digits: {error}"))
    }
}

impl TryFrom<String> for Fingerprint {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_round_trip() {
        let one = Fingerprint::of("one");
        let text = String::from(one);
        assert_eq!((text.len(), text.parse()), (64, Ok(one)));
        assert!(text.starts_with(&one.to_string()));
        assert!("12".parse::<Fingerprint>().is_err());
    }
}
