//! The footer of a Parquet file: checks it before the parser trusts it, and reads the names of classes from the metadata that
//! Hugging Face's `datasets` writes.

use std::{
    fs::File,
    io::{Read, Seek, SeekFrom},
};

use parquet::file::metadata::ParquetMetaData;
use serde_json::Value;

use super::thrift::{Compact, LIST, STRUCT, Unreadable};

/// The maximum nesting depth of columns.
///
/// The parser recurses for each level, so a malicious file could exhaust the stack.
const DEPTH: usize = 100;

/// The bytes at the end of a file: the length of the metadata, and a magic number.
const END: u64 = 8;

/// Checks the schema: its parser allocates as many children as it claims, and recurses for each.
pub(super) fn check_schema(file: &mut File, length: u64) -> Result<(), String> {
    let unreadable = |error: std::io::Error| format!("a file that cannot be read ({error})");
    let Some(end) = length.checked_sub(END) else {
        return Err("a file that is too short".into());
    };
    file.seek(SeekFrom::Start(end)).map_err(unreadable)?;
    let mut tail = [0; END as usize];
    file.read_exact(&mut tail).map_err(unreadable)?;
    let [a, b, c, d, magic @ ..] = tail;
    match &magic {
        b"PAR1" => {}
        b"PARE" => return Err("an encrypted file".into()),
        _ => return Err("a file that does not end with `PAR1`; is it complete?".into()),
    }
    let metadata = u64::from(u32::from_le_bytes([a, b, c, d]));
    let Some(start) = end.checked_sub(metadata) else {
        return Err(format!("metadata of {metadata} bytes in a file of {length}"));
    };
    file.seek(SeekFrom::Start(start)).map_err(unreadable)?;
    let mut bytes = Vec::new();
    file.take(metadata).read_to_end(&mut bytes).map_err(unreadable)?;
    match children(&bytes) {
        Ok(children) => check_tree(&children),
        Err(Unreadable) => Err("damaged metadata".into()),
    }
}

/// Returns the number of children of each schema element, in depth-first order.
fn children(metadata: &[u8]) -> Result<Vec<i32>, Unreadable> {
    let mut children = Vec::new();
    Compact::new(metadata).structure(|compact, number, kind| {
        if number != 2 || kind != LIST {
            return Ok(false);
        }
        // If there are several, the last one counts.
        children.clear();
        let (count, kind) = compact.list()?;
        if kind != STRUCT {
            return Err(Unreadable);
        }
        for _ in 0..count {
            let mut of = 0;
            compact.structure(|compact, number, kind| {
                if number == 5 {
                    of = compact.i32(kind)?;
                }
                Ok(number == 5)
            })?;
            children.push(of);
        }
        Ok(true)
    })?;
    Ok(children)
}

fn check_tree(children: &[i32]) -> Result<(), String> {
    // The number of children still to come for each open group.
    let mut open: Vec<i32> = Vec::new();
    for (index, &count) in children.iter().enumerate() {
        while open.last() == Some(&0) {
            open.pop();
        }
        if let Some(left) = open.last_mut() {
            *left -= 1;
        }
        let left = children.len() - index - 1;
        match usize::try_from(count) {
            Ok(0) => {}
            Ok(count) if count <= left => open.push(count as i32),
            _ => return Err(format!("a damaged schema: a group of {count} in one with {left} left")),
        }
        if open.len() > DEPTH {
            return Err(format!("columns nested more than {DEPTH} deep"));
        }
    }
    Ok(())
}

/// Checks that all columns lie within the file, which has this length.
pub(super) fn check_columns(metadata: &ParquetMetaData, length: u64) -> Result<(), String> {
    for (index, group) in metadata.row_groups().iter().enumerate() {
        let damaged = |what: &str| Err(format!("damaged metadata: row group {index} has {what}"));
        if group.num_rows() < 0 {
            return damaged("a negative number of rows");
        }
        for column in group.columns() {
            let start = column.dictionary_page_offset().unwrap_or(column.data_page_offset());
            let (start, size) = (u64::try_from(start), u64::try_from(column.compressed_size()));
            let end = start.ok().zip(size.ok()).and_then(|(start, size)| start.checked_add(size));
            if end.is_none_or(|end| end > length) {
                return damaged("a column that ends outside of the file");
            }
        }
    }
    Ok(())
}

/// The key of the metadata, a JSON object with the features of the data set in `info.features`.
const KEY: &str = "huggingface";

/// Returns the names of a column's classes by number, or `None` if the metadata does not say that it has some. The
/// column is a `ClassLabel`, or a list of them.
pub(super) fn class_names(metadata: &ParquetMetaData, field: &str) -> Option<Vec<String>> {
    let pairs = metadata.file_metadata().key_value_metadata()?;
    let text = pairs.iter().find(|pair| pair.key == KEY)?.value.as_deref()?;
    names(&serde_json::from_str(text).ok()?, field)
}

fn names(metadata: &Value, field: &str) -> Option<Vec<String>> {
    let mut feature = at(metadata.get("info")?.get("features")?, field)?;
    // A list is `{"feature": {..}, "_type": "List"}`, in older versions of type `Sequence`, or `[{..}]`.
    while let Some(element) = feature.get("feature").or_else(|| feature.get(0)) {
        feature = element;
    }
    let names =
        feature.get("names").filter(|_| feature.get("_type").is_some_and(|kind| kind == "ClassLabel"))?;
    names.as_array()?.iter().map(|name| Some(name.as_str()?.to_owned())).collect()
}

/// Returns the feature at a path, as [`Record::get`](crate::Record::get) finds a value.
fn at<'a>(features: &'a Value, path: &str) -> Option<&'a Value> {
    if let Some(feature) = features.get(path) {
        return Some(feature);
    }
    let (first, rest) = path.split_once('.')?;
    at(features.get(first)?, rest)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn trees() {
        assert_eq!(check_tree(&[]), Ok(()));
        assert_eq!(check_tree(&[3, 0, 1, 0, 0]), Ok(()));
        assert!(check_tree(&[i32::MAX, 0]).is_err());
        assert!(check_tree(&[-1, 0]).is_err());
        let chain = |length| [vec![1; length], vec![0]].concat();
        assert_eq!(check_tree(&chain(DEPTH)), Ok(()));
        assert!(check_tree(&chain(DEPTH + 1)).is_err());
        // Siblings do not add levels.
        let siblings: Vec<i32> = std::iter::once(2000).chain([1, 0].repeat(1000)).collect();
        assert_eq!(check_tree(&siblings), Ok(()));
    }

    #[test]
    fn of_texts_and_of_words() {
        let label = json!({"names": ["neg", "pos"], "_type": "ClassLabel"});
        let features = json!({
            "text": {"dtype": "string", "_type": "Value"},
            "label": label,
            "tags": {"feature": label, "_type": "List"},
            "older": {"feature": label, "length": -1, "_type": "Sequence"},
            "oldest": [label],
            "two": {"feature": {"feature": label, "_type": "List"}, "_type": "List"},
            "inner": {"label": label},
            "a.b": label,
            "numbered": {"num_classes": 2, "names": null, "_type": "ClassLabel"},
            "names": {"names": ["a"], "_type": "Value"},
        });
        let metadata = json!({"info": {"features": features}});
        let expected = Some(vec!["neg".to_owned(), "pos".to_owned()]);
        for field in ["label", "tags", "older", "oldest", "two", "inner.label", "a.b"] {
            assert_eq!(names(&metadata, field), expected, "{field}");
        }
        for field in ["text", "no", "inner", "inner.no", "numbered", "names"] {
            assert_eq!(names(&metadata, field), None, "{field}");
        }
        for other in [json!({}), json!({"info": 1}), json!([])] {
            assert_eq!(names(&other, "label"), None);
        }
    }
}
