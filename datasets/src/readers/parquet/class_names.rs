//! Reads the names of classes from the metadata that Hugging Face's `datasets` writes.

use parquet::file::metadata::ParquetMetaData;
use serde_json::Value;

/// The key of the metadata, a JSON object with the features of the data set in `info.features`.
const KEY: &str = "huggingface";

/// Returns the names of a column's classes by number, or `None` if the metadata does not say that it has some. The
/// column is a `ClassLabel`, or a list of them.
pub(super) fn of(metadata: &ParquetMetaData, field: &str) -> Option<Vec<String>> {
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
