//! Floating-point operations of an update, as the field counts them.

use super::order::Order;
use super::parameters::{Shape, Treatment};

/// What makes up an update, of all ranks together.
#[derive(Clone, Copy, Debug)]
pub(super) struct Work {
    /// Tokens, padding included: it is computed like any.
    pub tokens: f64,
    /// Tokens of a row.
    pub length: f64,
    /// Attention layers.
    pub layers: f64,
    /// The width of all heads of one together.
    pub width: f64,
}

impl Work {
    /// 6 for each parameter and token, and for attention 12 x layers x width x length for each token; a third of
    /// either is the forward pass, which comes again for what is recomputed. A frozen parameter has no gradient: 4.
    ///
    /// Kaplan et al., *Scaling Laws for Neural Language Models*, 2020 (arXiv:2001.08361), section 2.1; Chowdhery et
    /// al., *PaLM: Scaling Language Modeling with Pathways*, 2022 (arXiv:2204.02311), appendix B. Where a model has
    /// an encoder and a decoder, each token is counted in both, which is too much.
    pub fn flops(&self, shapes: &[Shape], treatment: &Treatment, order: &Order) -> f64 {
        let parameters: u64 = shapes.iter().map(Shape::elements).sum();
        let frozen = shapes.iter().filter(|shape| !treatment.get(&shape.path).trained).map(Shape::elements);
        let without_gradient = 2.0 * frozen.sum::<u64>() as f64;
        let in_blocks: u64 = shapes.iter().filter(|shape| shape.in_block).map(Shape::elements).sum();
        let attention = 4.0 * self.layers * self.width * self.length;
        let once = 2.0 * parameters as f64 + attention;
        let again = order.recomputed * (2.0 * in_blocks as f64 + attention);
        self.tokens * (3.0 * once - without_gradient + again)
    }
}

#[cfg(test)]
mod tests {
    use super::super::parameters::Treated;
    use super::*;
    use crate::{RecomputeConfig, StrategyConfig};

    #[test]
    fn the_operations_of_a_model_by_hand() {
        let shape = |elements, in_block| Shape {
            path: String::new(),
            shape: vec![elements],
            in_block,
            is_factor: false,
        };
        let shapes = [shape(100, true), shape(10, false)];
        let work = Work { tokens: 2.0, length: 3.0, layers: 4.0, width: 5.0 };
        let all = Treatment::default();
        let flops = |strategies: &[StrategyConfig]| work.flops(&shapes, &all, &Order::of(strategies, 4));
        let plain = 2.0 * (6.0 * 110.0 + 12.0 * 4.0 * 5.0 * 3.0);
        assert_eq!(flops(&[]), plain);
        let again = 2.0 * (2.0 * 100.0 + 4.0 * 4.0 * 5.0 * 3.0);
        assert_eq!(flops(&[StrategyConfig::Recompute(RecomputeConfig::every_block())]), plain + again);
        assert_eq!(flops(&[StrategyConfig::Zero(3.into())]), plain + again);
        let every = RecomputeConfig { every: Some(2), ..RecomputeConfig::default() };
        assert_eq!(flops(&[StrategyConfig::Recompute(every)]), plain + again / 2.0);
        let frozen = Treated { master: 4, replica: 4, trained: false };
        let some = Treatment { of: [("frozen".into(), frozen)].into(), ..Treatment::default() };
        let shapes = [shape(100, true), Shape { path: "frozen".into(), ..shape(10, false) }];
        assert_eq!(work.flops(&shapes, &some, &Order::of(&[], 4)), plain - 2.0 * 2.0 * 10.0);
    }
}
