//! Reads a part of a run file: some of a run's fields, past the others.

use std::fmt::{self, Formatter};
use std::marker::PhantomData;
use std::sync::LazyLock;

use serde::de::value::MapAccessDeserializer;
use serde::de::{DeserializeSeed, Error, IntoDeserializer, MapAccess, Visitor};
use serde::{Deserialize, Deserializer};

use super::Run;

/// Reads a struct with some of a [`Run`]'s fields. It passes over the run's other fields, and refuses names that a run does
/// not have, so that each command knows the same fields.
pub(super) fn part_of_run<'de, T: Deserialize<'de>, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<T, D::Error> {
    deserializer.deserialize_struct("Run", fields(), Part(PhantomData))
}

/// Returns the fields of a run.
fn fields() -> &'static [&'static str] {
    // Only the type lists its fields; its error about an unknown field names them.
    static FIELDS: LazyLock<&[&str]> =
        LazyLock::new(|| match ron::from_str::<Run>("(not_a_field: 0)").map_err(|error| error.code) {
            Err(ron::Error::NoSuchStructField { expected, .. }) => expected,
            _ => &[],
        });
    *FIELDS
}

struct Part<T>(PhantomData<T>);

impl<'de, T: Deserialize<'de>> Visitor<'de> for Part<T> {
    type Value = T;

    fn expecting(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.write_str("struct Run")
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<T, A::Error> {
        T::deserialize(MapAccessDeserializer::new(Known { map, seen: Vec::new() }))
    }
}

/// The fields of a run file, each of which is one of a run's, and given once.
struct Known<A> {
    map: A,
    seen: Vec<&'static str>,
}

impl<'de, A: MapAccess<'de>> MapAccess<'de> for Known<A> {
    type Error = A::Error;

    fn next_key_seed<K: DeserializeSeed<'de>>(&mut self, seed: K) -> Result<Option<K::Value>, A::Error> {
        let Some(Name(name)) = self.map.next_key()? else { return Ok(None) };
        let Some(name) = fields().iter().find(|known| **known == name).copied() else {
            return Err(A::Error::unknown_field(&name, fields()));
        };
        if self.seen.contains(&name) {
            return Err(A::Error::duplicate_field(name));
        }
        self.seen.push(name);
        seed.deserialize(name.into_deserializer()).map(Some)
    }

    fn next_value_seed<V: DeserializeSeed<'de>>(&mut self, seed: V) -> Result<V::Value, A::Error> {
        self.map.next_value_seed(seed)
    }
}

/// The name of a field.
struct Name(String);

impl<'de> Deserialize<'de> for Name {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct OfName;

        impl Visitor<'_> for OfName {
            type Value = Name;

            fn expecting(&self, f: &mut Formatter<'_>) -> fmt::Result {
                f.write_str("the name of a field")
            }

            fn visit_str<E: Error>(self, name: &str) -> Result<Name, E> {
                Ok(Name(name.into()))
            }
        }

        deserializer.deserialize_identifier(OfName)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::DataRun;

    const RUN: &str = r#"(
        data: (path: "input.txt", tokenizer: Characters, block: 64),
        model: Gpt(layers: 4, heads: 4, width: 128),
        optimizer: AdamW(),
        schedule: Constant(lr: 1e-3),
        label_smoothing: 0.1,
        batch: (micro: 12),
        steps: 20,
        output: "out",
    )"#;

    #[test]
    fn each_field_of_a_run_is_known_to_its_data() {
        let run = Run::parse("run.ron", RUN, &[""; 0]).unwrap();
        // Every field is in this text.
        let text = run.to_ron();
        assert!(fields().len() > 30, "{:?}", fields());
        for field in fields() {
            assert!(text.contains(&format!("\n    {field}: ")), "{field}: {text}");
        }
        for text in [RUN, &text] {
            let data = DataRun::parse("run.ron", text, &[""; 0]).unwrap();
            assert_eq!(data.batch, run.batch);
            // Overrides too.
            DataRun::parse("run.ron", text, &["label_smoothing=0.2", "best_by=\"f1\""]).unwrap();
            let all = |sets: &[&str]| DataRun::parse("run.ron", text, sets).unwrap().global_batch();
            assert_eq!(all(&["ranks=4", "mesh=(tensor: 2)"]), all(&["ranks=2"]));
        }
    }

    #[test]
    fn a_name_that_no_run_has_is_refused_in_the_same_words() {
        for (from, to) in
            [("label_smoothing", "label_smothing"), ("steps: 20", "batch: (micro: 1)"), ("data:", "dat:")]
        {
            let text = RUN.replace(from, to);
            let of_run = Run::parse("run.ron", &text, &[""; 0]).unwrap_err().to_string();
            let of_data = DataRun::parse("run.ron", &text, &[""; 0]).unwrap_err().to_string();
            assert_eq!(of_data, of_run);
        }
    }
}
