//! The tokenizer with caches. Every text and word passes through it.

use tokenizers::{Encoding, Result, Tokenizer};

use super::{
    chunks::Chunks,
    pipeline::{AddedTokens, raw},
    plain_words::PlainWords,
    word_cache::{Piece, Token, WordCache},
};

/// Encodes like the `tokenizers` crate, up to the post-processor, but encodes repeated words only once.
///
/// The crate also encodes already split words one by one, so they are cached for all tokenizers. A text is cut into
/// [`Chunks`] if the tokenizer's pipeline allows it and the text contains no added token; otherwise the crate encodes
/// it as a whole.
#[derive(Debug)]
pub(super) struct Fast {
    tokenizer: Tokenizer,
    chunks: Option<Chunks>,
    added: AddedTokens,
    cache: WordCache,
}

impl Fast {
    pub(super) fn new(tokenizer: Tokenizer) -> Self {
        Self {
            chunks: Chunks::of(&tokenizer),
            added: AddedTokens::of(&tokenizer),
            cache: WordCache::new(
                PlainWords::of(&tokenizer).map(|plain| (plain, AddedTokens::of(&tokenizer))),
            ),
            tokenizer,
        }
    }

    pub(super) fn tokenizer(&self) -> &Tokenizer {
        &self.tokenizer
    }

    /// Returns whether texts are cut into chunks.
    #[cfg(test)]
    pub(super) fn cuts(&self) -> bool {
        self.chunks.is_some()
    }

    /// Returns the tokens of a text. `texts` says whether post-processing may need their texts. If there are more than
    /// `most`, the rest may be missing.
    pub(super) fn text(&self, text: &str, texts: bool, most: Option<usize>) -> Result<Tokens> {
        let most = most.unwrap_or(usize::MAX);
        // Roughly the number of tokens in common texts.
        let mut tokens = Tokens::new((text.len() / 4).min(most) + 1, texts);
        // A chunk that can be encoded independently begins where those before it end, so none of their tokens depend on
        // the rest.
        let chunked = self.chunked(text, |piece, start, words| {
            let continues = tokens.ids.len() <= most;
            if continues {
                tokens.push(piece, start, |word| words + word);
            }
            continues
        })?;
        if chunked { Ok(tokens) } else { Ok(Tokens::of(&raw(&self.tokenizer, text)?.encoding)) }
    }

    /// Returns the ids of a text.
    pub(super) fn ids(&self, text: &str) -> Result<Vec<u32>> {
        let mut ids = Vec::with_capacity(text.len() / 4);
        let chunked = self.chunked(text, |piece, _, _| {
            ids.extend(piece.tokens.iter().map(|token| token.id));
            true
        })?;
        if chunked { Ok(ids) } else { Ok(raw(&self.tokenizer, text)?.encoding.get_ids().to_vec()) }
    }

    /// Returns the tokens of words that are already split, each encoded separately. If there are more than `most`, the
    /// rest may be missing.
    pub(super) fn words(&self, words: &[&str], texts: bool, most: Option<usize>) -> Result<Tokens> {
        let mut slot = self.cache.slot();
        let mut slot = slot.get();
        let mut tokens = Tokens::new(2 * words.len(), texts);
        for (index, word) in (0..).zip(words) {
            let piece = slot.piece(&self.tokenizer, self.chunks.as_ref(), word)?;
            tokens.push(&piece, 0, |_| index);
            if most.is_some_and(|most| tokens.ids.len() > most) {
                break;
            }
        }
        Ok(tokens)
    }

    /// Passes each chunk of `text` to `each`, with the byte and the word at which it starts, until `each` returns `false`.
    /// Returns `false` if the text must be encoded as a whole; discard the chunks passed until then.
    fn chunked(&self, text: &str, mut each: impl FnMut(&Piece<'_>, u32, u32) -> bool) -> Result<bool> {
        let Some(chunks) = &self.chunks else {
            return Ok(false);
        };
        if u32::try_from(text.len()).is_err() || self.added.occur_in(text) {
            return Ok(false);
        }
        let mut slot = self.cache.slot();
        let mut slot = slot.get();
        let (mut start, mut words) = (0, 0);
        for chunk in chunks.cut(text) {
            let piece = slot.piece(&self.tokenizer, Some(chunks), chunk)?;
            if !piece.local {
                return Ok(false);
            }
            if !each(&piece, start, words) {
                break;
            }
            // A chunk is part of a text, which has at most `u32::MAX` bytes.
            start += chunk.len() as u32;
            words += piece.words;
        }
        Ok(true)
    }
}

/// The tokens of a sequence, before truncation and special tokens.
#[derive(Debug)]
pub(super) struct Tokens {
    pub(super) ids: Vec<u32>,
    pub(super) words: Vec<Option<u32>>,
    pub(super) offsets: Vec<(u32, u32)>,
    /// Texts with the same white space at their ends as those of the tokens, if post-processing needs them.
    texts: Option<Vec<String>>,
}

impl Tokens {
    fn new(capacity: usize, texts: bool) -> Self {
        Self {
            ids: Vec::with_capacity(capacity),
            words: Vec::with_capacity(capacity),
            offsets: Vec::with_capacity(capacity),
            texts: texts.then(Vec::new),
        }
    }

    fn of(encoding: &Encoding) -> Self {
        Self {
            ids: encoding.get_ids().to_vec(),
            words: encoding.get_word_ids().to_vec(),
            offsets: encoding.get_offsets().iter().map(|&(start, end)| (start as u32, end as u32)).collect(),
            texts: Some(encoding.get_tokens().to_vec()),
        }
    }

    fn push(&mut self, piece: &Piece<'_>, start: u32, word: impl Fn(u32) -> u32) {
        self.ids.extend(piece.tokens.iter().map(|token| token.id));
        self.words.extend(piece.tokens.iter().map(|token| Some(word(token.word))));
        self.offsets.extend(piece.tokens.iter().map(|token| (start + token.start, start + token.end)));
        if let Some(texts) = &mut self.texts {
            texts.extend(piece.tokens.iter().map(Token::edges));
        }
    }

    /// Keeps `len` tokens: the last ones if `left`, otherwise the first ones.
    pub(super) fn keep(&mut self, len: usize, left: bool) {
        fn keep<T>(values: &mut Vec<T>, len: usize, left: bool) {
            if left { drop(values.drain(..values.len().saturating_sub(len))) } else { values.truncate(len) }
        }
        keep(&mut self.ids, len, left);
        keep(&mut self.words, len, left);
        keep(&mut self.offsets, len, left);
        if let Some(texts) = &mut self.texts {
            keep(texts, len, left);
        }
    }

    /// Converts to the crate's encoding.
    pub(super) fn encoding(self, segment: u32) -> Encoding {
        let len = self.ids.len();
        Encoding::new(
            self.ids,
            vec![segment; len],
            self.texts.unwrap_or_else(|| vec![String::new(); len]),
            self.words,
            self.offsets.into_iter().map(|(start, end)| (start as usize, end as usize)).collect(),
            vec![0; len],
            vec![1; len],
            Vec::new(),
            Default::default(),
        )
    }
}
