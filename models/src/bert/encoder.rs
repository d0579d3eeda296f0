//! BERT's encoder: embeddings and blocks.

use burn::module::Module;
use burn::nn::{Embedding, EmbeddingConfig};
use burn::tensor::{Device, Tensor};
use firebrick_datasets::collators::Inputs;
use firebrick_kernels::{Reads, cast};
use firebrick_strategies::{Dropout, Pass, TensorPlan};

use super::BertConfig;
use super::deberta::Deberta;
use super::disentangled::{Apart, Convolution, Disentangled, Distances};
use super::kind::BertLine;
use crate::attention::{attend, join_heads, scale_of, split_heads, starts_of};
use crate::heads::Encoder;
use crate::ragged::Tokens;
use crate::vocabulary::{embedded, embedded_sum, embedded_tokens, vocabulary_plan};
use crate::{Activation, Linear, Norm};

/// BERT (Devlin et al., 2019, arXiv:1810.04805): post-norm, learned positions; and RoBERTa (Liu et al., 2019,
/// arXiv:1907.11692), whose positions begin after the padding token's id; DistilBERT (Sanh et al., 2019,
/// arXiv:1910.01108), which has no segments; ELECTRA (Clark et al., 2020, arXiv:2003.10555), whose embeddings may be
/// narrower than its hidden state; and DeBERTa (He et al., 2021, arXiv:2006.03654, and arXiv:2111.09543), whose attention
/// reads distances.
///
/// Each token attends to all real tokens of its row. As in transformers, BERT's positions are columns, so padding a
/// row at the left shifts its positions.
///
/// In training, transformers also applies dropout to a DeBERTa's embeddings of distances, with one mask for a whole batch.
/// This model does not, because its masks depend on the sample alone and not on how a batch is cut.
#[derive(Module, Debug)]
pub struct Bert {
    embeddings: Embeddings,
    /// From embeddings to hidden states, if an ELECTRA's sizes differ.
    project: Option<Linear>,
    /// The distances that all blocks of a DeBERTa read.
    distances: Option<Distances>,
    /// Beside the first block of a DeBERTa.
    convolution: Option<Convolution>,
    blocks: Vec<Block>,
}

impl Bert {
    /// Maps tokens `[batch, length]` to hidden states `[batch, length, hidden_size]`, in the dtype of the pass.
    ///
    /// # Panics
    ///
    /// If there is no token, `length` exceeds the configuration's [`max_length`](BertConfig::max_length), or an id or
    /// segment is out of range.
    pub fn forward(&self, inputs: &Inputs, pass: &Pass) -> Tensor<3> {
        self.hidden(inputs, &Tokens::padded(inputs), pass)
    }
}

impl Encoder for Bert {
    type Config = BertConfig;

    fn new(config: &BertConfig, device: &Device) -> Self {
        let (narrow, wide) = (config.embedding_width(), config.hidden_size);
        let deberta = config.deberta().unwrap_or_else(|error| panic!("{error}"));
        let deberta = deberta.as_ref();
        let relative = deberta.and_then(|deberta| deberta.relative.as_ref());
        Self {
            embeddings: Embeddings::new(config, deberta.is_none_or(|deberta| deberta.is_absolute), device),
            project: (narrow != wide).then(|| config.linear(narrow, wide, device)),
            distances: relative.map(|relative| Distances::new(config, relative.clone(), device)),
            convolution: deberta
                .and_then(|deberta| deberta.convolved.as_ref())
                .map(|convolved| Convolution::new(config, convolved, device)),
            blocks: (0..config.num_hidden_layers).map(|_| Block::new(config, deberta, device)).collect(),
        }
    }

    /// The tokens of this rank, where ranks share those of a batch. A DeBERTa reads distances between all of them, and so
    /// computes all.
    fn shared(&self, inputs: &Inputs, pass: &Pass) -> Tokens {
        match self.distances.is_none() && self.convolution.is_none() {
            true => Tokens::shared(inputs, pass),
            false => Tokens::of(inputs, pass),
        }
    }

    fn hidden(&self, inputs: &Inputs, tokens: &Tokens, pass: &Pass) -> Tensor<3> {
        let pass = &tokens.pass(pass, || starts_of(inputs.host_mask(), inputs.shape()[1]));
        let reads = tokens.read_whole_rows();
        let (x, within) = pass.divide_sequence(self.embeddings.sum(inputs, tokens, pass));
        let x = within.at_own_positions(&self.embeddings.norm).forward(x);
        let x = self.embeddings.dropout.forward(x, &within);
        let x = match &self.project {
            Some(project) => within.at_own_positions(project).forward(x, &within),
            None => x,
        };
        let apart = self.distances.as_ref().map(|distances| distances.of(tokens, reads.longest()[0], pass));
        let mut convolution = self.convolution.as_ref();
        let x = self.blocks.iter().fold(x, |x, block| {
            let run = |block: &Block, (x, apart, reads), pass: &Pass| block.forward(x, apart, &reads, pass);
            let states = within.segment(block, (x.clone(), apart.clone(), reads.clone()), run);
            match convolution.take() {
                Some(first) => first.forward(x, states, tokens, pass),
                None => states,
            }
        });
        within.join_sequence(x)
    }

    /// The layers that ranks may divide. A DeBERTa has none, since its heads read distances too.
    fn tensor_plan(&self) -> TensorPlan {
        let is_plain = self.distances.is_none() && self.convolution.is_none();
        let Some(block) = self.blocks.first().filter(|_| is_plain) else { return TensorPlan::new() };
        let plan = vocabulary_plan(block.tensor_plan("*blocks.*"), self.tokens(), false);
        let plan = plan.at_own_positions("*embeddings.norm");
        if self.project.is_some() { plan.at_own_positions("*project") } else { plan }
    }

    fn tokens(&self) -> &Embedding {
        &self.embeddings.tokens
    }
}

/// The sum of the token, position and segment embeddings.
#[derive(Module, Debug)]
struct Embeddings {
    tokens: Embedding,
    positions: Option<Embedding>,
    segments: Option<Embedding>,
    norm: Norm,
    dropout: Dropout,
    /// The padding token's id, if positions start after it.
    before: Option<usize>,
}

impl Embeddings {
    fn new(config: &BertConfig, is_absolute: bool, device: &Device) -> Self {
        let embedding = |rows| {
            let embedding = EmbeddingConfig::new(rows, config.embedding_width());
            embedding.with_initializer(config.normal()).init(device)
        };
        Self {
            tokens: embedding(config.vocab_size),
            positions: is_absolute.then(|| embedding(config.max_position_embeddings)),
            segments: (config.segments() > 0).then(|| embedding(config.segments())),
            norm: config.norm(config.embedding_width(), device),
            dropout: Dropout::new(config.hidden_dropout_prob),
            before: (config.kind() == BertLine::Roberta).then(|| config.pad()),
        }
    }

    /// The sum of the embeddings of some tokens, `[batch, length, embedding size]` of their shape.
    fn sum(&self, inputs: &Inputs, tokens: &Tokens, pass: &Pass) -> Tensor<3> {
        let device = pass.device();
        let ids = tokens.ints(inputs.host_ids(), device);
        let of = |embedding: &Embedding, ids| cast(embedded(embedding, ids), pass.dtype());
        let mut x = match &self.segments {
            None => cast(embedded_tokens(&self.tokens, ids, pass), pass.dtype()),
            Some(table) => {
                let segments = tokens.ints(inputs.host_type_ids(), device);
                let one_segment = table.weight.dims()[0] == 1;
                let segments = if one_segment { segments.zeros_like() } else { segments };
                embedded_sum([(&self.tokens, ids), (table, segments)], pass)
            }
        };
        if let Some(table) = &self.positions {
            x = x + of(table, tokens.ints(&self.places(inputs), device));
        }
        x
    }

    /// The row of the position embedding for each token of a batch, row by row.
    fn places(&self, inputs: &Inputs) -> Vec<i32> {
        let [_, length] = inputs.shape();
        let rows = inputs.host_ids().chunks(length.max(1));
        match self.before {
            None => rows.flat_map(|row| 0..row.len() as i32).collect(),
            // Number the real tokens consecutively, wherever they stand; padding gets its own id.
            Some(pad) => {
                let pad = pad as i32;
                let mut all = Vec::with_capacity(inputs.host_ids().len());
                for row in rows {
                    let mut last = pad;
                    for id in row {
                        last += i32::from(*id != pad);
                        all.push(if *id == pad { pad } else { last });
                    }
                }
                all
            }
        }
    }
}

/// Attention and a feed-forward layer, each added to its input and then normalised.
#[derive(Module, Debug)]
struct Block {
    query: Linear,
    key: Linear,
    value: Linear,
    /// Of a DeBERTa.
    disentangled: Option<Disentangled>,
    output: Linear,
    attention_norm: Norm,
    widen: Linear,
    narrow: Linear,
    feed_forward_norm: Norm,
    weight_dropout: Dropout,
    dropout: Dropout,
    heads: usize,
    /// The factor of attention's scores.
    scale: f64,
    #[module(skip)]
    activation: Activation,
}

impl Block {
    fn new(config: &BertConfig, deberta: Option<&Deberta>, device: &Device) -> Self {
        let (width, heads) = (config.hidden_size, config.num_attention_heads);
        let square = || config.linear(width, width, device);
        let relative = deberta.and_then(|deberta| deberta.relative.as_ref());
        Self {
            query: square(),
            key: square(),
            value: square(),
            disentangled: relative.map(|relative| Disentangled::new(config, relative.clone(), device)),
            output: square(),
            attention_norm: config.norm(width, device),
            widen: config.linear(width, config.intermediate_size, device),
            narrow: config.linear(config.intermediate_size, width, device),
            feed_forward_norm: config.norm(width, device),
            weight_dropout: Dropout::new(config.attention_probs_dropout_prob),
            dropout: Dropout::new(config.hidden_dropout_prob),
            heads,
            scale: scale_of(width / heads * deberta.map_or(1, |deberta| deberta.products)),
            activation: config.hidden_act,
        }
    }

    /// The layers that ranks may divide, of blocks at this path.
    fn tensor_plan(&self, path: &str) -> TensorPlan {
        let (heads, inner) = (self.heads, self.widen.outputs());
        let of = |name: &str| format!("{path}.{name}");
        let plan = TensorPlan::new().columns(of("query"), [heads]).columns(of("key"), [heads]);
        let plan = plan.columns(of("value"), [heads]).rows(of("output"), heads);
        plan.columns(of("widen"), [inner]).rows(of("narrow"), inner)
    }

    /// `[batch, length, hidden_size]` to the same shape.
    fn forward(&self, x: Tensor<3>, apart: Option<Apart>, reads: &Reads, pass: &Pass) -> Tensor<3> {
        let read = pass.before_columns(x.clone());
        let [query, key, value] =
            [&self.query, &self.key, &self.value].map(|part| part.forward(read.clone(), pass));
        let bias = self.disentangled.as_ref().zip(apart).and_then(|(disentangled, apart)| {
            let contents = [query.clone(), key.clone()];
            disentangled.bias(contents, [&self.query, &self.key], apart, self.scale)
        });
        let parts = [query, key, value].map(|part| split_heads(part, pass.share_of(self.heads)));
        let mixed = attend(parts, bias, self.scale, reads, &self.weight_dropout, pass);
        let attended = self.dropout.forward(self.output.forward_rows(join_heads(mixed), pass), pass);
        let x = self.attention_norm.of_sum(x, attended).1;
        let hidden = self.activation.forward(self.widen.forward(pass.before_columns(x.clone()), pass));
        let fed = self.dropout.forward(self.narrow.forward_rows(hidden, pass), pass);
        self.feed_forward_norm.of_sum(x, fed).1
    }
}
