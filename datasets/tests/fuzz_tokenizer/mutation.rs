//! Ways to break a JSON file.

use proptest::{prelude::*, sample::Index};
use serde_json::{Value, json};

/// A change to a file.
#[derive(Debug, Clone)]
pub(crate) enum Mutation {
    /// Replaces a value.
    Replace(Index, Value),
    /// Replaces a value with one from this or another file.
    Transplant(Index, usize, Index),
    /// Removes a value.
    Remove(Index),
    /// Wraps a value in this many arrays.
    Nest(Index, usize),
    /// Repeats the elements of an array this many times.
    Repeat(Index, usize),
    /// Renames a key or replaces a text.
    Rename(Index, String),
    /// Changes bytes of the text.
    Bytes(Vec<(Index, u8)>),
    /// Truncates the text.
    Truncate(Index),
    /// Repeats a part of the text.
    Duplicate(Index, Index),
}

/// Generates extreme values.
fn extreme() -> impl Strategy<Value = Value> {
    prop_oneof![
        prop::sample::select(vec![
            json!(null),
            json!(true),
            json!(0),
            json!(-1),
            json!(1),
            json!(2),
            json!(1000),
            json!(70_000),
            json!(u32::MAX),
            json!(i32::MAX),
            json!(u64::MAX),
            json!(1e300),
            json!(-0.5),
            json!(0.9),
            json!(""),
            json!(" "),
            json!("a"),
            json!("é"),
            json!("▁"),
            json!("\u{0}"),
            json!("##"),
            json!("####"),
            json!([]),
            json!({}),
            json!([[]]),
            json!(["a", 1]),
            json!(["a", "a"]),
            json!([["a", "a"]]),
            json!({"String": ""}),
            json!({"Regex": ""}),
            json!({"Regex": "("}),
            json!({"Regex": "(a*)*b"}),
            json!({"Regex": "(?=(a+)+$)"}),
            json!({"Regex": "(?:(?=x)y{1000}){1000}"}),
            json!({"Regex": "(a|aa)+$(?!b)"}),
            json!({"Regex": "\\G"}),
            json!({"Regex": "(?<!a)"}),
            json!({"type": "Lowercase"}),
            json!({"type": "ByteLevel"}),
            json!({"type": "Nmt"}),
            json!({"type": "NFKD"}),
            json!({"type": "Precompiled", "precompiled_charsmap": "/////w=="}),
            json!({"type": "Precompiled", "precompiled_charsmap": "BAAAAAAAAAA="}),
            json!({"precompiled_charsmap": "8P///wAAAAA="}),
            json!({"type": "Replace", "pattern": {"String": "a"}, "content": "aaaaaaaa"}),
            json!({"type": "Prepend", "prepend": "aaaaaaaaaaaaaaaaa"}),
            json!({"type": "FixedLength", "length": 0}),
            json!({"type": "Split", "pattern": {"String": ""},
                "behavior": "Isolated", "invert": true}),
            json!({"type": "Metaspace", "replacement": "a", "prepend_scheme": "always", "split": true}),
            json!("Left"),
            json!("left"),
            json!("Isolated"),
            json!("MergedWithPrevious"),
            json!("Contiguous"),
        ]),
        (1_usize..200_000).prop_map(|length| json!("a".repeat(length))),
        (1_usize..2000).prop_map(|length| json!("(".repeat(length))),
        any::<u32>().prop_map(|number| json!(number)),
        any::<String>().prop_map(|text| json!(text)),
    ]
}

pub(crate) fn mutations() -> impl Strategy<Value = Vec<Mutation>> {
    let index = any::<Index>;
    let mutation = prop_oneof![
        6 => (index(), extreme()).prop_map(|(at, value)| Mutation::Replace(at, value)),
        4 => (index(), 0_usize..5, index()).prop_map(|(at, file, from)| Mutation::Transplant(at, file, from)),
        3 => index().prop_map(Mutation::Remove),
        1 => (index(), 1_usize..200).prop_map(|(at, levels)| Mutation::Nest(at, levels)),
        2 => (index(), 2_usize..40).prop_map(|(at, times)| Mutation::Repeat(at, times)),
        2 => (index(), prop_oneof![any::<String>(), Just("a".to_owned()), Just("type".to_owned())])
            .prop_map(|(at, name)| Mutation::Rename(at, name)),
        2 => prop::collection::vec((index(), any::<u8>()), 1..4).prop_map(Mutation::Bytes),
        1 => index().prop_map(Mutation::Truncate),
        1 => (index(), index()).prop_map(|(from, to)| Mutation::Duplicate(from, to)),
    ];
    prop::collection::vec(mutation, 1..4)
}

/// Returns the changed file. Changes to its text come last.
pub(crate) fn mutate(seed: &Value, others: &[Value], mutations: &[Mutation]) -> Vec<u8> {
    let mut json = seed.clone();
    for mutation in mutations {
        match mutation {
            Mutation::Replace(at, value) => *place(&mut json, at) = value.clone(),
            Mutation::Transplant(at, file, from) => {
                let mut other = others[file % others.len()].clone();
                let value = place(&mut other, from).take();
                *place(&mut json, at) = value;
            }
            Mutation::Remove(at) => match place(&mut json, at) {
                Value::Object(fields) => {
                    let key = fields.keys().nth(at.index(fields.len().max(1))).cloned();
                    key.and_then(|key| fields.remove(&key));
                }
                Value::Array(values) => drop(values.pop()),
                value => *value = Value::Null,
            },
            Mutation::Nest(at, levels) => {
                let place = place(&mut json, at);
                for _ in 0..*levels {
                    *place = Value::Array(vec![place.take()]);
                }
            }
            Mutation::Repeat(at, times) => {
                if let Value::Array(values) = place(&mut json, at) {
                    *values = vec![values.clone(); *times].concat();
                }
            }
            Mutation::Rename(at, name) => match place(&mut json, at) {
                Value::Object(fields) => {
                    let key = fields.keys().nth(at.index(fields.len().max(1))).cloned();
                    if let Some(value) = key.and_then(|key| fields.remove(&key)) {
                        fields.insert(name.clone(), value);
                    }
                }
                value => *value = json!(name),
            },
            Mutation::Bytes(_) | Mutation::Truncate(_) | Mutation::Duplicate(..) => {}
        }
    }
    let mut bytes = json.to_string().into_bytes();
    for mutation in mutations {
        match mutation {
            Mutation::Bytes(changes) => {
                for (at, value) in changes {
                    let at = at.index(bytes.len().max(1));
                    if let Some(byte) = bytes.get_mut(at) {
                        *byte ^= value;
                    }
                }
            }
            Mutation::Truncate(at) => bytes.truncate(at.index(bytes.len().max(1))),
            Mutation::Duplicate(from, to) => {
                let (from, to) = (from.index(bytes.len().max(1)), to.index(bytes.len().max(1)));
                let part = bytes[from.min(to)..from.max(to)].to_vec();
                bytes.splice(from..from, part);
            }
            _ => {}
        }
    }
    bytes
}

/// Returns one of the values. Those near the top are as likely as all others together.
fn place<'a>(json: &'a mut Value, at: &Index) -> &'a mut Value {
    let mut steps = at.index(usize::MAX);
    let mut value = json;
    loop {
        let step = steps % 23;
        steps /= 23;
        let len = match value {
            Value::Object(fields) => fields.len(),
            Value::Array(values) => values.len(),
            _ => 0,
        };
        if len == 0 || step == 22 || steps == 0 {
            return value;
        }
        value = match value {
            Value::Object(fields) => fields.values_mut().nth(step % len).unwrap(),
            Value::Array(values) => &mut values[step % len],
            _ => unreachable!("it has no values"),
        };
    }
}
