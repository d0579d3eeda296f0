//! Reads what TensorBoard shows of a run: its files in the order of their names. A start removes the events of its step
//! and later ones from earlier files.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

/// How often each step is shown, by tag.
pub type Shown = BTreeMap<String, BTreeMap<u64, usize>>;

/// Returns what is shown of the run in this folder.
pub fn shown(run: &Path) -> Shown {
    let mut files: Vec<_> =
        fs::read_dir(run.join("tensorboard")).unwrap().map(|file| file.unwrap().path()).collect();
    files.sort();
    let mut shown = Shown::new();
    for file in files {
        let bytes = fs::read(file).unwrap();
        let mut rest = &bytes[..];
        // A length and its checksum, an event and its checksum; a killed run may leave a part of one.
        while let Some(length) = rest.first_chunk().map(|length| u64::from_le_bytes(*length) as usize) {
            let Some(event) = rest.get(12..12 + length) else { break };
            rest = rest.get(16 + length..).unwrap_or_default();
            add(event, &mut shown);
        }
    }
    shown
}

fn add(event: &[u8], shown: &mut Shown) {
    let fields = fields(event);
    let step = fields.iter().find_map(|field| match field {
        (2, Field::Number(step)) => Some(*step),
        _ => None,
    });
    let step = step.unwrap_or(0);
    for (number, field) in fields {
        match (number, field) {
            (7, _) => shown.values_mut().for_each(|steps| steps.retain(|at, _| *at < step)),
            (5, Field::Bytes(summary)) => {
                for (_, value) in self::fields(summary) {
                    let Field::Bytes(value) = value else { continue };
                    if let Some((1, Field::Bytes(tag))) = self::fields(value).first() {
                        let tag = String::from_utf8(tag.to_vec()).unwrap();
                        *shown.entry(tag).or_default().entry(step).or_default() += 1;
                    }
                }
            }
            _ => {}
        }
    }
}

enum Field<'a> {
    Number(u64),
    Bytes(&'a [u8]),
    Other,
}

/// Parses the fields of a protocol buffer, by their numbers.
fn fields(mut bytes: &[u8]) -> Vec<(u64, Field<'_>)> {
    let mut fields = Vec::new();
    while !bytes.is_empty() {
        let key = varint(&mut bytes);
        let field = match key & 7 {
            0 => Field::Number(varint(&mut bytes)),
            1 => take(&mut bytes, 8, |_| Field::Other),
            2 => {
                let length = varint(&mut bytes) as usize;
                take(&mut bytes, length, Field::Bytes)
            }
            _ => take(&mut bytes, 4, |_| Field::Other),
        };
        fields.push((key >> 3, field));
    }
    fields
}

fn take<'a>(bytes: &mut &'a [u8], count: usize, field: impl Fn(&'a [u8]) -> Field<'a>) -> Field<'a> {
    let (taken, rest) = bytes.split_at(count);
    *bytes = rest;
    field(taken)
}

fn varint(bytes: &mut &[u8]) -> u64 {
    let mut number = 0;
    for shift in (0..).step_by(7) {
        let byte = bytes[0];
        *bytes = &bytes[1..];
        number |= u64::from(byte & 0x7f) << shift;
        if byte < 0x80 {
            break;
        }
    }
    number
}
