//! The SHA-256 of a file.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

/// A SHA-256 sum, written as 64 lower-case hexadecimal digits.
///
/// ```
/// use firebrick_checkpoints::Digest;
///
/// let sum = Digest::of(b"abc");
/// assert!(sum.to_string().starts_with("ba7816bf"));
/// assert_eq!(sum.to_string().parse(), Ok(sum));
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Digest([u8; 32]);

impl Digest {
    /// The sum of some bytes.
    pub fn of(bytes: &[u8]) -> Self {
        let mut hasher = Hasher::new();
        hasher.update(bytes);
        hasher.finish()
    }
}

/// Sums bytes as they come.
pub(crate) struct Hasher(ring::digest::Context);

impl Hasher {
    pub(crate) fn new() -> Self {
        Self(ring::digest::Context::new(&ring::digest::SHA256))
    }

    pub(crate) fn update(&mut self, bytes: &[u8]) {
        self.0.update(bytes);
    }

    pub(crate) fn finish(self) -> Digest {
        let mut sum = [0; 32];
        sum.copy_from_slice(self.0.finish().as_ref());
        Digest(sum)
    }
}

impl From<[u8; 32]> for Digest {
    fn from(sum: [u8; 32]) -> Self {
        Self(sum)
    }
}

impl AsRef<[u8; 32]> for Digest {
    fn as_ref(&self) -> &[u8; 32] {
        &self.0
    }
}

impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}")
    }
}

impl FromStr for Digest {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || format!("expected 64 lower-case hexadecimal digits, found {:?}", shortened(text));
        if text.len() != 64 || !text.bytes().all(|digit| matches!(digit, b'0'..=b'9' | b'a'..=b'f')) {
            return Err(wrong());
        }
        let mut sum = [0; 32];
        for (byte, digits) in sum.iter_mut().zip(text.as_bytes().chunks_exact(2)) {
            let digits = str::from_utf8(digits).map_err(|_| wrong())?;
            *byte = u8::from_str_radix(digits, 16).map_err(|_| wrong())?;
        }
        Ok(Self(sum))
    }
}

/// The beginning of a text that may be long.
fn shortened(text: &str) -> String {
    text.chars().take(80).collect()
}

impl Serialize for Digest {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Digest {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_sum_is_that_of_the_standard() {
        // FIPS 180-2, appendix B.1, and the empty message.
        let abc = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
        assert_eq!(Digest::of(b"abc").to_string(), abc);
        let empty = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";
        assert_eq!(Digest::of(b"").to_string(), empty);
    }

    #[test]
    fn one_spelling_is_read() {
        let sum = Digest::of(b"abc").to_string();
        assert_eq!(sum.parse(), Ok(Digest::of(b"abc")));
        for wrong in
            [sum.to_uppercase(), sum[1..].into(), format!("{sum}0"), sum.replace('b', "g"), "é".repeat(32)]
        {
            assert!(wrong.parse::<Digest>().unwrap_err().contains("expected 64"), "{wrong}");
        }
    }
}
