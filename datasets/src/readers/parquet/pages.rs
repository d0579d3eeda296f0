//! Checks each page of a Parquet column before the parser trusts it.
//!
//! The parser allocates as much memory as headers request. A file of a few bytes could therefore request more than is
//! available, and a failed allocation ends the program.

use std::{
    fs::File,
    io::{Read, Seek, SeekFrom},
};

use parquet::{
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
    deltas::claimed_lengths,
    levels::longest_list,
    thrift::{Compact, Unreadable},
};

/// The number of bytes that a page may unpack to for each packed byte, in addition to [`PAGE`]. Deflate reaches 1032.
const RATIO: u64 = 1032;

/// The number of bytes that any page may unpack to. Writers aim at 1 MiB.
const PAGE: u64 = 64 << 20;

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
        Ok(Box::new(GuardedGroup { inner, file: &self.file }))
    }

    fn get_row_iter(&self, projection: Option<Type>) -> Result<RowIter<'_>> {
        RowIter::from_file(projection, self)
    }
}

struct GuardedGroup<'a> {
    inner: Box<dyn RowGroupReader + 'a>,
    file: &'a File,
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
        if values > 0
            && !data.is_empty()
            && claimed_lengths(data, encoding).is_ok_and(|claimed| claimed > values)
        {
            return Err(damaged("a page claims more lengths than values"));
        }
        if self.max_repetition > 0 {
            let longest = longest_list(repetition, self.max_repetition, values, &mut self.list);
            if longest.is_none_or(|longest| longest > LIST) {
                return Err(damaged(format!("a list has more than {LIST} values, or damaged levels")));
            }
        }
        Ok(())
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
