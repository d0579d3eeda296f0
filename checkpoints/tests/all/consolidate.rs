//! Consolidates the files of all ranks into one.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use firebrick_checkpoints::{
    Algorithm, Checkpoint, Consolidate, Consolidated, Digest, Dtype, Folder, Manifest, RankState, What,
    consolidate,
};
use safetensors::SafeTensors;

use crate::state::{save, whole, whole_state};

/// Saves a step with the given number of ranks. Returns the checkpoint and a folder to write into.
fn saved(step: u64, ranks: usize) -> (tempfile::TempDir, Checkpoint) {
    let output = tempfile::tempdir().unwrap();
    let saved = save(&Folder::new(output.path().join("checkpoints")), step, ranks).unwrap();
    (output, Checkpoint::open(saved.path).unwrap())
}

fn written(checkpoint: &Checkpoint, what: What, to: &Path, options: Consolidate) -> Consolidated {
    let mut seen = (0, 0);
    let last = std::cell::RefCell::new(&mut seen);
    let written =
        consolidate(checkpoint, what, to, &options, |done, total| **last.borrow_mut() = (done, total));
    let written = written.unwrap();
    assert_eq!(seen, (written.bytes, written.bytes));
    written
}

#[test]
fn any_number_of_ranks_gives_the_same_bytes() {
    for what in [What::Parameters, What::Average] {
        for dtype in [None, Some(Dtype::F32), Some(Dtype::BF16), Some(Dtype::F16)] {
            let files: Vec<Vec<u8>> = [1, 2, 3, 4, 9]
                .map(|ranks| {
                    let (output, checkpoint) = saved(7, ranks);
                    let to = output.path().join("model.safetensors");
                    written(&checkpoint, what, &to, Consolidate { dtype, ..Default::default() });
                    fs::read(to).unwrap()
                })
                .into();
            assert!(files.iter().all(|file| *file == files[0]), "{what:?} {dtype:?}");
        }
    }
}

/// The committed files, which tests/golden/check_with_safetensors.py has checked.
const GOLDEN: [(Option<Dtype>, &str, &[u8], &str); 2] = [
    (
        None,
        "model.safetensors",
        include_bytes!("../golden/model.safetensors"),
        "25ea98b54cb2a66f2a442a1b87c34f1ae73f2805d78a1534be315fa9da4db4a2",
    ),
    (
        Some(Dtype::BF16),
        "model-bf16.safetensors",
        include_bytes!("../golden/model-bf16.safetensors"),
        "0aa21df83f60dd4be07ac649508cf57f11f4ff8811dfb1a2d05bb69080967c7d",
    ),
];

#[test]
fn the_bytes_of_a_small_model_are_known() {
    let (_output, checkpoint) = saved(7, 4);
    for (dtype, name, golden, sum) in GOLDEN {
        // The file stays, so that you can inspect it if it changes.
        let to = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
        written(&checkpoint, What::Parameters, &to, Consolidate { dtype, ..Default::default() });
        let file = fs::read(&to).unwrap();
        assert_eq!(Digest::with(Algorithm::Sha256, &file).to_string(), sum, "{}", to.display());
        assert_eq!(file, golden);
    }
}

#[test]
fn the_safetensors_library_reads_what_was_saved() {
    let (output, checkpoint) = saved(7, 4);
    let to = output.path().join("model.safetensors");
    let result = written(&checkpoint, What::Parameters, &to, Consolidate::default());
    assert_eq!((result.files, result.tensors, result.infinite), (vec![to.clone()], 6, 0));
    let file = fs::read(&to).unwrap();
    let tensors = SafeTensors::deserialize(&file).unwrap();
    assert_eq!(tensors.len(), 6);
    for piece in whole_state(7).parameters {
        let tensor = tensors.tensor(&piece.name).unwrap();
        assert_eq!((tensor.dtype(), tensor.shape()), (piece.dtype, &piece.shape[..]));
        assert_eq!(tensor.data(), &*piece.bytes.get().unwrap());
    }
    let (_, header) = SafeTensors::read_metadata(&file).unwrap();
    assert_eq!(header.metadata().as_ref().unwrap()["format"], "pt");
}

#[test]
fn floats_are_cast_and_integers_stay() {
    let (output, checkpoint) = saved(7, 2);
    let to = output.path().join("model.safetensors");
    let options = Consolidate { dtype: Some(Dtype::F16), ..Default::default() };
    let result = written(&checkpoint, What::Parameters, &to, options);
    let file = fs::read(&to).unwrap();
    let tensors = SafeTensors::deserialize(&file).unwrap();
    assert_eq!(tensors.tensor("seen").unwrap().dtype(), Dtype::I64);
    assert_eq!(tensors.tensor("nothing").unwrap().shape(), [0, 3]);
    let half = tensors.tensor("embedding.weight").unwrap();
    assert_eq!(half.dtype(), Dtype::F16);
    let from = whole_state(7).parameters.swap_remove(0);
    let from = from.bytes.get().unwrap();
    let expected = from.as_chunks().0.iter().map(|&b| half::f16::from_f32(f32::from_le_bytes(b)));
    assert_eq!(half.data(), expected.flat_map(half::f16::to_le_bytes).collect::<Vec<_>>());
    let all: usize = tensors.tensors().iter().map(|(_, tensor)| tensor.data().len()).sum();
    assert_eq!(all as u64, result.bytes);
}

#[test]
fn tied_weights_are_written_once_unless_asked_for() {
    let (output, checkpoint) = saved(7, 2);
    let to = output.path().join("model.safetensors");
    let names = |with_aliases| {
        written(&checkpoint, What::Parameters, &to, Consolidate { with_aliases, ..Default::default() });
        let file = fs::read(&to).unwrap();
        let tensors = SafeTensors::deserialize(&file).unwrap();
        if with_aliases {
            let alias = tensors.tensor("head.weight").unwrap();
            assert_eq!(alias.data(), tensors.tensor("embedding.weight").unwrap().data());
        }
        tensors.len()
    };
    assert_eq!((names(false), names(true)), (6, 7));
}

#[test]
fn shards_have_the_index_of_hugging_face() {
    let (output, checkpoint) = saved(7, 2);
    let to = output.path().join("model.safetensors");
    let options = Consolidate { shard_bytes: Some(83), ..Default::default() };
    let result = written(&checkpoint, What::Parameters, &to, options);
    let names: Vec<_> = result.files.iter().map(|file| file.file_name().unwrap().to_str().unwrap()).collect();
    // By name: 80 bytes of the block, the 84 of the embedding, which is too large, and 24 + 0 + 4 + 16 that fit.
    assert_eq!(
        names,
        [
            "model-00001-of-00003.safetensors",
            "model-00002-of-00003.safetensors",
            "model-00003-of-00003.safetensors",
            "model.safetensors.index.json"
        ]
    );
    assert!(!to.exists());
    let index: serde_json::Value = serde_json::from_slice(&fs::read(&result.files[3]).unwrap()).unwrap();
    assert_eq!(index["metadata"]["total_size"], 208);
    let map: BTreeMap<String, String> = serde_json::from_value(index["weight_map"].clone()).unwrap();
    assert_eq!(map.len(), 6);
    let state = whole_state(7);
    for (name, file) in map {
        let file = fs::read(output.path().join(file)).unwrap();
        let tensors = SafeTensors::deserialize(&file).unwrap();
        let piece = state.parameters.iter().find(|piece| piece.name == name).unwrap();
        assert_eq!(tensors.tensor(&name).unwrap().data(), &*piece.bytes.get().unwrap());
    }
    // A model that fits one file gets no index.
    let one = output.path().join("one.safetensors");
    let options = Consolidate { shard_bytes: Some(208), ..Default::default() };
    assert_eq!(written(&checkpoint, What::Parameters, &one, options).files, [one]);
}

#[test]
fn files_are_staged_until_they_are_complete() {
    let (output, checkpoint) = saved(7, 1);
    let to = output.path().join("model.safetensors");
    fs::write(&to, "before").unwrap();
    fs::write(checkpoint.path().join("parameters-00000-of-00001.safetensors"), "changed").unwrap();
    let error =
        consolidate(&checkpoint, What::Parameters, &to, &Consolidate::default(), |_, _| ()).unwrap_err();
    assert!(error.to_string().contains("was changed after its sum was checked"), "{error}");
    assert_eq!(fs::read_to_string(&to).unwrap(), "before");
    assert_eq!(fs::read_dir(output.path()).unwrap().count(), 2);
}

#[test]
fn invalid_requests_are_errors() {
    let (output, checkpoint) = saved(7, 1);
    let to = output.path().join("model.safetensors");
    let refused = |to: PathBuf, options: Consolidate, message: &str| {
        let error =
            consolidate(&checkpoint, What::Parameters, &to, &options, |_, _| ()).unwrap_err().to_string();
        assert!(error.contains(message), "{error}");
    };
    let dtype = Consolidate { dtype: Some(Dtype::I8), ..Default::default() };
    refused(to.clone(), dtype, "expected the dtype F32, BF16 or F16, found I8");
    let none = Consolidate { shard_bytes: Some(0), ..Default::default() };
    refused(to.clone(), none, "at least 1 byte");
    refused(
        output.path().join("model"),
        Consolidate::default(),
        "expected a file name such as `model.safetensors`",
    );
    refused(checkpoint.path().join("model.safetensors"), Consolidate::default(), "outside the checkpoint");
    refused(output.path().join("none/model.safetensors"), Consolidate::default(), "No such file");
    fs::write(&to, "one file").unwrap();
    let shards = Consolidate { shard_bytes: Some(83), ..Default::default() };
    refused(to.clone(), shards, "remove it, or choose another name");

    let folder = Folder::new(output.path().join("plain"));
    let staging = folder.staging(1, "a");
    let weight = whole("w", Dtype::F32, &[1], vec![0; 4]);
    let state = RankState { ranks: 1, parameters: vec![weight], ..Default::default() };
    let files = staging.write_rank(&state).unwrap();
    let plain = staging.publish(Manifest::new("run", 1, 1, "0.1.0").files(files), "()").unwrap();
    let plain = Checkpoint::open(plain.path).unwrap();
    let error = consolidate(&plain, What::Average, &to, &Consolidate::default(), |_, _| ()).unwrap_err();
    assert!(error.to_string().contains("expected averaged weights, found none"), "{error}");
}

/// Saves an f32 matrix with its factors, perhaps some magnitudes, and a bias, with aliases.
fn adapted(
    scale: Option<f64>,
    rank_of_b: usize,
    magnitudes: Option<usize>,
) -> (tempfile::TempDir, Checkpoint) {
    let piece = |name: &str, shape: &[usize], of: fn(usize) -> f32| {
        let bytes = (0..shape.iter().product()).flat_map(|at| of(at).to_le_bytes()).collect();
        whole(name, Dtype::F32, shape, bytes)
    };
    let output = tempfile::tempdir().unwrap();
    let mut state = RankState {
        rank: 0,
        ranks: 1,
        parameters: vec![
            piece("dense.bias", &[2], |at| at as f32),
            piece("dense.weight", &[3, 2], |at| at as f32 * 0.5),
            piece("dense.weight.lora.a", &[3, 2], |at| 1.0 + at as f32),
            piece("dense.weight.lora.b", &[rank_of_b, 2], |at| at as f32 - 1.0),
        ],
        optimizer: Vec::new(),
        scalars: BTreeMap::new(),
        average: None,
    };
    if let Some(columns) = magnitudes {
        state.parameters.push(piece("dense.weight.lora.magnitude", &[columns], |at| 2.0 + at as f32));
    }
    let folder = Folder::new(output.path().join("checkpoints"));
    let staging = folder.staging(1, "test");
    let manifest = Manifest::new("run", 1, 1, "0.1.0").files(staging.write_rank(&state).unwrap());
    let aliases = ["", ".lora.a", ".lora.b"].map(|end| (format!("head{end}"), format!("dense.weight{end}")));
    let manifest = manifest.aliases(aliases);
    let manifest = match scale {
        Some(scale) => manifest.lora_scale(scale),
        None => manifest,
    };
    let saved = staging.publish(manifest, "()").unwrap();
    (output, Checkpoint::open(saved.path).unwrap())
}

#[test]
fn factors_are_merged_into_their_matrices() {
    let (output, checkpoint) = adapted(Some(0.1), 2, None);
    assert_eq!(checkpoint.manifest().lora_scale, Some(0.1));
    let to = output.path().join("model.safetensors");
    let options = Consolidate { with_aliases: true, ..Default::default() };
    let done = written(&checkpoint, What::Parameters, &to, options);
    assert_eq!((done.tensors, done.bytes), (3, (2 + 6 + 6) * 4));
    let file = fs::read(&to).unwrap();
    let file = SafeTensors::deserialize(&file).unwrap();
    let mut names = file.names();
    names.sort();
    assert_eq!(names, ["dense.bias", "dense.weight", "head"]);
    let read = |name: &str| -> Vec<f32> {
        let data = file.tensor(name).unwrap();
        data.data().as_chunks().0.iter().map(|&bytes| f32::from_le_bytes(bytes)).collect()
    };
    // [1 2; 3 4; 5 6] times [-1 0; 1 2] is [1 4; 1 8; 1 12].
    let expected: Vec<f32> = [(0.0, 1.0), (0.5, 4.0), (1.0, 1.0), (1.5, 8.0), (2.0, 1.0), (2.5, 12.0)]
        .map(|(matrix, product): (f64, f64)| (matrix + 0.1 * product) as f32)
        .into();
    assert_eq!(read("dense.weight"), expected);
    assert_eq!(read("head"), expected);
    assert_eq!(read("dense.bias"), [0.0, 1.0]);

    // Rounded once, to the requested dtype.
    let options = Consolidate { dtype: Some(Dtype::BF16), ..Default::default() };
    written(&checkpoint, What::Parameters, &to, options);
    let file = fs::read(&to).unwrap();
    let file = SafeTensors::deserialize(&file).unwrap();
    let data = file.tensor("dense.weight").unwrap();
    let halves = expected.iter().flat_map(|x| half::bf16::from_f32(*x).to_le_bytes()).collect::<Vec<_>>();
    assert_eq!((data.dtype(), data.data()), (Dtype::BF16, halves.as_slice()));
}

#[test]
fn factors_need_a_scale_and_matching_shapes() {
    let (output, checkpoint) = adapted(None, 2, None);
    let to = output.path().join("model.safetensors");
    assert_eq!(written(&checkpoint, What::Parameters, &to, Consolidate::default()).tensors, 4);
    let (output, checkpoint) = adapted(Some(1.0), 3, None);
    let to = output.path().join("model.safetensors");
    let error = consolidate(&checkpoint, What::Parameters, &to, &Consolidate::default(), |_, _| {});
    let error = error.unwrap_err().to_string();
    assert!(error.contains("factors of `dense.weight`, which is F32 [3, 2]"), "{error}");
    assert!(error.contains("F32 [3, 2] and F32 [3, 2]"), "{error}");
    assert!(!to.exists());
}

#[test]
fn columns_are_scaled_to_their_magnitudes() {
    let (output, checkpoint) = adapted(Some(0.1), 2, Some(2));
    let to = output.path().join("model.safetensors");
    let done = written(&checkpoint, What::Parameters, &to, Consolidate::default());
    assert_eq!(done.tensors, 2);
    let file = fs::read(&to).unwrap();
    let file = SafeTensors::deserialize(&file).unwrap();
    let data = file.tensor("dense.weight").unwrap();
    let found: Vec<f32> = data.data().as_chunks().0.iter().map(|&bytes| f32::from_le_bytes(bytes)).collect();
    // The sums of the test above, with columns of norms 2 and 3.
    let columns = [[0.1, 1.1, 2.1], [0.9, 2.3, 3.7]];
    for (at, found) in found.into_iter().enumerate() {
        let (column, magnitude) = (columns[at % 2], 2.0 + (at % 2) as f64);
        let norm = column.iter().map(|x| x * x).sum::<f64>().sqrt();
        assert_eq!(found, (magnitude * column[at / 2] / norm) as f32, "{at}");
    }

    let (output, checkpoint) = adapted(Some(0.1), 2, Some(3));
    let to = output.path().join("model.safetensors");
    let error = consolidate(&checkpoint, What::Parameters, &to, &Consolidate::default(), |_, _| {});
    let error = error.unwrap_err().to_string();
    assert!(error.contains("magnitudes of the columns of `dense.weight`, which is F32 [3, 2]"), "{error}");
    assert!(error.contains("F32 [3]") && !to.exists(), "{error}");
}
