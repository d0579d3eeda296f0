//! Groups tokens into words.

use crate::Encoding;

/// Returns the number of each token's word in the text, from 0, or `None` for added tokens and for ids that `apart`
/// excludes.
///
/// The tokenizer's own words are not enough: a SentencePiece tokenizer may treat a whole text as one word. A word
/// therefore ends where the tokenizer says so, and at white space between two tokens or at the start of the second,
/// where SentencePiece and some byte-level tokenizers put it. The tokens of one character, which share its bytes, stay
/// together.
///
/// In a script without spaces, SentencePiece's words are whole clauses.
pub(super) fn word_of_each_token(
    encoding: &Encoding,
    text: &str,
    apart: impl Fn(u32) -> bool,
) -> Vec<Option<u32>> {
    let mut words = Vec::with_capacity(encoding.len());
    let mut count = 0;
    // The tokenizer's word and the end offset of the previous token.
    let mut before: Option<(Option<u32>, usize)> = None;
    for (token, &id) in encoding.ids.iter().enumerate() {
        let special = encoding.special.get(token).copied().unwrap_or(false);
        if special || apart(id) {
            before = None;
            words.push(None);
            continue;
        }
        let word = encoding.words.get(token).copied().flatten();
        let (start, end) = encoding.offsets.get(token).copied().unwrap_or_default();
        let (start, end) = (start as usize, end as usize);
        let continues = before.is_some_and(|(word_before, end_before)| {
            let gap = text.get(end_before..start).unwrap_or_default();
            let own = text.get(start.max(end_before)..end).unwrap_or_default();
            word_before == word && !gap.contains(char::is_whitespace) && !own.starts_with(char::is_whitespace)
        });
        count += u32::from(!continues);
        before = Some((word, end));
        words.push(count.checked_sub(1));
    }
    words
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::{
        Encoder, Input, Tokenizer,
        collators::testing::{bytebpe, unigram, wordpiece},
    };

    /// The text of each word, as far as the offsets cover it.
    fn words(tokenizer: &Arc<Tokenizer>, text: &str) -> Vec<String> {
        let encoding = Encoder::new(tokenizer.clone()).encode(Input::Text(text), None).unwrap().remove(0);
        let words = word_of_each_token(&encoding, text, |_| false);
        let mut found: Vec<(u32, u32, u32)> = vec![];
        for (word, &(start, end)) in words.iter().zip(&encoding.offsets) {
            match (found.last_mut(), word) {
                (_, None) => {}
                (Some(last), &Some(word)) if last.0 == word => last.2 = end,
                (_, &Some(word)) => found.push((word, start, end)),
            }
        }
        assert!(found.iter().map(|word| word.0).eq(0..found.len() as u32));
        found.iter().map(|&(_, start, end)| text[start as usize..end as usize].trim().to_owned()).collect()
    }

    #[test]
    fn of_every_kind_of_tokenizer() {
        let text = "Maria rereads New York, Zürich 日本 🙂 today";
        let of_bert = ["Maria", "rereads", "New", "York", ",", "Zürich", "日", "本", "🙂", "today"];
        assert_eq!(words(&wordpiece(), text), of_bert);
        let of_gpt2 = ["Maria", "rereads", "New", "York", ",", "Zürich", "日本", "🙂", "today"];
        assert_eq!(words(&bytebpe(), text), of_gpt2);
        let of_t5 = ["Maria", "rereads", "New", "York,", "Zürich", "日本", "🙂", "today"];
        assert_eq!(words(&unigram(), text), of_t5);
    }

    /// Covers a tokenizer like Llama's, which treats the text as one word and writes spaces as `▁`, and a byte-level
    /// tokenizer that leaves spaces out of the offsets.
    #[test]
    fn of_tokenizers_that_do_not_split() {
        for (name, splits, does_not) in [
            ("unigram", r#""split":true"#, r#""split":false"#),
            ("bytebpe", r#""use_regex":true"#, r#""use_regex":false"#),
        ] {
            let json = std::fs::read_to_string(format!("tests/golden/{name}/tokenizer.json")).unwrap();
            let file = tempfile::NamedTempFile::new().unwrap();
            std::fs::write(file.path(), json.replace(splits, does_not)).unwrap();
            let tokenizer = Arc::new(Tokenizer::from_file(file.path()).unwrap());
            let text = "the new wheel turned";
            let encoding = Encoder::new(tokenizer.clone()).encode(Input::Text(text), None).unwrap().remove(0);
            assert!(encoding.words.iter().flatten().all(|&word| word == 0), "{name} splits");
            assert_eq!(words(&tokenizer, text), ["the", "new", "wheel", "turned"]);
        }
    }

    #[test]
    fn excluded_tokens_end_a_word() {
        let encoding = Encoder::new(wordpiece()).encode(Input::Text("maria"), None).unwrap().remove(0);
        let middle = encoding.ids[2];
        let words = word_of_each_token(&encoding, "maria", |id| id == middle);
        assert_eq!(words, [None, Some(0), None, Some(1), None]);
    }
}
