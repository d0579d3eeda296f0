//! ModernBERT's encoder: embeddings and blocks.

use burn::module::Module;
use burn::nn::{Embedding, EmbeddingConfig};
use burn::tensor::{Device, Tensor};
use firebrick_datasets::collators::Inputs;
use firebrick_kernels::{Reads, add, cast};
use firebrick_strategies::{Dropout, Pass, TensorPlan};

use super::ModernBertConfig;
use super::positions::Places;
use crate::attention::{attend, join_heads, scale_of, split_heads, starts_of};
use crate::heads::Encoder;
use crate::ragged::Tokens;
use crate::rope::{Angles, rotated};
use crate::vocabulary::{embedded_tokens, vocabulary_plan};
use crate::{Activation, Linear, Norm};

/// ModernBERT (Warner et al., 2024, arXiv:2412.13663): pre-norm, rotated positions, gated feed-forward layers, and
/// blocks in which a token attends to the tokens around it, between blocks in which it attends to all.
#[derive(Module, Debug)]
pub struct ModernBert {
    tokens: Embedding,
    embedding_norm: Norm,
    dropout: Dropout,
    blocks: Vec<Block>,
    norm: Norm,
    #[module(skip)]
    places: Places,
}

impl ModernBert {
    /// Maps tokens `[batch, length]` to hidden states `[batch, length, hidden_size]`, in the dtype of the pass.
    ///
    /// # Panics
    ///
    /// If there is no token, or an id is out of range.
    pub fn forward(&self, inputs: &Inputs, pass: &Pass) -> Tensor<3> {
        self.hidden(inputs, &Tokens::padded(inputs), pass)
    }
}

impl Encoder for ModernBert {
    type Config = ModernBertConfig;

    fn new(config: &ModernBertConfig, device: &Device) -> Self {
        let tokens = EmbeddingConfig::new(config.vocab_size, config.hidden_size);
        Self {
            tokens: tokens.with_initializer(config.normal()).init(device),
            embedding_norm: config.norm(device),
            dropout: Dropout::new(config.embedding_dropout),
            blocks: (0..config.num_hidden_layers).map(|at| Block::new(config, at == 0, device)).collect(),
            norm: config.norm(device),
            places: config.places().unwrap_or_else(|error| panic!("{error}")),
        }
    }

    fn hidden(&self, inputs: &Inputs, tokens: &Tokens, pass: &Pass) -> Tensor<3> {
        let [rows, length] = inputs.shape();
        let pass = &tokens.pass(pass, || starts_of(inputs.host_mask(), length));
        let device = pass.device();
        let columns: Vec<i32> = (0..rows).flat_map(|_| 0..length as i32).collect();
        let columns = tokens.ints(&columns, device);
        let all = tokens.read_whole_rows();
        let lengths = || all.sample_lengths();
        let angles = self.places.ropes.each_ref().map(|rope| rope.angles(columns.clone(), lengths, device));
        let around = all.around(self.places.distance);
        let x =
            cast(embedded_tokens(&self.tokens, tokens.ints(inputs.host_ids(), device), pass), pass.dtype());
        let (x, within) = pass.divide_sequence(x);
        let x = self.dropout.forward(within.at_own_positions(&self.embedding_norm).forward(x), &within);
        let x = self.blocks.iter().zip(&self.places.windowed).fold(x, |x, (block, windowed)| {
            let [full, sliding] = &angles;
            let (angles, reads) = if *windowed { (sliding, &around) } else { (full, &all) };
            let run = |block: &Block, (x, angles, reads), pass: &Pass| block.forward(x, angles, &reads, pass);
            within.segment(block, (x, angles.clone(), reads.clone()), run)
        });
        within.join_sequence(within.at_own_positions(&self.norm).forward(x))
    }

    fn tensor_plan(&self) -> TensorPlan {
        let Some(block) = self.blocks.first() else { return TensorPlan::new() };
        let plan = vocabulary_plan(block.tensor_plan("*blocks.*"), self.tokens(), false);
        plan.at_own_positions("*embedding_norm").at_own_positions("encoder.norm")
    }

    fn tokens(&self) -> &Embedding {
        &self.tokens
    }
}

/// Attention and a gated feed-forward layer (Shazeer, 2020, arXiv:2002.05202), each applied to a normalised copy of
/// its input and added to that input.
#[derive(Module, Debug)]
struct Block {
    /// `None` in the first block, whose input is normalised already.
    attention_norm: Option<Norm>,
    query_key_value: Linear,
    output: Linear,
    feed_forward_norm: Norm,
    /// To the gate, and to what it multiplies after it.
    widen: Linear,
    narrow: Linear,
    weight_dropout: Dropout,
    attention_dropout: Dropout,
    feed_forward_dropout: Dropout,
    heads: usize,
    #[module(skip)]
    activation: Activation,
}

impl Block {
    fn new(config: &ModernBertConfig, is_first: bool, device: &Device) -> Self {
        let (width, inner) = (config.hidden_size, config.intermediate_size);
        Self {
            attention_norm: (!is_first).then(|| config.norm(device)),
            query_key_value: config.linear(3 * width, config.attention_bias, device),
            output: config.ending(width, config.attention_bias, device),
            feed_forward_norm: config.norm(device),
            widen: config.linear(2 * inner, config.mlp_bias, device),
            narrow: config.ending(inner, config.mlp_bias, device),
            weight_dropout: Dropout::new(config.attention_dropout),
            attention_dropout: Dropout::new(config.attention_dropout),
            feed_forward_dropout: Dropout::new(config.mlp_dropout),
            heads: config.num_attention_heads,
            activation: config.hidden_activation,
        }
    }

    /// The layers that ranks may divide, of blocks at this path.
    fn tensor_plan(&self, path: &str) -> TensorPlan {
        let (heads, inner) = (self.heads, self.widen.outputs() / 2);
        let of = |name: &str| format!("{path}.{name}");
        let plan = TensorPlan::new().columns(of("query_key_value"), [heads; 3]).rows(of("output"), heads);
        plan.columns(of("widen"), [inner; 2]).rows(of("narrow"), inner)
    }

    /// `[batch, length, hidden_size]` to the same shape; `angles` are the rotations of the positions.
    fn forward(&self, x: Tensor<3>, angles: Angles, reads: &Reads, pass: &Pass) -> Tensor<3> {
        let (x, normed) = match &self.attention_norm {
            Some(norm) => norm.with_input(x),
            None => (x.clone(), x),
        };
        let joint = self.query_key_value.forward(pass.before_columns(normed), pass);
        let (width, heads) = (joint.dims()[2] / 3, pass.share_of(self.heads));
        let [query, key, value] =
            [0, 1, 2].map(|part| split_heads(joint.clone().narrow(2, part * width, width), heads));
        let (query, key) = (rotated(query, angles.clone()), rotated(key, angles));
        let scale = scale_of(query.dims()[3]);
        let mixed = attend([query, key, value], None, scale, reads, &self.weight_dropout, pass);
        let attended =
            self.attention_dropout.forward(self.output.forward_rows(join_heads(mixed), pass), pass);
        let (x, normed) = self.feed_forward_norm.of_sum(x, attended);
        let joint = self.widen.forward(pass.before_columns(normed), pass);
        let inner = joint.dims()[2] / 2;
        let (gate, up) = (joint.clone().narrow(2, 0, inner), joint.narrow(2, inner, inner));
        let hidden =
            self.feed_forward_dropout.forward(self.activation.gated(gate, up), &pass.of_share(inner));
        pass.end_of_segment(|| add(x, self.narrow.forward_rows(hidden, pass)))
    }
}
