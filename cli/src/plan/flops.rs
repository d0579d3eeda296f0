//! Counts the floating-point operations of an update, as is customary in the field.

use std::sync::Arc;

use super::longest::Longest;
use crate::run::Shape;
use firebrick_models::AnyConfig;
use firebrick_models::family::Attention;

/// The tokens of an update, over all ranks. Padding is included because it is computed like any other token.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sequences {
    pub tokens: f64,
    /// Tokens in a row.
    pub length: f64,
}

/// The operations of passes.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct PassFlops {
    /// The forward passes of blocks, attention included.
    pub forward_in_blocks: f64,
    /// The rest of the forward passes.
    pub forward_elsewhere: f64,
    /// The backward passes of blocks, with the forward passes of those that run again.
    pub backward_in_blocks: f64,
    /// The rest of the backward passes.
    pub backward_elsewhere: f64,
}

impl PassFlops {
    /// Returns their sum.
    pub fn all(&self) -> f64 {
        self.forward_in_blocks + self.forward_elsewhere + self.backward_in_blocks + self.backward_elsewhere
    }

    /// Returns an equal part of them.
    pub fn divided_by(self, parts: f64) -> Self {
        Self {
            forward_in_blocks: self.forward_in_blocks / parts,
            forward_elsewhere: self.forward_elsewhere / parts,
            backward_in_blocks: self.backward_in_blocks / parts,
            backward_elsewhere: self.backward_elsewhere / parts,
        }
    }
}

/// The computation in an update.
#[derive(Clone)]
pub(super) struct Work {
    /// What an encoder reads for a decoder; empty if there is a single sequence.
    pub source: Sequences,
    /// What a decoder reads, or the single sequence.
    pub target: Sequences,
    pub attention: Vec<Attention>,
    /// Rows of the longest micro-batch, and their columns that are computed.
    pub longest: [usize; 2],
    /// The micro-batches of an update, over all ranks.
    pub micro_batches: f64,
    /// Tells whether the source, rather than the target, passes through the parameter at a path.
    pub reads_source: Arc<dyn Fn(&str) -> bool>,
}

impl Work {
    /// The computation in an update of `micro_batches` micro-batches, over all ranks, which are like these on average.
    pub fn of(config: &AnyConfig, longest: &Longest, micro_batches: f64) -> Self {
        let read = config.clone();
        let sequences = |tokens: f64| Sequences {
            tokens: tokens * micro_batches,
            length: tokens / longest.mean_rows.max(1.0),
        };
        Self {
            source: sequences(longest.mean_source_tokens),
            target: sequences(longest.mean_tokens - longest.mean_source_tokens),
            attention: config.attention(),
            longest: [longest.rows, longest.columns],
            micro_batches,
            reads_source: Arc::new(move |path| read.reads_source(path)),
        }
    }

    /// Returns the operations of an update: 6 for each parameter and token that passes through it, and 12 x layers x
    /// width x length for each token in attention. A third of either is the forward pass, which is repeated for
    /// recomputed blocks. A frozen parameter has no gradient and counts 4.
    ///
    /// Kaplan et al., *Scaling Laws for Neural Language Models*, 2020 (arXiv:2001.08361), section 2.1; Chowdhery et
    /// al., *PaLM: Scaling Language Modeling with Pathways*, 2022 (arXiv:2204.02311), appendix B.
    pub fn flops(&self, shapes: &[Shape], recomputed: f64) -> f64 {
        self.of_passes(shapes, recomputed, |_| 1.0).all()
    }

    /// Returns the same operations, by pass and place; each parameter's are divided by its `speed`.
    pub fn of_passes(&self, shapes: &[Shape], recomputed: f64, speed: impl Fn(&Shape) -> f64) -> PassFlops {
        let once = |shape: &Shape| {
            2.0 * shape.elements() as f64 * self.sequences(self.is_source(shape)).tokens / speed(shape)
        };
        let sum = |in_block: bool, of: &dyn Fn(&Shape) -> f64| -> f64 {
            shapes.iter().filter(|shape| shape.in_block == in_block).map(of).sum()
        };
        let backward = |shape: &Shape| once(shape) * if shape.is_trained { 2.0 } else { 1.0 };
        let attention = self.attention.iter().map(|attention| {
            let (of, over) = (self.sequences(attention.of_source), self.sequences(attention.over_source));
            4.0 * (attention.layers * attention.width) as f64 * over.length * of.tokens
        });
        let attention: f64 = attention.sum();
        let forward_in_blocks = sum(true, &once) + attention;
        PassFlops {
            forward_in_blocks,
            forward_elsewhere: sum(false, &once),
            backward_in_blocks: sum(true, &backward) + 2.0 * attention + recomputed * forward_in_blocks,
            backward_elsewhere: sum(false, &backward),
        }
    }

    pub fn is_source(&self, shape: &Shape) -> bool {
        (self.reads_source)(&shape.path)
    }

    pub fn sequences(&self, is_source: bool) -> Sequences {
        if is_source { self.source } else { self.target }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use firebrick_models::T5Config;
    use firebrick_models::family::Family;

    #[test]
    fn the_operations_of_a_model_by_hand() {
        let shape = |elements, in_block| Shape {
            path: String::new(),
            shape: vec![elements],
            divided: None,
            in_block,
            in_last_block: false,
            computes_logits: false,
            at_own_positions: false,
            is_factor: false,
            is_trained: true,
            learns_in_product: true,
            packing: None,
        };
        let shapes = [shape(100, true), shape(10, false)];
        let work = Work {
            source: Sequences { tokens: 0.0, length: 0.0 },
            target: Sequences { tokens: 2.0, length: 3.0 },
            longest: [1, 3],
            attention: vec![Attention {
                layers: 4,
                width: 5,
                key_width: 5,
                of_source: false,
                over_source: false,
            }],
            micro_batches: 1.0,
            reads_source: Arc::new(|_| false),
        };
        let flops = |again: f64| work.flops(&shapes, again);
        let plain = 2.0 * (6.0 * 110.0 + 12.0 * 4.0 * 5.0 * 3.0);
        assert_eq!(flops(0.0), plain);
        let again = 2.0 * (2.0 * 100.0 + 4.0 * 4.0 * 5.0 * 3.0);
        assert_eq!(flops(1.0), plain + again);
        assert_eq!(flops(0.5), plain + again / 2.0);
        let expected = PassFlops {
            forward_in_blocks: again,
            forward_elsewhere: 2.0 * 2.0 * 10.0,
            backward_in_blocks: 3.0 * again,
            backward_elsewhere: 2.0 * 4.0 * 10.0,
        };
        assert_eq!(work.of_passes(&shapes, 1.0, |_| 1.0), expected);
        let faster = work.of_passes(&shapes, 0.0, |shape| if shape.in_block { 2.0 } else { 1.0 });
        assert_eq!(faster.all(), plain - 6.0 * 100.0);
        let shapes = [shape(100, true), Shape { is_trained: false, ..shape(10, false) }];
        assert_eq!(work.flops(&shapes, 0.0), plain - 2.0 * 2.0 * 10.0);
    }

    /// An encoder of 10 parameters reads 2 rows of 7 tokens; a decoder of 100 parameters writes 2 rows of 3 tokens and
    /// attends to the source.
    #[test]
    fn each_token_is_counted_where_it_goes() {
        let shape = |path: &str, elements| Shape {
            path: path.into(),
            shape: vec![elements],
            divided: None,
            in_block: true,
            in_last_block: false,
            computes_logits: false,
            at_own_positions: false,
            is_factor: false,
            is_trained: true,
            learns_in_product: true,
            packing: None,
        };
        let attention =
            |of_source, over_source| Attention { layers: 1, width: 5, key_width: 5, of_source, over_source };
        let work = Work {
            source: Sequences { tokens: 14.0, length: 7.0 },
            target: Sequences { tokens: 6.0, length: 3.0 },
            longest: [2, 10],
            attention: vec![attention(true, true), attention(false, false), attention(false, true)],
            micro_batches: 1.0,
            reads_source: Arc::new(|path| T5Config::default().reads_source(path)),
        };
        let shapes = [
            shape("encoder.blocks.0.attention.query.weight", 10),
            shape("decoder.blocks.0.attention.key.weight", 70),
            shape("decoder.blocks.0.source.query.weight", 28),
            shape("decoder.blocks.0.source.key.weight.lora.a", 1),
            shape("decoder.blocks.0.source.value.weight", 1),
            shape("tokens.weight", 2),
        ];
        let found = work.flops(&shapes, 0.0);
        let parameters = 12.0 * 14.0 + 100.0 * 6.0;
        let attention = 5.0 * (7.0 * 14.0 + 3.0 * 6.0 + 7.0 * 6.0);
        assert_eq!(found, 6.0 * parameters + 12.0 * attention);
    }
}
