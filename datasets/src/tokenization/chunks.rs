//! Cutting a text where its tokens cannot tell.

use tokenizers::{
    NormalizedString, Normalizer, NormalizerWrapper, PreTokenizerWrapper, Tokenizer,
    normalizers::replace::Replace,
};

/// How a text can be cut into chunks that are encoded each on its own: chunk by chunk, it becomes
/// the same tokens as in one.
///
/// A chunk begins with a space before something else than white space, and for some pre-tokenizers
/// also with a full stop or a comma behind a letter, as in `a| b|,|  c` (here `|` is a cut). This
/// holds for the pipelines that [`Chunks::of`] knows, because
///
/// - no normalizer looks across the cut: the normal forms of Unicode compose and reorder nothing
///   across a space, the others go by the character, or by the grapheme cluster;
/// - the pre-tokenizer splits there, and does not look further: words end at white space, the
///   pattern of GPT-2 gives the last space of several to the word behind it, and Metaspace begins
///   a word with each space;
/// - the model sees one word at a time.
#[derive(Debug, Clone)]
pub(super) struct Chunks {
    /// The normalizer goes by grapheme clusters.
    clusters: bool,
    /// The normalizers before one that squeezes several spaces into one, or strips them.
    before_squeeze: Option<Vec<NormalizerWrapper>>,
    /// The pre-tokenizer looks at how many spaces there are.
    counts_spaces: bool,
    /// A full stop or a comma behind a letter begins a chunk as well.
    stops: bool,
}

impl Chunks {
    /// The rule for this tokenizer, if its pipeline is known:
    ///
    /// - Pre-tokenizers: `BertPreTokenizer`, `Whitespace`, `WhitespaceSplit`, `ByteLevel` with its
    ///   own pattern, `Metaspace` that splits, `WhitespaceSplit` with `Metaspace` behind it.
    /// - Normalizers: `BertNormalizer`, `Lowercase`, `StripAccents`, `Nmt`, `NFC`, `NFD`, `NFKC`,
    ///   `NFKD`, `Precompiled`, `Strip` at the right, `Replace` of several spaces, sequences of
    ///   them, none.
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
        // They match after normalization, which only the crate does to a whole text.
        let added = tokenizer.get_added_vocabulary().get_added_tokens_decoder();
        if !flat.is_empty() && added.values().any(|token| token.normalized) {
            return None;
        }
        Some(Self {
            clusters: local.iter().any(|normalizer| matches!(normalizer, NormalizerWrapper::Precompiled(_))),
            before_squeeze: squeeze.map(|_| local.to_vec()),
            counts_spaces: matches!(pre_tokenizer, PreTokenizerWrapper::ByteLevel(_)),
            stops: squeeze.is_none() && splits_at_stops(pre_tokenizer),
        })
    }

    /// The chunks of `text`, in order.
    pub(super) fn cut<'a>(&self, text: &'a str) -> impl Iterator<Item = &'a str> {
        let mut rest = text;
        let Self { clusters, stops, .. } = *self;
        std::iter::from_fn(move || {
            let end = next_cut(rest, clusters, stops);
            let (chunk, after) = rest.split_at(end);
            rest = after;
            (!chunk.is_empty()).then_some(chunk)
        })
    }

    /// Whether a chunk that is a [plain word](super::plain_words::PlainWords) is always local.
    pub(super) fn takes_plain_words(&self) -> bool {
        self.before_squeeze.is_none() && !self.counts_spaces
    }

    /// Whether `chunk`, which was normalized to this, may indeed be encoded on its own.
    ///
    /// A normalizer may change the space or what follows it, and at the end of the chunk there may
    /// be white space that a normalizer would squeeze together with the next.
    pub(super) fn is_local(&self, chunk: &str, normalized: Option<&str>) -> bool {
        let Some(normalized) = normalized else {
            return false;
        };
        let begins_as_before = !chunk.starts_with(' ')
            || normalized.strip_prefix([' ', '▁']).is_some_and(|word| {
                !self.counts_spaces || word.starts_with(|first: char| !first.is_whitespace())
            });
        begins_as_before && self.before_squeeze.as_ref().is_none_or(|before| !ends_with_space(before, chunk))
    }
}

/// The end of the first chunk.
fn next_cut(text: &str, clusters: bool, stops: bool) -> usize {
    let bytes = text.as_bytes();
    let is_cut = |at: usize| match bytes[at] {
        b' ' => begins_word(&text[at + 1..]) && !(clusters && joins_space(bytes[at - 1], &text[..at])),
        b'.' | b',' => stops && bytes[at - 1].is_ascii_alphabetic(),
        _ => false,
    };
    (1..bytes.len()).find(|&at| is_cut(at)).unwrap_or(bytes.len())
}

/// Whether `text` begins with something else than white space.
fn begins_word(text: &str) -> bool {
    match text.as_bytes().first() {
        None => false,
        Some(byte) if byte.is_ascii() => !(*byte as char).is_whitespace(),
        Some(_) => !text.starts_with(char::is_whitespace),
    }
}

/// Whether a space behind `text`, of which this is the last byte, may belong to the same grapheme
/// cluster. That is so behind a few signs that stand before a number in some scripts; the ranges
/// here are wider.
fn joins_space(last: u8, text: &str) -> bool {
    !last.is_ascii()
        && text.chars().next_back().is_some_and(
            |last| matches!(last, '\u{600}'..='\u{8FF}' | '\u{D00}'..='\u{D7F}' | '\u{11000}'..='\u{11FFF}'),
        )
}

/// Whether `chunk` ends with white space after these normalizers.
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

/// Whether there is a cut between a letter and a full stop or a comma, and what stands behind it
/// does not get a space put before it.
fn splits_at_stops(pre_tokenizer: &PreTokenizerWrapper) -> bool {
    match pre_tokenizer {
        PreTokenizerWrapper::BertPreTokenizer(_) | PreTokenizerWrapper::Whitespace(_) => true,
        PreTokenizerWrapper::ByteLevel(bytes) => !bytes.add_prefix_space,
        _ => false,
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

/// Whether it only strips at the right, or replaces several spaces by one.
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

#[cfg(test)]
mod tests {
    use super::*;

    fn cut(text: &str, clusters: bool, stops: bool) -> Vec<&str> {
        let chunks = Chunks { clusters, before_squeeze: None, counts_spaces: false, stops };
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
    fn not_within_clusters() {
        assert_eq!(cut("é \u{600} a", true, false), ["é", " \u{600} a"]);
        assert_eq!(cut("é \u{600} a", false, false), ["é", " \u{600}", " a"]);
    }
}
