//! Properties of every schedule that passes its check.

use proptest::prelude::*;

use super::tests::ALL;
use super::*;

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
