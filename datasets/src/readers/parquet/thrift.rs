//! Parses enough of Thrift's compact protocol to check Parquet's headers before the parser trusts them.

/// The maximum nesting depth of structures.
const DEPTH: u32 = 32;

/// A header that is truncated or invalid.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Unreadable;

/// The kinds of values that are checked; all others are skipped.
pub(super) const LIST: u8 = 9;
pub(super) const STRUCT: u8 = 12;
const I32: u8 = 5;

/// Bytes in the compact protocol
/// (<https://github.com/apache/thrift/blob/master/doc/specs/thrift-compact-protocol.md>).
#[derive(Debug)]
pub(super) struct Compact<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Compact<'a> {
    pub(super) fn new(bytes: &'a [u8]) -> Self {
        Self { bytes, at: 0 }
    }

    /// Returns the number of bytes read.
    pub(super) fn position(&self) -> usize {
        self.at
    }

    fn byte(&mut self) -> Result<u8, Unreadable> {
        let byte = *self.bytes.get(self.at).ok_or(Unreadable)?;
        self.at += 1;
        Ok(byte)
    }

    /// Takes the next `length` bytes.
    pub(super) fn take(&mut self, length: u64) -> Result<&'a [u8], Unreadable> {
        let left = self.bytes.get(self.at..).ok_or(Unreadable)?;
        let taken = usize::try_from(length).ok().and_then(|length| left.get(..length)).ok_or(Unreadable)?;
        self.at += taken.len();
        Ok(taken)
    }

    pub(super) fn varint(&mut self) -> Result<u64, Unreadable> {
        let mut value = 0;
        for shift in (0..64).step_by(7) {
            let byte = self.byte()?;
            value |= u64::from(byte & 0x7f) << shift;
            if byte < 0x80 {
                return Ok(value);
            }
        }
        Err(Unreadable)
    }

    pub(super) fn zigzag(&mut self) -> Result<i64, Unreadable> {
        let value = self.varint()?;
        Ok((value >> 1) as i64 ^ -((value & 1) as i64))
    }

    /// Reads a structure. `field` gets the number and kind of each field; it either reads the value and returns `true`,
    /// or returns `false` to skip it.
    pub(super) fn structure(
        &mut self,
        mut field: impl FnMut(&mut Self, i64, u8) -> Result<bool, Unreadable>,
    ) -> Result<(), Unreadable> {
        self.fields(0, &mut field)
    }

    fn fields(
        &mut self,
        depth: u32,
        field: &mut dyn FnMut(&mut Self, i64, u8) -> Result<bool, Unreadable>,
    ) -> Result<(), Unreadable> {
        let mut number = 0_i64;
        loop {
            let header = self.byte()?;
            if header == 0 {
                return Ok(());
            }
            let step = i64::from(header >> 4);
            number = if step == 0 { self.zigzag()? } else { number.saturating_add(step) };
            let kind = header & 0x0f;
            if !field(self, number, kind)? {
                self.skip(kind, depth, false)?;
            }
        }
    }

    /// Reads a 32-bit integer; any other kind of field is an error.
    pub(super) fn i32(&mut self, kind: u8) -> Result<i32, Unreadable> {
        if kind != I32 {
            return Err(Unreadable);
        }
        i32::try_from(self.zigzag()?).map_err(|_| Unreadable)
    }

    /// Reads the header of a list: the number and kind of its values.
    pub(super) fn list(&mut self) -> Result<(u64, u8), Unreadable> {
        let header = self.byte()?;
        let count = if header >> 4 == 15 { self.varint()? } else { u64::from(header >> 4) };
        Ok((count, header & 0x0f))
    }

    fn skip(&mut self, kind: u8, depth: u32, in_list: bool) -> Result<(), Unreadable> {
        if depth > DEPTH {
            return Err(Unreadable);
        }
        match kind {
            // A Boolean field has its value in its kind.
            1 | 2 if !in_list => Ok(()),
            1..=3 => self.take(1).map(|_| ()),
            4..=6 => self.varint().map(|_| ()),
            7 => self.take(8).map(|_| ()),
            8 => {
                let length = self.varint()?;
                self.take(length).map(|_| ())
            }
            LIST | 10 => {
                let (count, kind) = self.list()?;
                (0..count).try_for_each(|_| self.skip(kind, depth + 1, true))
            }
            11 => {
                let count = self.varint()?;
                if count == 0 {
                    return Ok(());
                }
                let kinds = self.byte()?;
                (0..count).try_for_each(|_| {
                    self.skip(kinds >> 4, depth + 1, true)?;
                    self.skip(kinds & 0x0f, depth + 1, true)
                })
            }
            STRUCT => self.fields(depth + 1, &mut |_, _, _| Ok(false)),
            _ => Err(Unreadable),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_structure_with_everything_in_it() {
        #[rustfmt::skip]
        let bytes = [
            0x15, 0x04,                   // 1: 2
            0x11,                         // 2: true
            0x19, 0x21, 1, 2,             // 3: a list of two Booleans
            0x18, 2, b'h', b'i',          // 4: binary
            0x1b, 1, 0x58, 6, 1, b'x',    // 5: a map from i32 to binary
            0x1c, 0x15, 0x06, 0x00,       // 6: a structure
            0x17, 0, 0, 0, 0, 0, 0, 0, 0, // 7: a double
            0x05, 0x14, 0x03,             // 10: -2
            0x00, 0xff,
        ];
        let mut compact = Compact::new(&bytes);
        let mut found = Vec::new();
        compact
            .structure(|compact, number, kind| {
                if kind == I32 {
                    found.push((number, compact.i32(kind)?));
                }
                Ok(kind == I32)
            })
            .unwrap();
        assert_eq!(found, [(1, 2), (10, -2)]);
        assert_eq!(compact.position(), bytes.len() - 1);
        for length in 0..bytes.len() - 2 {
            let cut = Compact::new(&bytes[..length]).structure(|_, _, _| Ok(false));
            assert_eq!(cut, Err(Unreadable), "{length}");
        }
    }

    #[test]
    fn nested_too_deep() {
        assert!(Compact::new(&[0x1c; 1_000_000]).structure(|_, _, _| Ok(false)).is_err());
        assert!(Compact::new(&[0x19; 1_000_000]).structure(|_, _, _| Ok(false)).is_err());
    }
}
