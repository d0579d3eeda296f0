//! Tests of encoders.

use super::*;

fn tokenizer(processor: &str) -> Arc<Tokenizer> {
    let json = format!(
        r#"{{"version": "1.0", "pre_tokenizer": {{"type": "WhitespaceSplit"}}, "post_processor": {processor},
            "model": {{"type": "WordLevel", "unk_token": "?",
            "vocab": {{"?": 0, "[CLS]": 1, "[SEP]": 2, "a": 3, "b": 4, "c": 5, "d": 6, "e": 7}}}}}}"#
    );
    Arc::new(Tokenizer::new(tokenizers::Tokenizer::from_bytes(json).unwrap()))
}

fn bert() -> Arc<Tokenizer> {
    tokenizer(r#"{"type": "BertProcessing", "cls": ["[CLS]", 1], "sep": ["[SEP]", 2]}"#)
}

fn ids(encodings: &[Encoding]) -> Vec<&[u32]> {
    encodings.iter().map(|encoding| encoding.ids.as_slice()).collect()
}

#[test]
fn a_pair() {
    let encoder = Encoder::new(bert());
    let second = ["c", "", "d"];
    let [encoding] = &encoder.encode(Input::Text("a b"), Some(Input::Words(&second))).unwrap()[..] else {
        panic!("one encoding")
    };
    assert_eq!(encoding.ids, [1, 3, 4, 2, 5, 6, 2]);
    assert_eq!(encoding.type_ids, [0, 0, 0, 0, 1, 1, 1]);
    assert_eq!(encoding.words, [None, Some(0), Some(1), None, Some(0), Some(2), None]);
    assert_eq!(encoding.offsets, [(0, 0), (0, 1), (2, 3), (0, 0), (0, 1), (0, 1), (0, 0)]);
    assert_eq!(encoding.special, [true, false, false, true, false, false, true]);
    assert_eq!(encoding.sequences, [None, Some(0), Some(0), None, Some(1), Some(1), None]);
}

#[test]
fn cut_at_either_side() {
    let encoder = Encoder::new(bert()).max_length(Some(4));
    let text = Input::Text("a b c d e");
    assert_eq!(ids(&encoder.encode(text, None).unwrap()), [[1, 3, 4, 2]]);
    assert_eq!(encoder.ids("a b c d e").unwrap(), [1, 3, 4, 2]);
    let left = encoder.clone().cut(Side::Left);
    assert_eq!(ids(&left.encode(text, None).unwrap()), [[1, 6, 7, 2]]);
    assert_eq!(left.ids("a b c d e").unwrap(), [1, 6, 7, 2]);
    let bare = encoder.special(false).max_length(Some(2));
    assert_eq!(ids(&bare.encode(text, None).unwrap()), [[3, 4]]);
    assert_eq!(bare.ids("a b c d e").unwrap(), [3, 4]);
}

/// The rest of a cut pair is not combined, which would make five million encodings here.
#[test]
fn a_long_pair_is_cut_at_once() {
    let text = "the ".repeat(5000);
    let encoder = Encoder::new(bert()).max_length(Some(10));
    let encodings = encoder.encode(Input::Text(&text), Some(Input::Text(&text))).unwrap();
    assert_eq!(encodings.len(), 1);
    assert_eq!(encodings[0].ids.len(), 10);
}

#[test]
fn a_stride_keeps_the_whole_text() {
    let encoder = Encoder::new(bert()).max_length(Some(5)).stride(Some(1));
    let encodings = encoder.encode(Input::Text("a b c d e a b"), None).unwrap();
    assert_eq!(ids(&encodings), [[1, 3, 4, 5, 2], [1, 5, 6, 7, 2], [1, 7, 3, 4, 2]]);
    assert_eq!(encodings[2].words, [None, Some(4), Some(5), Some(6), None]);
    assert_eq!(encodings[2].offsets[1..4], [(8, 9), (10, 11), (12, 13)]);
    assert_eq!(encodings[2].sequences, [None, Some(0), Some(0), Some(0), None]);

    let question = encoder.max_length(Some(7)).truncation(Truncation::OnlySecond);
    let encodings = question.encode(Input::Text("a b"), Some(Input::Text("c d e"))).unwrap();
    assert_eq!(ids(&encodings), [[1, 3, 4, 2, 5, 6, 2], [1, 3, 4, 2, 6, 7, 2]]);
    assert_eq!(encodings[1].type_ids, [0, 0, 0, 0, 1, 1, 1]);
    assert_eq!(encodings[1].sequences, [None, Some(0), Some(0), None, Some(1), Some(1), None]);
}

#[test]
fn too_little_room() {
    for (max_length, stride, pair, special) in [
        (0, 0, false, true),
        (2, 0, false, true),
        (3, 1, false, true),
        (3, 0, true, true),
        (1, 1, false, false),
    ] {
        let encoder = Encoder::new(bert()).max_length(Some(max_length)).stride(Some(stride)).special(special);
        let second = pair.then_some(Input::Text("b"));
        let error = encoder.encode(Input::Text("a"), second).unwrap_err();
        assert!(matches!(error, DataError::Tokenizer(TokenizerError::TooFewTokens { .. })), "{error}");
    }
    let encoder = Encoder::new(bert()).max_length(Some(4)).truncation(Truncation::OnlyFirst);
    let error = encoder.encode(Input::Text("a"), Some(Input::Text("a b c d"))).unwrap_err();
    assert!(matches!(error, DataError::Tokenizer(TokenizerError::TokenizerFailed { .. })), "{error}");
    let encoder = Encoder::new(bert()).max_length(Some(9)).stride(Some(5));
    let error = encoder.encode(Input::Text("a a a a a a"), Some(Input::Text("a b c d"))).unwrap_err();
    assert!(matches!(error, DataError::Tokenizer(TokenizerError::TokenizerFailed { .. })), "{error}");
}

#[test]
fn an_unknown_character_is_named_beside_special_tokens_too() {
    let vocabulary = crate::Tokenizer::characters("ab\n").unwrap();
    let mut framed = vocabulary.inner().clone();
    framed.add_special_tokens([tokenizers::AddedToken::from("<s>", true)]).unwrap();
    for tokenizer in [vocabulary, crate::Tokenizer::new(framed)] {
        let encoder = Encoder::new(Arc::new(tokenizer));
        let encoded = encoder.encode(Input::Text("ab"), Some(Input::Words(&["a", "bZ"])));
        for error in [encoded.unwrap_err(), encoder.ids("a\nbZ").unwrap_err()] {
            let found = matches!(
                error,
                DataError::Tokenizer(TokenizerError::UnknownCharacter { character: 'Z', column: 2, .. })
            );
            assert!(found, "{error}");
        }
    }
}

#[test]
fn nothing_to_encode() {
    let encoder = Encoder::new(bert());
    for input in [Input::Text(""), Input::Text(" \n"), Input::Words(&[]), Input::Words(&["", ""])] {
        assert_eq!(ids(&encoder.encode(input, None).unwrap()), [[1, 2]]);
        assert_eq!(encoder.clone().special(false).encode(input, None).unwrap(), [Encoding::default()]);
    }
    assert_eq!(encoder.encode_batch(&[]).unwrap(), Vec::<Vec<Encoding>>::new());
}

#[test]
fn batches_are_in_order() {
    let encoder = Encoder::new(bert());
    let texts: Vec<String> = (0..500).map(|number| "a b ".repeat(number % 7)).collect();
    let inputs: Vec<_> = texts.iter().map(|text| (Input::Text(text), None)).collect();
    let each: Vec<_> = inputs.iter().map(|&(first, _)| encoder.encode(first, None).unwrap()).collect();
    assert_eq!(encoder.encode_batch(&inputs).unwrap(), each);
    let texts: Vec<&str> = texts.iter().map(String::as_str).collect();
    let each: Vec<_> = each.into_iter().map(|mut encodings| encodings.remove(0).ids).collect();
    assert_eq!(encoder.ids_batch(&texts).unwrap(), each);
}

#[test]
fn what_the_maximum_length_cuts_off_is_not_encoded() {
    let words = vec!["a"; 10_000];
    let text = words.join(" ");
    for input in [Input::Text(&text), Input::Words(&words)] {
        let truncated = Truncated::default();
        let encoder = Encoder::new(bert()).max_length(Some(4)).counting(truncated.clone());
        let stopping = encoder.clone().stopping(true);
        assert_eq!(ids(&stopping.encode(input, None).unwrap()), [[1, 3, 3, 2]]);
        assert_eq!(truncated.texts(), 1);
        assert!((1..10).contains(&truncated.tokens()), "{}", truncated.tokens());
        // The end is kept here, or comes in further encodings.
        let last = stopping.clone().cut(Side::Left).encode(Input::Text(&format!("{text} e")), None).unwrap();
        assert_eq!(ids(&last), [[1, 3, 7, 2]]);
        assert!(stopping.stride(Some(0)).encode(input, None).unwrap().len() == 5_000);
    }
}
