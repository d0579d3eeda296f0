//! Low-rank factors in a folder that PEFT reads.

use std::path::Path;

use firebrick::{AdapterError, Adapters, TrainError};

use super::Pretrained;

/// Writes `adapter_config.json` and `adapter_model.safetensors` with the names of the model's Hugging Face folder, so
/// that `PeftModel.from_pretrained` loads them onto it.
///
/// # Errors
///
/// [`TrainError::File`] if they cannot be written, or belong to another model.
///
/// ```
/// # use burn::tensor::Device;
/// # use firebrick::{datasets::Windows, optim::AdamW, Data, Lora, Schedule, TrainError, Trainer};
/// # use firebrick_models::{Llama, LlamaConfig, pretrained::{Pretrained, save_adapters}};
/// # let folder = tempfile::tempdir().unwrap();
/// # let data = Data::new(Windows::new((0..99).map(|i| i % 7).collect::<Vec<u32>>(), 8)?);
/// # let config = LlamaConfig {
/// #     vocab_size: 7, hidden_size: 8, intermediate_size: 8, num_hidden_layers: 1, num_attention_heads: 2,
/// #     ..Default::default()
/// # };
/// # let model = Llama::init(&config, &Device::flex().autodiff());
/// let trainer = Trainer::new().with(Lora::rank(2).alpha(4.0)).steps(1);
/// let trained = trainer.fit(model, AdamW::new().init()?, Schedule::constant(1e-3), data)?;
/// save_adapters::<Llama>(&trained.adapters.unwrap(), &config, folder.path())?;
/// # let saved = std::fs::read_to_string(folder.path().join("adapter_config.json")).unwrap();
/// # assert!(saved.contains("model.layers.0.self_attn.q_proj"), "{saved}");
/// # Ok::<(), TrainError>(())
/// ```
pub fn save_adapters<M: Pretrained>(
    adapters: &Adapters,
    config: &M::Config,
    folder: impl AsRef<Path>,
) -> Result<(), TrainError> {
    let keys = M::keys(config);
    adapters.save_named(folder, |path| keys.saved_as(path).map(|(name, swapped)| (name.to_string(), swapped)))
}

/// Reads `adapter_config.json` and `adapter_model.safetensors`, as [`save_adapters`] and PEFT's `save_pretrained` write
/// them, for the model of a Hugging Face folder.
///
/// # Errors
///
/// Those of [`Adapters::load_named`]: also a tensor of another model.
///
/// ```no_run
/// use burn::tensor::Device;
/// use firebrick_models::{Llama, pretrained::{Folder, load_adapters}};
///
/// let folder = Folder::open("llama")?;
/// let config = folder.config()?;
/// let model = folder.load::<Llama>(&config, &Device::flex())?.model;
/// let merged = load_adapters::<Llama>(&config, "llama-adapter")?.merge_into(model)?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn load_adapters<M: Pretrained>(
    config: &M::Config,
    folder: impl AsRef<Path>,
) -> Result<Adapters, AdapterError> {
    let named = M::keys(config).named();
    Adapters::load_named(folder, |name| named.get(name).cloned())
}
