//! Buffers that direct I/O accepts.

/// What the address, the place in the file and the length of a direct read or write must be a multiple of, on any disk.
pub(super) const BLOCK: usize = 4096;

/// Rounds up to whole blocks.
pub(super) fn in_blocks(bytes: usize) -> usize {
    bytes.next_multiple_of(BLOCK)
}

/// A buffer whose address is a multiple of [`BLOCK`].
pub(super) struct Aligned {
    bytes: Vec<u8>,
    start: usize,
    length: usize,
}

impl Aligned {
    /// Creates a buffer of zeros, of whole blocks.
    pub fn new(bytes: usize) -> Self {
        let length = in_blocks(bytes);
        let bytes = vec![0; length + BLOCK];
        let start = bytes.as_ptr().addr().wrapping_neg() % BLOCK;
        Self { bytes, start, length }
    }

    /// Returns the first bytes, in whole blocks.
    pub fn first(&mut self, bytes: usize) -> &mut [u8] {
        let length = in_blocks(bytes).min(self.length);
        &mut self.bytes[self.start..][..length]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_buffer_begins_at_a_block_and_has_whole_blocks() {
        for bytes in [1, BLOCK, BLOCK + 1] {
            let mut buffer = Aligned::new(bytes);
            let first = buffer.first(bytes);
            assert_eq!((first.as_ptr().addr() % BLOCK, first.len()), (0, in_blocks(bytes)));
        }
    }
}
