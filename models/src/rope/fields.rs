//! The fields of `config.json` about rotations, which transformers 4 and 5 spell differently.

use serde_json::{Map, Value};

use super::scaling::{Frequencies, Scaling};
use crate::pretrained::PretrainedError;

const PARAMETERS: &str = "rope_parameters";
const SCALING: &str = "rope_scaling";
const TYPE: &str = "rope_type";
/// The type in early files.
const EARLY_TYPE: &str = "type";
const THETA: &str = "rope_theta";
const SHARE: &str = "partial_rotary_factor";
const ORIGINAL: &str = "original_max_position_embeddings";

/// What a configuration says of the frequencies.
#[derive(Clone, Copy)]
pub(crate) struct RopeSettings<'a> {
    /// `rope_parameters`, or its entry for a type of blocks.
    pub parameters: Option<&'a Map<String, Value>>,
    /// `rope_scaling`.
    pub scaling: Option<&'a Map<String, Value>>,
    /// The base outside of them.
    pub base: Base,
    /// Size of a head.
    pub head_size: usize,
    /// `partial_rotary_factor` outside of them.
    pub share: Option<f64>,
    /// `max_position_embeddings`.
    pub positions: usize,
    /// `original_max_position_embeddings` outside of them.
    pub original_positions: Option<usize>,
    /// Whether the model has parameters for each type of blocks. `rope_scaling` is then added to them; elsewhere it
    /// takes their place.
    pub by_blocks: bool,
    /// Whether it is a Phi-3, which rotates a share of a head's numbers, and whose only scaling is `longrope`.
    pub is_phi: bool,
}

/// The base of the frequencies, outside of `rope_parameters`.
#[derive(Clone, Copy)]
pub(crate) struct Base {
    /// Its field.
    pub field: &'static str,
    /// The field's value.
    pub value: Option<f64>,
    /// The base if no field holds one.
    pub default: f64,
}

/// The fields of one rotation.
pub(super) struct RopeFields {
    /// Where they are.
    field: &'static str,
    fields: Map<String, Value>,
    base: f64,
    /// How many of a head's numbers are rotated; an even number.
    size: usize,
    positions: usize,
    original_positions: usize,
}

impl RopeFields {
    /// Reads the fields as transformers 5 does. Values that transformers 4 reads differently are rejected, because one of
    /// the two would be dropped.
    pub fn of(settings: &RopeSettings<'_>) -> Result<Self, PretrainedError> {
        // `rope_scaling or rope_parameters`, as transformers says.
        let scaling = settings.scaling.filter(|scaling| !scaling.is_empty());
        let field = match (scaling, settings.parameters) {
            (None, Some(_)) => PARAMETERS,
            _ => SCALING,
        };
        let mut fields: Map<String, Value> = match (scaling, settings.parameters) {
            (Some(scaling), Some(parameters)) if settings.by_blocks => {
                parameters.clone().into_iter().chain(scaling.clone()).collect()
            }
            (Some(given), _) | (None, Some(given)) => given.clone(),
            (None, None) => Map::new(),
        };
        settle_type(&mut fields, field, settings)?;
        let mut read = Self {
            field,
            base: base_of(&fields, field, settings.base)?,
            size: size_of(&fields, settings)?,
            positions: settings.positions,
            original_positions: settings.positions,
            fields,
        };
        read.original_positions = read.original(settings)?;
        Ok(read)
    }

    /// The context of the original training.
    fn original(&self, settings: &RopeSettings<'_>) -> Result<usize, PretrainedError> {
        let own = number(&self.fields, ORIGINAL)?.map(|positions| positions as usize);
        // A Phi-3 reads the outer one in both versions; of other models, transformers 4 reads the inner one.
        match (settings.original_positions, own) {
            (Some(outer), Some(own)) if outer != own && !settings.is_phi => {
                let expected = format!("{own}, as in `{}`", self.field);
                Err(PretrainedError::setting(ORIGINAL, expected, outer))
            }
            (outer, own) => Ok(outer.or(own).unwrap_or(settings.positions)),
        }
    }

    /// Returns the frequencies that the fields mean.
    pub fn frequencies(&self) -> Result<Frequencies, PretrainedError> {
        let scaling: Scaling =
            serde_json::from_value(Value::Object(self.fields.clone())).map_err(|error| {
                let expected = "one of default, linear, dynamic, yarn, llama3 and longrope, with its numbers";
                PretrainedError::setting(self.field, expected, format!("{} ({error})", self.written()))
            })?;
        let plain = (0..self.size / 2).map(|pair| self.base.powf(-((2 * pair) as f64) / self.size as f64));
        let scaled = scaling.of(plain.collect(), self.base, self.positions, self.original_positions);
        scaled.map_err(|(expected, found)| PretrainedError::setting(self.field, expected, found))
    }

    /// The error of fields that hold something else.
    pub fn wrong(&self, expected: &str) -> PretrainedError {
        PretrainedError::setting(self.field, expected, self.written())
    }

    fn written(&self) -> String {
        Value::Object(self.fields.clone()).to_string()
    }
}

/// Puts the type under its name in transformers 5.
fn settle_type(
    fields: &mut Map<String, Value>,
    field: &'static str,
    settings: &RopeSettings<'_>,
) -> Result<(), PretrainedError> {
    let wrong = |expected: &str, fields: &Map<String, Value>| {
        Err(PretrainedError::setting(field, expected, Value::Object(fields.clone())))
    };
    if fields.values().any(Value::is_object) {
        return wrong("one set of parameters, since all blocks of the model rotate alike", fields);
    }
    // transformers 5 adds the scaling to parameters that already have a `rope_type`.
    let is_early =
        |scaling: &Map<String, Value>| scaling.contains_key(EARLY_TYPE) && !scaling.contains_key(TYPE);
    if settings.by_blocks && settings.scaling.is_some_and(is_early) {
        return wrong(
            "`rope_type` in place of `type`, which transformers 5 passes over in this model",
            fields,
        );
    }
    let (early, late) = (fields.remove(EARLY_TYPE), fields.get(TYPE).cloned());
    match (early, late) {
        (Some(early), Some(late)) if early != late => {
            fields.insert(EARLY_TYPE.into(), early);
            return wrong("the same `type` and `rope_type`", fields);
        }
        (early, None) => {
            fields.insert(TYPE.into(), early.unwrap_or_else(|| "default".into()));
        }
        (_, Some(_)) => {}
    }
    if settings.is_phi {
        match fields.get(TYPE).and_then(Value::as_str) {
            Some("default" | "longrope") => {}
            // The names of early files.
            Some("su" | "yarn") => drop(fields.insert(TYPE.into(), "longrope".into())),
            _ => return wrong("a scaling of type longrope, the only one of a Phi-3", fields),
        }
    }
    Ok(())
}

/// Returns the number in a field, and `None` if the field is absent or null. A text must not be taken for an absent field.
fn number(fields: &Map<String, Value>, name: &'static str) -> Result<Option<f64>, PretrainedError> {
    match fields.get(name) {
        None | Some(Value::Null) => Ok(None),
        Some(found) => match found.as_f64() {
            Some(number) => Ok(Some(number)),
            None => Err(PretrainedError::setting(name, "a number above 0", found)),
        },
    }
}

/// Returns the base of the frequencies.
fn base_of(
    fields: &Map<String, Value>,
    field: &'static str,
    Base { field: outer, value, default }: Base,
) -> Result<f64, PretrainedError> {
    let own = number(fields, THETA)?;
    if let (Some(own), Some(value)) = (own, value)
        && own != value
    {
        let expected = format!("{own}, the `{THETA}` of `{field}`");
        return Err(PretrainedError::setting(outer, expected, value));
    }
    let base = own.or(value).unwrap_or(default);
    match base > 0.0 && base.is_finite() {
        true => Ok(base),
        false => Err(PretrainedError::setting(own.map_or(outer, |_| THETA), "a number above 0", base)),
    }
}

/// Returns how many of a head's numbers are rotated.
fn size_of(fields: &Map<String, Value>, settings: &RopeSettings<'_>) -> Result<usize, PretrainedError> {
    let head = settings.head_size;
    let own = number(fields, SHARE)?;
    if !settings.is_phi {
        return match own.into_iter().chain(settings.share).find(|share| *share != 1.0) {
            None => Ok(head),
            Some(share) => {
                Err(PretrainedError::setting(SHARE, "1: all numbers of a head are rotated", share))
            }
        };
    }
    if let (Some(own), Some(share)) = (own, settings.share)
        && own != share
    {
        let expected = format!("{own}, as beside the parameters of the rotation");
        return Err(PretrainedError::setting(SHARE, expected, share));
    }
    let share = own.or(settings.share).unwrap_or(1.0);
    // As transformers rounds it.
    let size = (head as f64 * share) as usize;
    match share > 0.0 && share <= 1.0 && size > 0 && size.is_multiple_of(2) {
        true => Ok(size),
        false => {
            let expected = format!("a share of `head_dim`, which is {head}, that is an even number");
            Err(PretrainedError::setting(SHARE, expected, share))
        }
    }
}
