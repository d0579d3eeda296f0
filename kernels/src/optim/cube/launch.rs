//! The kernel that updates a group of parameters.
#![allow(unsafe_code)] // Launches without checks of bounds: the kernel checks the ends of its tensors.

use burn_cubecl::tensor::CubeTensor;
use cubecl::frontend::SequenceExpand;
use cubecl::intrinsic;
use cubecl::prelude::*;

use super::job::Job;
use super::symbol::{Equation, Of};
#[cfg(feature = "cuda")]
use super::text;
#[cfg(feature = "cuda")]
use crate::cube::cuda::{self, Buffer, Pass};
use crate::cube::{PART, UNITS, element as dtype_of, end_of, grid, units};
use crate::optim::rule::Rule;

/// Launches the kernel for jobs that are [alike](Job::alike). If the number of the guard is not finite, they keep their values.
pub fn launch<R: Rule<N, C>, const N: usize, const C: usize>(group: &[&Job], guard: Option<&CubeTensor>) {
    let Job { param: like, grad, replica, kind, constants: numbers, .. } = group[0];
    #[cfg(feature = "cuda")]
    if cuda::serves(&like.device) {
        return launch_cuda::<R, N, C>(group, guard);
    }
    let (mut params, mut grads, mut moments) = (SequenceArg::new(), SequenceArg::new(), SequenceArg::new());
    let (mut replicas, mut lengths, mut constants) =
        (SequenceArg::new(), SequenceArg::new(), SequenceArg::new());
    let buffer = |tensor: &CubeTensor| tensor.clone().into_buffer_arg();
    let mut cubes = 0;
    for job in group {
        let length = job.param.meta.num_elements();
        cubes += length.div_ceil(PART);
        params.push(buffer(&job.param));
        grads.push(buffer(&job.grad));
        job.moments.iter().for_each(|moment| moments.push(buffer(moment)));
        job.replica.iter().for_each(|replica| replicas.push(buffer(replica)));
        lengths.push(length);
    }
    numbers.iter().for_each(|constant| constants.push(*constant));
    let mut guards = SequenceArg::new();
    guard.into_iter().for_each(|guard| guards.push(buffer(guard)));
    let units = units(like, UNITS as usize);
    // SAFETY: a cube beyond the last tensor's does nothing, and each reads and writes tensors with one number of
    // elements, within it.
    unsafe {
        update_kernel::launch_unchecked::<Of<R, N, C>>(
            &like.client,
            grid(like, cubes),
            CubeDim::new_1d(units),
            params,
            grads,
            moments,
            replicas,
            guards,
            lengths,
            constants,
            PART,
            units,
            N,
            kind.fresh,
            replica.is_some(),
            guard.is_some(),
            [dtype_of(like), dtype_of(grad), dtype_of(replica.as_ref().unwrap_or(like))],
        );
    }
}

/// The same as `update_kernel`, of more parameters at once, each with its own constants.
#[cfg(feature = "cuda")]
fn launch_cuda<R: Rule<N, C>, const N: usize, const C: usize>(group: &[&Job], guard: Option<&CubeTensor>) {
    let Job { param, grad, moments, replica, kind, .. } = group[0];
    let moment = if kind.fresh { Buffer::written } else { Buffer::changed };
    let (mut body, found) = text::written::<R, N, C>();
    // The gradient is not written.
    let places = || [0].into_iter().chain(2..).zip(&found);
    places().for_each(|(at, name)| body += &format!(" float y{at} = {name};"));
    let condition = if guard.is_some() { "if (updates) " } else { "" };
    places().for_each(|(at, _)| body += &format!(" {condition}x{at} = y{at};"));
    if replica.is_some() {
        body += &format!(" x{} = x0;", 2 + N);
    }
    let mut buffers = vec![Buffer::changed(param), Buffer::read(grad)];
    buffers.extend(moments.iter().map(moment));
    buffers.extend(replica.as_ref().map(Buffer::written));
    let pass = Pass {
        name: "update",
        buffers,
        shared: guard.into_iter().map(Buffer::read).collect(),
        before: match guard {
            // By its bits, since compilers may assume that there is no NaN.
            Some(_) => "bool updates = (__float_as_uint(s0[0]) & 0x7f800000u) != 0x7f800000u;".into(),
            None => String::new(),
        },
        body,
        after: "",
    };
    let tensors: Vec<_> = group.iter().map(|job| job.tensors().collect()).collect();
    let constants: Vec<_> = group.iter().map(|job| &job.constants[..]).collect();
    pass.launch(&tensors, guard.as_slice(), &constants, 0);
}

/// Returns the new parameter, then the new moments.
#[cube]
#[allow(unused_variables)] // Used in the kernel.
fn element<S: Equation>(
    constants: &Sequence<f32>,
    param: f32,
    grad: f32,
    moments: &Sequence<f32>,
) -> Sequence<f32> {
    intrinsic!(|scope| {
        let listed = |numbers: &SequenceExpand<f32>| numbers.iter_cloned().collect::<Vec<_>>();
        let mut found = Sequence::<f32>::__expand_new(scope);
        for number in S::element(scope, &listed(constants), param, grad, &listed(moments)) {
            found.__expand_push_method(scope, number);
        }
        found
    })
}

/// Whether a number is neither infinite nor NaN. By its bits, since compilers may assume that there is no NaN.
#[cube]
fn is_finite(number: f32) -> bool {
    (u32::reinterpret(number) & 0x7f80_0000) != 0x7f80_0000
}

/// Returns the new value if the guard allows the update, or if there is none.
#[cube]
fn kept_unless(updates: bool, before: f32, after: f32, #[comptime] guarded: bool) -> f32 {
    let mut kept = after;
    if guarded {
        kept = select(updates, after, before);
    }
    kept
}

#[cube(launch_unchecked)]
fn update_kernel<S: Equation, P: Float, G: Float, H: Float>(
    mut params: Sequence<Box<[P]>>,
    grads: Sequence<Box<[G]>>,
    mut moments: Sequence<Box<[P]>>,
    mut replicas: Sequence<Box<[H]>>,
    guards: Sequence<Box<[f32]>>,
    lengths: Sequence<usize>,
    constants: Sequence<f32>,
    #[comptime] part: usize,
    #[comptime] units: u32,
    #[comptime] each: usize,
    #[comptime] fresh: bool,
    #[comptime] replicates: bool,
    #[comptime] guarded: bool,
    #[define(P, G, H)] _dtypes: [ElemType; 3],
) {
    let cube = CUBE_POS;
    let mut begin = 0usize;
    let mut updates = true;
    if guarded {
        let guard = &guards[0];
        updates = is_finite(guard[0]);
    }
    #[unroll]
    for i in 0..grads.len() {
        let length = lengths[i];
        let end = end_of(begin, length, part);
        if cube >= begin && cube < end {
            let grad = &grads[i];
            let mut at = (cube - begin) * part + UNIT_POS as usize;
            let last = min((cube - begin + 1) * part, length);
            while at < last {
                let mut before = Sequence::<f32>::new();
                #[unroll]
                for k in 0..each {
                    if fresh {
                        // Adding -0.0 changes no number, not even the sign of another zero.
                        before.push(-0.0f32);
                    } else {
                        let moment = &moments[i * each + k];
                        before.push(f32::cast_from(moment[at]));
                    }
                }
                let param = &mut params[i];
                let value = f32::cast_from(param[at]);
                let after = element::<S>(&constants, value, f32::cast_from(grad[at]), &before);
                let updated = kept_unless(updates, value, after[0], guarded);
                param[at] = P::cast_from(updated);
                #[unroll]
                for k in 0..each {
                    let moment = &mut moments[i * each + k];
                    moment[at] = P::cast_from(kept_unless(updates, before[k], after[k + 1], guarded));
                }
                if replicates {
                    let replica = &mut replicas[i];
                    replica[at] = H::cast_from(updated);
                }
                at += units as usize;
            }
        }
        begin = end;
    }
}
