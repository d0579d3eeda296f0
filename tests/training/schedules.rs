//! The schedules compared with Transformers and DeepSpeed; see `tests/golden/README.md`.

use std::collections::BTreeMap;

use firebrick::Schedule;
use serde::Deserialize;

#[derive(Deserialize)]
struct Golden {
    /// Updates of the run; the rates continue a little beyond.
    total: u64,
    cases: Vec<Case>,
}

#[derive(Deserialize)]
struct Case {
    /// The function or class that computed them.
    of: String,
    schedule: Schedule,
    rates: Vec<f64>,
}

fn golden() -> Golden {
    serde_json::from_str(include_str!("../golden/schedules.json")).unwrap()
}

#[test]
fn schedules_are_those_of_transformers_and_deepspeed_to_1e_12() {
    let Golden { total, cases } = golden();
    let mut compared = BTreeMap::new();
    for Case { of, schedule, rates } in cases {
        assert_eq!(schedule.check(Some(total)), Ok(()), "{of}: {schedule:?}");
        assert!(rates.len() as u64 > total, "{of}");
        for (update, expected) in rates.iter().enumerate() {
            let found = schedule.rate(update as u64, total);
            assert!(
                (found - expected).abs() <= 1e-12 * expected,
                "{of}: {schedule:?} update {update}: {found} {expected}"
            );
        }
        *compared.entry(of).or_insert(0) += 1;
    }
    assert_eq!(compared.len(), 13, "{compared:?}");
    assert_eq!(compared.values().sum::<i32>(), 52, "{compared:?}");
}

#[test]
fn the_warmup_of_golden_ratios_is_rounded_up() {
    let Golden { total, cases } = golden();
    let mut warmups = Vec::new();
    for Case { schedule, rates, .. } in cases {
        if format!("{schedule:?}").contains("Ratio(") {
            // The first update at the highest rate.
            let highest = rates.iter().position(|rate| *rate == rates.iter().copied().fold(0.0, f64::max));
            assert_eq!(highest, Some(schedule.warmup_updates(total) as usize));
            warmups.push(schedule.warmup_updates(total));
        }
    }
    assert_eq!(warmups, [5, 4, 8]);
}
