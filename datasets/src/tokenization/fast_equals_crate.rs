//! The fast encoder gives the same result as the `tokenizers` crate, for each pipeline and any text.

use std::sync::Arc;

use base64::Engine as _;
use proptest::prelude::*;
use serde_json::{Value, json};
use tokenizers::{EncodeInput, InputSequence};

use super::{Encoder, Input, fast::Fast};
use crate::Tokenizer;

/// A vocabulary with parts of words, in each of the alphabets.
fn words() -> Vec<String> {
    let letters = "abcdefghijklmnopqrstuvwxyzéèñABC0123456789.,!?'\"-_[]<>|中文字日▁ĠĊĉÃ©ł¥á½ðŁĺ";
    let mut words = vec!["[UNK]".to_owned(), "[CLS]".into(), "[SEP]".into(), "[MASK]".into(), "<s>".into()];
    for letter in letters.chars() {
        words.push(letter.to_string());
        words.push(format!("##{letter}"));
    }
    words.extend(
        ["the", "##ing", "▁the", "Ġthe", "▁a", "Ġa", "in", "on", "▁▁", "ĠĠ", "he", "th"].map(Into::into),
    );
    let mut seen = std::collections::BTreeSet::new();
    words.retain(|word| seen.insert(word.clone()));
    words
}

fn numbered() -> Value {
    words()
        .into_iter()
        .enumerate()
        .map(|(id, word)| (word, json!(id)))
        .collect::<serde_json::Map<_, _>>()
        .into()
}

fn word_piece() -> Value {
    json!({"type": "WordPiece", "unk_token": "[UNK]", "continuing_subword_prefix": "##",
        "max_input_chars_per_word": 20, "vocab": numbered()})
}

fn bpe() -> Value {
    json!({"type": "BPE", "unk_token": null, "vocab": numbered(),
        "merges": [["t", "h"], ["h", "e"], ["i", "n"], ["th", "e"], ["Ġ", "the"], ["▁", "the"], ["Ġ", "a"],
            ["▁", "a"], ["Ġ", "Ġ"], ["▁", "▁"]]})
}

fn unigram() -> Value {
    let vocab: Vec<Value> = words()
        .into_iter()
        .enumerate()
        .map(|(at, word)| json!([word, -1.0 - (at % 7) as f64 / (1 + word.len()) as f64]))
        .collect();
    json!({"type": "Unigram", "unk_id": 0, "vocab": vocab})
}

/// A table that turns `A` into `a`, the no-break space into a space, and the Arabic number sign, which forms one
/// grapheme cluster with the next character, into `e`.
fn precompiled() -> Value {
    const LEAF: u32 = 1 << 8;
    let mut trie = [0_u32; 1024];
    trie[0x41] = 0x41 | LEAF | (0x100 << 10);
    trie[0x141] = 0;
    trie[0xC2] = 0xC2 | (0x100 << 10);
    trie[0x1C2 ^ 0xA0] = 0xA0 | LEAF | (0x200 << 10);
    trie[0x1C2 ^ 0xA0 ^ 0x200] = 2;
    trie[0xD8] = 0xD8 | (0x100 << 10);
    trie[0x1D8 ^ 0x80] = 0x80 | LEAF | (0x200 << 10);
    trie[0x1D8 ^ 0x80 ^ 0x200] = 4;
    let mut table = (4 * trie.len() as u32).to_le_bytes().to_vec();
    table.extend(trie.iter().flat_map(|unit| unit.to_le_bytes()));
    table.extend(b"a\0 \0e\0");
    json!({"type": "Precompiled", "precompiled_charsmap": base64::engine::general_purpose::STANDARD.encode(table)})
}

fn tokenizer(normalizer: Value, pre_tokenizer: Value, model: Value, post_processor: Value) -> Tokenizer {
    let token = |id: usize, content: &str, flags: [bool; 3]| {
        json!({"id": id, "content": content, "single_word": flags[0], "lstrip": flags[1],
            "rstrip": flags[2], "normalized": false, "special": true})
    };
    let json = json!({"version": "1.0", "normalizer": normalizer, "pre_tokenizer": pre_tokenizer,
        "post_processor": post_processor, "decoder": null, "model": model,
        "added_tokens": [token(1, "[CLS]", [false; 3]), token(2, "[SEP]", [true, false, false]),
            token(3, "[MASK]", [false, true, false]), token(4, "<s>", [false, false, true]),
            token(words().len(), "a b", [false; 3])]});
    let inner = tokenizers::Tokenizer::from_bytes(json.to_string()).unwrap();
    Tokenizer::new(inner)
}

fn bert_processor() -> Value {
    json!({"type": "BertProcessing", "cls": ["[CLS]", 1], "sep": ["[SEP]", 2]})
}

fn roberta_processor(add_prefix_space: bool) -> Value {
    json!({"type": "RobertaProcessing", "cls": ["[CLS]", 1], "sep": ["[SEP]", 2],
        "trim_offsets": true, "add_prefix_space": add_prefix_space})
}

fn template() -> Value {
    let special = |id: &str| json!({"SpecialToken": {"id": id, "type_id": 0}});
    let sequence = |id: &str, segment: u32| json!({"Sequence": {"id": id, "type_id": segment}});
    json!({"type": "TemplateProcessing",
        "single": [special("[CLS]"), sequence("A", 0), special("[SEP]")],
        "pair": [special("[CLS]"), sequence("A", 0), special("[SEP]"), sequence("B", 1), special("[SEP]")],
        "special_tokens": {"[CLS]": {"id": "[CLS]", "ids": [1], "tokens": ["[CLS]"]},
            "[SEP]": {"id": "[SEP]", "ids": [2], "tokens": ["[SEP]"]}}})
}

/// All pipelines whose texts are cut into chunks.
fn cut() -> Vec<Tokenizer> {
    let bert = |strip_accents: Value, lowercase: bool| {
        json!({"type": "BertNormalizer", "clean_text": true, "handle_chinese_chars": true,
            "strip_accents": strip_accents, "lowercase": lowercase})
    };
    let normal = |name: &str| json!({"type": name});
    let sequence = |parts: Vec<Value>| json!({"type": "Sequence", "normalizers": parts});
    let bytes = |add_prefix_space: bool| json!({"type": "ByteLevel", "add_prefix_space": add_prefix_space, "trim_offsets": true, "use_regex": true});
    let space = |scheme: &str| json!({"type": "Metaspace", "replacement": "▁", "prepend_scheme": scheme, "split": true});
    let squeeze = || json!({"type": "Replace", "pattern": {"Regex": " {2,}"}, "content": "▁"});
    let strip = || json!({"type": "Strip", "strip_left": false, "strip_right": true});
    vec![
        tokenizer(bert(Value::Null, true), normal("BertPreTokenizer"), word_piece(), template()),
        tokenizer(bert(json!(false), false), normal("BertPreTokenizer"), word_piece(), bert_processor()),
        tokenizer(
            sequence(vec![normal("NFD"), normal("Lowercase"), normal("StripAccents")]),
            normal("Whitespace"),
            word_piece(),
            Value::Null,
        ),
        tokenizer(Value::Null, normal("WhitespaceSplit"), unigram(), template()),
        tokenizer(Value::Null, bytes(false), bpe(), bytes(false)),
        tokenizer(Value::Null, bytes(true), bpe(), roberta_processor(true)),
        tokenizer(normal("NFC"), bytes(false), bpe(), template()),
        tokenizer(
            sequence(vec![normal("Nmt"), normal("NFKC")]),
            bytes(true),
            bpe(),
            roberta_processor(false),
        ),
        tokenizer(bert(Value::Null, true), bytes(false), bpe(), Value::Null),
        tokenizer(normal("NFKC"), space("always"), unigram(), template()),
        tokenizer(normal("NFKD"), space("first"), bpe(), template()),
        tokenizer(normal("Nmt"), space("never"), unigram(), Value::Null),
        tokenizer(precompiled(), space("always"), unigram(), template()),
        tokenizer(sequence(vec![precompiled(), strip(), squeeze()]), space("first"), unigram(), template()),
        tokenizer(
            sequence(vec![normal("Nmt"), normal("NFKC"), strip(), squeeze()]),
            space("always"),
            unigram(),
            template(),
        ),
        tokenizer(
            normal("NFKC"),
            json!({"type": "Sequence", "pretokenizers": [normal("WhitespaceSplit"), space("first")]}),
            unigram(),
            template(),
        ),
    ]
}

/// Some pipelines whose texts are not cut.
fn whole() -> Vec<Tokenizer> {
    vec![
        tokenizer(Value::Null, Value::Null, unigram(), template()),
        tokenizer(
            json!({"type": "Strip", "strip_left": true, "strip_right": true}),
            json!({"type": "Punctuation", "behavior": "Isolated"}),
            word_piece(),
            bert_processor(),
        ),
        tokenizer(
            json!({"type": "Replace", "pattern": {"String": " "}, "content": "▁"}),
            Value::Null,
            unigram(),
            Value::Null,
        ),
    ]
}

/// Generates texts that are easily cut wrongly, mixed with letters and arbitrary characters.
fn texts() -> impl Strategy<Value = String> {
    let part = prop_oneof![
        6 => prop::sample::select(vec![" ", " ", " ", "  ", "   ", "\n", "\t", "\r\n", "\u{a0}", "\u{3000}", "\u{200b}",
            "\u{2003}", "\u{85}", "\u{0}", "\u{301}", "\u{308}", "\u{600}", "\u{6dd}", "\u{200d}", "\u{fdfa}", "\u{a8}", "\u{fffd}",
            "\u{110bd}", "\u{feff}", "▁", "\u{1f468}\u{200d}\u{1f469}", "\u{1f600}", "中", "文字", "İ", "ẞ", "ﬁ", "Å", "각", "\u{1100}\u{1161}",
            "\u{345}", "[MASK]", "[CLS]", " [SEP] ", "<s>", "a b", "a b", "[MAS", "'s", "'ll", "don't", "a_b", "3.14", "...", "Ġ", "©"])
            .prop_map(str::to_owned),
        4 => "[a-eA-C0-2]{1,4}",
        3 => prop::sample::select(vec!["the", " the", " a", "in", " on.", "thing", "é", "è ", " ñ"]).prop_map(str::to_owned),
        1 => any::<char>().prop_map(String::from),
    ];
    prop::collection::vec(part, 0..14).prop_map(|parts| parts.concat())
}

/// The crate's own encoding, without cuts.
fn expected(tokenizer: &Tokenizer, input: EncodeInput<'_>, special: bool) -> Option<super::Encoding> {
    tokenizer.inner().encode(input, special).ok().map(|encoding| (&encoding).into())
}

/// An encoder that stops at the maximum length has the encodings of one that goes on.
fn check_stopping(tokenizer: &Arc<Tokenizer>, input: Input<'_>, special: bool) {
    for most in [3, 4, 6, 10, 20] {
        let encoder = Encoder::new(tokenizer.clone()).special(special).max_length(Some(most));
        let whole = encoder.encode(input, None).ok();
        assert_eq!(encoder.stopping(true).encode(input, None).ok(), whole, "{input:?}");
    }
}

fn check_text(tokenizer: &Arc<Tokenizer>, first: &str, second: Option<&str>, special: bool) {
    check_stopping(tokenizer, Input::Text(first), special);
    let input = match second {
        Some(second) => EncodeInput::Dual(first.into(), second.into()),
        None => EncodeInput::Single(first.into()),
    };
    let expected = expected(tokenizer, input, special);
    let encoder = Encoder::new(tokenizer.clone()).special(special);
    // The first round fills the cache, the second uses it.
    for _ in 0..2 {
        let encodings = encoder.encode(Input::Text(first), second.map(Input::Text)).ok();
        let encoding = encodings.map(|mut encodings| encodings.remove(0));
        assert_eq!(encoding, expected, "{first:?} {second:?} {:?}", tokenizer.inner().get_normalizer());
        if second.is_none() {
            assert_eq!(encoder.ids(first).ok(), expected.as_ref().map(|encoding| encoding.ids.clone()));
        }
    }
}

#[test]
fn known_pipelines_are_cut() {
    assert!(cut().iter().all(|tokenizer| tokenizer.fast().cuts()));
    assert!(!whole().iter().any(|tokenizer| tokenizer.fast().cuts()));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(cases(200)))]

    #[test]
    fn texts_and_pairs(texts in prop::collection::vec(texts(), 1..4), special: bool) {
        thread_local!(static ALL: Vec<Arc<Tokenizer>> = cut().into_iter().chain(whole()).map(Arc::new).collect());
        ALL.with(|all| for tokenizer in all {
            for text in &texts {
                check_text(tokenizer, text, None, special);
            }
            check_text(tokenizer, &texts[0], texts.last().map(String::as_str), special);
        });
    }

    #[test]
    fn split_words(words in prop::collection::vec(texts(), 0..6), special: bool) {
        thread_local!(static ALL: Vec<Arc<Tokenizer>> = cut().into_iter().chain(whole()).map(Arc::new).collect());
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        ALL.with(|all| for tokenizer in all {
            let input = || InputSequence::from(words.as_slice());
            let encoder = Encoder::new(tokenizer.clone()).special(special);
            for _ in 0..2 {
                for (input, second) in [
                    (EncodeInput::Single(input()), None),
                    (EncodeInput::Dual(input(), "a the".into()), Some(Input::Text("a the"))),
                ] {
                    let expected = expected(tokenizer, input, special);
                    let encodings = encoder.encode(Input::Words(&words), second).ok();
                    assert_eq!(encodings.map(|mut encodings| encodings.remove(0)), expected, "{words:?}");
                }
            }
        });
    }
}

fn cases(default: u32) -> u32 {
    std::env::var("PROPTEST_CASES").ok().and_then(|cases| cases.parse().ok()).unwrap_or(default)
}

#[test]
fn a_full_cache_starts_over() {
    let tokenizer = Arc::new(cut().remove(0));
    let fast = Fast::new(tokenizer.inner().clone());
    for number in 0..40_000 {
        let text = format!("the {number} {} {}", number * 7, number * 13);
        let ids = fast.ids(&text).unwrap();
        if number % 1000 == 0 {
            assert_eq!(ids, tokenizer.inner().encode(text.as_str(), false).unwrap().get_ids());
        }
    }
}
