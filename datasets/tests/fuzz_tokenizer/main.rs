//! Broken and malicious tokenizer files end in an error or in a working tokenizer: no panic, no output, and memory
//! bounded by the size of the file.
//!
//! Set `PROPTEST_CASES=20000` to run more cases.

mod allocation;
mod mutation;

use std::{
    env, fs,
    panic::set_hook,
    sync::{
        Arc, Mutex, Once, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use firebrick_datasets::{Encoder, Input, Tokenizer, Truncation};
use proptest::{prelude::*, test_runner::TestRunner};
use serde_json::{Value, json};

use mutation::{mutate, mutations};

/// The maximum memory in bytes: `FACTOR` for each byte of a file, plus `BASE`. The vocabulary exists as text, as JSON,
/// and as tables. A pattern's backtracking memory is not counted: Oniguruma allocates it from the system and stops
/// after ten million steps.
const FACTOR: usize = 400;
const BASE: usize = 64 * 1024 * 1024;

const TEXTS: [&str; 6] = [
    "The cat sat on the mat, thing by thing!",
    "  two  spaces\n\nand é中文 [MASK] <|endoftext|> x",
    "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaab",
    "a_b-c|d 1234567 'tis the\u{301} \u{600} \u{1f600}",
    "",
    "\u{0}\u{fffd}",
];

fn seeds() -> Vec<Value> {
    ["word_piece", "byte_level", "split_bpe", "unigram", "word_level"].map(seed).to_vec()
}

fn seed(name: &str) -> Value {
    let path = format!("tests/corpus/tokenizer/{name}.json");
    serde_json::from_slice(&fs::read(path).unwrap()).unwrap()
}

fn cases() -> ProptestConfig {
    let cases = env::var("PROPTEST_CASES").ok().and_then(|cases| cases.parse().ok()).unwrap_or(400);
    ProptestConfig { cases, failure_persistence: None, ..ProptestConfig::default() }
}

/// Counts the panics that would be printed.
static PRINTED: AtomicUsize = AtomicUsize::new(0);

fn count_panics() {
    static HOOK: Once = Once::new();
    HOOK.call_once(|| {
        set_hook(Box::new(|panic| {
            PRINTED.fetch_add(1, Ordering::Relaxed);
            eprintln!("{panic}");
        }));
    });
}

/// Loads the tokenizer of a folder and uses all of its functions.
fn use_folder(folder: &std::path::Path) -> bool {
    let Ok(tokenizer) = Tokenizer::from_file(folder) else {
        return false;
    };
    let tokenizer = Arc::new(tokenizer);
    let encoder = Encoder::new(tokenizer.clone());
    let short = encoder.clone().max_length(Some(6)).stride(Some(1));
    // If both were cut, each part of one would be combined with each part of the other.
    let shorter = short.clone().max_length(Some(12)).truncation(Truncation::OnlySecond);
    for text in TEXTS {
        let _ = tokenizer.encode(text);
        let _ = encoder.ids(text);
        let _ = short.encode(Input::Text(text), None);
        let words: Vec<&str> = text.split(' ').collect();
        let encodings = encoder.encode(Input::Words(&words), Some(Input::Text(text)));
        for encoding in encodings.iter().flatten() {
            assert!(encoding.ids.iter().all(|&id| (id as usize) < tokenizer.vocab_size()));
            assert_eq!(encoding.offsets.len(), encoding.ids.len());
            let _ = tokenizer.decode(&encoding.ids);
        }
        let _ = shorter.encode(Input::Words(&words[..1]), Some(Input::Text(text)));
    }
    let _ = tokenizer.decode(&[0, 1, 2, 3, 4, 5]);
    let _ = tokenizer.decode(&[u32::MAX]);
    tokenizer.save(folder.join("saved.json")).is_ok()
}

/// Loads and uses a tokenizer with these files.
fn check(tokenizer: &[u8], config: &[u8]) -> bool {
    // Memory is counted for the whole process, so the tests run one at a time.
    static ONE: Mutex<()> = Mutex::new(());
    let _one = ONE.lock().unwrap_or_else(PoisonError::into_inner);
    count_panics();
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("tokenizer.json"), tokenizer).unwrap();
    fs::write(folder.path().join("tokenizer_config.json"), config).unwrap();
    let (start, before) = (Instant::now(), PRINTED.load(Ordering::Relaxed));
    let mut loaded = false;
    let peak = allocation::peak(|| loaded = use_folder(folder.path()));
    assert_eq!(PRINTED.load(Ordering::Relaxed), before, "a panic was printed");
    let size = tokenizer.len() + config.len();
    assert!(peak < BASE + FACTOR * size, "{peak} bytes of memory for {size} bytes");
    assert!(start.elapsed() < Duration::from_secs(20), "it took {:?}", start.elapsed());
    loaded
}

#[test]
fn tokenizers() {
    let seeds = seeds();
    let loaded = AtomicUsize::new(0);
    let mut runner = TestRunner::new(cases());
    let strategy = (0..seeds.len(), mutations());
    let result = runner.run(&strategy, |(seed, mutations)| {
        let file = mutate(&seeds[seed], &seeds, &mutations);
        loaded.fetch_add(check(&file, b"{}").into(), Ordering::Relaxed);
        Ok(())
    });
    if let Err(error) = result {
        panic!("{error}");
    }
    // Otherwise the test would only cover how files are rejected.
    assert!(loaded.into_inner() > 20);
}

#[test]
fn configurations() {
    let (tokenizer, config) = (seed("word_piece").to_string(), seed("config"));
    let mut runner = TestRunner::new(cases());
    let result = runner.run(&mutations(), |mutations| {
        let file = mutate(&config, std::slice::from_ref(&config), &mutations);
        check(tokenizer.as_bytes(), &file);
        Ok(())
    });
    if let Err(error) = result {
        panic!("{error}");
    }
}

/// Files that the library itself would crash on or take too long for.
#[test]
fn attacks() {
    let double = json!({"type": "Replace", "pattern": {"String": "a"}, "content": "aa"});
    let nested = (0..50)
        .fold(json!({"type": "Lowercase"}), |inner, _| json!({"type": "Sequence", "normalizers": [inner]}));
    let split = |regex: &str| json!({"type": "Split", "pattern": {"Regex": regex}, "behavior": "Isolated", "invert": false});
    let long = "ab".repeat(500_000);
    for (seed_name, place, value, loads) in [
        ("unigram", "/normalizer/normalizers/0/precompiled_charsmap", json!("8P///wAAAAA="), false),
        ("word_level", "/normalizer", json!({"precompiled_charsmap": "8P///wAAAAA="}), false),
        ("word_level", "/normalizer", json!({"type": "Sequence", "normalizers": vec![double; 40]}), false),
        ("word_level", "/normalizer", nested, true),
        ("word_level", "/model/vocab/cat", json!(i32::MAX - 1), false),
        ("word_level", "/model/vocab/cat", json!(u64::MAX), false),
        ("unigram", "/model/vocab/5", json!([long, -1.0]), false),
        ("unigram", "/model/vocab/5/1", json!(-1e308), true),
        ("word_piece", "/post_processor/single/1/Sequence/id", json!("B"), false),
        ("word_piece", "/post_processor/special_tokens", json!({}), false),
        ("word_piece", "/post_processor/special_tokens/[CLS]/ids/0", json!(4), false),
        ("word_piece", "/model/max_input_chars_per_word", json!(u32::MAX), false),
        ("word_piece", "/model/unk_token", json!("none"), true),
        ("word_piece", "/added_tokens/4/id", json!(1_000_000), false),
        ("split_bpe", "/pre_tokenizer", split("("), false),
        ("split_bpe", "/pre_tokenizer", split("(?:a|a|aa)+$(?!b)(?<!c)"), true),
        ("split_bpe", "/pre_tokenizer", split(r"(?:(?:(?:\w{1000}){1000}){1000}){1000}"), false),
        ("split_bpe", "/pre_tokenizer", split(&("(".repeat(100_000) + &")".repeat(100_000))), false),
        ("split_bpe", "/pre_tokenizer", split(&("(?:".repeat(2000) + "a" + &")*".repeat(2000))), true),
        ("split_bpe", "/pre_tokenizer", split(r"(?<x>a\g<x>?b?)+"), true),
        ("split_bpe", "/pre_tokenizer", split(r"(?<x>\g<x>)"), false),
        ("split_bpe", "/pre_tokenizer", split(&format!("(?i){}", "ssſßst".repeat(1000))), true),
        ("split_bpe", "/pre_tokenizer", split(r"(?:a{1,100}){1,100}c"), true),
        ("split_bpe", "/pre_tokenizer", json!({"type": "FixedLength", "length": 0}), true),
        ("byte_level", "/model/merges/0", json!(["th", "e"]), true),
        ("byte_level", "/model/merges/0", json!(["q", "z"]), false),
        ("byte_level", "/model/dropout", json!(0.5), true),
        ("byte_level", "/model/end_of_word_suffix", json!("</w>"), true),
        ("word_level", "/decoder/pad_token", json!(long), true),
    ] {
        let mut json = seed(seed_name);
        *json.pointer_mut(place).unwrap() = value;
        assert_eq!(
            check(json.to_string().as_bytes(), b"{}"),
            loads,
            "{seed_name} {place}: {}",
            json.pointer(place).unwrap()
        );
    }
}

#[test]
fn seeds_are_usable() {
    for seed in seeds() {
        assert!(check(seed.to_string().as_bytes(), b"{}"));
    }
}
