//! Parquet files written by pyarrow: `tests/corpus/*.parquet`, all with the same five rows.

use std::path::Path;

use firebrick_datasets::{ParquetReader, Reader, Record, Value};

fn rows(name: &str) -> Vec<Record> {
    let path = Path::new("tests/corpus").join(name);
    ParquetReader::new(path).open(0).unwrap().map(Result::unwrap).collect()
}

/// Formats a value briefly: as JSON, but without quotes.
fn brief(value: &Value) -> String {
    match value {
        Value::Null => "null".into(),
        Value::Bool(value) => value.to_string(),
        Value::Integer(value) => value.to_string(),
        Value::Float(value) => format!("{value:?}"),
        Value::Text(text) => text.clone(),
        Value::List(values) => format!("[{}]", values.iter().map(brief).collect::<Vec<_>>().join(",")),
        Value::Map(members) => {
            let members = members.iter().map(|(name, value)| format!("{name}:{}", brief(value)));
            format!("{{{}}}", members.collect::<Vec<_>>().join(","))
        }
    }
}

fn column(rows: &[Record], name: &str) -> Vec<String> {
    rows.iter().map(|row| brief(row.get(name).unwrap())).collect()
}

#[test]
fn every_packing() {
    for name in ["plain", "snappy", "zstd", "gzip", "brotli", "lz4"] {
        let rows = rows(&format!("{name}.parquet"));
        assert_eq!(column(&rows, "text"), ["one", "two", "null", "one", "four é"]);
        assert_eq!(column(&rows, "n"), ["1", "2", "3", "null", "-5"]);
        assert_eq!(column(&rows, "x"), ["1.5", "null", "2.0", "0.0", "1.0"]);
        assert_eq!(column(&rows, "ok"), ["true", "false", "null", "true", "true"]);
        assert_eq!(column(&rows, "tags"), ["[a,b]", "[]", "null", "[c]", "[a]"]);
        let groups = [
            "{en:Hello,fr:Bonjour,l:[1,2]}",
            "null",
            "{en:x,fr:null,l:[]}",
            "{en:y,fr:z,l:null}",
            "{en:y,fr:z,l:[7]}",
        ];
        assert_eq!(column(&rows, "s"), groups);
        assert_eq!(column(&rows, "m"), ["{k:1}", "{}", "null", "{a:2,b:3}", "{}"]);
        assert_eq!(column(&rows, "ll"), ["[[1],[2,3]]", "[]", "null", "[[]]", "[[4]]"]);
        assert_eq!(column(&rows, "ls"), ["[{a:1,b:x}]", "[]", "null", "[{a:2,b:y},{a:3,b:null}]", "[]"]);
        assert_eq!(rows[0].text("s.fr").unwrap(), "Bonjour");
    }
}

#[test]
fn pages_of_version_2_with_deltas() {
    let rows = rows("delta.parquet");
    assert_eq!(column(&rows, "text"), ["one", "two", "null", "one", "four é"]);
    assert_eq!(column(&rows, "n"), ["1", "2", "3", "null", "-5"]);
    assert_eq!(column(&rows, "tags"), ["[a,b]", "[]", "null", "[c]", "[a]"]);
}
