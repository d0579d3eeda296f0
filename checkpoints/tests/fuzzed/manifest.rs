//! Reads any bytes as a manifest, and as the content of one with a correct digest, which chance would never find. The
//! result is an error that names the file, or a manifest that encodes to the same bytes.

use std::path::Path;

use firebrick_checkpoints::Manifest;

pub fn check(bytes: &[u8]) {
    read(bytes);
    if let Ok(manifest) = serde_json::from_slice::<Manifest>(bytes) {
        read(&manifest.to_json());
    }
}

fn read(json: &[u8]) {
    let path = Path::new("step-00000001/manifest.json");
    match Manifest::from_json(json, path) {
        Ok(manifest) => assert_eq!(manifest.to_json(), json),
        Err(error) => {
            assert_eq!(error.path(), Some(path));
            assert!(!error.to_string().is_empty());
        }
    }
}
