//! An equation as statements of CUDA C++: it is run once, on names.

use std::array::from_fn;
use std::cell::RefCell;
use std::ops::{Add, Div, Mul, Sub};

use crate::optim::rule::{Real, Rule};

/// A float of the text that is being written.
#[derive(Clone, Copy)]
struct Name<'a> {
    /// What each float that has been computed is: `t0` is the first of them.
    written: &'a RefCell<Vec<String>>,
    name: Word,
}

#[derive(Clone, Copy)]
enum Word {
    Constant(usize),
    /// A buffer's element.
    Element(usize),
    Computed(usize),
}

impl std::fmt::Display for Name<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.name {
            Word::Constant(at) => write!(f, "constant[{at}]"),
            Word::Element(at) => write!(f, "x{at}"),
            Word::Computed(at) => write!(f, "t{at}"),
        }
    }
}

impl Name<'_> {
    fn computed(self, text: String) -> Self {
        let mut written = self.written.borrow_mut();
        written.push(text);
        Self { name: Word::Computed(written.len() - 1), ..self }
    }
}

// Each operation is rounded, and no product is fused with a sum: elements have the same bits wherever they stand, and as on the
// CPU.
macro_rules! operator {
    ($operator:ident, $method:ident, $function:literal) => {
        impl $operator for Name<'_> {
            type Output = Self;

            fn $method(self, other: Self) -> Self {
                self.computed(format!(concat!($function, "({}, {})"), self, other))
            }
        }
    };
}
operator!(Add, add, "__fadd_rn");
operator!(Sub, sub, "__fsub_rn");
operator!(Mul, mul, "__fmul_rn");
operator!(Div, div, "__fdiv_rn");

impl Real for Name<'_> {
    fn sqrt(self) -> Self {
        self.computed(format!("__fsqrt_rn({self})"))
    }

    fn sign(self) -> Self {
        self.computed(format!("(float)(({self} > 0.0f) - ({self} < 0.0f))"))
    }

    fn if_positive(self, then: Self, otherwise: Self) -> Self {
        self.computed(format!("{self} > 0.0f ? {then} : {otherwise}"))
    }
}

/// Returns statements that compute an update, of a parameter `x0`, its gradient `x1` and moments from `x2` on, and the names
/// of the new parameter and then of the new moments.
pub fn written<R: Rule<N, C>, const N: usize, const C: usize>() -> (String, Vec<String>) {
    let written = RefCell::new(Vec::new());
    let name = |name| Name { written: &written, name };
    let constants = from_fn(|at| name(Word::Constant(at)));
    let moments = from_fn(|at| name(Word::Element(2 + at)));
    let (param, moments) = R::element(constants, name(Word::Element(0)), name(Word::Element(1)), moments);
    let found = [param].into_iter().chain(moments).map(|name| name.to_string()).collect();
    let statements =
        written.borrow().iter().enumerate().map(|(at, text)| format!("float t{at} = {text};")).collect();
    (statements, found)
}
