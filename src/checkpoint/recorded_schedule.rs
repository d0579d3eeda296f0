//! The schedule in `trainer.ron`.
//!
//! It is written as in a run file: `Cosine(lr: 1e-3, ..)`. The other values of `trainer.ron` are in RON without
//! extensions, so the schedule is a text of its own.

use ron::extensions::Extensions;
use ron::ser::PrettyConfig;
use ron::value::RawValue;
use serde::de::Error as _;
use serde::ser::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::Schedule;

fn options() -> ron::Options {
    ron::Options::default().with_default_extension(Extensions::UNWRAP_VARIANT_NEWTYPES)
}

pub(super) fn serialize<S: Serializer>(schedule: &Schedule, serializer: S) -> Result<S::Ok, S::Error> {
    let text = options().to_string_pretty(schedule, PrettyConfig::new().depth_limit(0));
    let text = text.map_err(S::Error::custom)?;
    RawValue::from_ron(&text).map_err(S::Error::custom)?.serialize(serializer)
}

pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Schedule, D::Error> {
    let value = Box::<RawValue>::deserialize(deserializer)?;
    let text = value.get_ron();
    // Older checkpoints have the settings of some schedules in a second pair of parentheses: `Wsd((lr: 1e-3, ..))`.
    let older = |error| ron::from_str(text).map_err(|_| error);
    options().from_str(text).or_else(older).map_err(|error| D::Error::custom(error.code))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::schedule::Wsd;

    #[derive(Debug, PartialEq, Serialize, Deserialize)]
    struct Recorded {
        #[serde(with = "super")]
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
            let read = |text: &str| ron::from_str::<Recorded>(text).unwrap();
            let recorded = read(&format!("(schedule: {written}, total_updates: 9)"));
            assert_eq!(recorded, Recorded { schedule: schedule.clone(), total_updates: 9 });
            let again = ron::to_string(&recorded).unwrap();
            assert!(!again.contains("(("), "{again}");
            assert_eq!(read(&again), recorded);
        }
        let wrong = ron::from_str::<Recorded>("(schedule: Cosine(lrr: 0.5), total_updates: 9)");
        assert!(wrong.unwrap_err().to_string().contains("lrr"));
    }
}
