//! The header of a token file, checked.

/// The first bytes of a token file.
pub(super) const MAGIC: [u8; 8] = *b"FBTOKENS";

/// The version of the layout that this crate writes and reads.
const VERSION: u32 = 1;

/// The header of a token file.
///
/// All numbers are little-endian:
///
/// | bytes | content |
/// |---|---|
/// | 0..8 | `FBTOKENS` |
/// | 8..12 | version of the layout, 1 |
/// | 12..16 | bytes of an id, 2 or 4 |
/// | 16..24 | number of tokens |
/// | 24..32 | number of documents |
/// | 32..40 | size of the vocabulary: all ids are smaller |
/// | 40..72 | SHA-256 of the tokenizer that made the ids |
/// | 72..76 | CRC-32 of the ids |
/// | 76..80 | CRC-32 of bytes 0..76 |
/// | 80..128 | zeros |
/// | 128.. | the ids |
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Header {
    pub width: Width,
    pub tokens: u64,
    pub documents: u64,
    pub vocab_size: u64,
    pub tokenizer: [u8; 32],
    pub checksum: u32,
}

/// The size of an id.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Width {
    U16,
    U32,
}

impl Width {
    /// Returns the smallest width that holds all ids of a vocabulary.
    pub fn of(vocab_size: usize) -> Self {
        if vocab_size <= 1 << 16 { Self::U16 } else { Self::U32 }
    }

    pub fn bytes(self) -> usize {
        match self {
            Self::U16 => 2,
            Self::U32 => 4,
        }
    }
}

impl Header {
    /// The size of the header in bytes.
    pub const BYTES: usize = 128;

    pub fn to_bytes(&self) -> [u8; Self::BYTES] {
        let mut bytes = [0; Self::BYTES];
        let mut at = 0;
        let mut put = |field: &[u8]| {
            bytes[at..at + field.len()].copy_from_slice(field);
            at += field.len();
        };
        put(&MAGIC);
        put(&VERSION.to_le_bytes());
        put(&(self.width.bytes() as u32).to_le_bytes());
        put(&self.tokens.to_le_bytes());
        put(&self.documents.to_le_bytes());
        put(&self.vocab_size.to_le_bytes());
        put(&self.tokenizer);
        put(&self.checksum.to_le_bytes());
        let own = crc32fast::hash(&bytes[..76]);
        bytes[76..80].copy_from_slice(&own.to_le_bytes());
        bytes
    }

    /// Reads a header of a file with `file_bytes` bytes in total.
    ///
    /// # Errors
    ///
    /// A message that describes what is wrong.
    pub fn read(bytes: &[u8], file_bytes: u64) -> Result<Self, String> {
        let Some(bytes) = bytes.first_chunk::<{ Self::BYTES }>() else {
            return Err(format!("it has {} bytes, fewer than the {} of a header", bytes.len(), Self::BYTES));
        };
        if bytes[..8] != MAGIC {
            return Err("it does not begin with `FBTOKENS`".into());
        }
        let version = u32_at(bytes, 8);
        if version != VERSION {
            return Err(format!(
                "its layout has version {version}, but this program reads version {VERSION}"
            ));
        }
        if u32_at(bytes, 76) != crc32fast::hash(&bytes[..76]) {
            return Err("its header is damaged: the checksum does not match".into());
        }
        let width = match u32_at(bytes, 12) {
            2 => Width::U16,
            4 => Width::U32,
            other => return Err(format!("its ids have {other} bytes, not 2 or 4")),
        };
        let header = Self {
            width,
            tokens: u64_at(bytes, 16),
            documents: u64_at(bytes, 24),
            vocab_size: u64_at(bytes, 32),
            tokenizer: std::array::from_fn(|at| bytes[40 + at]),
            checksum: u32_at(bytes, 72),
        };
        let expected = u128::from(header.tokens) * width.bytes() as u128 + Self::BYTES as u128;
        if expected != u128::from(file_bytes) {
            return Err(format!(
                "its header states {} tokens, which take {expected} bytes, but it has {file_bytes}; it was \
                 truncated or extended",
                header.tokens
            ));
        }
        Ok(header)
    }
}

fn u32_at(bytes: &[u8; Header::BYTES], at: usize) -> u32 {
    u32::from_le_bytes(std::array::from_fn(|byte| bytes[at + byte]))
}

fn u64_at(bytes: &[u8; Header::BYTES], at: usize) -> u64 {
    u64::from_le_bytes(std::array::from_fn(|byte| bytes[at + byte]))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn header() -> Header {
        Header {
            width: Width::U16,
            tokens: 5,
            documents: 2,
            vocab_size: 300,
            tokenizer: [7; 32],
            checksum: 99,
        }
    }

    #[test]
    fn header_round_trip() {
        assert_eq!(Header::read(&header().to_bytes(), 138).unwrap(), header());
        let wide = Header { width: Width::of(65_537), tokens: 0, ..header() };
        assert_eq!(Header::read(&wide.to_bytes(), 128).unwrap(), wide);
        assert_eq!(Width::of(65_536), Width::U16);
    }

    #[test]
    fn every_flipped_bit_is_detected() {
        let bytes = header().to_bytes();
        for bit in 0..80 * 8 {
            let mut damaged = bytes;
            damaged[bit / 8] ^= 1 << (bit % 8);
            assert!(Header::read(&damaged, 138).is_err(), "bit {bit}");
        }
        for cut in 0..Header::BYTES {
            assert!(Header::read(&bytes[..cut], 138).is_err());
        }
        assert!(Header::read(&bytes, 137).unwrap_err().contains("it was truncated"));
    }
}
