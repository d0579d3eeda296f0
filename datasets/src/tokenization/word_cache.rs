//! Caches encoded words.

use std::{
    collections::HashMap,
    fmt,
    num::NonZero,
    sync::{
        Mutex, MutexGuard, TryLockError,
        atomic::{AtomicUsize, Ordering},
    },
    thread,
};

use tokenizers::{Model, Tokenizer};

use super::{
    chunks::Chunks,
    pipeline::{AddedTokens, raw},
    plain_words::PlainWords,
};

/// Longer pieces are unlikely to occur again.
const LONGEST: usize = 96;

/// The maximum number of tokens in a table: 4.5 MiB.
const TOKENS: usize = 192 * 1024;

/// The maximum number of bytes in a table's pieces, including their entries.
const BYTES: usize = 4 * 1024 * 1024;

/// A token and its position in the piece.
#[derive(Debug, Clone, Copy)]
pub(super) struct Token {
    pub(super) id: u32,
    pub(super) start: u32,
    pub(super) end: u32,
    pub(super) word: u32,
    /// The white space around the token, which some post-processors exclude from its offsets.
    edges: Edges,
}

impl Token {
    /// Returns a text with the same white space at its ends: the only property of a token's text that post-processors
    /// use.
    pub(super) fn edges(&self) -> String {
        let Edges { leading, trailing } = self.edges;
        if leading == 0 && trailing == 0 {
            return String::new();
        }
        [&" ".repeat(leading.into()), "x", &" ".repeat(trailing.into())].concat()
    }
}

#[derive(Debug, Clone, Copy)]
struct Edges {
    leading: u16,
    trailing: u16,
}

impl Edges {
    fn of(token: &str) -> Option<Self> {
        // GPT-2's alphabet writes a space as `Ġ`.
        let is_space = |character: &char| *character == 'Ġ' || character.is_whitespace();
        let leading = token.chars().take_while(is_space).count();
        let trailing = token.chars().rev().take_while(is_space).count();
        Some(Self { leading: leading.try_into().ok()?, trailing: trailing.try_into().ok()? })
    }
}

/// An encoded piece of text.
pub(super) struct Piece<'a> {
    pub(super) tokens: &'a [Token],
    /// The number of words in the piece.
    pub(super) words: u32,
    /// Whether the piece has the same tokens within its text.
    pub(super) local: bool,
}

#[derive(Debug, Clone, Copy)]
struct Entry {
    start: u32,
    len: u32,
    words: u32,
    local: bool,
}

/// A cache of several tables: each thread uses its own while it encodes a text, and one more is shared, in which
/// threads find what others have encoded.
///
/// The tokens of a piece depend only on the piece, so neither the choice of table nor evicted pieces affect the result.
/// A full table is cleared, which limits its memory for any text.
pub(super) struct WordCache {
    tables: Box<[Mutex<Table>]>,
    shared: Mutex<Table>,
    plain: Option<(PlainWords, AddedTokens)>,
}

/// A table that one thread currently uses.
pub(super) struct Slot<'a> {
    /// `Err` holds a temporary table if all are in use.
    table: Result<MutexGuard<'a, Table>, Box<Table>>,
    shared: &'a Mutex<Table>,
    plain: &'a Option<(PlainWords, AddedTokens)>,
}

/// A table, and the shared one as a fallback.
pub(super) struct Lookup<'a> {
    table: &'a mut Table,
    shared: &'a Mutex<Table>,
    plain: &'a Option<(PlainWords, AddedTokens)>,
}

#[derive(Default)]
struct Table {
    entries: HashMap<Box<str>, Entry>,
    tokens: Vec<Token>,
    bytes: usize,
    /// The tokens of the current piece, before or without being cached.
    passing: Vec<Token>,
}

impl WordCache {
    /// Creates an empty cache for a tokenizer with this rule for plain words.
    pub(super) fn new(plain: Option<(PlainWords, AddedTokens)>) -> Self {
        let cores = thread::available_parallelism().map_or(1, NonZero::get);
        Self { tables: (0..cores + 1).map(|_| Mutex::default()).collect(), shared: Mutex::default(), plain }
    }

    /// Returns a table that no other thread is using.
    pub(super) fn slot(&self) -> Slot<'_> {
        static NEXT: AtomicUsize = AtomicUsize::new(0);
        thread_local! {
            static HOME: usize = NEXT.fetch_add(1, Ordering::Relaxed);
        }
        let home = HOME.try_with(|&home| home).unwrap_or(0);
        let count = self.tables.len();
        // A panic while encoding a piece leaves its table intact, since the table changes only afterwards.
        let free = (0..count).find_map(|step| now(&self.tables[home.wrapping_add(step) % count]));
        Slot { table: free.ok_or_else(Box::default), shared: &self.shared, plain: &self.plain }
    }
}

/// Returns the table, unless another thread is using it.
fn now(table: &Mutex<Table>) -> Option<MutexGuard<'_, Table>> {
    match table.try_lock() {
        Ok(table) => Some(table),
        Err(TryLockError::Poisoned(table)) => Some(table.into_inner()),
        Err(TryLockError::WouldBlock) => None,
    }
}

impl Slot<'_> {
    pub(super) fn get(&mut self) -> Lookup<'_> {
        let table = match &mut self.table {
            Ok(table) => table,
            Err(table) => &mut **table,
        };
        Lookup { table, shared: self.shared, plain: self.plain }
    }
}

impl Lookup<'_> {
    /// Returns a piece from the cache, or encodes it.
    pub(super) fn piece(
        &mut self,
        tokenizer: &Tokenizer,
        chunks: Option<&Chunks>,
        text: &str,
    ) -> tokenizers::Result<Piece<'_>> {
        let entry = match self.table.entries.get(text) {
            Some(&entry) => entry,
            None => match self.find(tokenizer, chunks, text)? {
                (words, local) if text.len() > LONGEST || self.table.passing.len() > TOKENS => {
                    return Ok(Piece { tokens: &self.table.passing, words, local });
                }
                (words, local) => self.table.keep(text, words, local),
            },
        };
        Ok(Piece { tokens: self.table.tokens_of(entry), words: entry.words, local: entry.local })
    }

    /// Puts the tokens of a piece that the table lacks into `passing`.
    fn find(
        &mut self,
        tokenizer: &Tokenizer,
        chunks: Option<&Chunks>,
        text: &str,
    ) -> tokenizers::Result<(u32, bool)> {
        let kept = text.len() <= LONGEST;
        if kept {
            // Waiting for another thread would take longer than encoding a word.
            if let Some(shared) = now(self.shared)
                && let Some(&entry) = shared.entries.get(text)
            {
                self.table.passing.clear();
                self.table.passing.extend_from_slice(shared.tokens_of(entry));
                return Ok((entry.words, entry.local));
            }
        }
        let plain = self.plain.as_ref().and_then(|(plain, added)| plain.word(text, added));
        let (words, local) = match plain {
            // The space before the word needs no processing.
            Some((word, start)) => (
                self.table.encode_plain(tokenizer, &word, start)?,
                chunks.is_some_and(Chunks::takes_plain_words),
            ),
            None => self.table.encode(tokenizer, chunks, text)?,
        };
        if kept
            && self.table.passing.len() <= TOKENS
            && let Some(mut shared) = now(self.shared)
        {
            shared.passing.clone_from(&self.table.passing);
            shared.keep(text, words, local);
        }
        Ok((words, local))
    }
}

impl Table {
    fn tokens_of(&self, entry: Entry) -> &[Token] {
        let start = entry.start as usize;
        &self.tokens[start..start + entry.len as usize]
    }

    fn encode(
        &mut self,
        tokenizer: &Tokenizer,
        chunks: Option<&Chunks>,
        text: &str,
    ) -> tokenizers::Result<(u32, bool)> {
        let encoded = raw(tokenizer, text)?;
        let local = chunks.is_some_and(|chunks| chunks.is_local(text, encoded.normalized.as_deref()));
        let words = u32::try_from(encoded.words)?;
        let encoding = encoded.encoding;
        self.passing.clear();
        for (((&id, token), &(start, end)), &word) in encoding
            .get_ids()
            .iter()
            .zip(encoding.get_tokens())
            .zip(encoding.get_offsets())
            .zip(encoding.get_word_ids())
        {
            self.passing.push(Token {
                id,
                start: start.try_into()?,
                end: end.try_into()?,
                word: word.unwrap_or(0),
                edges: Edges::of(token).ok_or("a token begins with 65536 spaces")?,
            });
        }
        Ok((words, local))
    }

    /// Encodes a plain word that begins `shift` bytes into its piece. Returns its number of words.
    fn encode_plain(&mut self, tokenizer: &Tokenizer, word: &str, mut shift: u32) -> tokenizers::Result<u32> {
        self.passing.clear();
        let mut words = 0;
        for part in PlainWords::split(word) {
            for token in tokenizer.get_model().tokenize(part)? {
                let (start, end) = token.offsets;
                self.passing.push(Token {
                    id: token.id,
                    start: u32::try_from(start)? + shift,
                    end: u32::try_from(end)? + shift,
                    word: words,
                    edges: Edges::of(&token.value).ok_or("a token begins with 65536 spaces")?,
                });
            }
            words += 1;
            shift += u32::try_from(part.len())?;
        }
        Ok(words)
    }

    /// Caches the tokens in `passing`.
    fn keep(&mut self, text: &str, words: u32, local: bool) -> Entry {
        let bytes = text.len() + size_of::<(Box<str>, Entry)>();
        if self.tokens.len() + self.passing.len() > TOKENS || self.bytes + bytes > BYTES {
            self.entries.clear();
            self.tokens.clear();
            self.bytes = 0;
        }
        // Both are below `TOKENS`.
        let entry = Entry { start: self.tokens.len() as u32, len: self.passing.len() as u32, words, local };
        // Another thread may have added the same piece first.
        if self.entries.insert(text.into(), entry).is_none() {
            self.bytes += bytes;
        }
        self.tokens.extend_from_slice(&self.passing);
        entry
    }
}

impl fmt::Debug for WordCache {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("WordCache").field("tables", &self.tables.len()).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use tokenizers::{models::wordlevel::WordLevel, pre_tokenizers::whitespace::Whitespace};

    use super::*;

    fn tokenizer() -> Tokenizer {
        let vocabulary = [("?".to_owned(), 0), ("a".to_owned(), 1)].into_iter().collect();
        let model = WordLevel::builder().vocab(vocabulary).unk_token("?".to_owned()).build().unwrap();
        let mut tokenizer = Tokenizer::new(model);
        tokenizer.with_pre_tokenizer(Some(Whitespace));
        tokenizer
    }

    fn lengths(cache: &WordCache) -> Vec<(usize, usize, usize)> {
        let tables = cache.tables.iter().chain([&cache.shared]).map(|table| table.lock().unwrap());
        tables.map(|table| (table.entries.len(), table.tokens.len(), table.bytes)).collect()
    }

    #[test]
    fn memory_is_bounded() {
        let (tokenizer, cache) = (tokenizer(), WordCache::new(None));
        let mut slot = cache.slot();
        let mut lookup = slot.get();
        for number in 0..80_000 {
            let text = format!("{number} {number} {number}");
            let piece = lookup.piece(&tokenizer, None, &text).unwrap();
            assert_eq!((piece.tokens.len(), piece.words), (3, 3));
        }
        drop(slot);
        for (entries, tokens, bytes) in lengths(&cache) {
            assert!(tokens <= TOKENS && bytes <= BYTES && entries * 3 == tokens);
        }
    }

    #[test]
    fn long_pieces_are_not_kept() {
        let (tokenizer, cache) = (tokenizer(), WordCache::new(None));
        let text = "a ".repeat(LONGEST);
        for _ in 0..2 {
            let mut slot = cache.slot();
            let mut lookup = slot.get();
            assert_eq!(lookup.piece(&tokenizer, None, &text).unwrap().tokens.len(), LONGEST);
        }
        assert!(lengths(&cache).iter().all(|&(entries, ..)| entries == 0));
    }

    #[test]
    fn threads_share_encoded_words() {
        let (known, cache) = (tokenizer(), WordCache::new(None));
        assert_eq!(cache.slot().get().piece(&known, None, "a").unwrap().tokens[0].id, 1);
        // This tokenizer would fail, so the cache must not use it.
        let fails = Tokenizer::new(WordLevel::default());
        for _ in 0..2 {
            // More slots than tables.
            let mut slots: Vec<Slot<'_>> = (0..cache.tables.len() + 2).map(|_| cache.slot()).collect();
            for slot in &mut slots {
                assert_eq!(slot.get().piece(&fails, None, "a").unwrap().tokens[0].id, 1);
                assert!(slot.get().piece(&fails, None, "b").is_err());
            }
        }
    }

    #[test]
    fn edges() {
        for (token, edges) in [("a", ""), ("Ġa", " x"), ("\u{3000}\u{a0}Ġé ", "   x "), ("ĠĠ", "  x  ")]
        {
            let token = Token { id: 0, start: 0, end: 0, word: 0, edges: Edges::of(token).unwrap() };
            assert_eq!(token.edges(), edges);
        }
        assert!(Edges::of(&" ".repeat(65_536)).is_none());
    }
}
