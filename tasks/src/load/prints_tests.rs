//! Tests that each way of reading data takes its fingerprint and detects a change.

use std::fs::{self, File};
use std::path::Path;
use std::time::{Duration, SystemTime};

use burn::train::Interrupter;
use ron::extensions::Extensions;
use serde::de::DeserializeOwned;

use super::*;
use crate::{DataConfig, Dataset, TaskConfig};

const TOKENIZER: &str = "Bpe(vocabulary: 260)";

/// Returns a task on data as a run file has them. `data` names files of this folder as `DIR/NAME`.
fn dataset(folder: &Path, task: &str, data: &str, samples: usize) -> Dataset {
    fn read<T: DeserializeOwned>(text: &str) -> T {
        let extensions = Extensions::IMPLICIT_SOME | Extensions::UNWRAP_VARIANT_NEWTYPES;
        let options = ron::Options::default().with_default_extension(extensions);
        options.from_str(text).unwrap_or_else(|error| panic!("{text}: {error}"))
    }
    let data = data.replace("DIR", folder.to_str().unwrap());
    Dataset::new(read::<TaskConfig>(task), read::<DataConfig>(&data), samples)
}

/// Returns the fingerprints of data whose settings name files of this folder as `DIR/NAME`.
fn of(folder: &Path, task: &str, data: &str) -> Fingerprints {
    let dataset = dataset(folder, task, &format!("({data}, tokenizer: {TOKENIZER})"), 2);
    let loaded = dataset.load(|_| ()).unwrap_or_else(|error| panic!("{task}, {data}: {error}"));
    loaded.data.fingerprints()
}

/// Checks that the fingerprint depends on the content: `change` is a file, a text in it, and the text that replaces it.
fn is_of_content(task: &str, data: &str, files: &[(&str, &str)], (name, from, to): (&str, &str, &str)) {
    let write = |folder: &Path, change: bool| {
        for (file, text) in files {
            let text = if change && *file == name { text.replacen(from, to, 1) } else { text.to_string() };
            fs::write(folder.join(file), text).unwrap();
        }
    };
    let folders = [(); 3].map(|()| tempfile::tempdir().unwrap());
    let [one, same, other] = folders.each_ref().map(|folder| folder.path());
    write(one, false);
    write(same, false);
    write(other, true);
    let file = File::options().write(true).open(same.join(name)).unwrap();
    file.set_modified(SystemTime::now() - Duration::from_secs(1000)).unwrap();
    let prints = [one, same, other].map(|folder| of(folder, task, data));
    assert!(prints[0].train.is_some(), "{data}");
    assert_eq!(prints[0], prints[1], "{data}: in another folder, of another time");
    let is_valid = name.starts_with("valid");
    assert_eq!(prints[0].train == prints[2].train, is_valid, "{data}: the change of {name}");
    assert_eq!(prints[0].valid.is_some(), data.contains("valid:"), "{data}");
    assert_eq!(prints[0].valid == prints[2].valid, !is_valid, "{data}: the change of {name}");
}

const WORDS: &str = "to be or not to be\nthat is the question\nwhether tis nobler\n";
const LINES: &str =
    "{\"text\":\"to be or\"}\n{\"text\":\"not to be\"}\n{\"text\":\"that is the question\"}\n";
const LABELLED: &str = "{\"text\":\"to be\",\"label\":\"yes\"}\n{\"text\":\"not to be\",\"label\":\"no\"}\n{\"text\":\"or\",\"label\":\"no\"}\n";
const CONLL: &str = "to O\nbe B-x\n\nor O\nnot B-x\n\nto O\nbe O\n";
const PAIRS: &str = "source,target\nto be,be to\nor not,not or\nthat is,is that\n";

#[test]
fn of_every_reader_in_memory() {
    let windows = "CausalLm()";
    let samples = "CausalLm(rows: Samples)";
    let packed = "CausalLm(rows: Packed)";
    let be = |name| (name, "be", "do");
    let text = [("a.txt", WORDS), ("valid.txt", WORDS)];
    is_of_content(windows, "path: \"DIR/a.txt\", block: 2, valid_fraction: 0.3", &text, be("a.txt"));
    let apart = "path: \"DIR/a.txt\", valid: \"DIR/valid.txt\", block: 2";
    is_of_content(windows, apart, &text, be("a.txt"));
    is_of_content(windows, apart, &text, be("valid.txt"));
    let lines = [("a.jsonl", LINES), ("valid.jsonl", LINES)];
    let apart = "path: \"DIR/a.jsonl\", valid: \"DIR/valid.jsonl\", block: 3";
    for task in [windows, samples, packed] {
        is_of_content(task, apart, &lines, be("a.jsonl"));
        is_of_content(task, apart, &lines, be("valid.jsonl"));
    }
    is_of_content(samples, "path: \"DIR/a.txt\", block: 8", &text, be("a.txt"));
    let labelled = [("a.jsonl", LABELLED)];
    let classes = "SequenceClassification()";
    let special = "special: (pad: \"<pad>\", eos: \"</s>\")";
    let path = format!("path: \"DIR/a.jsonl\", {special}");
    is_of_content(classes, &path, &labelled, ("a.jsonl", "\"not to be\"", "\"not to do\""));
    let conll = [("a.conll", CONLL)];
    let path = format!("path: \"DIR/a.conll\", {special}");
    is_of_content("TokenClassification()", &path, &conll, ("a.conll", "be O", "be B-x"));
    let pairs = format!("path: \"DIR/a.csv\", {special}");
    is_of_content("Seq2Seq()", &pairs, &[("a.csv", PAIRS)], be("a.csv"));
    let parallel = format!("path: \"DIR/a\", format: Parallel(source: \"en\", target: \"fr\"), {special}");
    let task = "Seq2Seq(source: \"en\", target: \"fr\")";
    is_of_content(task, &parallel, &[("a.en", WORDS), ("a.fr", WORDS)], be("a.fr"));
}

#[test]
fn of_mixed_and_streamed_data() {
    let samples = "CausalLm(rows: Samples)";
    let lines = [("a.jsonl", LINES), ("b.jsonl", LINES)];
    let mix = "mix: [(path: \"DIR/a.jsonl\", weight: 0.5), (path: \"DIR/b.jsonl\", weight: 0.5)], block: 8";
    is_of_content(samples, mix, &lines, ("a.jsonl", "be", "do"));
    is_of_content(samples, mix, &lines, ("b.jsonl", "be", "do"));
    let stream = "path: [\"DIR/a.jsonl\", \"DIR/b.jsonl\"], stream: 2, block: 8";
    is_of_content(samples, stream, &lines, ("b.jsonl", "be", "do"));
}

#[test]
fn of_token_files() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    let write = |text: &str| {
        fs::write(path("a.txt"), text).unwrap();
        let windows = |data| dataset(folder.path(), "CausalLm()", data, 1);
        let text = windows("(path: \"DIR/a.txt\", tokenizer: Characters, block: 2)");
        text.tokenize(&path("a.tokens"), &Interrupter::new(), |_| ()).unwrap();
        let tokens = "(path: \"DIR/a.tokens\", tokenizer: File(\"DIR/a.tokens.tokenizer\"), block: 2)";
        windows(tokens).load(|_| ()).unwrap().data.fingerprints().train.unwrap()
    };
    let text = "to be or not to be, that is the question";
    let one = write(text);
    assert_eq!(write(text), one);
    assert_ne!(write(&text.replacen("be", "eb", 1)), one);
}

#[cfg(feature = "parquet")]
#[test]
fn of_columns() {
    // The same columns are the same data however they are packed.
    let corpus = Path::new("../datasets/tests/corpus");
    let of_columns = |file: &str| {
        let reader = Fingerprinted::new(firebrick_datasets::ParquetReader::new(corpus.join(file)));
        (0..reader.parts())
            .for_each(|part| reader.open(part).unwrap().for_each(|record| drop(record.unwrap())));
        reader.fingerprint().unwrap()
    };
    assert_eq!(of_columns("snappy.parquet"), of_columns("zstd.parquet"));
}
