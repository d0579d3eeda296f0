//! Checks of the updates of parameters.

use std::array::from_fn;

use burn::tensor::{DType, Tensor, TensorData};

use super::{Check, Run, Tolerance};
use crate::off::Kernel;
use crate::optim::equations::{Adagrad, AdamW, Lion, Momentum, Sgd};
use crate::optim::{Parts, Real, Rule, Together};

pub(crate) const ADAMW: AdamW = AdamW {
    beta_1: 0.9,
    beta_2: 0.99,
    epsilon: 1e-8,
    rest_1: 0.1,
    rest_2: 0.01,
    kept: 0.99,
    step: 0.01,
    root: 1.0,
};
const ADAGRAD: Adagrad = Adagrad { epsilon: 1e-8, weight_decay: 0.01, rate: 0.1 };
const SGD: Sgd = Sgd { weight_decay: 0.01, rate: 0.1 };
const MOMENTUM: Momentum = Momentum { momentum: 0.9, taken: 0.5, nesterov: true, plain: SGD };
const LION: Lion = Lion { beta_1: 0.9, beta_2: 0.99, rest_1: 0.1, rest_2: 0.01, kept: 0.99, rate: 0.01 };

pub(super) fn checks() -> Vec<Check> {
    let check = |name, covers, small: fn(&mut Run)| {
        Check::new(name, covers, Tolerance::ROUNDED, small).of(Kernel::Updates)
    };
    vec![
        check("AdamW", &["Together", "AdamW"], |run| {
            updates(run, ADAMW, &SMALL, false);
            updates(run, ADAMW, &SMALL, true);
        })
        .real(|run| updates(run, ADAMW, &[768 * 3072, 3072, 768 * 2304], false)),
        check("Adagrad", &["Adagrad"], |run| updates(run, ADAGRAD, &SMALL, false)),
        check("SGD", &["Sgd"], |run| updates(run, SGD, &SMALL, false)),
        check("SGD with momentum", &["Momentum"], |run| updates(run, MOMENTUM, &SMALL, false)),
        check("Lion", &["Lion"], |run| updates(run, LION, &SMALL, false)),
    ]
}

const SMALL: [usize; 3] = [1, 96, 4100];

/// Updates parameters in f32 together, given gradients in the checked dtype, and writes replicas in half precision.
fn updates<R: Rule<N, C>, const N: usize, const C: usize>(
    run: &mut Run,
    rule: R,
    counts: &[usize],
    fresh: bool,
) {
    let elements: usize = counts.iter().sum();
    // The replica is a bonus of the kernel, in the dtype of the gradients.
    let of_dtype = if run.is_half() { 2 } else { 1 };
    run.moves(of_dtype * elements, 2 * (1 + N) * elements);
    let (mut places, mut all) = (Vec::new(), Vec::new());
    for count in counts {
        let grad = run.plain([*count]);
        let wide = run.wide();
        let (place, param) = run.lend(*count, [-1.0, 1.0], wide);
        // Second moments are positive, and first ones may be.
        let lent: [_; N] = from_fn(|_| run.lend(*count, [0.1, 1.0], wide));
        places.push((place, lent.each_ref().map(|(place, _)| *place)));
        let moments = (!fresh).then(|| lent.map(|(_, moment)| moment));
        all.push(Parts { param, grad, moments });
    }
    let is_reference = run.is_reference();
    let mut together = Together::new().writing(run.dtype());
    let update = |parts| match together.step(&rule, parts) {
        Ok(updated) => updated,
        Err(parts) if is_reference => in_f64(rule, parts),
        Err(_) => panic!("the device has no kernel for the update"),
    };
    let updated: Vec<_> = all.into_iter().map(update).collect();
    let copies = together.launch().expect("they are asked for");
    for ((param, moments), (place, of_moments)) in updated.into_iter().zip(places) {
        if run.is_half() {
            let copy = if is_reference { Some(param.clone()) } else { copies.of(&param) };
            run.result("the replica", copy.expect("the update writes a replica"));
        }
        // `times` keeps what a result holds until the queue is handed over, and the next update is in place.
        run.result("the parameter", param.clone());
        run.restore(place, param);
        for (moment, place) in moments.into_iter().zip(of_moments) {
            run.result("a moment", moment.clone());
            run.restore(place, moment);
        }
    }
}

/// Updates each element by the equation itself.
fn in_f64<R: Rule<N, C>, const N: usize, const C: usize>(
    rule: R,
    parts: Parts<1, N>,
) -> (Tensor<1>, [Tensor<1>; N]) {
    let device = parts.param.device();
    let values = |x: Tensor<1>| x.into_data().iter::<f64>().collect::<Vec<_>>();
    let (mut param, grad) = (values(parts.param), values(parts.grad));
    // A moment that does not exist is a neutral zero.
    let mut moments = match parts.moments {
        Some(moments) => moments.map(values),
        None => from_fn(|_| vec![-0.0; param.len()]),
    };
    let constants = rule.constants().map(f64::from);
    for at in 0..param.len() {
        let before = from_fn(|moment: usize| moments[moment][at]);
        let (updated, after) = R::element(constants, param[at], grad[at], before);
        param[at] = updated;
        for (moment, after) in moments.iter_mut().zip(after) {
            moment[at] = after;
        }
    }
    let tensor = |values: Vec<f64>| {
        let count = values.len();
        Tensor::<1>::from_data(TensorData::new(values, [count]), (&device, DType::F64))
    };
    (tensor(param), moments.map(tensor))
}

/// The equations of the reference.
impl Real for f64 {
    fn sqrt(self) -> Self {
        f64::sqrt(self)
    }

    fn sign(self) -> Self {
        if self == 0.0 || self.is_nan() { 0.0 } else { self.signum() }
    }

    fn if_positive(self, then: Self, otherwise: Self) -> Self {
        if self > 0.0 { then } else { otherwise }
    }
}
