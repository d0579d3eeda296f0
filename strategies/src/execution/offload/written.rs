//! Offload in a run file: `Offload(optimizer)`, or with settings, `Offload(keep: optimizer, on: "/nvme/scratch")`.

use std::fmt;
use std::path::PathBuf;

use serde::de::{self, IntoDeserializer, MapAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::Offload;
use crate::Offloads;
use crate::moving::BUCKET_BYTES;
use crate::registry::once;

/// What `Offload(..)` may contain: what the host keeps, alone, or the names of settings.
const WITHIN: &[&str] = &["optimizer", "parameters", "keep", "on", "bucket_bytes", "each_update"];

/// All settings, for serialization.
#[derive(Serialize)]
#[serde(rename = "Offload")]
struct Settings<'a> {
    keep: Offloads,
    #[serde(skip_serializing_if = "Option::is_none")]
    on: Option<&'a PathBuf>,
    #[serde(skip_serializing_if = "is_default")]
    bucket_bytes: usize,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    each_update: bool,
}

fn is_default(bytes: &usize) -> bool {
    *bytes == BUCKET_BYTES
}

impl Serialize for Offload {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let keep = self.offloads;
        match (self.folder.as_ref(), self.bucket_bytes, self.each_update) {
            (None, BUCKET_BYTES, false) => keep.serialize(serializer),
            (on, bucket_bytes, each_update) => {
                Settings { keep, on, bucket_bytes, each_update }.serialize(serializer)
            }
        }
    }
}

impl<'de> Deserialize<'de> for Offload {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_struct("Offload", WITHIN, Within)
    }
}

/// The visitor that reads `Offload(optimizer)` as a struct with one name and no value.
struct Within;

impl<'de> Visitor<'de> for Within {
    type Value = Offload;

    fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str(
            "`Offload(optimizer)`, `Offload(parameters)`, or `Offload(keep: optimizer, on: \"FOLDER\")`",
        )
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Offload, A::Error> {
        let (mut keep, mut on, mut bucket_bytes, mut each_update) = (None, None, None, None);
        let mut first = true;
        while let Some(name) = map.next_key()? {
            match name {
                Name::Keep => once(&mut keep, "keep", &mut map)?,
                Name::On => once(&mut on, "on", &mut map)?,
                Name::BucketBytes => once(&mut bucket_bytes, "bucket_bytes", &mut map)?,
                Name::EachUpdate => once(&mut each_update, "each_update", &mut map)?,
                Name::Other(name) if first => return alone(&name),
                Name::Other(name) => return Err(unknown(&name)),
            }
            first = false;
        }
        if first {
            return Err(de::Error::missing_field("keep"));
        }
        let bucket_bytes = bucket_bytes.unwrap_or(BUCKET_BYTES);
        let offload = Offload::from(keep.unwrap_or(Offloads::Optimizer));
        let each_update = each_update.unwrap_or(false);
        Ok(Offload { folder: on, bucket_bytes, each_update, ..offload })
    }
}

/// Reads what the host keeps, without settings.
fn alone<E: de::Error>(name: &str) -> Result<Offload, E> {
    let read = Offloads::deserialize(name.into_deserializer());
    read.map(Offload::from).map_err(|_: E| unknown(name))
}

fn unknown<E: de::Error>(name: &str) -> E {
    E::unknown_field(name, WITHIN)
}

/// A name before a colon, or by itself.
#[derive(Deserialize)]
#[serde(field_identifier, rename_all = "snake_case")]
enum Name {
    Keep,
    On,
    BucketBytes,
    EachUpdate,
    Other(String),
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_are_read_as_they_were_written() {
        let disk = Offload::optimizer().on("/nvme/scratch");
        // In either order.
        assert_eq!(
            Offload::optimizer().bucket_bytes(9).on("x"),
            Offload::optimizer().on("x").bucket_bytes(9)
        );
        for (text, offload) in [
            (r#"{"keep":"optimizer","on":"/nvme/scratch"}"#, disk.clone()),
            (
                r#"{"keep":"parameters","on":"x","bucket_bytes":4096}"#,
                Offload::parameters().on("x").bucket_bytes(4096),
            ),
            (r#"{"keep":"optimizer","bucket_bytes":4096}"#, Offload::optimizer().bucket_bytes(4096)),
            (r#"{"keep":"optimizer","each_update":true}"#, Offload::optimizer().each_update()),
        ] {
            assert_eq!(serde_json::from_str::<Offload>(text).unwrap(), offload, "{text}");
            assert_eq!(serde_json::to_string(&offload).unwrap(), text);
        }
        assert_eq!(serde_json::from_str::<Offload>(r#"{"on":"/nvme/scratch"}"#).unwrap(), disk);
        let parameters = serde_json::from_str::<Offload>(r#"{"keep":"parameters"}"#).unwrap();
        assert_eq!(parameters, Offload::parameters());
        for (text, said) in [
            ("{}", "missing field `keep`"),
            (r#"{"on":"x","to":"y"}"#, "unknown field `to`"),
            (r#"{"on":"x","on":"y"}"#, "duplicate field `on`"),
            (r#"{"optimiser":1}"#, "unknown field `optimiser`"),
        ] {
            let error = serde_json::from_str::<Offload>(text).unwrap_err().to_string();
            assert!(error.contains(said), "{text}: {error}");
        }
    }
}
