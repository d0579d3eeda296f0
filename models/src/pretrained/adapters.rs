//! Low-rank factors in a folder that PEFT reads.

use std::collections::HashSet;
use std::path::Path;

use firebrick::strategies::Paths;
use firebrick::{AdaptedModel, AdapterError, Adapters, TrainError};

use super::Pretrained;

/// Writes `adapter_config.json` and `adapter_model.safetensors` with the names of the model's Hugging Face folder, so
/// that `PeftModel.from_pretrained` loads them onto it, and `AutoPeftModel` with the model. `model` is that of the adapters,
/// merged or not; `base` is its folder, or its name on the Hugging Face Hub.
///
/// A tied parameter is written for each place where the model reads it.
///
/// # Errors
///
/// [`TrainError::File`] if they cannot be written, belong to another model, or [cannot be saved](unsavable_adapter).
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
/// save_adapters(&trained.adapters.unwrap(), (&trained.model, &config), "org/llama", folder.path())?;
/// # let saved = std::fs::read_to_string(folder.path().join("adapter_config.json")).unwrap();
/// # assert!(saved.contains("model.layers.0.self_attn.q_proj"), "{saved}");
/// # assert!(saved.contains(r#""task_type": "CAUSAL_LM""#) && saved.contains("org/llama"), "{saved}");
/// # Ok::<(), TrainError>(())
/// ```
pub fn save_adapters<M: Pretrained>(
    adapters: &Adapters,
    (model, config): (&M, &M::Config),
    base: &str,
    folder: impl AsRef<Path>,
) -> Result<(), TrainError> {
    let keys = M::keys(config);
    let described = AdaptedModel { name_or_path: Some(base.into()), ..described(model, config) };
    adapters.save_named(folder, &described, |path| keys.saved(path))
}

/// Returns [why PEFT cannot hold](Adapters::unsavable) these adapters, if it cannot.
pub fn unsavable_adapter<M: Pretrained>(
    adapters: &Adapters,
    model: &M,
    config: &M::Config,
) -> Option<String> {
    let keys = M::keys(config);
    adapters.unsavable(&described(model, config), |path| keys.saved(path))
}

fn described<M: Pretrained>(model: &M, config: &M::Config) -> AdaptedModel {
    let class = M::architecture(config);
    let paths = Paths::of(model);
    let paths: HashSet<&str> = paths.places().iter().map(|place| &*place.path).collect();
    let mut parameters = M::keys(config).places();
    // The keys name what a family's models may have.
    parameters.retain(|(_, path)| paths.contains(&**path));
    AdaptedModel { name_or_path: None, task_type: task_of(class), class: Some(class.into()), parameters }
}

/// PEFT's name of the task of a class of transformers; `None` for masked language models, for which it has none.
fn task_of(class: &str) -> Option<&'static str> {
    const TASKS: [(&str, &str); 5] = [
        ("ForCausalLM", "CAUSAL_LM"),
        ("LMHeadModel", "CAUSAL_LM"),
        ("ForConditionalGeneration", "SEQ_2_SEQ_LM"),
        ("ForSequenceClassification", "SEQ_CLS"),
        ("ForTokenClassification", "TOKEN_CLS"),
    ];
    TASKS.into_iter().find(|(end, _)| class.ends_with(end)).map(|(_, task)| task)
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
