//! Reads any bytes as the file of a rank's parameters, with a correct digest. The result is an error that names the
//! file, or tensors of the lengths they declare.

use std::fs;
use std::path::PathBuf;
use std::sync::OnceLock;

use firebrick_checkpoints::{Checkpoint, Digest, FileEntry, Folder, Manifest, RankState, Tensors};
use tempfile::TempDir;

/// Creates, once, a checkpoint without tensors whose parameters the target replaces.
fn checkpoint() -> &'static (TempDir, PathBuf, Manifest) {
    static CHECKPOINT: OnceLock<(TempDir, PathBuf, Manifest)> = OnceLock::new();
    CHECKPOINT.get_or_init(|| {
        // Uses memory if this folder exists.
        let output = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).unwrap();
        let staging = Folder::new(output.path()).staging(1, "fuzz");
        let files = staging.write_rank(&RankState { ranks: 1, ..Default::default() }).unwrap();
        let manifest = Manifest::new("fuzz", 1, 1, "0.1.0").files(files);
        let path = staging.publish(manifest, "()").unwrap().path;
        let manifest = Checkpoint::open(&path).unwrap().manifest().clone();
        (output, path, manifest)
    })
}

pub fn check(bytes: &[u8]) {
    let (_, path, manifest) = checkpoint();
    let name = "parameters-00000-of-00001.safetensors";
    let entry = FileEntry { name: name.into(), bytes: bytes.len() as u64, sum: Digest::of(bytes) };
    let mut manifest = manifest.clone();
    manifest.files.retain(|file| file.name != name);
    manifest.files.insert(1, entry);
    fs::write(path.join(name), bytes).unwrap();
    fs::write(path.join("manifest.json"), manifest.to_json()).unwrap();
    match Checkpoint::open(path) {
        Ok(checkpoint) => read(checkpoint.parameters(), bytes.len()),
        Err(error) => assert_eq!(error.path(), Some(&*path.join(name)), "{error}"),
    }
}

/// Reads all tensors, a row of each, and a column of those with one or two axes.
fn read(tensors: &Tensors, most: usize) {
    let mut sum = 0;
    for (name, info) in tensors.iter() {
        let bytes = tensors.read(name).unwrap();
        assert_eq!(bytes.len(), info.bytes());
        sum += bytes.len();
        if info.rows() > 0 {
            let row = tensors.read_rows(name, info.rows() - 1..info.rows()).unwrap();
            assert!(bytes.ends_with(&row));
        }
        if let (&[last] | &[_, last], true) = (info.shape.as_slice(), !bytes.is_empty()) {
            let rows = bytes.len() / (last * info.dtype.bitsize() / 8);
            let columns = [0..1, last - 1..last];
            let columns = if last > 1 { &columns[..] } else { &columns[..1] };
            let read = tensors.read_columns(name, 0..rows, columns).unwrap();
            assert_eq!(read.len(), rows * columns.len() * info.dtype.bitsize() / 8);
        }
    }
    assert!(sum <= most, "{sum} bytes out of {most}");
}
