//! Whether a checkpoint can hold a schedule.

use serde_json::Value;

use super::{Schedule, ScheduleError, Schedules};

impl Schedule {
    /// Checks that a checkpoint, which is in JSON, can hold the schedule. JSON has no infinity and no NaN: it has `null`
    /// instead, which is read as another schedule, or as none.
    ///
    /// # Errors
    ///
    /// [`ScheduleError::NotSaved`].
    pub(crate) fn check_saved(&self) -> Result<(), ScheduleError> {
        let not_saved = |reason: String| ScheduleError::NotSaved { schedule: self.0.name(), reason };
        let json = serde_json::to_value(self).map_err(|error| not_saved(error.to_string()))?;
        // Without a `null` there is nothing that JSON cannot hold, and a schedule that is not registered is not read.
        let is_read = Schedules::installed().names().contains(&self.0.name());
        if !has_null(&json) || !is_read {
            return Ok(());
        }
        let text = json.to_string();
        match serde_json::from_value::<Self>(json) {
            Ok(read) if read == *self => Ok(()),
            _ => Err(not_saved(format!("expected {self:?}, found {text}"))),
        }
    }
}

fn has_null(json: &Value) -> bool {
    match json {
        Value::Null => true,
        Value::Array(values) => values.iter().any(has_null),
        Value::Object(fields) => fields.values().any(has_null),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use serde::{Deserialize, Serialize};

    use crate::schedule::{InverseSqrt, ScheduleError, ScheduleRecipe, Schedules};
    use crate::{Schedule, Warmup};

    #[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
    struct Until {
        end: f64,
        floor: Option<f64>,
    }

    impl ScheduleRecipe for Until {
        fn rate(&self, update: u64, _: u64) -> f64 {
            if (update as f64) < self.end { 1.0 } else { self.floor.unwrap_or(0.0) }
        }

        fn peak(&self) -> f64 {
            1.0
        }

        fn check_numbers(&self) -> Result<(), ScheduleError> {
            Ok(())
        }
    }

    #[test]
    fn a_number_that_json_lacks_is_an_error_at_the_start() {
        Schedules::built_in().with::<Until>("Until", Schedule::named).install();
        let check = |end, floor| Schedule::new("Until", Until { end, floor }).check_saved();
        assert_eq!(check(9.0, Some(0.1)), Ok(()));
        assert_eq!(check(9.0, None), Ok(()));
        for (end, floor) in [(f64::INFINITY, None), (9.0, Some(f64::NEG_INFINITY)), (f64::NAN, None)] {
            let error = check(end, floor).unwrap_err().to_string();
            assert!(error.contains("`Until`") && error.contains("finite"), "{error}");
        }
        let timescale = None;
        let sqrt = InverseSqrt { lr: 0.1, timescale, warmup: Warmup::Updates(1), from_zero: false };
        assert_eq!(Schedule::new("InverseSqrt", sqrt).check_saved(), Ok(()));
    }
}
