//! The schedule in `trainer.ron`, where checkpoints of formats 1 and 2 have the state.
//!
//! It is written as in a run file: `Cosine(lr: 1e-3, ..)`. The other values are in RON without extensions.

use ron::error::SpannedResult;
use ron::extensions::Extensions;
use serde::Deserializer;

use crate::{Schedule, in_ron};

pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Schedule, D::Error> {
    in_ron::deserialize(deserializer, parse)
}

fn parse(text: &str) -> SpannedResult<Schedule> {
    let options = ron::Options::default().with_default_extension(Extensions::UNWRAP_VARIANT_NEWTYPES);
    // The oldest have the settings of some schedules in a second pair of parentheses: `Wsd((lr: 1e-3, ..))`.
    options.from_str(text).or_else(|error| ron::from_str(text).map_err(|_| error))
}

#[cfg(test)]
mod tests {
    use serde::Deserialize;

    use super::*;
    use crate::schedule::Wsd;

    #[derive(Debug, PartialEq, Deserialize)]
    struct Recorded {
        #[serde(deserialize_with = "deserialize")]
        schedule: Schedule,
        total_updates: u64,
    }

    #[test]
    fn schedules_of_older_checkpoints_are_read() {
        let cosine = Schedule::cosine(0.5).warmup(3);
        let wsd = Schedule::new("Wsd", Wsd::new(0.5, 4));
        for (written, schedule) in [
            ("Cosine(\n    lr: 0.5,\n    min_lr: 0.0,\n    warmup: 3,\n    from_zero: false,\n)", &cosine),
            ("Wsd(lr: 0.5, decay: 4)", &wsd),
            ("Wsd((lr: 0.5, decay: 4))", &wsd),
        ] {
            let text = format!("(schedule: {written}, total_updates: 9)");
            let recorded = Recorded { schedule: schedule.clone(), total_updates: 9 };
            assert_eq!(ron::from_str(&text), Ok(recorded));
        }
        let wrong = ron::from_str::<Recorded>("(schedule: Cosine(lrr: 0.5), total_updates: 9)");
        assert!(wrong.unwrap_err().to_string().contains("lrr"));
    }
}
