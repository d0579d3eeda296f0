//! Rates of each schedule, how it is read and written, and the properties of every schedule that passes its check.

use proptest::prelude::*;
use ron::extensions::Extensions;

use super::*;

fn extensions() -> Extensions {
    Extensions::IMPLICIT_SOME | Extensions::UNWRAP_VARIANT_NEWTYPES
}

/// Reads a schedule as in a run file.
pub(super) fn read(text: &str) -> Result<Schedule, String> {
    let options = ron::Options::default().with_default_extension(extensions());
    options.from_str(text).map_err(|error| error.to_string())
}

/// Reads a schedule as in a checkpoint.
fn read_plain(text: &str) -> Result<Schedule, String> {
    ron::from_str(text).map_err(|error| error.to_string())
}

/// One schedule of each variant, with a non-default value for every field.
pub(super) const ALL: [&str; 12] = [
    "Constant(lr: 0.5, warmup: 7, from_zero: true)",
    "Linear(lr: 0.5, min_lr: 0.1, warmup: Ratio(0.07), from_zero: true)",
    "Cosine(lr: 0.5, min_lr: 0.1, warmup: 7, from_zero: true)",
    "CosineRestarts(lr: 0.5, min_lr: 0.1, cycles: 3, warmup: Ratio(0.07), from_zero: true)",
    "Polynomial(lr: 0.5, min_lr: 0.1, power: 2.5, warmup: 7, from_zero: true)",
    "InverseSqrt(lr: 0.5, timescale: 30, warmup: 7, from_zero: true)",
    "Wsd(lr: 0.5, min_lr: 0.1, warmup: 7, stable: 40, decay: 20, warmup_type: Cosine, \
         decay_type: OneMinusSqrt, from_zero: true)",
    "WarmupLr(lr: 0.5, min_lr: 0.1, warmup: 7, warmup_type: Linear)",
    "WarmupDecayLr(lr: 0.5, min_lr: 0.1, warmup: Ratio(0.07), warmup_type: Linear, \
         total: 80)",
    "WarmupCosineLr(lr: 0.5, warmup_min_ratio: 0.2, cos_min_ratio: 0.1, warmup: 7, \
         warmup_type: Linear, total: 80)",
    "OneCycle(lr: 0.5, min_lr: 0.1, first_step_size: 20, second_step_size: 30, \
         first_stair_count: 4, second_stair_count: 5, decay_lr_rate: 0.5, decay_step_size: 9)",
    "LrRangeTest(min_lr: 0.1, step_size: 25, step_rate: 0.5, staircase: true)",
];

#[test]
fn what_is_written_in_either_dialect_is_read_again() {
    for text in ALL {
        let schedule = read(text).unwrap();
        assert_eq!(read_plain(&ron::to_string(&schedule).unwrap()), Ok(schedule.clone()));
        let pretty = ron::ser::PrettyConfig::new().extensions(extensions());
        assert_eq!(read(&ron::ser::to_string_pretty(&schedule, pretty).unwrap()), Ok(schedule.clone()));
        let json = serde_json::to_string(&schedule).unwrap();
        assert_eq!(serde_json::from_str::<Schedule>(&json).unwrap(), schedule);
    }
}

#[test]
fn a_schedule_as_it_always_was_written_is_read() {
    let schedule = Schedule::cosine(2e-3).min_lr(2e-4).warmup(50);
    assert_eq!(read("Cosine(lr: 2e-3, min_lr: 2e-4, warmup: 50)"), Ok(schedule));
    assert_eq!(read("Constant(\n    lr: 0.001,\n    warmup: 0,\n)"), Ok(Schedule::constant(1e-3)));
    assert_eq!(read("Linear(lr: 1)"), Ok(Schedule::linear(1.0)));
    let written = ron::to_string(&Schedule::constant(0.5).warmup(3)).unwrap();
    assert_eq!(written, "Constant((lr:0.5,warmup:3,from_zero:false))");
}

#[test]
fn names_of_deepspeed_and_transformers_are_read() {
    for (theirs, ours) in [
        (
            "WarmupLR(warmup_max_lr: 1, warmup_min_lr: 0.5, warmup_num_steps: 9, warmup_type: log)",
            "WarmupLr(lr: 1, min_lr: 0.5, warmup: 9)",
        ),
        (
            "WarmupDecayLR(warmup_max_lr: 1, total_num_steps: 20, warmup_type: linear)",
            "WarmupDecayLr(lr: 1, warmup: 1000, total: 20, warmup_type: Linear)",
        ),
        (
            "WarmupCosineLR(lr: 1, total_num_steps: 20)",
            "WarmupCosineLr(lr: 1, warmup_min_ratio: 0, cos_min_ratio: 1e-4, warmup: 1000, \
             total: 20)",
        ),
        (
            "OneCycle(cycle_min_lr: 0.5, cycle_max_lr: 1, cycle_first_step_size: 3, \
             cycle_second_step_size: 4, cycle_first_stair_count: 1, cycle_second_stair_count: 2)",
            "OneCycle(min_lr: 0.5, lr: 1, first_step_size: 3, second_step_size: 4, \
             first_stair_count: 1, second_stair_count: 2)",
        ),
        (
            "OneCycle(cycle_min_lr: 0.5, cycle_max_lr: 1)",
            "OneCycle(min_lr: 0.5, lr: 1, first_step_size: 2000, decay_lr_rate: 0, \
             decay_step_size: 0)",
        ),
        (
            "LRRangeTest(lr_range_test_min_lr: 1, lr_range_test_step_size: 3, \
             lr_range_test_step_rate: 2, lr_range_test_staircase: true)",
            "LrRangeTest(min_lr: 1, step_size: 3, step_rate: 2, staircase: true)",
        ),
        ("LRRangeTest()", "LrRangeTest(min_lr: 1e-3, step_size: 2000, step_rate: 1, staircase: false)"),
        (
            "WSD(lr: 1, num_decay_steps: 5, num_stable_steps: 6, num_warmup_steps: 7, \
             decay_type: linear)",
            "Wsd(lr: 1, decay: 5, stable: 6, warmup: 7, decay_type: Linear)",
        ),
        ("CosineRestarts(lr: 1, num_cycles: 2)", "CosineRestarts(lr: 1, cycles: 2)"),
        ("CosineRestarts(lr: 1)", "CosineRestarts(lr: 1, cycles: 1)"),
        ("Polynomial(lr: 1, lr_end: 1e-7)", "Polynomial(lr: 1, min_lr: 1e-7, power: 1)"),
    ] {
        assert_eq!(read(theirs).unwrap(), read(ours).unwrap(), "{theirs}");
    }
    assert!(
        read("OneCycle(cycle_min_lr: 0.5, cycle_max_lr: 1, cycle_min_mom: 0.8)")
            .unwrap_err()
            .contains("cycle_min_mom")
    );
}

#[test]
fn builders_set_what_run_files_set() {
    let written = |schedule: Schedule| schedule.min_lr(0.25).warmup(Warmup::Ratio(0.5)).from_zero();
    for (built, text) in [
        (written(Schedule::constant(1.0)), "Constant(lr: 1, warmup: Ratio(0.5), from_zero: true)"),
        (written(Schedule::linear(1.0)), "Linear(lr: 1, min_lr: 0.25, warmup: Ratio(0.5), from_zero: true)"),
        (written(Schedule::cosine(1.0)), "Cosine(lr: 1, min_lr: 0.25, warmup: Ratio(0.5), from_zero: true)"),
        (
            written(Schedule::cosine_restarts(1.0, 3)),
            "CosineRestarts(lr: 1, cycles: 3, min_lr: 0.25, warmup: Ratio(0.5), from_zero: true)",
        ),
        (
            written(Schedule::polynomial(1.0, 2.0)),
            "Polynomial(lr: 1, power: 2, min_lr: 0.25, warmup: Ratio(0.5), from_zero: true)",
        ),
        (written(Schedule::inverse_sqrt(1.0)), "InverseSqrt(lr: 1, warmup: Ratio(0.5), from_zero: true)"),
        (
            written(Schedule::wsd(1.0, 9)),
            "Wsd(lr: 1, decay: 9, min_lr: 0.25, warmup: Ratio(0.5), from_zero: true)",
        ),
        (written(Schedule::new("WarmupLr", WarmupLr::new(1.0))), "WarmupLr(lr: 1, warmup: Ratio(0.5))"),
        (
            written(Schedule::new("WarmupDecayLr", WarmupDecayLr::new(1.0))),
            "WarmupDecayLr(lr: 1, min_lr: 0.25, warmup: Ratio(0.5))",
        ),
        (
            written(Schedule::new("WarmupCosineLr", WarmupCosineLr::new(1.0))),
            "WarmupCosineLr(lr: 1, warmup: Ratio(0.5))",
        ),
        (written(Schedule::new("OneCycle", OneCycle::new(0.5, 1.0))), "OneCycle(min_lr: 0.5, lr: 1)"),
        (written(Schedule::new("LrRangeTest", LrRangeTest::default())), "LrRangeTest()"),
    ] {
        assert_eq!(built, read(text).unwrap());
        assert_eq!(built.peak(), if text.starts_with("LrRange") { 1e-3 } else { 1.0 });
    }
}

#[test]
fn a_rate_past_the_end_stays_at_the_floor() {
    let decays = [
        Schedule::linear(1.0),
        Schedule::cosine(1.0),
        Schedule::cosine_restarts(1.0, 2),
        Schedule::polynomial(1.0, 2.0),
        Schedule::wsd(1.0, 4),
        Schedule::new("WarmupDecayLr", WarmupDecayLr::new(1.0)).warmup(3),
    ];
    for schedule in decays {
        let schedule = schedule.min_lr(0.1);
        assert_eq!(schedule.rate(99, 10), 0.1, "{schedule:?}");
    }
}

#[test]
fn a_warmup_longer_than_the_run_never_divides_by_zero() {
    let schedule = Schedule::cosine(1.0).warmup(10);
    assert!(schedule.rate(9, 5) < 1.0);
    assert_eq!(schedule.rate(10, 5), 1.0);
}

#[test]
fn the_first_rates_of_both_warmups_are_those_of_their_table() {
    let rates = |schedule: Schedule| [0, 1, 2, 3, 4].map(|update| schedule.rate(update, 100));
    for schedule in [Schedule::constant(1.0), Schedule::cosine(1.0), Schedule::wsd(1.0, 9)] {
        let schedule = schedule.warmup(4);
        assert_eq!(rates(schedule.clone()), [0.2, 0.4, 0.6, 0.8, 1.0]);
        assert_eq!(rates(schedule.from_zero()), [0.0, 0.25, 0.5, 0.75, 1.0]);
    }
}

/// Generates a schedule with valid numbers, which may be too long for a run.
fn any_schedule() -> impl Strategy<Value = Schedule> {
    let warmup = prop_oneof![(0..60u64).prop_map(Warmup::Updates), (0.0..0.9f64).prop_map(Warmup::Ratio)];
    let numbers = (1e-6..1.0f64, 0.0..=1.0f64, 0.1..4.0f64, any::<bool>());
    (0..ALL.len(), numbers, warmup, prop::array::uniform4(1..40u64)).prop_map(
        |(which, (lr, share, power, flag), warmup, [a, b, c, d])| {
            let min_lr = lr * share;
            let (warmup_type, total) =
                ([WarmupType::Log, WarmupType::Linear][usize::from(flag)], flag.then_some(a + 60));
            let schedule = match which {
                0 => Schedule::constant(lr),
                1 => Schedule::linear(lr),
                2 => Schedule::cosine(lr),
                3 => Schedule::cosine_restarts(lr, a),
                4 => Schedule::polynomial(lr, power),
                5 => {
                    let timescale = flag.then_some(a);
                    Schedule::new("InverseSqrt", InverseSqrt { lr, timescale, warmup, from_zero: flag })
                }
                6 => Schedule::new(
                    "Wsd",
                    Wsd { stable: flag.then_some(b), decay_type: WsdShape::OneMinusSqrt, ..Wsd::new(lr, a) },
                ),
                7 => Schedule::new("WarmupLr", WarmupLr { min_lr, warmup_type, ..WarmupLr::new(lr) }),
                8 => Schedule::new(
                    "WarmupDecayLr",
                    WarmupDecayLr { warmup_type, total, ..WarmupDecayLr::new(lr) },
                ),
                9 => Schedule::new(
                    "WarmupCosineLr",
                    WarmupCosineLr { warmup_type, total, warmup_min_ratio: share, ..WarmupCosineLr::new(lr) },
                ),
                10 => Schedule::new(
                    "OneCycle",
                    OneCycle {
                        first_step_size: a,
                        second_step_size: flag.then_some(b),
                        first_stair_count: c % 4,
                        decay_lr_rate: power,
                        decay_step_size: d,
                        ..OneCycle::new(min_lr, lr)
                    },
                ),
                _ => Schedule::new(
                    "LrRangeTest",
                    LrRangeTest { min_lr: lr, step_size: a, step_rate: power, staircase: flag },
                ),
            };
            let schedule = schedule.min_lr(min_lr).warmup(warmup);
            if flag { schedule.from_zero() } else { schedule }
        },
    )
}

proptest! {
    #[test]
    fn what_passes_its_check_has_rates_up_to_the_highest(schedule in any_schedule(), total in 1..200u64) {
        prop_assume!(schedule.check(Some(total)).is_ok());
        let most = match schedule.downcast_ref::<LrRangeTest>() {
            Some(_) => f64::MAX,
            None => schedule.peak() * (1.0 + 1e-12),
        };
        for (update, rate) in schedule.points(total + 20) {
            let rate_of_run = schedule.rate(update, total);
            for rate in [rate, rate_of_run] {
                prop_assert!((0.0..=most).contains(&rate), "{} {}", update, rate);
            }
        }
    }

    #[test]
    fn each_rises_through_its_warmup(schedule in any_schedule(), total in 1..200u64) {
        prop_assume!(schedule.check(Some(total)).is_ok());
        let updates = 0..=schedule.warmup_updates(total);
        let rates: Vec<_> = updates.map(|update| schedule.rate(update, total)).collect();
        prop_assert!(rates.is_sorted(), "{:?}", rates);
    }
}
