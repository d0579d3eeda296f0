//! Mixed precision in a run file: `Amp(bf16)`, or with settings,
//! `Amp(dtype: f16, keep_f32: [norms, head], evaluate_in: f32, loss_scale: (initial: 1024))`.

use std::fmt;

use burn::tensor::FloatDType;
use serde::de::{self, IntoDeserializer, MapAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::{Amp, Keep, LossScale, Precision};
use crate::registry::once;
use crate::{Float, dtypes};

/// What `Amp(..)` may contain: a dtype alone, or the names of settings.
const WITHIN: &[&str] =
    &["bf16", "fp8", "f16", "pure_bf16", "f32", "dtype", "keep_f32", "evaluate_in", "loss_scale"];

/// All settings, for serialization.
#[derive(Serialize)]
#[serde(rename = "Amp")]
struct Settings<'a> {
    dtype: Precision,
    #[serde(skip_serializing_if = "Keep::is_empty")]
    keep_f32: &'a Keep,
    #[serde(with = "dtypes::option", skip_serializing_if = "Option::is_none")]
    evaluate_in: Option<FloatDType>,
    #[serde(skip_serializing_if = "Option::is_none")]
    loss_scale: Option<LossScale>,
}

impl Serialize for Amp {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let Self { precision: dtype, keep: keep_f32, evaluation: evaluate_in, scale: loss_scale } = self;
        if *self == Self::of(*dtype) {
            return dtype.serialize(serializer);
        }
        let (dtype, evaluate_in, loss_scale) = (*dtype, *evaluate_in, *loss_scale);
        Settings { dtype, keep_f32, evaluate_in, loss_scale }.serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for Amp {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_struct("Amp", WITHIN, Within)
    }
}

/// The visitor that reads `Amp(bf16)` as a struct with one name and no value.
struct Within;

impl<'de> Visitor<'de> for Within {
    type Value = Amp;

    fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str("`Amp(bf16)`, or `Amp(dtype: bf16, ..)` with settings")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Amp, A::Error> {
        let (mut dtype, mut keep, mut evaluation, mut scale) = (None, None, None::<Option<Float>>, None);
        let mut first = true;
        while let Some(name) = map.next_key()? {
            match name {
                Name::Dtype => once(&mut dtype, "dtype", &mut map)?,
                Name::KeepF32 => once(&mut keep, "keep_f32", &mut map)?,
                Name::EvaluateIn => once(&mut evaluation, "evaluate_in", &mut map)?,
                Name::LossScale => once(&mut scale, "loss_scale", &mut map)?,
                Name::Other(dtype) if first => {
                    let read = Precision::deserialize(dtype.as_str().into_deserializer());
                    return read.map(Amp::of).map_err(|_: A::Error| unknown(&dtype));
                }
                Name::Other(name) => return Err(unknown(&name)),
            }
            first = false;
        }
        Ok(Amp {
            precision: dtype.ok_or_else(|| de::Error::missing_field("dtype"))?,
            keep: keep.unwrap_or_default(),
            evaluation: evaluation.flatten().map(FloatDType::from),
            scale: scale.flatten(),
        })
    }
}

fn unknown<E: de::Error>(name: &str) -> E {
    E::unknown_field(name, WITHIN)
}

/// A name before a colon, or by itself.
#[derive(Deserialize)]
#[serde(field_identifier, rename_all = "snake_case")]
enum Name {
    Dtype,
    KeepF32,
    EvaluateIn,
    LossScale,
    Other(String),
}
