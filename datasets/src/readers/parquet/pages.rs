//! Checks each page of a Parquet column before the parser trusts it.
//!
//! The parser allocates as much memory as headers request. A file of a few bytes could therefore request more than is
//! available, and a failed allocation ends the program.

use std::{
    fs::File,
    io::{Read, Seek, SeekFrom},
};

use parquet::{
    basic::{Encoding, Type as Physical},
    column::page::{Page, PageMetadata, PageReader},
    errors::{ParquetError, Result},
    file::{
        metadata::{ParquetMetaData, RowGroupMetaData},
        reader::{FileReader, RowGroupReader},
    },
    record::reader::RowIter,
    schema::types::Type,
};

use super::{
    text_bytes::{REPEATED, claims, plain_lengths, taken_bytes},
    thrift::{Compact, Unreadable},
};

/// The number of bytes that a page may unpack to for each packed byte, in addition to [`PAGE`]. Deflate reaches 1032.
pub(super) const RATIO: u64 = 1032;

/// The number of bytes that any page may unpack to. Writers aim at 1 MiB.
pub(super) const PAGE: u64 = 64 << 20;

/// The maximum number of values in a list, including those of nested lists. A few packed bytes can stand for billions.
const LIST: u64 = 4 << 20;

/// The maximum number of bytes in a page's header, which contains the minimum and maximum value.
const HEADER: u64 = 16 << 20;

/// A page that only lists the positions of others. The parser skips it.
const INDEX_PAGE: i32 = 1;

/// A file whose pages are checked.
pub(super) struct Guarded<R> {
    pub(super) inner: R,
    pub(super) file: File,
    /// The maximum number of bytes of text in a row.
    pub(super) longest: u64,
}

impl<R: FileReader> FileReader for Guarded<R> {
    fn metadata(&self) -> &ParquetMetaData {
        self.inner.metadata()
    }

    fn num_row_groups(&self) -> usize {
        self.inner.num_row_groups()
    }

    fn get_row_group(&self, index: usize) -> Result<Box<dyn RowGroupReader + '_>> {
        let inner = self.inner.get_row_group(index)?;
        Ok(Box::new(GuardedGroup { inner, file: &self.file, longest: self.longest }))
    }

    fn get_row_iter(&self, projection: Option<Type>) -> Result<RowIter<'_>> {
        RowIter::from_file(projection, self)
    }
}

struct GuardedGroup<'a> {
    inner: Box<dyn RowGroupReader + 'a>,
    file: &'a File,
    longest: u64,
}

impl RowGroupReader for GuardedGroup<'_> {
    fn metadata(&self) -> &RowGroupMetaData {
        self.inner.metadata()
    }

    fn num_columns(&self) -> usize {
        self.inner.num_columns()
    }

    fn get_column_page_reader(&self, index: usize) -> Result<Box<dyn PageReader>> {
        let Some(column) = self.metadata().columns().get(index) else {
            return Err(damaged("there are fewer columns than the schema has"));
        };
        let (start, size) = column.byte_range();
        let described = column.column_descr();
        Ok(Box::new(GuardedPages {
            max_repetition: described.max_rep_level(),
            max_definition: described.max_def_level(),
            inner: self.inner.get_column_page_reader(index)?,
            file: self.file.try_clone()?,
            at: start,
            end: start.saturating_add(size),
            list: 0,
            texts: match described.physical_type() {
                Physical::BYTE_ARRAY => Texts::OfAnyLength,
                Physical::FIXED_LEN_BYTE_ARRAY => {
                    Texts::OfLength(u64::try_from(described.type_length()).unwrap_or(0))
                }
                _ => Texts::None,
            },
            dictionary: Vec::new(),
            list_bytes: 0,
            longest: self.longest,
        }))
    }

    fn get_column_bloom_filter(&self, _: usize) -> Option<&parquet::bloom_filter::Sbbf> {
        None
    }

    fn get_row_iter(&self, projection: Option<Type>) -> Result<RowIter<'_>> {
        RowIter::from_row_group(projection, self)
    }
}

struct GuardedPages {
    inner: Box<dyn PageReader>,
    file: File,
    /// The start of the next page.
    at: u64,
    /// The end of the last page.
    end: u64,
    max_repetition: i16,
    max_definition: i16,
    /// The number of values so far in the list that continues beyond the last page.
    list: u64,
    texts: Texts,
    /// The length of each text of the dictionary, for a column of lists of texts.
    dictionary: Vec<u32>,
    /// The most bytes of text that this list may have so far.
    list_bytes: u64,
    /// The maximum number of bytes of text in a list.
    longest: u64,
}

/// The texts or bytes of a column.
#[derive(Clone, Copy, PartialEq)]
enum Texts {
    None,
    OfAnyLength,
    OfLength(u64),
}

fn damaged(what: impl Into<String>) -> ParquetError {
    ParquetError::General(what.into())
}

impl GuardedPages {
    /// Checks the header of the next page.
    fn check_header(&mut self) -> Result<()> {
        while self.at < self.end {
            let (length, header) = self.header()?;
            let [kind, unpacked, packed] = header;
            let (Ok(unpacked), Ok(packed)) = (u64::try_from(unpacked), u64::try_from(packed)) else {
                return Err(damaged("a page has a negative size"));
            };
            if unpacked > PAGE + RATIO * packed {
                return Err(damaged(format!("a page of {packed} bytes claims to unpack to {unpacked}")));
            }
            self.at = self.at.saturating_add(length).saturating_add(packed);
            if kind != INDEX_PAGE {
                break;
            }
        }
        Ok(())
    }

    /// Returns the length of the header at the current position, and the kind, unpacked size and packed size of its
    /// page.
    fn header(&mut self) -> Result<(u64, [i32; 3])> {
        let most = (self.end - self.at).min(HEADER);
        let mut length = 128.min(most);
        loop {
            let mut bytes = Vec::new();
            self.file.seek(SeekFrom::Start(self.at))?;
            self.file.by_ref().take(length).read_to_end(&mut bytes)?;
            let mut compact = Compact::new(&bytes);
            let mut header = [0; 3];
            let read = compact.structure(|compact, number, kind| {
                let field = usize::try_from(number - 1).ok().and_then(|index| header.get_mut(index));
                let Some(field) = field else { return Ok(false) };
                *field = compact.i32(kind)?;
                Ok(true)
            });
            match read {
                Ok(()) => return Ok((compact.position() as u64, header)),
                Err(Unreadable) if length < most => length = (length * 8).min(most),
                Err(Unreadable) => return Err(damaged("a page has no readable header")),
            }
        }
    }

    fn check(&mut self, page: &Page) -> Result<()> {
        let (buffer, values, encoding) = (page.buffer(), u64::from(page.num_values()), page.encoding());
        let levels = match page {
            Page::DictionaryPage { .. } => {
                // Each value has at least one byte.
                if values > buffer.len() as u64 {
                    let bytes = buffer.len();
                    return Err(damaged(format!("a dictionary of {bytes} bytes claims {values} values")));
                }
                if self.texts == Texts::OfAnyLength && self.max_repetition > 0 {
                    self.dictionary = plain_lengths(buffer);
                }
                return Ok(());
            }
            Page::DataPage { .. } => self.levels_of_v1(buffer),
            Page::DataPageV2 { def_levels_byte_len, rep_levels_byte_len, .. } => {
                let repetition = *rep_levels_byte_len as usize;
                let both = repetition.saturating_add(*def_levels_byte_len as usize);
                buffer.get(..repetition).zip(buffer.get(both..))
            }
        };
        let Some((repetition, data)) = levels else {
            return Err(damaged("a page is shorter than its levels"));
        };
        // A page without values may be empty.
        let claims = match values > 0 && !data.is_empty() {
            true => claims(data, encoding, values).unwrap_or_default(),
            false => Default::default(),
        };
        if claims.lengths > values {
            return Err(damaged("a page claims more lengths than values"));
        }
        if claims.repeated > REPEATED {
            return Err(damaged(format!("the texts of a page repeat more than {REPEATED} bytes")));
        }
        if self.max_repetition > 0 {
            let before = self.list;
            let longest = longest_list(repetition, self.max_repetition, values, &mut self.list);
            let Some(longest) = longest.filter(|&longest| longest <= LIST) else {
                return Err(damaged(format!("a list has more than {LIST} values, or damaged levels")));
            };
            let goes_on = self.list >= before.saturating_add(values);
            self.check_list(data, encoding, claims.repeated, (longest, values, goes_on))?;
        }
        Ok(())
    }

    /// Checks that no list of a page has too many bytes of text: the parser copies all texts of a list before it returns
    /// the row. `goes_on` is whether the list that was open before the page goes on through all of it.
    fn check_list(
        &mut self,
        data: &[u8],
        encoding: Encoding,
        repeated: u64,
        (longest, values, goes_on): (u64, u64, bool),
    ) -> Result<()> {
        let is_dictionary = matches!(encoding, Encoding::RLE_DICTIONARY | Encoding::PLAIN_DICTIONARY);
        let of_page = match self.texts {
            Texts::None => return Ok(()),
            Texts::OfLength(length) => values.saturating_mul(length),
            Texts::OfAnyLength if is_dictionary => taken_bytes(data, &self.dictionary, values),
            Texts::OfAnyLength => repeated.saturating_add(data.len() as u64),
        };
        // At most, one list has all texts of the page, besides those of the pages before it.
        let most = self.list_bytes.saturating_add(of_page);
        self.list_bytes = if goes_on { most } else { of_page };
        if most <= self.longest {
            return Ok(());
        }
        // At most, each text of the longest list is the longest text.
        let widest = match (self.texts, encoding) {
            (Texts::OfLength(length), _) => Some(length),
            _ if is_dictionary => self.dictionary.iter().copied().max().map(u64::from),
            (_, Encoding::PLAIN) => plain_lengths(data).into_iter().max().map(u64::from),
            _ => None,
        };
        match widest.map(|widest| longest.saturating_mul(widest)) {
            Some(bytes) if bytes <= self.longest => Ok(()),
            _ => Err(damaged(format!("a list has more than {} bytes of text", self.longest))),
        }
    }

    /// Returns the repetition levels and the data of a version 1 page, which has both in one buffer.
    fn levels_of_v1<'a>(&self, buffer: &'a [u8]) -> Option<(&'a [u8], &'a [u8])> {
        let split = |bytes: &'a [u8], has_levels: bool| {
            if !has_levels {
                return Some((&bytes[..0], bytes));
            }
            let (length, rest) = bytes.split_first_chunk()?;
            rest.split_at_checked(u32::from_le_bytes(*length) as usize)
        };
        let (repetition, rest) = split(buffer, self.max_repetition > 0)?;
        let (_, data) = split(rest, self.max_definition > 0)?;
        Some((repetition, data))
    }
}

impl PageReader for GuardedPages {
    fn get_next_page(&mut self) -> Result<Option<Page>> {
        self.check_header()?;
        let page = self.inner.get_next_page()?;
        if let Some(page) = &page {
            self.check(page)?;
        }
        Ok(page)
    }

    fn peek_next_page(&mut self) -> Result<Option<PageMetadata>> {
        self.inner.peek_next_page()
    }

    fn skip_next_page(&mut self) -> Result<()> {
        self.check_header()?;
        self.inner.skip_next_page()
    }

    fn at_record_boundary(&mut self) -> Result<bool> {
        self.inner.at_record_boundary()
    }
}

impl Iterator for GuardedPages {
    type Item = Result<Page>;

    fn next(&mut self) -> Option<Self::Item> {
        self.get_next_page().transpose()
    }
}

/// Returns the largest number of values in any list of a page, including those of nested lists, or `None` if the levels
/// are damaged.
///
/// `levels` are the repetition levels in Parquet's hybrid of run lengths and packed bits
/// (<https://parquet.apache.org/docs/file-format/data-pages/encodings/>): level 0 begins a record. `open` counts the
/// values of the list that continues from page to page.
fn longest_list(levels: &[u8], max_level: i16, values: u64, open: &mut u64) -> Option<u64> {
    let width = (i16::BITS - max_level.leading_zeros()) as usize;
    let mut rest = levels;
    let mut left = values;
    let mut longest = *open;
    while left > 0 {
        let mut head = Compact::new(rest);
        let run = head.varint().ok()?;
        rest = rest.get(head.position()..)?;
        if run & 1 == 0 {
            let (level, after) = rest.split_at_checked(width.div_ceil(8))?;
            let count = (run >> 1).min(left);
            let begins = level.iter().all(|&byte| byte == 0);
            // In a run of beginnings, each list has one value.
            *open = if begins && count > 0 { 1 } else { open.saturating_add(count) };
            longest = longest.max(*open);
            left -= count;
            rest = after;
        } else {
            let groups = usize::try_from(run >> 1).ok()?;
            let bytes = groups.checked_mul(width)?.min(rest.len());
            let (packed, after) = rest.split_at(bytes);
            let count = ((bytes * 8 / width) as u64).min(left);
            for index in 0..count as usize {
                let is_set = |bit: usize| packed.get(bit / 8).is_some_and(|byte| byte >> (bit % 8) & 1 == 1);
                let goes_on = (index * width..(index + 1) * width).any(is_set);
                *open = if goes_on { open.saturating_add(1) } else { 1 };
                longest = longest.max(*open);
            }
            if count == 0 && groups > 0 {
                return None;
            }
            left -= count;
            rest = after;
        }
    }
    Some(longest)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_and_packed_bits() {
        // One beginning and 511 continuations, twice.
        let runs = [0x02, 0, 0xfe, 0x07, 1].repeat(2);
        let mut open = 0;
        assert_eq!(longest_list(&runs, 1, 1024, &mut open), Some(512));
        assert_eq!(open, 512);
        // The list continues in the next page: six more values, a beginning, one more value.
        assert_eq!(longest_list(&[0x03, 0b1011_1111], 1, 8, &mut open), Some(518));
        assert_eq!(open, 2);
        // Levels of two bits each: 2, 0, 1, 2, 0, 0, 0, 3.
        assert_eq!(longest_list(&[0x03, 0b1001_0010, 0b1100_0000], 3, 8, &mut 0), Some(3));
    }

    #[test]
    fn a_huge_run() {
        let mut run = vec![0xfe, 0xff, 0xff, 0xff, 0x0f, 1];
        // The levels end one value before the page does.
        assert_eq!(longest_list(&run, 1, 1 << 31, &mut 0), None);
        run.extend([0x02, 0]);
        assert_eq!(longest_list(&run, 1, 1 << 31, &mut 0), Some((1 << 31) - 1));
    }

    #[test]
    fn damaged() {
        for levels in [[].as_slice(), &[0x02], &[0xff; 11], &[0x03]] {
            assert_eq!(longest_list(levels, 1, 8, &mut 0), None, "{levels:?}");
        }
    }
}
