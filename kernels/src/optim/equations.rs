//! The equations of optimizers.
//!
//! They are compiled here, with the loops that apply them, so that a crate of optimizers need not be optimized.

use super::blocks::Rows;
use super::rule::{Real, Rule, Update};

/// AdamW, with the numbers of one update: `θ ← kept θ - step m / (root √v + ε)`.
#[derive(Clone, Copy, Debug)]
pub struct AdamW {
    /// β₁.
    pub beta_1: f32,
    /// β₂.
    pub beta_2: f32,
    /// ε.
    pub epsilon: f32,
    /// 1 - β₁.
    pub rest_1: f32,
    /// 1 - β₂.
    pub rest_2: f32,
    /// 1 - ηλ.
    pub kept: f32,
    /// η / (1 - β₁ᵗ).
    pub step: f32,
    /// 1 / √(1 - β₂ᵗ).
    pub root: f32,
}

impl Rule<2, 8> for AdamW {
    fn constants(&self) -> [f32; 8] {
        let Self { beta_1, beta_2, epsilon, rest_1, rest_2, kept, step, root } = *self;
        [beta_1, beta_2, epsilon, rest_1, rest_2, kept, step, root]
    }

    #[inline(always)]
    fn element<R: Real>(constants: [R; 8], param: R, grad: R, [m, v]: [R; 2]) -> (R, [R; 2]) {
        let [beta_1, beta_2, epsilon, rest_1, rest_2, kept, step, root] = constants;
        let m = beta_1 * m + rest_1 * grad;
        let v = beta_2 * v + rest_2 * (grad * grad);
        let delta = m / (v.sqrt() * root + epsilon);
        (kept * param - step * delta, [m, v])
    }

    #[inline(never)]
    fn run(&self, update: Update<'_, 2>, fresh: bool) {
        update.run(*self, fresh);
    }
}

impl AdamW {
    /// Updates rows whose moments have 8 bits.
    #[inline(never)] // As for `Rule::run`.
    pub fn update_rows(&self, rows: Rows<'_>, fresh: bool) {
        rows.update(*self, fresh);
    }
}

/// Adagrad, with the numbers of one update.
#[derive(Clone, Copy, Debug)]
pub struct Adagrad {
    /// ε.
    pub epsilon: f32,
    /// λ.
    pub weight_decay: f32,
    /// η.
    pub rate: f32,
}

impl Rule<1, 3> for Adagrad {
    fn constants(&self) -> [f32; 3] {
        let Self { epsilon, weight_decay, rate } = *self;
        [epsilon, weight_decay, rate]
    }

    #[inline(always)]
    fn element<R: Real>(constants: [R; 3], param: R, grad: R, [sum]: [R; 1]) -> (R, [R; 1]) {
        let [epsilon, weight_decay, rate] = constants;
        let grad = grad + weight_decay * param;
        let sum = sum + grad * grad;
        (param - rate * (grad / (sum.sqrt() + epsilon)), [sum])
    }

    #[inline(never)]
    fn run(&self, update: Update<'_, 1>, fresh: bool) {
        update.run(*self, fresh);
    }
}

/// Gradient descent without momentum, with the numbers of one update.
#[derive(Clone, Copy, Debug)]
pub struct Sgd {
    /// λ.
    pub weight_decay: f32,
    /// η.
    pub rate: f32,
}

/// Returns the gradient plus the parameter's weight decay. Without decay it is the gradient to the bit, even where the
/// parameter is not finite.
#[inline(always)]
fn decayed<R: Real>(weight_decay: R, param: R, grad: R) -> R {
    weight_decay.if_positive(weight_decay * param + grad, grad)
}

impl Rule<0, 2> for Sgd {
    fn constants(&self) -> [f32; 2] {
        [self.weight_decay, self.rate]
    }

    #[inline(always)]
    fn element<R: Real>([weight_decay, rate]: [R; 2], param: R, grad: R, []: [R; 0]) -> (R, [R; 0]) {
        (param - rate * decayed(weight_decay, param, grad), [])
    }

    #[inline(never)]
    fn run(&self, update: Update<'_, 0>, fresh: bool) {
        update.run(*self, fresh);
    }
}

/// Gradient descent with momentum, with the numbers of one update.
#[derive(Clone, Copy, Debug)]
pub struct Momentum {
    /// μ.
    pub momentum: f32,
    /// 1 - τ.
    pub taken: f32,
    /// Whether the step looks ahead along the velocity.
    pub nesterov: bool,
    /// The update without momentum.
    pub plain: Sgd,
}

impl Rule<1, 5> for Momentum {
    fn constants(&self) -> [f32; 5] {
        let Self { momentum, taken, nesterov, plain: Sgd { weight_decay, rate } } = *self;
        [momentum, taken, f32::from(u8::from(nesterov)), weight_decay, rate]
    }

    #[inline(always)]
    fn element<R: Real>(constants: [R; 5], param: R, grad: R, [velocity]: [R; 1]) -> (R, [R; 1]) {
        let [momentum, taken, nesterov, weight_decay, rate] = constants;
        let grad = decayed(weight_decay, param, grad);
        let velocity = taken * grad + momentum * velocity;
        let along = nesterov.if_positive(momentum * velocity + grad, velocity);
        (param - rate * along, [velocity])
    }

    #[inline(never)]
    fn run(&self, update: Update<'_, 1>, fresh: bool) {
        update.run(*self, fresh);
    }
}

/// Lion, with the numbers of one update.
#[derive(Clone, Copy, Debug)]
pub struct Lion {
    /// β₁.
    pub beta_1: f32,
    /// β₂.
    pub beta_2: f32,
    /// 1 - β₁.
    pub rest_1: f32,
    /// 1 - β₂.
    pub rest_2: f32,
    /// 1 - ηλ.
    pub kept: f32,
    /// η.
    pub rate: f32,
}

impl Rule<1, 6> for Lion {
    fn constants(&self) -> [f32; 6] {
        let Self { beta_1, beta_2, rest_1, rest_2, kept, rate } = *self;
        [beta_1, beta_2, rest_1, rest_2, kept, rate]
    }

    #[inline(always)]
    fn element<R: Real>(constants: [R; 6], param: R, grad: R, [m]: [R; 1]) -> (R, [R; 1]) {
        let [beta_1, beta_2, rest_1, rest_2, kept, rate] = constants;
        // 0 for NaN, like Burn on the CPU.
        let update = (beta_1 * m + rest_1 * grad).sign();
        let m = beta_2 * m + rest_2 * grad;
        (kept * param - rate * update, [m])
    }

    #[inline(never)]
    fn run(&self, update: Update<'_, 1>, fresh: bool) {
        update.run(*self, fresh);
    }
}
