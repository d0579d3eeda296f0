//! Cuts a text at positions that do not change its tokens.

use tokenizers::{
    NormalizedString, Normalizer, NormalizerWrapper, PreTokenizerWrapper, Tokenizer,
    normalizers::replace::Replace,
};

/// Cuts a text into chunks that can be encoded independently: chunk by chunk, the text becomes the same tokens as in
/// one piece.
///
/// A chunk begins with a space before a character that is not white space; for some pre-tokenizers, it also begins with
/// a full stop or a comma after a letter, as in `a| b|, | c` (here `|` is a cut), or with each [word of ASCII
/// characters](ascii_words). Such cuts are safe for the pipelines that [`Chunks::of`] knows, because
///
/// - no normalizer looks across the cut: Unicode's normal forms neither compose nor reorder across a space, and the
///   other normalizers process characters or grapheme clusters;
/// - the pre-tokenizer splits there and does not look further: words end at white space, GPT-2's pattern attaches the
///   last of several spaces to the word after it, and Metaspace begins a word with each space;
/// - the model sees one word at a time.
#[derive(Debug, Clone)]
pub(super) struct Chunks {
    /// Whether the normalizer processes grapheme clusters.
    clusters: bool,
    /// The normalizers before one that collapses or strips spaces.
    before_squeeze: Option<Vec<NormalizerWrapper>>,
    /// Whether the pre-tokenizer depends on the number of spaces.
    counts_spaces: bool,
    within: Within,
}

/// Where a chunk begins besides spaces.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Within {
    /// Nowhere.
    Nothing,
    /// With a full stop or a comma after a letter.
    Stops,
    /// With each word of ASCII characters, as GPT-2's pattern splits them.
    AsciiWords,
}

impl Chunks {
    /// Returns the rule for this tokenizer, if its pipeline is known:
    ///
    /// - Pre-tokenizers: `BertPreTokenizer`, `Whitespace`, `WhitespaceSplit`, `ByteLevel` with its own pattern,
    ///   `Metaspace` that splits, `WhitespaceSplit` followed by `Metaspace`.
    /// - Normalizers: `BertNormalizer`, `Lowercase`, `StripAccents`, `Nmt`, `NFC`, `NFD`, `NFKC`, `NFKD`,
    ///   `Precompiled`, `Strip` on the right, `Replace` of several spaces, sequences of these, none.
    /// - All models.
    pub(super) fn of(tokenizer: &Tokenizer) -> Option<Self> {
        let pre_tokenizer = tokenizer.get_pre_tokenizer()?;
        if !splits_at_spaces(pre_tokenizer) {
            return None;
        }
        let mut flat = Vec::new();
        if let Some(normalizer) = tokenizer.get_normalizer() {
            flatten(normalizer, &mut flat);
        }
        let squeeze = flat.iter().position(squeezes);
        let local = &flat[..squeeze.unwrap_or(flat.len())];
        let rest = &flat[squeeze.unwrap_or(flat.len())..];
        if !local.iter().all(is_local) || !rest.iter().all(squeezes) {
            return None;
        }
        // They match after normalization, which only the crate applies to a whole text.
        let added = tokenizer.get_added_vocabulary().get_added_tokens_decoder();
        if !flat.is_empty() && added.values().any(|token| token.normalized) {
            return None;
        }
        Some(Self {
            clusters: local.iter().any(|normalizer| matches!(normalizer, NormalizerWrapper::Precompiled(_))),
            before_squeeze: squeeze.map(|_| local.to_vec()),
            counts_spaces: matches!(pre_tokenizer, PreTokenizerWrapper::ByteLevel(_)),
            within: within(pre_tokenizer, &flat, squeeze),
        })
    }

    /// Returns the chunks of `text`, in order.
    pub(super) fn cut<'a>(&self, text: &'a str) -> impl Iterator<Item = &'a str> {
        let mut rest = text;
        let Self { clusters, within, .. } = *self;
        std::iter::from_fn(move || {
            let end = next_cut(rest, clusters, within);
            let (chunk, after) = rest.split_at(end);
            rest = after;
            (!chunk.is_empty()).then_some(chunk)
        })
    }

    /// Returns whether a chunk that is a [plain word](super::plain_words::PlainWords) is always local.
    pub(super) fn takes_plain_words(&self) -> bool {
        self.before_squeeze.is_none() && !self.counts_spaces
    }

    /// Returns whether `chunk`, which was normalized to `normalized`, can be encoded independently.
    ///
    /// A normalizer may change the space or the character after it, and the chunk may end with white space that a
    /// normalizer would collapse with the next chunk's.
    pub(super) fn is_local(&self, chunk: &str, normalized: Option<&str>) -> bool {
        let Some(normalized) = normalized else {
            return false;
        };
        // Nothing was normalized, and each cut is one that the pre-tokenizer makes, also before several spaces.
        if self.within == Within::AsciiWords {
            return true;
        }
        let begins_as_before = !chunk.starts_with(' ')
            || normalized.strip_prefix([' ', '▁']).is_some_and(|word| {
                !self.counts_spaces || word.starts_with(|first: char| !first.is_whitespace())
            });
        begins_as_before && self.before_squeeze.as_ref().is_none_or(|before| !ends_with_space(before, chunk))
    }
}

/// Returns the end of the first chunk.
fn next_cut(text: &str, clusters: bool, within: Within) -> usize {
    let bytes = text.as_bytes();
    let is_cut = |at: usize| match bytes[at] {
        _ if within == Within::AsciiWords => is_cut(text, at),
        b' ' => begins_word(&text[at + 1..]) && !(clusters && joins_space(bytes[at - 1], &text[..at])),
        b'.' | b',' => within == Within::Stops && bytes[at - 1].is_ascii_alphabetic(),
        _ => false,
    };
    (1..bytes.len()).find(|&at| is_cut(at)).unwrap_or(bytes.len())
}

/// Returns whether a space after `text`, whose last byte is `last`, may belong to the same grapheme cluster. This
/// happens after a few signs that precede numbers in some scripts; the ranges here are wider.
fn joins_space(last: u8, text: &str) -> bool {
    !last.is_ascii()
        && text.chars().next_back().is_some_and(
            |last| matches!(last, '\u{600}'..='\u{8FF}' | '\u{D00}'..='\u{D7F}' | '\u{11000}'..='\u{11FFF}'),
        )
}

/// Returns whether `chunk` ends with white space after these normalizers.
fn ends_with_space(normalizers: &[NormalizerWrapper], chunk: &str) -> bool {
    let mut text = NormalizedString::from(chunk);
    let done = normalizers.iter().all(|normalizer| normalizer.normalize(&mut text).is_ok());
    !done || text.get().ends_with(|last: char| last.is_whitespace() || last == '▁')
}

fn splits_at_spaces(pre_tokenizer: &PreTokenizerWrapper) -> bool {
    match pre_tokenizer {
        PreTokenizerWrapper::BertPreTokenizer(_)
        | PreTokenizerWrapper::Whitespace(_)
        | PreTokenizerWrapper::WhitespaceSplit(_) => true,
        PreTokenizerWrapper::ByteLevel(bytes) => bytes.use_regex,
        PreTokenizerWrapper::Metaspace(space) => space.get_split() && space.get_replacement() == '▁',
        PreTokenizerWrapper::Sequence(sequence) => matches!(
            sequence.as_ref(),
            [PreTokenizerWrapper::WhitespaceSplit(_), PreTokenizerWrapper::Metaspace(space)]
                if space.get_split() && space.get_replacement() == '▁'
        ),
        _ => false,
    }
}

/// Returns where a chunk begins besides spaces, with these normalizers before the pre-tokenizer. One that strips or
/// collapses spaces at the end of a chunk allows no further cuts, and any other may join or remove characters.
fn within(
    pre_tokenizer: &PreTokenizerWrapper,
    normalizers: &[NormalizerWrapper],
    squeeze: Option<usize>,
) -> Within {
    match pre_tokenizer {
        _ if squeeze.is_some() => Within::Nothing,
        PreTokenizerWrapper::BertPreTokenizer(_) | PreTokenizerWrapper::Whitespace(_) => Within::Stops,
        // A space that is added before a text would be added before each chunk.
        PreTokenizerWrapper::ByteLevel(bytes) if bytes.add_prefix_space => Within::Nothing,
        PreTokenizerWrapper::ByteLevel(_) if normalizers.is_empty() => Within::AsciiWords,
        PreTokenizerWrapper::ByteLevel(_) => Within::Stops,
        _ => Within::Nothing,
    }
}

fn flatten(normalizer: &NormalizerWrapper, flat: &mut Vec<NormalizerWrapper>) {
    if let NormalizerWrapper::Sequence(sequence) = normalizer {
        sequence.as_ref().iter().for_each(|inner| flatten(inner, flat));
    } else {
        flat.push(normalizer.clone());
    }
}

fn is_local(normalizer: &NormalizerWrapper) -> bool {
    matches!(
        normalizer,
        NormalizerWrapper::BertNormalizer(_)
            | NormalizerWrapper::StripAccents(_)
            | NormalizerWrapper::NFC(_)
            | NormalizerWrapper::NFD(_)
            | NormalizerWrapper::NFKC(_)
            | NormalizerWrapper::NFKD(_)
            | NormalizerWrapper::Lowercase(_)
            | NormalizerWrapper::Nmt(_)
            | NormalizerWrapper::Precompiled(_)
    )
}

/// Returns whether the normalizer only strips on the right or replaces several spaces with one.
fn squeezes(normalizer: &NormalizerWrapper) -> bool {
    match normalizer {
        NormalizerWrapper::StripNormalizer(strip) => !strip.strip_left,
        NormalizerWrapper::Replace(replace) => [" ", "▁"].iter().any(|&one| {
            let several = tokenizers::normalizers::replace::ReplacePattern::Regex(" {2,}".to_owned());
            Replace::new(several, one).is_ok_and(|known| *replace == known)
        }),
        _ => false,
    }
}

/// Returns whether GPT-2's pattern splits `text` before the byte `at`, whatever else the text holds. `at` is above 0 and
/// below the length.
///
/// The pattern is `'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+`. A word of letters, digits
/// or punctuation ends before another kind of character, and the pattern looks no further. White space is left to what
/// [`begins_word`] says, since the last space of several belongs to the next word. An apostrophe may begin a contraction.
pub(super) fn is_cut(text: &str, at: usize) -> bool {
    let bytes = text.as_bytes();
    let (before, after) = (bytes[at - 1], bytes[at]);
    if after == b' ' && begins_word(&text[at + 1..]) {
        return true;
    }
    if !after.is_ascii() {
        return false;
    }
    match before {
        b'\'' => char::from(after).is_whitespace(),
        _ if before.is_ascii_alphabetic() => !after.is_ascii_alphabetic(),
        _ if before.is_ascii_digit() => !after.is_ascii_digit(),
        _ if before.is_ascii_punctuation() => {
            after.is_ascii_alphanumeric() || char::from(after).is_whitespace()
        }
        _ => false,
    }
}

/// Returns whether `text` begins with a character other than white space.
fn begins_word(text: &str) -> bool {
    match text.as_bytes().first() {
        None => false,
        Some(byte) if byte.is_ascii() => !char::from(*byte).is_whitespace(),
        Some(_) => !text.starts_with(char::is_whitespace),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cut(text: &str, clusters: bool, stops: bool) -> Vec<&str> {
        let within = if stops { Within::Stops } else { Within::Nothing };
        let chunks = Chunks { clusters, before_squeeze: None, counts_spaces: false, within };
        chunks.cut(text).collect()
    }

    #[test]
    fn before_words() {
        assert_eq!(cut("", false, true), [""; 0]);
        assert_eq!(cut(" ", false, true), [" "]);
        assert_eq!(cut(" a b  c\n d \n", false, false), [" a", " b ", " c\n", " d \n"]);
        assert_eq!(cut("a \u{a0} é 中", false, false), ["a \u{a0}", " é", " 中"]);
        assert_eq!(cut("a, b. 1.5 .c", false, true), ["a", ",", " b", ".", " 1.5", " .c"]);
        assert_eq!(cut("a, b", false, false), ["a,", " b"]);
    }

    #[test]
    fn before_words_of_ascii_characters() {
        let chunks =
            Chunks { clusters: false, before_squeeze: None, counts_spaces: true, within: Within::AsciiWords };
        let text = "let x =  f(1);   // \u{a0} it's\n";
        let cut: Vec<&str> = chunks.cut(text).collect();
        assert_eq!(
            cut,
            ["let", " x", " =", " ", " f", "(", "1", ");", "  ", " //", " \u{a0}", " it", "'s", "\n"]
        );
        // If one chunk were not, the whole text would be encoded anew.
        assert!(cut.iter().all(|chunk| chunks.is_local(chunk, Some(chunk))));
    }

    #[test]
    fn not_within_clusters() {
        assert_eq!(cut("é \u{600} a", true, false), ["é", " \u{600} a"]);
        assert_eq!(cut("é \u{600} a", false, false), ["é", " \u{600}", " a"]);
    }
}

#[cfg(test)]
mod ascii_words_tests {
    use proptest::prelude::*;
    use tokenizers::{
        OffsetReferential, OffsetType, PreTokenizedString, PreTokenizer,
        pre_tokenizers::byte_level::ByteLevel,
    };

    use super::*;

    fn words(text: &str) -> Vec<String> {
        let mut pieces = PreTokenizedString::from(text);
        ByteLevel::default().add_prefix_space(false).pre_tokenize(&mut pieces).unwrap();
        let splits = pieces.get_splits(OffsetReferential::Original, OffsetType::None);
        splits.into_iter().map(|(word, ..)| word.to_owned()).collect()
    }

    fn cut(text: &str) -> Vec<&str> {
        let mut ends: Vec<usize> = (1..text.len()).filter(|&at| is_cut(text, at)).collect();
        ends.push(text.len());
        let starts = std::iter::once(0).chain(ends.clone());
        starts.zip(ends).map(|(start, end)| &text[start..end]).collect()
    }

    #[test]
    fn words_of_code() {
        assert_eq!(
            cut("let x1 = f(a, 'b');\n"),
            ["let", " x", "1", " =", " f", "(", "a", ",", " 'b", "');", "\n"]
        );
        assert_eq!(cut("  two  \n\n\tit's é, a"), [" ", " two", "  \n\n\tit", "'s", " é,", " a"]);
    }

    proptest! {
        #[test]
        fn the_pieces_have_the_words_of_the_whole(text in "([a-zA-Z0-9 \\n\\t\\r'.,;:!(){}<>_=\"-]|\u{a0}|é|中|\u{301}|١|\u{1}|\u{b}|'s|'re|'ll){0,40}") {
            let of_pieces: Vec<String> = cut(&text).into_iter().flat_map(words).collect();
            prop_assert_eq!(of_pieces, words(&text));
        }

        #[test]
        fn any_text(text: String) {
            let of_pieces: Vec<String> = cut(&text).into_iter().flat_map(words).collect();
            prop_assert_eq!(of_pieces, words(&text));
        }
    }
}
