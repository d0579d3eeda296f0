//! One pass over a parameter, its gradient and its moments, on all cores and in vectors.
//!
//! The arithmetic is f32 without fused multiply-add, and each element's result depends only on its own values: it is
//! bit-identical on every processor, with any number of threads.

use std::array::from_fn;
use std::marker::PhantomData;
use std::sync::{Mutex, PoisonError};

use pulp::{Arch, NullaryFnOnce};

use super::floats::{BLOCK, Block};
use super::prefetch::prefetch;
use super::rule::{Rule, Update};

/// Elements of one task: tens of microseconds of work, so that small parameters stay on one core.
pub(super) const TASK: usize = 1 << 15;

impl<const N: usize> Update<'_, N> {
    /// Updates the parameter and the moments in place. If the moments are `fresh`, their content is ignored and taken
    /// as zero.
    pub fn run<R: Rule<N, C>, const C: usize>(mut self, rule: R, fresh: bool) {
        let arch = Arch::new();
        let constants = rule.constants();
        let run = |update| arch.dispatch(Task { update, rule: PhantomData::<R>, constants, fresh });
        let mut tasks = Vec::with_capacity(self.len().div_ceil(TASK) + 1);
        if self.len() > TASK {
            // Large tensors start at similar offsets of a page, after their allocations' headers. If tasks start at the
            // parameter's cache lines, no vector of any tensor straddles two lines.
            tasks.push(self.take(self.param.before_line()));
        }
        while self.len() > TASK {
            tasks.push(self.take(TASK));
        }
        match tasks.is_empty() {
            true => run(self),
            false => {
                tasks.push(self);
                // The caller works too, because a sleeping thread of the pool takes a while to wake.
                let tasks = Mutex::new(tasks.into_iter());
                let next = || tasks.lock().unwrap_or_else(PoisonError::into_inner).next();
                let work = || std::iter::from_fn(next).for_each(run);
                rayon::in_place_scope(|scope| {
                    (1..rayon::current_num_threads()).for_each(|_| scope.spawn(|_| work()));
                    work();
                });
            }
        }
    }
}

/// The work of one core, compiled for the vectors of each kind of processor.
struct Task<'a, R, const N: usize, const C: usize> {
    update: Update<'a, N>,
    rule: PhantomData<R>,
    constants: [f32; C],
    fresh: bool,
}

impl<R: Rule<N, C>, const N: usize, const C: usize> NullaryFnOnce for Task<'_, R, N, C> {
    type Output = ();

    #[inline(always)]
    fn call(self) {
        let Self { mut update, constants, fresh, .. } = self;
        let mut blocks: ([Block; 2], [Block; N]) = ([[0.0; BLOCK]; 2], [[0.0; BLOCK]; N]);
        let ([param_block, grad_block], moment_blocks) = &mut blocks;
        while update.len() > 0 {
            let mut part = update.take(BLOCK);
            let param = part.param.open(param_block);
            let grad = part.grad.read(grad_block);
            let mut opened = part.moments.iter_mut().zip(moment_blocks.iter_mut());
            let mut moments: [&mut [f32]; N] = from_fn(|_| match opened.next() {
                Some((moment, block)) => moment.open(block),
                None => &mut [],
            });
            if fresh {
                // Adding -0.0 changes no number, not even the sign of another zero.
                moments.iter_mut().for_each(|moment| moment.fill(-0.0));
            }
            each::<R, N, C>(constants, param, grad, moments);
            if let Some(replica) = &mut part.replica {
                replica.write(param);
            }
            part.param.close(param_block);
            for (moment, block) in part.moments.iter_mut().zip(&*moment_blocks) {
                moment.close(block);
            }
        }
    }
}

/// Applies the rule to each element, and prefetches later ones.
#[inline(always)]
fn each<R: Rule<N, C>, const N: usize, const C: usize>(
    constants: [f32; C],
    param: &mut [f32],
    grad: &[f32],
    moments: [&mut [f32]; N],
) {
    let (params, param) = param.as_chunks_mut();
    let (grads, grad) = grad.as_chunks();
    let mut moments = moments.map(|moment| moment.as_chunks_mut());
    let grads = &grads[..params.len()];
    for (at, (param, grad)) in params.iter_mut().zip(grads).enumerate() {
        let moments = moments.each_mut().map(|(moments, _)| &mut moments[at]);
        prefetch(param);
        prefetch(grad);
        moments.iter().for_each(|moment| prefetch(moment));
        apply::<R, N, C>(constants, param, grad, moments.map(|moment| &mut moment[..]));
    }
    apply::<R, N, C>(constants, param, grad, moments.map(|(_, moment)| moment));
}

#[inline(always)]
fn apply<R: Rule<N, C>, const N: usize, const C: usize>(
    constants: [f32; C],
    param: &mut [f32],
    grad: &[f32],
    moments: [&mut [f32]; N],
) {
    // Equal lengths let the compiler vectorize the loop.
    let length = param.len();
    let grad = &grad[..length];
    let mut moments = moments.map(|moment| &mut moment[..length]);
    for i in 0..length {
        let (updated, next) = R::element(constants, param[i], grad[i], from_fn(|k| moments[k][i]));
        param[i] = updated;
        for (moment, next) in moments.iter_mut().zip(next) {
            moment[i] = next;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::floats::{Floats, FloatsMut};
    use super::super::rule::Real;
    use super::*;

    /// Rounds after each operation, which a fused multiply-add would not.
    #[derive(Clone, Copy)]
    struct Twice;
    impl Rule<2, 7> for Twice {
        fn constants(&self) -> [f32; 7] {
            [0.9, 0.1, 0.99, 0.01, 0.7, 0.3, 1e-3]
        }

        #[inline(always)]
        fn element<R: Real>(constants: [R; 7], param: R, grad: R, [m, v]: [R; 2]) -> (R, [R; 2]) {
            let [a, b, c, d, kept, step, epsilon] = constants;
            let m = a * m + b * grad;
            let v = c * v + d * (grad * grad);
            (kept * param - step * (m / (v.sqrt() + epsilon)), [m, v])
        }

        fn run(&self, update: Update<'_, 2>, fresh: bool) {
            update.run(*self, fresh);
        }
    }

    type Numbers = [Vec<u32>; 4];

    /// Returns the bits after two updates with f16 gradients and a bf16 replica.
    fn updated(length: usize, run: impl Fn(Task<'_, Twice, 2, 7>)) -> Numbers {
        use burn::tensor::{bf16, f16};
        let mut param: Vec<f32> = (0..length).map(|i| (i as f32 * 0.37).sin()).collect();
        let grad: Vec<f16> = (0..length).map(|i| f16::from_f32((i as f32 * 0.91).cos())).collect();
        // NaN, which an update must not read from a fresh moment.
        let (mut m, mut v) = (vec![f32::NAN; length], vec![f32::NAN; length]);
        let mut replica = vec![bf16::ZERO; length];
        for fresh in [true, false] {
            let update = Update {
                param: FloatsMut::F32(&mut param),
                grad: Floats::F16(&grad),
                moments: [FloatsMut::F32(&mut m), FloatsMut::F32(&mut v)],
                replica: Some(FloatsMut::Bf16(&mut replica)),
            };
            run(Task { update, rule: PhantomData, constants: Twice.constants(), fresh });
        }
        let rounded: Vec<bf16> = param.iter().copied().map(bf16::from_f32).collect();
        assert_eq!(replica, rounded);
        let bits = |floats: &[f32]| floats.iter().map(|x| x.to_bits()).collect();
        [bits(&param), bits(&m), bits(&v), replica.iter().map(|x| x.to_bits().into()).collect()]
    }

    #[test]
    fn every_processor_gives_the_same_bits() {
        for length in [1, 7, 512, 1000, 5001] {
            let plain = updated(length, |task| task.call());
            assert!(plain[0].iter().all(|&bits| f32::from_bits(bits).is_finite()));
            assert_eq!(updated(length, |task| Arch::new().dispatch(task)), plain);
            #[cfg(target_arch = "x86_64")]
            if let Some(avx2) = pulp::x86::V3::try_new() {
                assert_eq!(updated(length, |task| pulp::Simd::vectorize(avx2, task)), plain);
            }
        }
    }
}
