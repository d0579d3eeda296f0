//! Sorts the metadata of a safetensors file, which the library writes in the order of a hash map.
//!
//! That order differs from run to run, so equal runs would write files with different checksums.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, ErrorKind, Read, Seek, SeekFrom, Write};
use std::path::Path;

/// How the text of a header with metadata begins.
const BEGIN: &[u8] = b"{\"__metadata__\":";
/// The bytes of the header's length, which precede its text.
const LENGTH: u64 = 8;

/// Sorts the entries of the metadata by name, in place: the same entries take the same bytes in any order. A file without
/// metadata stays as it is.
///
/// # Errors
///
/// The file cannot be read or written, or its header is not as the safetensors library writes it.
pub(crate) fn sort_metadata(path: &Path) -> io::Result<()> {
    let mut file = File::options().read(true).write(true).open(path)?;
    let mut length = [0; LENGTH as usize];
    file.read_exact(&mut length)?;
    let mut header = Vec::new();
    (&file).take(u64::from_le_bytes(length)).read_to_end(&mut header)?;
    let Some(text) = header.strip_prefix(BEGIN) else { return Ok(()) };
    let mut values = serde_json::Deserializer::from_slice(text).into_iter::<BTreeMap<String, String>>();
    let entries = values.next().ok_or(ErrorKind::UnexpectedEof)??;
    let bytes = values.byte_offset();
    let sorted = serde_json::to_vec(&entries)?;
    if sorted.len() != bytes {
        let found = format!("metadata of {bytes} bytes, which takes {} when it is sorted", sorted.len());
        return Err(io::Error::new(ErrorKind::InvalidData, found));
    }
    file.seek(SeekFrom::Start(LENGTH + BEGIN.len() as u64))?;
    file.write_all(&sorted)
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;
    use std::fs;

    use safetensors::SafeTensors;
    use safetensors::tensor::{Dtype, TensorView, serialize};

    use super::*;

    fn file(metadata: Option<HashMap<String, String>>) -> Vec<u8> {
        let tensors = [("b", TensorView::new(Dtype::U8, vec![3], &[1, 2, 3]).unwrap())];
        serialize(tensors, metadata).unwrap()
    }

    #[test]
    fn any_order_becomes_the_same_bytes() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("model.safetensors");
        // Each hash map has an order of its own.
        let sorted: Vec<_> = (0..20)
            .map(|_| {
                let entries = (0..10).map(|at| (format!("entry \"{at}\""), format!("é {at}")));
                fs::write(&path, file(Some(entries.collect()))).unwrap();
                sort_metadata(&path).unwrap();
                fs::read(&path).unwrap()
            })
            .collect();
        assert!(sorted.iter().all(|bytes| *bytes == sorted[0]));
        let (_, header) = SafeTensors::read_metadata(&sorted[0]).unwrap();
        assert_eq!(header.metadata().as_ref().unwrap()["entry \"7\""], "é 7");
        assert_eq!(SafeTensors::deserialize(&sorted[0]).unwrap().tensor("b").unwrap().data(), [1, 2, 3]);
    }

    #[test]
    fn a_file_without_metadata_stays_as_it_is() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("model.safetensors");
        fs::write(&path, file(None)).unwrap();
        sort_metadata(&path).unwrap();
        assert_eq!(fs::read(&path).unwrap(), file(None));
    }
}
