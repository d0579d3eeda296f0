//! Mixed precision (`Amp`) in a run file.

use std::fmt;

use burn::tensor::FloatDType;
use firebrick_strategies::{Amp, Keep, LossScale};
use serde::de::{self, IntoDeserializer, MapAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// Mixed precision: `Amp(bf16)`, or with settings,
/// `Amp(dtype: f16, keep_f32: [norms, head], evaluate_in: f32, loss_scale: (initial: 1024))`.
#[derive(Clone, Debug, PartialEq)]
pub struct AmpConfig {
    /// The dtype of the forward pass.
    pub dtype: Precision,
    /// Parameters that stay in f32. Default: none.
    pub keep_f32: Vec<KeepConfig>,
    /// The dtype of evaluation. Default: the training dtype.
    pub evaluate_in: Option<FloatConfig>,
    /// How the loss is scaled. Default: dynamically from 2^16 for `f16`, unscaled for the other dtypes.
    pub loss_scale: Option<LossScaleConfig>,
}

/// The dtype that mixed precision computes in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[allow(non_camel_case_types, reason = "written as dtypes are")]
pub enum Precision {
    /// bfloat16 compute with f32 master weights.
    bf16,
    /// Half-precision compute with f32 master weights and a loss scale.
    f16,
    /// bfloat16 everywhere, without f32 master weights; see [`Amp::pure_bf16`] for the cost.
    pure_bf16,
    /// Single precision, as without `Amp`.
    f32,
}

/// A float dtype.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[allow(non_camel_case_types, reason = "written as dtypes are")]
pub enum FloatConfig {
    /// Double precision.
    f64,
    /// Single precision.
    f32,
    /// bfloat16.
    bf16,
    /// Half precision.
    f16,
}

/// Parameters that stay in f32: see [`Keep`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[allow(non_camel_case_types, reason = "written as the settings are")]
pub enum KeepConfig {
    /// The parameters of norms.
    norms,
    /// Embedding tables.
    embeddings,
    /// The layer that produces the model's output.
    head,
    /// The parameters that match a path pattern, as in `path("blocks.0.*")`.
    path(String),
}

/// The loss scale: `(initial: 65536, interval: 2000)`, or `(constant: 1024)`. Omitted settings default to those of
/// [`LossScale::default`].
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LossScaleConfig {
    /// The scale of the first window. Default: 65536.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub initial: Option<f64>,
    /// The factor that growth multiplies the scale by. Default: 2.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub growth: Option<f64>,
    /// The factor that an overflow multiplies the scale by. Default: 0.5.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub backoff: Option<f64>,
    /// Updates without an overflow before the scale grows. Default: 2000.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub interval: Option<u64>,
    /// The first overflow, counted from the last growth, that lowers the scale. Default: 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hysteresis: Option<u64>,
    /// The lowest value of the scale. Default: 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub minimum: Option<f64>,
    /// A fixed scale. Excludes all the other settings.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub constant: Option<f64>,
}

impl Precision {
    fn recipe(self) -> Amp {
        match self {
            Self::bf16 => Amp::bf16(),
            Self::f16 => Amp::f16(),
            Self::pure_bf16 => Amp::pure_bf16(),
            Self::f32 => Amp::f32(),
        }
    }
}

impl From<FloatConfig> for FloatDType {
    fn from(float: FloatConfig) -> Self {
        match float {
            FloatConfig::f64 => Self::F64,
            FloatConfig::f32 => Self::F32,
            FloatConfig::bf16 => Self::BF16,
            FloatConfig::f16 => Self::F16,
        }
    }
}

impl KeepConfig {
    fn recipe(&self) -> Keep {
        match self {
            Self::norms => Keep::norms(),
            Self::embeddings => Keep::embeddings(),
            Self::head => Keep::head(),
            Self::path(pattern) => Keep::path(pattern),
        }
    }
}

impl LossScaleConfig {
    /// Whether any setting other than `constant` is given.
    pub(super) fn moves(&self) -> bool {
        *self != Self { constant: self.constant, ..Self::default() }
    }

    fn recipe(&self) -> LossScale {
        if let Some(scale) = self.constant {
            return LossScale::constant(scale);
        }
        let mut scale = self.initial.map_or_else(LossScale::default, LossScale::dynamic);
        if let Some(growth) = self.growth {
            scale = scale.growth(growth);
        }
        if let Some(backoff) = self.backoff {
            scale = scale.backoff(backoff);
        }
        if let Some(updates) = self.interval {
            scale = scale.interval(updates);
        }
        if let Some(overflows) = self.hysteresis {
            scale = scale.hysteresis(overflows);
        }
        if let Some(minimum) = self.minimum {
            scale = scale.minimum(minimum);
        }
        scale
    }
}

impl From<Precision> for AmpConfig {
    fn from(dtype: Precision) -> Self {
        Self { dtype, keep_f32: Vec::new(), evaluate_in: None, loss_scale: None }
    }
}

impl AmpConfig {
    /// Builds the strategy.
    pub(super) fn recipe(&self) -> Amp {
        let mut amp = self.dtype.recipe();
        if let Some(dtype) = self.evaluate_in {
            amp = amp.evaluate_in(dtype.into());
        }
        if let Some(scale) = &self.loss_scale {
            amp = amp.scaled_by(scale.recipe());
        }
        self.keep_f32.iter().fold(amp, |amp, keep| amp.keep_f32(keep.recipe()))
    }
}

/// What `Amp(..)` may contain: a dtype alone, or the names of settings.
const WITHIN: &[&str] =
    &["bf16", "f16", "pure_bf16", "f32", "dtype", "keep_f32", "evaluate_in", "loss_scale"];

/// All settings, for serialization.
#[derive(Serialize)]
#[serde(rename = "AmpConfig")]
struct Settings<'a> {
    dtype: Precision,
    #[serde(skip_serializing_if = "<[_]>::is_empty")]
    keep_f32: &'a [KeepConfig],
    #[serde(skip_serializing_if = "Option::is_none")]
    evaluate_in: Option<FloatConfig>,
    #[serde(skip_serializing_if = "Option::is_none")]
    loss_scale: Option<&'a LossScaleConfig>,
}

impl Serialize for AmpConfig {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        if *self == Self::from(self.dtype) {
            return self.dtype.serialize(serializer);
        }
        let Self { dtype, keep_f32, evaluate_in, loss_scale } = self;
        let (dtype, evaluate_in, loss_scale) = (*dtype, *evaluate_in, loss_scale.as_ref());
        Settings { dtype, keep_f32, evaluate_in, loss_scale }.serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for AmpConfig {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_struct("AmpConfig", WITHIN, Within)
    }
}

/// The visitor that reads `Amp(bf16)` as a struct with one name and no value.
struct Within;

impl<'de> Visitor<'de> for Within {
    type Value = AmpConfig;

    fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str("`Amp(bf16)`, or `Amp(dtype: bf16, ..)` with settings")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<AmpConfig, A::Error> {
        let (mut dtype, mut keep_f32, mut evaluate_in, mut loss_scale) = (None, None, None, None);
        let mut first = true;
        while let Some(Name(name)) = map.next_key()? {
            match name.as_str() {
                "dtype" => once(&mut dtype, "dtype", &mut map)?,
                "keep_f32" => once(&mut keep_f32, "keep_f32", &mut map)?,
                "evaluate_in" => once(&mut evaluate_in, "evaluate_in", &mut map)?,
                "loss_scale" => once(&mut loss_scale, "loss_scale", &mut map)?,
                dtype if first => {
                    let read = Precision::deserialize(dtype.into_deserializer());
                    return read.map(AmpConfig::from).map_err(|_: A::Error| unknown(dtype));
                }
                other => return Err(unknown(other)),
            }
            first = false;
        }
        Ok(AmpConfig {
            dtype: dtype.ok_or_else(|| de::Error::missing_field("dtype"))?,
            keep_f32: keep_f32.unwrap_or_default(),
            evaluate_in: evaluate_in.flatten(),
            loss_scale: loss_scale.flatten(),
        })
    }
}

fn unknown<E: de::Error>(name: &str) -> E {
    E::unknown_field(name, WITHIN)
}

fn once<'de, A: MapAccess<'de>, T: Deserialize<'de>>(
    place: &mut Option<T>,
    name: &'static str,
    map: &mut A,
) -> Result<(), A::Error> {
    match place.replace(map.next_value()?) {
        None => Ok(()),
        Some(_) => Err(de::Error::duplicate_field(name)),
    }
}

/// A name before a colon, or by itself.
struct Name(String);

impl<'de> Deserialize<'de> for Name {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Text;
        impl Visitor<'_> for Text {
            type Value = Name;

            fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
                f.write_str("a name")
            }

            fn visit_str<E>(self, name: &str) -> Result<Name, E> {
                Ok(Name(name.into()))
            }
        }
        deserializer.deserialize_identifier(Text)
    }
}

#[cfg(test)]
#[path = "amp_config_tests.rs"]
mod tests;
