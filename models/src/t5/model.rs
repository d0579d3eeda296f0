//! The encoder and the decoder.

use burn::module::Module;
use burn::nn::EmbeddingConfig;
use burn::tensor::{Device, Int, Tensor};
use firebrick_kernels::Reads;
use firebrick_strategies::{Dropout, Pass, TensorPlan};

use super::block::{DecoderBlock, EncoderBlock, RelativeBias};
use super::{T5Config, keys};
use crate::RmsNorm;
use crate::causal::PlacedTokens;
use crate::encoder_decoder::{Decodes, Encoded, EncoderDecoder, Encodes, Source, of_source};
use crate::key_value::{KeyValue, PastSource};
use crate::pretrained::{KeyMap, Pretrained};

/// T5 (Raffel et al., 2020, arXiv:1910.10683): pre-norm, relative positions: `T5ForConditionalGeneration`, and
/// `MT5ForConditionalGeneration` (Xue et al., 2021, arXiv:2010.11934).
///
/// Its activations grow beyond f16: compute in bf16 or f32.
///
/// ```
/// use burn::tensor::Device;
/// use firebrick_models::{T5, T5Config};
/// use firebrick_models::pretrained::{Folder, Pretrained, save};
///
/// let config = T5Config { vocab_size: 30, d_model: 16, d_kv: 4, d_ff: 32, num_layers: 1, num_heads: 4, ..Default::default() };
/// let model = T5::init(&config, &Device::flex());
///
/// let folder = tempfile::tempdir()?;
/// save(&model, &config, folder.path())?;
/// let loaded = Folder::open(folder.path())?.load::<T5>(&config, &Device::flex())?;
/// assert!(loaded.unread.is_empty());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub type T5 = EncoderDecoder<Encoder, Decoder>;

impl T5 {
    /// Computes the logits of the token after each of `ids`, `[batch, length]`. `reads` are the ids that each id reads,
    /// with 1 row for all rows alike, or `batch`. `pass` must know [where rows start](Pass::starting_at) if they are padded at the left.
    ///
    /// # Panics
    ///
    /// If there is no token, or an id is not in the vocabulary.
    pub fn decode(&self, ids: Tensor<2, Int>, reads: Reads, source: Encoded, pass: &Pass) -> Tensor<3> {
        // Positions have no part in it.
        let read = PlacedTokens { places: ids.clone(), ids, reads, sample_lengths: None };
        self.logits(read, source, pass)
    }
}

impl Pretrained for T5 {
    type Config = T5Config;

    fn architecture(config: &T5Config) -> &'static str {
        match config.is_multilingual() {
            true => "MT5ForConditionalGeneration",
            false => "T5ForConditionalGeneration",
        }
    }

    /// # Panics
    ///
    /// If the configuration's check would fail.
    fn init(config: &T5Config, device: &Device) -> Self {
        let embedding = EmbeddingConfig::new(config.vocab_size, config.d_model);
        let head = || config.linear([config.d_model, config.vocab_size], 1, device);
        Self {
            tokens: embedding.with_initializer(config.normal(1)).init(device),
            encoder: Encoder {
                bias: RelativeBias::new(config, true, device),
                blocks: (0..config.num_layers).map(|_| EncoderBlock::new(config, device)).collect(),
                norm: config.norm(device),
                dropout: Dropout::new(config.dropout_rate),
            },
            decoder: Decoder {
                bias: RelativeBias::new(config, false, device),
                blocks: (0..config.decoder_layers()).map(|_| DecoderBlock::new(config, device)).collect(),
                norm: config.norm(device),
                dropout: Dropout::new(config.dropout_rate),
            },
            head: (!config.tie_word_embeddings).then(head),
            final_logits_bias: None,
            scale: 1.0,
            divisor: if config.is_scaled() { (config.d_model as f64).sqrt() } else { 1.0 },
            scoring: None,
        }
    }

    fn keys(config: &T5Config) -> KeyMap {
        keys::conditional_generation(config)
    }
}

/// The encoder: blocks with one bias of positions.
#[derive(Module, Debug)]
pub struct Encoder {
    bias: RelativeBias,
    blocks: Vec<EncoderBlock>,
    norm: RmsNorm,
    dropout: Dropout,
}

impl Encodes for Encoder {
    fn forward(&self, x: Tensor<3>, _: Tensor<2, Int>, reads: Reads, pass: &Pass) -> Tensor<3> {
        let bias = self.bias.forward(reads.longest()[1], &x.device());
        let (x, within) = pass.divide_sequence(x);
        let x = self.dropout.forward(x, &within);
        let x = self.blocks.iter().fold(x, |x, block| {
            let run =
                |block: &EncoderBlock, (x, bias, reads), pass: &Pass| block.forward(x, bias, reads, pass);
            within.segment(block, (x, bias.clone(), reads.clone()), run)
        });
        let x = within.at_own_positions(&self.norm).forward(x);
        within.join_sequence(self.dropout.forward(x, &within))
    }

    fn tensor_plan(&self, path: &str) -> TensorPlan {
        let plan = self.bias.tensor_plan(&format!("{path}.bias"));
        let block = self.blocks.first();
        let plan = plan.at_own_positions(format!("{path}.norm"));
        plan.and(block.map_or_else(TensorPlan::new, |block| block.tensor_plan(&format!("{path}.blocks.*"))))
    }
}

/// The decoder: blocks with one bias of positions.
#[derive(Module, Debug)]
pub struct Decoder {
    bias: RelativeBias,
    blocks: Vec<DecoderBlock>,
    norm: RmsNorm,
    dropout: Dropout,
}

impl Decodes for Decoder {
    fn forward(
        &self,
        x: Tensor<3>,
        _: Tensor<2, Int>,
        reads: Reads,
        source: Source,
        pass: &Pass,
    ) -> Tensor<3> {
        let bias = self.bias.forward(reads.longest()[1], &x.device());
        let (x, within) = pass.divide_sequence(x);
        let x = self.dropout.forward(x, &within);
        let x = self.blocks.iter().fold(x, |x, block| {
            let samples = source.samples.clone();
            let run = move |block: &DecoderBlock, (x, bias, reads, source), pass: &Pass| {
                block.forward(x, bias, reads, source, &samples, pass)
            };
            let read = (source.states.clone(), source.reads.clone());
            within.segment(block, (x, bias.clone(), reads.clone(), read), run)
        });
        let x = within.at_own_positions(&self.norm).forward(x);
        within.join_sequence(self.dropout.forward(x, &within))
    }

    fn of_source(&self, source: Encoded, pass: &Pass) -> PastSource {
        of_source(&self.blocks, source, pass, DecoderBlock::of_source)
    }

    fn read_on(
        &self,
        x: Tensor<3>,
        _: Tensor<2, Int>,
        reads: Reads,
        source: &PastSource,
        past: Vec<KeyValue>,
        pass: &Pass,
    ) -> (Tensor<3>, Vec<KeyValue>) {
        let [_, length, columns] = reads.shape();
        let source_reads = source.real.read_by(length);
        let bias = self.bias.forward(columns, &x.device()).narrow(2, columns - length, length);
        let mut past = past.into_iter();
        let (mut x, mut own) = (self.dropout.forward(x, pass), Vec::new());
        for (block, of_source) in self.blocks.iter().zip(&source.blocks) {
            let past = past.next();
            let source = (of_source.clone(), source_reads.clone());
            let run = |block: &DecoderBlock, (x, past, bias, reads, source), pass: &Pass| {
                block.read_on(x, past, bias, reads, source, pass)
            };
            let (read, kept) = pass.segment(block, (x, past, bias.clone(), reads.clone(), source), run);
            x = read;
            own.push(kept);
        }
        (self.dropout.forward(self.norm.forward(x), pass), own)
    }

    fn positions(&self) -> Option<usize> {
        None
    }

    fn tensor_plan(&self, path: &str) -> TensorPlan {
        let plan = self.bias.tensor_plan(&format!("{path}.bias"));
        let block = self.blocks.first();
        let plan = plan.at_own_positions(format!("{path}.norm"));
        plan.and(block.map_or_else(TensorPlan::new, |block| block.tensor_plan(&format!("{path}.blocks.*"))))
    }
}
