use std::{fs, io::Write};

use parquet::{
    basic::{Compression, ZstdLevel},
    data_type::{ByteArray, ByteArrayType, FixedLenByteArray, FixedLenByteArrayType, Int32Type, Int64Type},
    file::{properties::WriterProperties, writer::SerializedFileWriter},
    schema::parser::parse_message_type,
};

use super::*;
use crate::Value;

const SCHEMA: &str = "message schema {
    required binary text (UTF8);
    optional int64 label;
    optional group tags (LIST) { repeated group list { required binary element (UTF8); } }
    required group meta { required binary raw; }
}";

/// Two row groups of these rows: ("one", 1, ["a", "b"]), ("two", null, []), ("three", 3, null).
fn example(compression: Compression) -> Vec<u8> {
    let schema = Arc::new(parse_message_type(SCHEMA).unwrap());
    let properties = Arc::new(WriterProperties::builder().set_compression(compression).build());
    let mut writer = SerializedFileWriter::new(Vec::new(), schema, properties).unwrap();
    let texts = |texts: &[&str]| texts.iter().map(|&text| ByteArray::from(text)).collect::<Vec<_>>();
    for _ in 0..2 {
        let mut group = writer.next_row_group().unwrap();
        let mut bytes =
            |values: &[&str], definition: Option<&[i16]>, repetition: Option<&[i16]>, skip: bool| {
                if skip {
                    let mut column = group.next_column().unwrap().unwrap();
                    column.typed::<Int64Type>().write_batch(&[1, 3], Some(&[1, 0, 1]), None).unwrap();
                    column.close().unwrap();
                }
                let mut column = group.next_column().unwrap().unwrap();
                column.typed::<ByteArrayType>().write_batch(&texts(values), definition, repetition).unwrap();
                column.close().unwrap();
            };
        bytes(&["one", "two", "three"], None, None, false);
        bytes(&["a", "b"], Some(&[2, 2, 1, 0]), Some(&[0, 1, 0, 0]), true);
        bytes(&["x", "y", "z"], None, None, false);
        group.close().unwrap();
    }
    writer.into_inner().unwrap()
}

fn open(bytes: &[u8], columns: Option<&[&str]>) -> Result<Vec<Result<Record, DataError>>, DataError> {
    let mut file = tempfile::NamedTempFile::new().unwrap();
    file.write_all(bytes).unwrap();
    let mut reader = ParquetReader::new(file.path());
    if let Some(columns) = columns {
        reader = reader.columns(columns.iter().map(|&column| column.to_owned()).collect());
    }
    Ok(reader.open(0)?.collect())
}

#[test]
fn values_of_all_kinds() {
    for compression in [
        Compression::UNCOMPRESSED,
        Compression::SNAPPY,
        Compression::ZSTD(ZstdLevel::default()),
        Compression::GZIP(Default::default()),
        Compression::LZ4_RAW,
        Compression::BROTLI(Default::default()),
    ] {
        let rows: Vec<_> =
            open(&example(compression), None).unwrap().into_iter().map(Result::unwrap).collect();
        assert_eq!(rows.len(), 6);
        assert_eq!(rows[3].place().line, 4);
        assert_eq!(rows[3].text("text").unwrap(), "one");
        assert_eq!(rows[3].get("label"), Some(&Value::Integer(1)));
        assert_eq!(rows[4].get("label"), Some(&Value::Null));
        assert_eq!(rows[3].texts("tags").unwrap(), ["a", "b"]);
        assert_eq!(rows[4].get("tags"), Some(&Value::List(vec![])));
        assert_eq!(rows[5].get("tags"), Some(&Value::Null));
        assert_eq!(rows[5].text("meta.raw").unwrap(), "z");
    }
}

#[test]
fn chosen_columns() {
    let bytes = example(Compression::SNAPPY);
    let rows = open(&bytes, Some(&["tags", "text"])).unwrap();
    let row = rows[0].as_ref().unwrap();
    assert_eq!(row.names().collect::<Vec<_>>(), ["tags", "text"]);
    assert_eq!((row.texts("tags").unwrap(), row.text("text").unwrap()), (vec!["a", "b"], "one"));

    let error = open(&bytes, Some(&["txt"])).unwrap_err().to_string();
    assert!(
        error.contains("expected the column `txt`, found the columns text, label, tags, meta"),
        "{error}"
    );
    assert!(open(&bytes, Some(&[])).is_err());
}

#[test]
fn bytes_that_are_not_utf_8() {
    let mut bytes = example(Compression::UNCOMPRESSED);
    // Changes only the bytes of the column without a type, which follow a length of one byte.
    for at in 0..bytes.len() - 5 {
        if &bytes[at..at + 5] == b"\x01\0\0\0y" {
            bytes[at + 4] = 0xff;
        }
    }
    let rows = open(&bytes, None).unwrap();
    assert_eq!(rows.len(), 6);
    // Reading other columns succeeds.
    let row = rows[1].as_ref().unwrap();
    assert_eq!(row.text("text").unwrap(), "two");
    let error = row.text("meta.raw").unwrap_err();
    assert!(error.is_about_a_record());
    let says = ":2, field `meta.raw`: expected a text, found bytes that are not UTF-8, which the reader does not support";
    assert!(error.to_string().contains(says), "{error}");
    assert!(rows[2].is_ok());
}

#[test]
fn unsupported_column_types() {
    let schema = "message schema {
        required int32 price (DECIMAL(5, 2));
        required binary text (UTF8);
        required fixed_len_byte_array(12) span (INTERVAL);
    }";
    let schema = Arc::new(parse_message_type(schema).unwrap());
    let mut writer = SerializedFileWriter::new(Vec::new(), schema, Arc::default()).unwrap();
    let mut group = writer.next_row_group().unwrap();
    let mut column = group.next_column().unwrap().unwrap();
    column.typed::<Int32Type>().write_batch(&[110], None, None).unwrap();
    column.close().unwrap();
    let mut column = group.next_column().unwrap().unwrap();
    column.typed::<ByteArrayType>().write_batch(&[ByteArray::from("one")], None, None).unwrap();
    column.close().unwrap();
    let mut column = group.next_column().unwrap().unwrap();
    let span = FixedLenByteArray::from(vec![1; 12]);
    column.typed::<FixedLenByteArrayType>().write_batch(&[span], None, None).unwrap();
    column.close().unwrap();
    group.close().unwrap();
    let bytes = writer.into_inner().unwrap();

    let rows = open(&bytes, None).unwrap();
    let row = rows[0].as_ref().unwrap();
    assert_eq!(row.text("text").unwrap(), "one");
    assert_eq!(row.names().collect::<Vec<_>>(), ["text"]);
    for (column, holds) in [("price", "a decimal number"), ("span", "an interval")] {
        let error = row.text(column).unwrap_err().to_string();
        assert!(error.contains(&format!("found {holds}, which the reader does not support")), "{error}");
        let error = open(&bytes, Some(&[column])).unwrap_err().to_string();
        assert!(error.contains(&format!("in the column `{column}`, found {holds}")), "{error}");
    }
}

#[test]
fn truncated() {
    let bytes = example(Compression::SNAPPY);
    for length in 0..bytes.len() {
        let error = open(&bytes[..length], None).unwrap_err().to_string();
        assert!(error.contains("expected a whole Parquet file"), "{error}");
    }
}

#[test]
fn files_that_are_not_parquet() {
    let folder = tempfile::tempdir().unwrap();
    let error = ParquetReader::new(folder.path()).open(0).err().unwrap();
    assert!(matches!(error, DataError::Io { .. }), "{error:?}");
    let path = folder.path().join("x");
    for (bytes, says) in [
        (b"PAR1".to_vec(), "too short"),
        (b"PAR1....PAR2".to_vec(), "is it complete?"),
        (b"PAR1....PARE".to_vec(), "encrypted"),
        (b"PAR1\xff\xff\xff\xffPAR1".to_vec(), "metadata of 4294967295 bytes in a file of 12"),
        (b"PAR1\x01\x00\x00\x00PAR1".to_vec(), "expected a whole Parquet file"),
    ] {
        fs::write(&path, bytes).unwrap();
        let error = ParquetReader::new(path.clone()).open(0).err().unwrap().to_string();
        assert!(error.contains(says), "{error}");
    }
}

/// A file with one column of bytes, `t`, in a single row group.
fn column(
    kind: &str,
    values: &[ByteArray],
    definition: Option<&[i16]>,
    repetition: Option<&[i16]>,
    properties: WriterProperties,
) -> Vec<u8> {
    let schema =
        Arc::new(parse_message_type(&format!("message schema {{ {kind} binary t (UTF8); }}")).unwrap());
    let mut writer = SerializedFileWriter::new(Vec::new(), schema, Arc::new(properties)).unwrap();
    let mut group = writer.next_row_group().unwrap();
    let mut column = group.next_column().unwrap().unwrap();
    column.typed::<ByteArrayType>().write_batch(values, definition, repetition).unwrap();
    column.close().unwrap();
    group.close().unwrap();
    writer.into_inner().unwrap()
}

/// Returns the message of the first error, from opening or reading.
fn first_error(bytes: &[u8]) -> String {
    match open(bytes, None) {
        Ok(rows) => {
            rows.into_iter().find_map(Result::err).map_or("no error".into(), |error| error.to_string())
        }
        Err(error) => error.to_string(),
    }
}

#[test]
fn a_page_that_claims_a_huge_size() {
    let zstd = || WriterProperties::builder().set_compression(Compression::ZSTD(ZstdLevel::default()));
    let of = |bytes: usize| {
        let properties = zstd().set_dictionary_enabled(false).build();
        column("required", &[ByteArray::from("a".repeat(bytes).as_str())], None, None, properties)
    };
    assert!(open(&of(60 << 20), None).unwrap()[0].is_ok());
    let error = first_error(&of(80 << 20));
    assert!(error.contains("bytes claims to unpack to 83886084"), "{error}");
}

#[test]
fn a_list_beyond_the_limit() {
    let of = |values: usize| {
        let properties = WriterProperties::builder().set_data_page_size_limit(100).build();
        let mut repetition = vec![1; values];
        repetition[0] = 0;
        column(
            "repeated",
            &vec![ByteArray::from("a"); values],
            Some(&vec![1; values]),
            Some(&repetition),
            properties,
        )
    };
    let rows = open(&of(10_000), None).unwrap();
    assert_eq!(rows[0].as_ref().unwrap().texts("t").unwrap().len(), 10_000);
    let long = of((4 << 20) + 1);
    assert!(long.len() < 100_000);
    assert!(first_error(&long).contains("a list has more than 4194304 values"));
}

#[test]
fn a_dictionary_that_claims_too_many_values() {
    let mut bytes = column("required", &["a", "b"].map(ByteArray::from), None, None, Default::default());
    // The header of the dictionary's page contains the structure with the number of values: 2, zigzag-encoded as 4.
    let at = bytes.windows(3).position(|bytes| bytes == [0x4c, 0x15, 4]).unwrap();
    bytes[at + 2] = 0x7e;
    assert!(first_error(&bytes).contains("a dictionary of 10 bytes claims 63 values"));
}

#[test]
fn columns_nested_too_deep() {
    let of = |depth: usize| {
        let (open, close) = ("required group g { ".repeat(depth), " }".repeat(depth));
        let schema =
            parse_message_type(&format!("message schema {{ {open} required int64 n; {close} }}")).unwrap();
        SerializedFileWriter::new(Vec::new(), Arc::new(schema), Default::default())
            .unwrap()
            .into_inner()
            .unwrap()
    };
    assert_eq!(open(&of(90), None).unwrap().len(), 0);
    assert!(open(&of(101), None).unwrap_err().to_string().contains("nested more than 100 deep"));
}

#[test]
fn columns_outside_of_the_file() {
    let bytes = example(Compression::UNCOMPRESSED);
    // Without some of the bytes before the metadata, the columns would reach into the metadata or beyond it.
    let metadata = u32::from_le_bytes(bytes[bytes.len() - 8..bytes.len() - 4].try_into().unwrap());
    let tail = bytes[bytes.len() - 8 - metadata as usize..].to_vec();
    let error = first_error(&[b"PAR1".to_vec(), tail].concat());
    assert!(error.contains("expected a whole Parquet file"), "{error}");
}

#[test]
fn two_columns_of_one_name() {
    let schema = parse_message_type("message schema { required int64 n; required int64 n; }").unwrap();
    let writer = SerializedFileWriter::new(Vec::new(), Arc::new(schema), Default::default()).unwrap();
    let error = open(&writer.into_inner().unwrap(), None).unwrap_err().to_string();
    assert!(error.contains("found two columns called \"n\""), "{error}");
}

#[test]
fn a_page_that_claims_too_many_lengths() {
    let bytes = include_bytes!("../../../tests/corpus/delta.parquet");
    assert!(open(bytes, None).unwrap().iter().all(Result::is_ok));
    // The header of delta-encoded numbers: blocks of 128 in 4 miniblocks, and their count.
    let heads = bytes.windows(4).enumerate().filter(|(_, head)| head[..3] == [0x80, 1, 4] && head[3] < 0x7f);
    let mut refused = 0;
    for (at, _) in heads {
        let mut bytes = bytes.to_vec();
        bytes[at + 3] = 0x7f;
        refused += usize::from(first_error(&bytes).contains("a page claims more lengths than values"));
    }
    // The headers of the lengths, the prefixes and the suffixes; plain numbers are not lengths.
    assert_eq!(refused, 3);
}

#[test]
fn the_rows_before_damage_are_counted() {
    let row = || Ok(Row::new(vec![("n".into(), parquet::record::Field::Int(1))]));
    let error = |last: fn() -> Option<parquet::errors::Result<Row>>| {
        let mut left = 2;
        let rows = std::iter::from_fn(move || match left {
            0 => last(),
            _ => {
                left -= 1;
                Some(row())
            }
        });
        let mut rows = Rows {
            path: Path::new("x").into(),
            rows,
            number: 0,
            names: Vec::new(),
            unread: Vec::new(),
            longest: 100,
            length: 100,
            left: 100,
        };
        assert_eq!(rows.next().unwrap().unwrap().place().line, 1);
        assert_eq!(rows.next().unwrap().unwrap().place().line, 2);
        rows.next().unwrap_err().to_string()
    };
    let of_parser = error(|| Some(Err(ParquetError::General("broken".into()))));
    let of_panic = error(|| panic!("broken"));
    for error in [of_parser, of_panic] {
        assert!(error.contains("damage after 2 rows: ") && error.contains("broken"), "{error}");
    }
}

#[test]
fn a_column_that_is_named_twice() {
    let error = open(&example(Compression::SNAPPY), Some(&["text", "text"])).unwrap_err().to_string();
    assert!(error.contains("expected each column once, found the column `text` twice"), "{error}");
}

/// Compressed files with as few pages as possible, and no statistics, which would repeat values.
fn few_pages() -> parquet::file::properties::WriterPropertiesBuilder {
    WriterProperties::builder()
        .set_compression(Compression::ZSTD(ZstdLevel::default()))
        .set_data_page_size_limit(1 << 30)
        .set_dictionary_page_size_limit(1 << 30)
        .set_statistics_enabled(parquet::file::properties::EnabledStatistics::None)
}

/// A column of lists of a text of this length, as many times as `lists` says, from a dictionary.
fn lists_of_one_text(text: usize, lists: &[usize]) -> Vec<u8> {
    let text = ByteArray::from("a".repeat(text).as_str());
    let values: usize = lists.iter().sum();
    let repetition: Vec<i16> =
        lists.iter().flat_map(|&length| (0..length).map(|at| i16::from(at > 0))).collect();
    let properties = few_pages().build();
    column("repeated", &vec![text; values], Some(&vec![1; values]), Some(&repetition), properties)
}

/// The rows have 200 MB of text.
#[test]
fn one_long_text_in_many_rows() {
    let text = ByteArray::from("a".repeat(2_000_000).as_str());
    let properties = few_pages().build();
    let bytes = column("required", &vec![text; 100], None, None, properties);
    assert!(bytes.len() < 2000, "{}", bytes.len());
    let rows = open(&bytes, None).unwrap();
    let (last, rest) = rows.split_last().unwrap();
    assert!(rest.iter().all(Result::is_ok) && (30..40).contains(&rest.len()), "{}", rest.len());
    let error = last.as_ref().unwrap_err();
    assert!(!error.is_about_a_record());
    let says = format!("damage after {} rows: its {} bytes unpack to more text", rows.len(), bytes.len());
    assert!(error.to_string().contains(&says), "{error}");
}

#[test]
fn a_row_beyond_the_limit_is_malformed() {
    let mut file = tempfile::NamedTempFile::new().unwrap();
    let texts = ["short", "much too long", "ok"].map(ByteArray::from);
    file.write_all(&column("required", &texts, None, None, Default::default())).unwrap();
    let rows: Vec<_> = ParquetReader::new(file.path()).longest(10).open(0).unwrap().collect();
    assert!(rows[0].is_ok() && rows[2].is_ok() && rows.len() == 3);
    let error = rows[1].as_ref().unwrap_err();
    assert!(error.is_about_a_record());
    assert!(
        error.to_string().contains(":2: expected a row of at most 10 bytes, found a longer one"),
        "{error}"
    );
}

/// The parser copies all texts of a list before it returns the row.
#[test]
fn a_list_of_many_copies_of_a_long_text() {
    let long = lists_of_one_text(100_000, &[1, 1_000, 1]);
    assert!(long.len() < 10_000, "{}", long.len());
    let error = first_error(&long);
    assert!(error.contains("a list has more than 67108864 bytes of text"), "{error}");
    // Short lists of it are fine, until the file has more text than its size allows.
    let error = first_error(&lists_of_one_text(100_000, &[2; 700]));
    assert!(error.contains("damage after 3") && error.contains("unpack to more text"), "{error}");
}

#[test]
fn class_names_of_the_metadata() {
    let file = |names: &str| {
        let metadata =
            format!(r#"{{"info": {{"features": {{"t": {{"names": {names}, "_type": "ClassLabel"}}}}}}}}"#);
        let pair = parquet::file::metadata::KeyValue::new("huggingface".to_owned(), metadata);
        let properties = WriterProperties::builder().set_key_value_metadata(Some(vec![pair])).build();
        let mut file = tempfile::NamedTempFile::new().unwrap();
        file.write_all(&column("required", &[ByteArray::from("x")], None, None, properties)).unwrap();
        file
    };
    let [one, same, other] = [r#"["neg", "pos"]"#, r#"["neg", "pos"]"#, r#"["pos", "neg"]"#].map(file);
    let reader = |files: &[&tempfile::NamedTempFile]| {
        let paths: Vec<_> = files.iter().map(|file| file.path().to_owned()).collect();
        crate::Fingerprinted::new(Box::new(ParquetReader::new(paths)) as Box<dyn Reader>)
    };
    let names = Some(vec!["neg".to_owned(), "pos".to_owned()]);
    assert_eq!(reader(&[&one, &same]).class_names("t").unwrap(), names);
    assert_eq!(reader(&[&one]).class_names("other").unwrap(), None);
    let error = reader(&[&one, &other]).class_names("t").unwrap_err().to_string();
    assert!(
        error.contains("expected the classes neg, pos of `t`, as in the files before, found the"),
        "{error}"
    );
}

/// Each value has all bytes of the one before it and one more.
#[test]
fn values_that_repeat_the_ones_before() {
    let of = |values: usize| {
        let text = "a".repeat(values);
        let texts: Vec<_> = (1..=values).map(|length| ByteArray::from(&text[..length])).collect();
        let encoding = parquet::basic::Encoding::DELTA_BYTE_ARRAY;
        let properties = few_pages().set_dictionary_enabled(false).set_encoding(encoding).build();
        column("required", &texts, None, None, properties)
    };
    assert!(open(&of(1000), None).unwrap().iter().all(Result::is_ok));
    let error = first_error(&of(12_000));
    assert!(error.contains("the texts of a page repeat more than 67108864 bytes"), "{error}");
}
