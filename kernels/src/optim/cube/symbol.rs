//! An equation as the body of a kernel: it is run once, on symbols.

use std::array::from_fn;
use std::marker::PhantomData;
use std::ops::{Add, Div, Mul, Sub};

use cubecl::frontend::{AddExpand, DivExpand, MulExpand, PartialOrdExpand, SqrtExpand, SubExpand, select};
use cubecl::ir::Scope;
use cubecl::prelude::NativeExpand;

use crate::optim::rule::{Real, Rule};

/// An f32 of the kernel that `scope` builds.
#[derive(Clone, Copy)]
pub struct Symbol<'a> {
    scope: &'a Scope,
    value: NativeExpand<f32>,
}

macro_rules! operator {
    ($operator:ident, $method:ident, $expand:ident) => {
        impl $operator for Symbol<'_> {
            type Output = Self;

            fn $method(self, other: Self) -> Self {
                Self { value: self.value.$expand(self.scope, other.value), ..self }
            }
        }
    };
}
operator!(Add, add, __expand_add_method);
operator!(Sub, sub, __expand_sub_method);
operator!(Mul, mul, __expand_mul_method);
operator!(Div, div, __expand_div_method);

impl Symbol<'_> {
    fn literal(self, value: f32) -> Self {
        Self { value: NativeExpand::from(value), ..self }
    }
}

impl Real for Symbol<'_> {
    fn sqrt(self) -> Self {
        Self { value: self.value.__expand_sqrt_method(self.scope), ..self }
    }

    fn sign(self) -> Self {
        let zero = self.literal(0.0);
        let negative = (zero - self).if_positive(self.literal(-1.0), zero);
        self.if_positive(self.literal(1.0), negative)
    }

    fn if_positive(self, then: Self, otherwise: Self) -> Self {
        let is_positive = self.value.__expand_gt_method(self.scope, &self.literal(0.0).value);
        Self { value: select::expand(self.scope, is_positive, then.value, otherwise.value), ..self }
    }
}

/// An equation without the numbers of its moments and constants, which a kernel's generics can't name.
pub trait Equation: Send + Sync + 'static {
    /// Returns the new parameter, then the new moments.
    fn element(
        scope: &Scope,
        constants: &[NativeExpand<f32>],
        param: NativeExpand<f32>,
        grad: NativeExpand<f32>,
        moments: &[NativeExpand<f32>],
    ) -> Vec<NativeExpand<f32>>;
}

/// The equation of a rule.
pub struct Of<R, const N: usize, const C: usize>(PhantomData<R>);

impl<R: Rule<N, C>, const N: usize, const C: usize> Equation for Of<R, N, C> {
    fn element(
        scope: &Scope,
        constants: &[NativeExpand<f32>],
        param: NativeExpand<f32>,
        grad: NativeExpand<f32>,
        moments: &[NativeExpand<f32>],
    ) -> Vec<NativeExpand<f32>> {
        let symbol = |value| Symbol { scope, value };
        let constants = from_fn(|at| symbol(constants[at]));
        let moments = from_fn(|at| symbol(moments[at]));
        let (param, moments): (_, [_; N]) = R::element(constants, symbol(param), symbol(grad), moments);
        [param].into_iter().chain(moments).map(|symbol| symbol.value).collect()
    }
}
