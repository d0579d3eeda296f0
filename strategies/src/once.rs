//! A setting of a strategy in a run file, which may stand there once.

use serde::Deserialize;
use serde::de::{Error, MapAccess};

/// Reads the value of a setting into its place.
///
/// # Errors
///
/// The setting stands there twice, or its value is not one of its type.
pub(crate) fn once<'de, A: MapAccess<'de>, T: Deserialize<'de>>(
    place: &mut Option<T>,
    name: &'static str,
    map: &mut A,
) -> Result<(), A::Error> {
    match place.replace(map.next_value()?) {
        None => Ok(()),
        Some(_) => Err(A::Error::duplicate_field(name)),
    }
}
