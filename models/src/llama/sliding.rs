//! Which blocks have a window, in models where not all do.

use serde_json::{Map, Value};

use super::kind::LlamaLine;
use super::numbers::number;
use crate::pretrained::PretrainedError;

/// Returns whether a block has the window: as `layer_types` says, or else by the rule of the model.
///
/// # Errors
///
/// A field of `config.json` holds a value that transformers does not write.
pub(super) fn slides(
    kind: LlamaLine,
    fields: &Map<String, Value>,
    block: usize,
) -> Result<bool, PretrainedError> {
    let field = |name| fields.get(name).filter(|value| !value.is_null());
    let wrong = |name, expected: &str, found: &Value| Err(PretrainedError::setting(name, expected, found));
    if let Some(types) = field("layer_types") {
        return match types.get(block).and_then(Value::as_str) {
            Some("sliding_attention") => Ok(true),
            Some("full_attention") => Ok(false),
            _ => wrong("layer_types", "sliding_attention or full_attention for each layer", types),
        };
    }
    if kind == LlamaLine::Gemma2 {
        return Ok(block.is_multiple_of(2));
    }
    if kind == LlamaLine::Gemma3 {
        // Each block with this number does not.
        const PATTERN: &str = "sliding_window_pattern";
        return match number(kind, fields, PATTERN)? {
            Some(every) if every >= 1.0 && every.fract() == 0.0 => {
                Ok(!(block + 1).is_multiple_of(every as usize))
            }
            every => Err(PretrainedError::setting(PATTERN, "a whole number above 0", Value::from(every))),
        };
    }
    match field("max_window_layers") {
        None => Ok(block >= 28),
        Some(first) => match first.as_u64() {
            Some(first) => Ok(block as u64 >= first),
            None => wrong("max_window_layers", "a number of layers", first),
        },
    }
}
