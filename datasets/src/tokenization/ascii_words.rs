//! Where GPT-2's pattern splits ASCII text.

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
pub(super) fn begins_word(text: &str) -> bool {
    match text.as_bytes().first() {
        None => false,
        Some(byte) if byte.is_ascii() => !char::from(*byte).is_whitespace(),
        Some(_) => !text.starts_with(char::is_whitespace),
    }
}

#[cfg(test)]
mod tests {
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
