//! Loading models from Hugging Face folders, and saving them.
//!
//! ```no_run
//! use burn::tensor::Device;
//! use firebrick_models::{BertConfig, BertTokenClassifier};
//! use firebrick_models::pretrained::{Folder, save};
//!
//! let folder = Folder::open("all-MiniLM-L6-v2")?;
//! let config = folder.config::<BertConfig>()?.with_labels(["O", "B-PER", "I-PER"]);
//! let loaded = folder.load::<BertTokenClassifier>(&config, &Device::flex().autodiff())?;
//! assert_eq!(loaded.fresh, ["classifier.bias", "classifier.weight"]); // of the new task
//! // .. train loaded.model ..
//! save(&loaded.model, &config, "out")?;
//! # Ok::<(), firebrick_models::pretrained::PretrainedError>(())
//! ```
//!
//! # Families and heads
//!
//! | `model_type` | Configuration | Model | As in transformers | Learns from |
//! |---|---|---|---|---|
//! | `bert`, `roberta`, `xlm-roberta`, `camembert`, `distilbert`, `electra`, `deberta-v2` | [`BertConfig`](super::BertConfig) | [`BertTokenClassifier`](super::BertTokenClassifier) | `BertForTokenClassification` | [`LabeledBatch`](firebrick_datasets::collators::LabeledBatch) |
//! | | | [`BertSequenceClassifier`](super::BertSequenceClassifier) | `BertForSequenceClassification` | [`SequenceBatch`](firebrick_datasets::collators::SequenceBatch) |
//! | | | [`BertMaskedLm`](super::BertMaskedLm) | `BertForMaskedLM` | [`LabeledBatch`](firebrick_datasets::collators::LabeledBatch) |
//! | `modernbert` | [`ModernBertConfig`](super::ModernBertConfig) | [`ModernBertTokenClassifier`](super::ModernBertTokenClassifier) | `ModernBertForTokenClassification` | [`LabeledBatch`](firebrick_datasets::collators::LabeledBatch) |
//! | | | [`ModernBertSequenceClassifier`](super::ModernBertSequenceClassifier) | `ModernBertForSequenceClassification` | [`SequenceBatch`](firebrick_datasets::collators::SequenceBatch) |
//! | | | [`ModernBertMaskedLm`](super::ModernBertMaskedLm) | `ModernBertForMaskedLM` | [`LabeledBatch`](firebrick_datasets::collators::LabeledBatch) |
//! | `gpt2` | [`Gpt2Config`](super::Gpt2Config) | [`Gpt`](super::Gpt) | `GPT2LMHeadModel` | [`TokenBatch`](firebrick_datasets::TokenBatch) |
//! | `llama`, `mistral`, `qwen2`, `qwen3`, `phi3`, `gemma2`, `gemma3_text` | [`LlamaConfig`](super::LlamaConfig) | [`Llama`](super::Llama) | `LlamaForCausalLM`, `MistralForCausalLM`, `Qwen2ForCausalLM`, `Qwen3ForCausalLM`, `Phi3ForCausalLM`, `Gemma2ForCausalLM`, `Gemma3ForCausalLM` | [`TokenBatch`](firebrick_datasets::TokenBatch) |
//! | `bart` | [`BartConfig`](super::BartConfig) | [`Bart`](super::Bart) | `BartForConditionalGeneration` | [`Seq2SeqBatch`](firebrick_datasets::collators::Seq2SeqBatch) |
//! | `t5`, `mt5` | [`T5Config`](super::T5Config) | [`T5`](super::T5) | `T5ForConditionalGeneration`, `MT5ForConditionalGeneration` | [`Seq2SeqBatch`](firebrick_datasets::collators::Seq2SeqBatch) |
//!
//! # Fields of `config.json`
//!
//! Absent fields have the defaults of transformers' classes. [`save`] keeps and writes back fields that are not in
//! the table.
//!
//! | Family | Read | Refused |
//! |---|---|---|
//! | BERT | `vocab_size`, `hidden_size`, `num_hidden_layers`, `num_attention_heads`, `intermediate_size`, `hidden_act`, `hidden_dropout_prob`, `attention_probs_dropout_prob`, `classifier_dropout`, `max_position_embeddings`, `type_vocab_size`, `initializer_range`, `layer_norm_eps`, `pad_token_id`, `id2label`, `num_labels`, `problem_type`; of ELECTRA too, with `embedding_size`; of DistilBERT under its own names, `dim`, `n_layers`, `n_heads`, `hidden_dim`, `activation`, `dropout`, `attention_dropout`, `seq_classif_dropout`, and without segments; of DeBERTa also `relative_attention`, `pos_att_type`, `position_buckets`, `max_relative_positions`, `share_att_key`, `norm_rel_ebd`, `position_biased_input`, `pooler_dropout`, `pooler_hidden_act`, `cls_dropout`, `legacy` | of DeBERTa a `conv_kernel_size` above 0, and an `embedding_size`, `pooler_hidden_size` or `attention_head_size` that differs from what `hidden_size` says; `position_embedding_type` other than `absolute`; `is_decoder`; a masked LM with `tie_word_embeddings: false` |
//! | ModernBERT | `vocab_size`, `hidden_size`, `num_hidden_layers`, `num_attention_heads`, `intermediate_size`, `hidden_activation`, `initializer_range`, `norm_eps`, `norm_bias`, `attention_bias`, `mlp_bias`, `attention_dropout`, `embedding_dropout`, `mlp_dropout`, `local_attention`, `layer_types` or `global_attn_every_n_layers`, `rope_parameters` or `global_rope_theta`, `local_rope_theta` and `rope_scaling`, `decoder_bias`, `classifier_pooling`, `classifier_dropout`, `classifier_bias`, `classifier_activation`, `id2label`, `num_labels`, `problem_type` | a `rope_type` other than `default`, `linear`, `dynamic`, `yarn`, `llama3` and `longrope`; a masked LM with `tie_word_embeddings: false` |
//! | GPT-2 | `vocab_size`, `n_positions`, `n_embd`, `n_layer`, `n_head`, `n_inner`, `activation_function`, `resid_pdrop`, `embd_pdrop`, `attn_pdrop`, `layer_norm_epsilon`, `tie_word_embeddings` | `scale_attn_weights: false`, `scale_attn_by_inverse_layer_idx`, `add_cross_attention` |
//! | Llama | `vocab_size`, `hidden_size`, `intermediate_size`, `num_hidden_layers`, `num_attention_heads`, `num_key_value_heads`, `head_dim`, `hidden_act`, `initializer_range`, `rms_norm_eps`, `rope_theta` with `rope_scaling`, or `rope_parameters`, `attention_bias`, `mlp_bias`, `attention_dropout`, `tie_word_embeddings`; of Mistral `sliding_window`; of Qwen2 and Qwen3 too, with `use_sliding_window`, `max_window_layers`, `layer_types`; of Phi-3 `sliding_window`, `partial_rotary_factor`, `original_max_position_embeddings`; of Gemma `hidden_activation` in place of `hidden_act`, `sliding_window`, `layer_types`, `query_pre_attn_scalar`, `final_logit_softcapping`; of Gemma 2 `attn_logit_softcapping`; of Gemma 3 `sliding_window_pattern`, `rope_local_base_freq` | a `rope_type` other than `default`, `linear`, `dynamic`, `yarn`, `llama3` and `longrope`, of Phi-3 other than `default` and `longrope`; a `partial_rotary_factor` other than 1, except of Phi-3; of Phi-3 `resid_pdrop`, `embd_pdrop`, `attention_bias` and `mlp_bias`; of Gemma `use_bidirectional_attention`, `mlp_bias`, and a `sliding_window` of null; of Gemma 3 `attn_logit_softcapping` |
//! | BART | `vocab_size`, `max_position_embeddings`, `d_model`, `encoder_layers`, `encoder_ffn_dim`, `encoder_attention_heads`, `decoder_layers`, `decoder_ffn_dim`, `decoder_attention_heads`, `activation_function`, `dropout`, `attention_dropout`, `activation_dropout`, `init_std`, `scale_embedding`, `decoder_start_token_id` | an `encoder_layerdrop` or `decoder_layerdrop` above 0, `tie_word_embeddings: false`, a `decoder_start_token_id` beyond the vocabulary, `architectures` other than `BartForConditionalGeneration` and `BartModel` |
//! | T5 | `vocab_size`, `d_model`, `d_kv`, `d_ff`, `num_layers`, `num_decoder_layers`, `num_heads`, `relative_attention_num_buckets`, `relative_attention_max_distance`, `dropout_rate`, `layer_norm_epsilon`, `initializer_factor`, `feed_forward_proj`, and over it `dense_act_fn` and `is_gated_act`; `tie_word_embeddings`, `decoder_start_token_id`, except of mT5 `scale_decoder_outputs` | a `decoder_start_token_id` beyond the vocabulary |
//!
//! Where transformers 4 and 5 spell a setting differently, either spelling is read. If a file has both, the result is that of
//! transformers, as with `rope_scaling` beside `rope_parameters`; values that the two versions read differently are refused,
//! as are different values under two names of one field, such as `n_embd` and `hidden_size` of GPT-2.
//!
//! With `longrope`, rows have at most `original_max_position_embeddings` tokens, whose angles are those of `short_factor`:
//! transformers takes `long_factor` for all rows of a batch once one is longer, and a row's result would depend on the
//! others. With `dynamic`, rows have at most `max_position_embeddings` tokens for the same reason.
//!
//! A text ends at `eos_token_id` of `generation_config.json`, or else of `config.json`; the field holds one token or
//! several. `forced_bos_token_id` is its first token after the decoder's start, and `forced_eos_token_id` the last one of the
//! longest texts; both are read from `config.json` only if there is no `generation_config.json`, as in transformers.
//!
//! # Tensors
//!
//! Weights are read from `model.safetensors`, or from the files of `model.safetensors.index.json`, in f32, f16 or
//! bf16; a model is f32. Names may have the family's prefix (`bert.`, `transformer.`, `model.`) or not, and norms may
//! have TensorFlow's names (`LayerNorm.gamma`). Each tensor must match a parameter and each parameter a tensor;
//! otherwise the error lists all differences by name ([`Unfit`]). Exceptions: a new head may be missing, heads of
//! other tasks are skipped, and a BART's `final_logits_bias` is 0 if it is missing. For a tokenizer with more tokens than
//! the folder's model, [`Folder::growing`] adds rows to the embeddings and the head.
//!
//! ```text
//! folder.rs    config.json, and the tensors of one file or several
//! fields.rs    fields of config.json that have several names, or whose defaults depend on the model type
//! key_map.rs   the names of parameters in files
//! load.rs      tensors into parameters
//! growth.rs    rows of tokens that a folder lacks
//! save.rs      parameters into tensors
//! error.rs     errors of reading and writing a folder
//! ```

mod adapters;
mod error;
mod fields;
mod folder;
mod growth;
mod key_map;
mod load;
mod save;

use burn::module::Module;
use burn::tensor::Device;
use serde::Serialize;
use serde::de::DeserializeOwned;

pub use adapters::{load_adapters, save_adapters, unsavable_adapter};
pub use error::{PretrainedError, Unfit};
pub(crate) use fields::{one_spelling, with_defaults};
pub use folder::{CONFIG, Folder, ForcedTokens};
pub use key_map::CLASSIFIER;
use key_map::Layout;
pub use key_map::{KeyMap, Part, Row};
pub use load::Loaded;
pub use save::config_text;
pub use save::save;

/// The `config.json` of a family of models.
pub trait HubConfig: Serialize + DeserializeOwned {
    /// The values of `model_type` for this family.
    const MODEL_TYPES: &'static [&'static str];

    /// Rejects a configuration that no model can have.
    ///
    /// # Errors
    ///
    /// [`PretrainedError::Setting`], which names the field.
    fn check(&self) -> Result<(), PretrainedError>;

    /// Determines fields from the weights, such as whether the head is tied.
    ///
    /// # Errors
    ///
    /// A file cannot be read.
    fn settle(&mut self, folder: &Folder) -> Result<(), PretrainedError> {
        let _ = folder;
        Ok(())
    }
}

/// A model in the Hugging Face format. The module's table lists the implementations.
pub trait Pretrained: Module {
    /// The model's configuration.
    type Config: HubConfig;

    /// The name of the transformers class for this model.
    fn architecture(config: &Self::Config) -> &'static str;

    /// Rejects a configuration that this head does not support, beyond the family's own checks.
    ///
    /// # Errors
    ///
    /// [`PretrainedError::Setting`], which names the field.
    fn check(config: &Self::Config) -> Result<(), PretrainedError> {
        config.check()
    }

    /// Creates a model with new weights, drawn when they are first read.
    fn init(config: &Self::Config, device: &Device) -> Self;

    /// The names of the parameters in files.
    fn keys(config: &Self::Config) -> KeyMap;
}

/// The largest size of a dimension: beyond that of any model.
pub const MOST_SIZE: usize = 1 << 24;

/// The largest number of layers: beyond that of any model.
pub(crate) const MOST_LAYERS: usize = 2000;

/// Rejects a size of 0, and sizes beyond those of any model, before allocating memory for them.
pub(super) fn check_sizes(sizes: &[(&'static str, usize)]) -> Result<(), PretrainedError> {
    match sizes.iter().find(|(_, size)| !(1..=MOST_SIZE).contains(size)) {
        Some((field, size)) => Err(PretrainedError::setting(field, format!("1 to {MOST_SIZE}"), size)),
        None => Ok(()),
    }
}

/// Rejects more layers than any model has.
pub(super) fn check_layers(field: &'static str, layers: usize) -> Result<(), PretrainedError> {
    match layers <= MOST_LAYERS {
        true => Ok(()),
        false => Err(PretrainedError::setting(field, format!("at most {MOST_LAYERS}"), layers)),
    }
}

/// Rejects a dropout probability that [`Dropout`](firebrick_strategies::Dropout) rejects.
pub(super) fn check_dropouts(dropouts: &[(&'static str, f64)]) -> Result<(), PretrainedError> {
    match dropouts.iter().find(|(_, dropout)| !(0.0..1.0).contains(dropout)) {
        Some((field, dropout)) => Err(PretrainedError::setting(field, "at least 0 and below 1", dropout)),
        None => Ok(()),
    }
}

/// Rejects the epsilon of a norm with which it divides by the root of a number below 0.
pub(super) fn check_epsilon(field: &'static str, epsilon: f64) -> Result<(), PretrainedError> {
    match (0.0..1.0).contains(&epsilon) {
        true => Ok(()),
        false => Err(PretrainedError::setting(field, "at least 0 and below 1", epsilon)),
    }
}

/// Rejects a number of heads that does not divide the width.
pub(super) fn check_heads(field: &'static str, heads: usize, width: usize) -> Result<(), PretrainedError> {
    match heads > 0 && width.is_multiple_of(heads) {
        true => Ok(()),
        false => Err(PretrainedError::setting(field, format!("a divisor of {width}"), heads)),
    }
}
