//! The training position in a stream of samples.

use serde::{Deserialize, Serialize};

/// A position in a stream of samples: everything you must save to resume exactly there.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Cursor {
    /// The epoch, from 0.
    pub epoch: u64,
    /// The consumed samples of this epoch. Once all are consumed, the cursor moves to the next epoch, so this is always
    /// less than the number of samples in its epoch.
    pub consumed: usize,
}

#[cfg(test)]
mod tests {
    use serde::de::{IntoDeserializer, value::MapDeserializer};

    use super::*;

    #[test]
    fn a_saved_cursor_has_two_fields() {
        let fields = [("epoch", 3_u64), ("consumed", 7)].into_iter();
        let saved: MapDeserializer<'_, _, serde::de::value::Error> =
            MapDeserializer::new(fields.map(|(name, value)| (name, value.into_deserializer())));
        assert_eq!(Cursor::deserialize(saved).unwrap(), Cursor { epoch: 3, consumed: 7 });
    }
}
