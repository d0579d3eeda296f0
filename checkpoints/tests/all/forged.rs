//! Forged checkpoints: the digests are right, but the content is invalid.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use firebrick_checkpoints::{
    Checkpoint, CheckpointError, Digest, Dtype, FileEntry, Folder, Manifest, Piece, RankState, Scalar,
};

use crate::state::{open_as, rows, save, whole};

/// Publishes the ranks' states and opens the result. The folder lives as long as the checkpoint.
fn opened(
    states: Vec<RankState>,
    aliases: &[(&str, &str)],
) -> Result<(Checkpoint, tempfile::TempDir), CheckpointError> {
    let output = tempfile::tempdir().unwrap();
    let ranks = states.len();
    let staging = Folder::new(output.path()).staging(1, "a");
    let files = states
        .into_iter()
        .enumerate()
        .flat_map(|(rank, state)| staging.write_rank(&RankState { rank, ranks, ..state }).unwrap());
    let manifest = Manifest::new("run", 1, ranks, "0.1.0").files(files);
    let aliases = aliases.iter().map(|&(alias, saved)| (alias.to_owned(), saved.to_owned()));
    let saved = staging.publish(manifest.aliases(aliases), "()").unwrap();
    Ok((Checkpoint::open(saved.path)?, output))
}

fn holding(parameters: Vec<Piece>) -> RankState {
    RankState { parameters, ..Default::default() }
}

fn weight() -> Piece {
    whole("w", Dtype::F32, &[4, 2], (0..32).collect())
}

#[test]
fn slices_must_form_a_whole_tensor() {
    let cut = |ranges: &[std::ops::Range<usize>]| {
        opened(ranges.iter().map(|range| holding(vec![rows(&weight(), range.clone())])).collect(), &[])
    };
    for ranges in [&[0..2, 2..4][..], &[2..4, 0..2], &[0..0, 0..4, 4..4], &[0..3, 3..3, 3..4]] {
        let (checkpoint, _output) = cut(ranges).unwrap();
        assert_eq!(checkpoint.parameters().read("w").unwrap(), &*weight().bytes.get().unwrap(), "{ranges:?}");
    }
    for (ranges, message) in [
        (&[0..2, 3..4][..], "expected rows from 2, found rows 3..4"),
        (&[0..3, 2..4], "expected rows from 3, found rows 2..4"),
        (&[0..4, 0..4], "expected rows from 4, found rows 0..4"),
        (&[1..4, 0..0], "expected rows from 0, found rows 1..4"),
        (&[0..2, 2..3], "expected 4 rows, found 3 rows"),
        (&[0..0, 4..4], "expected rows from 0, found rows 4..4"),
    ] {
        let error = cut(ranges).map(drop).unwrap_err();
        assert!(error.to_string().contains(message), "{ranges:?}: {error}");
        assert!(error.path().unwrap().to_string_lossy().contains("parameters-0000"), "{error}");
    }
}

#[test]
fn ranks_must_agree_on_each_tensor() {
    let half = |dtype, shape: &[usize], range| rows(&whole("w", dtype, shape, vec![0; 32]), range);
    let first = || holding(vec![half(Dtype::F32, &[4, 2], 0..2)]);
    for (other, message) in [
        (half(Dtype::I32, &[4, 2], 2..4), "expected F32 [4, 2], found I32 [4, 2]"),
        (half(Dtype::F32, &[4, 1, 2], 2..4), "expected F32 [4, 2], found F32 [4, 1, 2]"),
        (weight(), "found the whole tensor, and more of it elsewhere"),
    ] {
        let error = opened(vec![first(), holding(vec![other])], &[]).unwrap_err();
        assert!(error.to_string().contains(message), "{error}");
    }
    let error = opened(vec![holding(vec![weight()]), holding(vec![weight()])], &[]).unwrap_err();
    assert!(error.to_string().contains("expected a tensor that is saved once"), "{error}");

    let counting =
        |scalar| RankState { scalars: BTreeMap::from([("n".into(), scalar)]), ..Default::default() };
    let both = |a, b| opened(vec![counting(a), counting(b)], &[]);
    let nan = Scalar::Float(f64::NAN);
    assert_eq!(both(nan, nan).unwrap().0.optimizer().scalars()["n"], nan);
    let error = both(Scalar::UInt(1), Scalar::Int(1)).unwrap_err();
    assert!(error.to_string().contains("expected UInt(1), as on another rank, found Int(1)"), "{error}");
    let named = RankState { optimizer: vec![whole("n", Dtype::U8, &[1], vec![0])], ..Default::default() };
    let error = opened(vec![counting(nan), named], &[]).unwrap_err();
    assert!(error.to_string().contains("of the same name"), "{error}");
}

#[test]
fn an_alias_is_of_a_saved_tensor() {
    let with = |aliases: &[(&str, &str)]| opened(vec![holding(vec![weight()])], aliases);
    with(&[("tied", "w")]).unwrap();
    let error = with(&[("tied", "v")]).unwrap_err().to_string();
    assert!(error.contains("expected the tensor `v`, for which `tied` is an alias"), "{error}");
    let error = opened(vec![holding(vec![weight(), whole("v", Dtype::U8, &[], vec![0])])], &[("v", "w")]);
    assert!(error.unwrap_err().to_string().contains("expected `v` as an alias of `w` only"));
}

/// A valid checkpoint in which tests replace a file, and perhaps the manifest, with correct digests.
struct Forged {
    _output: tempfile::TempDir,
    path: PathBuf,
    manifest: Manifest,
}

impl Forged {
    fn new() -> Self {
        let output = tempfile::tempdir().unwrap();
        let path = save(&Folder::new(output.path()), 1, 1).unwrap().path;
        let manifest = Checkpoint::open(&path).unwrap().manifest().clone();
        Self { _output: output, path, manifest }
    }

    fn with_file(&self, name: &str, bytes: &[u8]) -> CheckpointError {
        let before = fs::read(self.path.join(name)).unwrap();
        let mut manifest = self.manifest.clone();
        let entry = manifest.files.iter_mut().find(|file| file.name == name).unwrap();
        *entry = FileEntry { name: name.into(), bytes: bytes.len() as u64, sum: Digest::of(bytes) };
        fs::write(self.path.join(name), bytes).unwrap();
        let error = self.refused(&manifest.to_json());
        fs::write(self.path.join(name), before).unwrap();
        open_as(&self.path, 1);
        error
    }

    fn with_manifest(&self, json: &[u8]) -> CheckpointError {
        let error = self.refused(json);
        open_as(&self.path, 1);
        error
    }

    fn refused(&self, json: &[u8]) -> CheckpointError {
        fs::write(self.path.join("manifest.json"), json).unwrap();
        let error = Checkpoint::open(&self.path).map(drop).unwrap_err();
        fs::write(self.path.join("manifest.json"), self.manifest.to_json()).unwrap();
        error
    }
}

/// Builds a safetensors file with any header.
fn file(header: &str, data: usize) -> Vec<u8> {
    let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
    bytes.extend(header.as_bytes());
    bytes.resize(bytes.len() + data, 0);
    bytes
}

#[test]
fn headers_have_one_valid_encoding() {
    let forged = Forged::new();
    let parameters = "parameters-00000-of-00001.safetensors";
    let entry = r#""__metadata__":{"firebrick":"{\"slices\":{},\"scalars\":{}}"}"#;
    let sliced = r#""__metadata__":{"firebrick":"{\"slices\":{\"w\":{\"shape\":[9223372036854775807],\"start\":18446744073709551615}},\"scalars\":{}}"}"#;
    let tensor = r#""w":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}"#;
    for (bytes, message) in [
        (vec![], "found 0 bytes"),
        (vec![0; 7], "found 7 bytes"),
        (vec![255; 64], "a header of 18446744073709551615 bytes in a file of 64"),
        (file("", 0), "EOF"),
        (file("{}", 0), "no entry `firebrick`"),
        (file(r#"{"__metadata__":{"firebrick":"{}"}}"#, 0), "missing field"),
        (file(&format!("{{{entry},{tensor}}}"), 8), "in a different encoding"),
        (file(&format!("{{{entry},{tensor}}} "), 8), "in a different encoding"),
        (file(&format!("{{{sliced},{tensor}}}"), 8), "too many rows"),
        (
            file(&format!("{{{},{tensor}}}", sliced.replace("18446744073709551615", "0")), 8),
            "cannot be saved",
        ),
        (file(&format!("{{{entry},{}}}", tensor.replace("[2]", "[4294967296,4294967296]")), 8), "overflow"),
        (file(&format!("{{{entry},{}}}", tensor.replace("[0,8]", "[8,16]")), 16), "invalid"),
        (
            file(&format!("{{{entry},{}}}", tensor.replace("F32", "F8_E4M3").replace("[2]", "[8]")), 8),
            "F8_E4M3",
        ),
        (file(&format!("{{{entry},{}}}", tensor.replace("F32", "PICKLE")), 8), "unknown variant"),
        (file(&"{\"a\":".repeat(100_000), 0), "recursion"),
    ] {
        let error = forged.with_file(parameters, &bytes);
        assert!(error.to_string().contains(message), "{message}: {error}");
        assert!(error.path().unwrap().ends_with(parameters), "{error}");
    }
    // Slices with columns: the whole shape, the start, the columns, the shape in the file and its bytes.
    let with_columns = |shape: &str, start: &str, columns: &str, held: &str, data: usize| {
        let entry = format!(
            r#""__metadata__":{{"firebrick":"{{\"slices\":{{\"w\":{{\"shape\":{shape},\"start\":{start},\"columns\":{columns}}}}},\"scalars\":{{}}}}"}}"#
        );
        let mut header =
            format!(r#"{{{entry},"w":{{"dtype":"U8","shape":{held},"data_offsets":[0,{data}]}}}}"#);
        // As the writer aligns them, so that only the columns are wrong.
        header.extend(std::iter::repeat_n(' ', header.len().next_multiple_of(8) - header.len()));
        file(&header, data)
    };
    let most = "18446744073709551615";
    for (shape, start, columns, held, data, message) in [
        ("[2,6]", "0", "[[0,7]]", "[2,7]", 14, "columns 0..7 of 6"),
        ("[2,6]", "0", &format!("[[0,{most}]]"), "[2,6]", 12, "columns 0..18446744073709551615 of 6"),
        ("[2,6]", "0", &format!("[[{most},0]]"), "[2,0]", 0, "columns 18446744073709551615..0 of 6"),
        ("[2,6]", "0", &format!("[[0,6],[1,{most}]]"), "[2,6]", 12, "columns 1..18446744073709551615 of 6"),
        ("[2,6]", "0", "[[3,6],[0,3]]", "[2,6]", 12, "columns 0..3 after columns 3..6"),
        ("[2,6]", "0", "[[0,3],[2,5]]", "[2,6]", 12, "columns 2..5 after columns 0..3"),
        ("[2,6]", "0", "[[0,3],[3,3],[3,6]]", "[2,6]", 12, "columns 3..3, which are none"),
        ("[2,6]", "0", "[]", "[2,0]", 0, "an empty list of columns"),
        ("[2,6]", "0", "null", "[2,6]", 12, "in a different encoding"),
        ("[2,6]", "0", "[[0,3,6]]", "[2,6]", 12, "trailing characters"),
        ("[2,6]", "0", "[[0,-1]]", "[2,6]", 12, "invalid value"),
        ("[2,6]", "0", "[[0,3]]", "[2,6]", 12, "in a different encoding"),
        ("[2,6]", "1", "[[0,6]]", "[2,6]", 12, "rows 1..3 of 2"),
        ("[2,6]", most, "[[0,6]]", "[2,6]", 12, "too many rows"),
        ("[6]", "1", "[[0,6]]", "[6]", 6, "in a different encoding"),
        ("[6]", "0", "[[0,7]]", "[7]", 7, "columns 0..7 of 6"),
        ("[]", "0", "[[0,1]]", "[]", 1, "of a tensor without axes"),
        ("[2,6]", "0", "[[0,6]]", "[]", 1, "in a different encoding"),
        ("[1,1,1]", "0", "[[0,1]]", "[1,1,1]", 1, "columns of a tensor with 3 axes"),
        (&format!("[{most},6]"), "0", "[[0,6]]", "[2,6]", 12, "cannot be saved"),
        // A header that is valid, of a tensor of which more is missing.
        ("[2,6]", "0", "[[0,3]]", "[2,3]", 6, "expected 6 columns in rows 0..2, found 3 columns"),
        ("[6]", "0", "[[0,3]]", "[3]", 3, "expected 6 rows, found 3 rows"),
    ] {
        let error = forged.with_file(parameters, &with_columns(shape, start, columns, held, data));
        assert!(error.to_string().contains(message), "{message}: {error}");
        assert!(error.path().unwrap().ends_with(parameters), "{error}");
    }
    // Content that is valid for the optimizer is not for parameters.
    let optimizer = fs::read(forged.path.join("optimizer-00000-of-00001.safetensors")).unwrap();
    let error = forged.with_file(parameters, &optimizer);
    assert!(
        error.to_string().contains("expected tensors only, found the number `blocks.0.weight/decay`"),
        "{error}"
    );
    assert!(error.path().unwrap().ends_with(parameters), "{error}");
    let error = forged.with_file("trainer.json", b"\xff");
    assert!(error.to_string().contains("a text in UTF-8") && error.path().unwrap().ends_with("trainer.json"));
}

#[test]
fn manifests_have_one_valid_encoding() {
    let forged = Forged::new();
    let manifest = &forged.manifest;
    let with = |edit: &dyn Fn(&mut Manifest)| {
        let mut manifest = manifest.clone();
        edit(&mut manifest);
        forged.with_manifest(&manifest.to_json()).to_string()
    };
    let name = |name: &'static str| move |manifest: &mut Manifest| manifest.files[0].name = name.into();
    for (error, message) in [
        (with(&|manifest| manifest.format = 4), "expected a format of 1 to 3, found format 4"),
        (with(&|manifest| manifest.format = 2), "the file `trainer.ron`, found \"trainer.json\""),
        (
            with(&|manifest| {
                manifest.format = 1;
                manifest.files[3].name = "trainer.ron".into();
            }),
            "expected a SHA-256 of `average-00000-of-00001",
        ),
        (with(&|manifest| manifest.step = 2), "that of step-00000002"),
        (with(&|manifest| manifest.world_size = 0), "`world_size` between 1 and 99999"),
        (with(&|manifest| manifest.world_size = usize::MAX), "`world_size` between 1 and 99999"),
        (
            with(&|manifest| manifest.world_size = 2),
            "expected 5 files of 2 ranks, or 7 with averages, found 4",
        ),
        (with(&|manifest| manifest.files.clear()), "found 0"),
        (
            with(&|manifest| manifest.files[1] = manifest.files[0].clone()),
            "the file `optimizer-00000-of-00001",
        ),
        (
            with(&|manifest| manifest.files.reverse()),
            "expected the file `average-00000-of-00001.safetensors`",
        ),
        (with(&name("../../etc/passwd")), "found \"../../etc/passwd\""),
        (with(&name("/etc/passwd")), "found \"/etc/passwd\""),
        (with(&name("average-00000-of-00001.safetensors\0")), "\\0"),
        (with(&name("average-0-of-1.safetensors")), "found \"average-0-of-1"),
        (with(&name("average-00000-of-00002.safetensors")), "found \"average-00000-of-00002"),
        (with(&|manifest| manifest.files[0].bytes = u64::MAX), "files of less than 2^64 bytes"),
        (with(&|manifest| manifest.files[0].bytes += 1 << 40), "found"),
        (with(&|manifest| manifest.files[3].bytes = 17 << 20), "`trainer.json` of at most 16777216 bytes"),
        (with(&|manifest| manifest.run = String::new()), "`run` of 1 to 256 bytes"),
        (with(&|manifest| manifest.program = "a\u{1b}[2J".into()), "without control characters"),
        (
            with(&|manifest| drop(manifest.aliases.insert("a".into(), "head.weight".into()))),
            "an alias of an alias",
        ),
        (with(&|manifest| drop(manifest.aliases.insert("a\n".into(), "scale".into()))), "a name of 2 bytes"),
        (with(&|manifest| manifest.metric = Some(f64::NAN)), "a finite `metric`"),
    ] {
        assert!(error.contains(message), "{message}: {error}");
    }

    let json = String::from_utf8(manifest.to_json()).unwrap();
    let compact = serde_json::to_string(&serde_json::from_str::<serde_json::Value>(&json).unwrap()).unwrap();
    for (text, message) in [
        (compact, "in a different encoding"),
        (format!("{json}\n"), "in a different encoding"),
        (format!(" {json}"), "in a different encoding"),
        (json.replacen("\"step\": 1", "\"step\": 1,\n    \"more\": 1", 1), "unknown field `more`"),
        (json.replacen("\"step\": 1,", "\"step\": 1,\n    \"step\": 1,", 1), "duplicate field `step`"),
        (json.replacen("\"step\": 1", "\"step\": -1", 1), "invalid value"),
        (json.replacen("\"step\": 1", "\"step\": 1.0", 1), "invalid type"),
        (json.replacen("\"run\": \"run\"", "\"run\": \"ru\\u006e\"", 1), "in a different encoding"),
        (json.replacen("\"metric\": \"10\"", "\"metric\": \"1e1\"", 1), "in a different encoding"),
        (json.replacen("\"run\": \"run\"", "\"run\": \"ran\"", 1), "expected BLAKE3"),
        (json.replace("blake3", "sha256"), "expected the BLAKE3 of format 3, found a SHA-256"),
        (json.replacen("blake3", "md5", 1), "unknown field `md5`"),
        (json[..json.len() - 2].into(), "EOF"),
        (String::new(), "EOF"),
        ("[".repeat(1 << 20), "invalid type"),
    ] {
        let error = forged.with_manifest(text.as_bytes());
        assert!(error.to_string().contains(message), "{message}: {error}");
        assert!(error.path().unwrap().ends_with("manifest.json"), "{error}");
    }
}

#[test]
fn a_manifest_that_is_too_long_is_not_read() {
    let forged = Forged::new();
    let path = forged.path.join("manifest.json");
    // A sparse file, which takes no space on the disk.
    fs::File::options().write(true).open(&path).unwrap().set_len(65 << 20).unwrap();
    let error = Checkpoint::open(&forged.path).unwrap_err().to_string();
    assert!(error.contains("at most 67108864 bytes, found 68157440 bytes"), "{error}");
}

#[test]
fn a_manifest_is_read_back() {
    let entries = |rank: usize| {
        ["parameters", "optimizer"].map(|holds| FileEntry {
            name: format!("{holds}-{rank:05}-of-00002.safetensors"),
            bytes: rank as u64,
            sum: Digest::of(b""),
        })
    };
    for metric in [None, Some(0.1 + 0.2), Some(-0.0), Some(5e-324), Some(1.7976931348623157e308)] {
        let trainer = FileEntry { name: "trainer.json".into(), bytes: 1, sum: Digest::of(b"") };
        let mut manifest = Manifest::new("run \"1\" \u{e9}", u64::MAX, 2, "0.1.0")
            .files(entries(1).into_iter().chain(entries(0)).chain([trainer]));
        manifest.files.sort_by(|a, b| a.name.cmp(&b.name));
        manifest.metric = metric;
        let read = Manifest::from_json(&manifest.to_json(), Path::new("manifest.json")).unwrap();
        assert_eq!(read.metric.map(f64::to_bits), metric.map(f64::to_bits));
        assert_eq!(read, manifest);
    }
}
