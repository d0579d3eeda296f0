//! One pass over a parameter with 8-bit moments in blocks.

use std::marker::PhantomData;

use pulp::{Arch, NullaryFnOnce};
use rayon::prelude::*;

use super::dynamic_map::{DynamicMap, SIGNED, UNSIGNED};
use super::rule::Rule;

/// The most elements per block. A block lies within one row, so that rows can be on different ranks.
pub const BLOCK: usize = 256;

/// The least elements per task.
const TASK: usize = 1 << 15;

/// Rows of a parameter, its gradient and its two moments.
#[derive(Debug)]
pub struct Rows<'a> {
    /// Elements of a row.
    pub row: usize,
    /// The parameter.
    pub param: &'a mut [f32],
    /// Its gradient.
    pub grad: &'a [f32],
    /// The moments' codes, one for each element.
    pub codes: [&'a mut [u8]; 2],
    /// The scale of each block's codes: the block's largest magnitude of a moment.
    pub largest: [&'a mut [f32]; 2],
}

/// Returns the number of blocks in a row.
pub fn blocks(row: usize) -> usize {
    row.div_ceil(BLOCK)
}

impl Rows<'_> {
    /// Updates the parameter and the moments in place, on all cores. If the moments are `fresh`, their content is
    /// ignored and taken as zero.
    pub fn update<R: Rule<2, C>, const C: usize>(self, rule: R, fresh: bool) {
        let Self { row, param, grad, codes: [codes_1, codes_2], largest: [largest_1, largest_2] } = self;
        if param.is_empty() {
            return;
        }
        let rows = TASK.div_ceil(row);
        let (elements, scales) = (rows * row, rows * blocks(row));
        param
            .par_chunks_mut(elements)
            .zip(grad.par_chunks(elements))
            .zip(codes_1.par_chunks_mut(elements).zip(codes_2.par_chunks_mut(elements)))
            .zip(largest_1.par_chunks_mut(scales).zip(largest_2.par_chunks_mut(scales)))
            .for_each(|(((param, grad), (codes_1, codes_2)), (largest_1, largest_2))| {
                let (codes, largest) = ([codes_1, codes_2], [largest_1, largest_2]);
                let rows = Rows { row, param, grad, codes, largest };
                let constants = rule.constants();
                Arch::new().dispatch(Task { rows, rule: PhantomData::<R>, constants, fresh });
            });
    }
}

/// The work of one core, compiled for the vectors of each kind of processor.
struct Task<'a, R, const C: usize> {
    rows: Rows<'a>,
    rule: PhantomData<R>,
    constants: [f32; C],
    fresh: bool,
}

impl<R: Rule<2, C>, const C: usize> NullaryFnOnce for Task<'_, R, C> {
    type Output = ();

    #[inline(always)]
    fn call(self) {
        let Self {
            rows: Rows { row, param, grad, codes: [codes_1, codes_2], largest },
            constants,
            fresh,
            ..
        } = self;
        let (signed, unsigned): (&DynamicMap, &DynamicMap) = (&SIGNED, &UNSIGNED);
        let mut moments = [[0.0f32; BLOCK]; 2];
        let mut scale = 0;
        let rows = param.chunks_mut(row).zip(grad.chunks(row));
        for ((param, grad), (codes_1, codes_2)) in
            rows.zip(codes_1.chunks_mut(row).zip(codes_2.chunks_mut(row)))
        {
            let blocks = param.chunks_mut(BLOCK).zip(grad.chunks(BLOCK));
            let codes = codes_1.chunks_mut(BLOCK).zip(codes_2.chunks_mut(BLOCK));
            for ((param, grad), (codes_1, codes_2)) in blocks.zip(codes) {
                let [m, v] = moments.each_mut().map(|moment| &mut moment[..param.len()]);
                if fresh {
                    // Adding -0.0 changes no number, not even the sign of another zero.
                    m.fill(-0.0);
                    v.fill(-0.0);
                } else {
                    read(signed, codes_1, largest[0][scale], m);
                    read(unsigned, codes_2, largest[1][scale], v);
                }
                update::<R, C>(constants, param, grad, m, v);
                largest[0][scale] = write(signed, m, codes_1);
                largest[1][scale] = write(unsigned, v, codes_2);
                // Keeps a nonzero second moment above zero: dividing by its root would make the next update unbounded.
                codes_2.iter_mut().zip(v).for_each(|(code, v)| *code = (*code).max(u8::from(*v > 0.0)));
                scale += 1;
            }
        }
    }
}

/// Decodes codes into numbers.
#[inline(always)]
fn read(map: &DynamicMap, codes: &[u8], largest: f32, numbers: &mut [f32]) {
    for (number, code) in numbers.iter_mut().zip(codes) {
        *number = map.value(*code) * largest;
    }
}

/// Encodes numbers, and returns their largest magnitude.
#[inline(always)]
fn write(map: &DynamicMap, numbers: &[f32], codes: &mut [u8]) -> f32 {
    let largest =
        numbers.iter().fold(0f32, |most, number| if number.abs() > most { number.abs() } else { most });
    let divisor = if largest > 0.0 { largest } else { 1.0 };
    for (number, code) in numbers.iter().zip(codes) {
        *code = map.code(number / divisor);
    }
    largest
}

#[inline(always)]
fn update<R: Rule<2, C>, const C: usize>(
    constants: [f32; C],
    param: &mut [f32],
    grad: &[f32],
    m: &mut [f32],
    v: &mut [f32],
) {
    // Equal lengths let the compiler vectorize the loop.
    let length = param.len();
    let (grad, m, v) = (&grad[..length], &mut m[..length], &mut v[..length]);
    for i in 0..length {
        let (updated, [next_m, next_v]) = R::element(constants, param[i], grad[i], [m[i], v[i]]);
        (param[i], m[i], v[i]) = (updated, next_m, next_v);
    }
}
