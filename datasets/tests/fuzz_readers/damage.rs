//! Damaged versions of valid files.

use std::{fs, path::Path};

use proptest::{prelude::*, sample::Index};

/// The size of the largest files.
pub const LARGEST: usize = 1 << 20;

/// A change to a file.
#[derive(Debug, Clone)]
pub enum Change {
    Cut(Index),
    Flip(Index, u8),
    Set(Index, u8),
    Insert(Index, Vec<u8>),
    Remove(Index, Index),
    /// Repeats a part this many times.
    Repeat(Index, Index, usize),
}

impl Change {
    /// Changes the bytes, which do not exceed [`LARGEST`].
    pub fn apply(&self, bytes: &mut Vec<u8>) {
        let place = |index: &Index| index.index(bytes.len() + 1);
        let range = |a: &Index, b: &Index| place(a).min(place(b))..place(a).max(place(b));
        match self {
            Self::Cut(at) => bytes.truncate(place(at)),
            Self::Flip(at, bit) => {
                let at = place(at);
                if let Some(byte) = bytes.get_mut(at) {
                    *byte ^= 1 << bit;
                }
            }
            Self::Set(at, value) => {
                let at = place(at);
                if let Some(byte) = bytes.get_mut(at) {
                    *byte = *value;
                }
            }
            Self::Insert(at, inserted) => {
                let at = place(at);
                bytes.splice(at..at, inserted.iter().copied());
            }
            Self::Remove(a, b) => {
                bytes.drain(range(a, b));
            }
            Self::Repeat(a, b, times) => {
                let range = range(a, b);
                // Repeated parts may be repeated again.
                let most = LARGEST / range.len().max(1);
                let part = bytes[range.clone()].repeat((*times).min(most));
                bytes.splice(range, part);
            }
        }
        bytes.truncate(LARGEST);
    }
}

/// Generates any change.
pub fn change() -> impl Strategy<Value = Change> {
    let tokens: Vec<&[u8]> = vec![
        b"\n",
        b"\r",
        b"\r\n\r\n",
        b"\"",
        b",",
        b"\t",
        b" ",
        b"\0",
        b"\xff",
        b"\xef\xbb\xbf",
        b"\xff\xfe",
        b"\x1f\x8b",
        b"\x28\xb5\x2f\xfd",
        b"[[[[[[[[",
        b"{\"a\":",
        b"}",
        b"\\",
        b"\\u",
        b"99999999999999999999",
        b"-",
        b"1e999",
        b"#",
        b"\xff\xff\xff\xff\x0f",
        b"\xff\xff\xff\x7f",
        b"\x80\x80\x80\x80\x08",
        b"\xc2\xa0",
        b"-DOCSTART-",
        b"PAR1",
        b",0,[],{}",
        b",,,,,,,,",
        b"a b\n",
    ];
    let token = prop_oneof![
        4 => proptest::sample::select(tokens).prop_map(<[u8]>::to_vec),
        1 => proptest::collection::vec(any::<u8>(), 0..20),
    ];
    let times = prop_oneof![2..200_usize, 200..100_000_usize];
    prop_oneof![
        1 => any::<Index>().prop_map(Change::Cut),
        4 => (any::<Index>(), 0..8_u8).prop_map(|(at, bit)| Change::Flip(at, bit)),
        4 => (any::<Index>(), any::<u8>()).prop_map(|(at, value)| Change::Set(at, value)),
        3 => (any::<Index>(), token).prop_map(|(at, bytes)| Change::Insert(at, bytes)),
        1 => (any::<Index>(), any::<Index>()).prop_map(|(a, b)| Change::Remove(a, b)),
        1 => (any::<Index>(), any::<Index>(), times).prop_map(|(a, b, times)| Change::Repeat(a, b, times)),
    ]
}

/// Reads a valid file.
pub fn corpus(name: &str) -> Vec<u8> {
    fs::read(Path::new("tests/corpus").join(name)).unwrap()
}
