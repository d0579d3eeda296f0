//! Transformers' tokenizer classes, and which of them a folder uses.

use std::path::Path;

use super::{
    TokenizerWarning,
    tokenizer_config::{CONFIG, File},
};
use crate::DataError;

/// The effect of a class.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Makes {
    /// Builds a `BertNormalizer` from `do_lower_case`, `strip_accents` and `tokenize_chinese_chars`.
    BertNormalizer,
    /// Builds a `ByteLevel` from `add_prefix_space`.
    ByteLevel,
    /// Like `ByteLevel`, after another step of a sequence.
    LastByteLevel,
    /// Adds a space before the text if `add_prefix_space` says so.
    Space,
    /// Changes nothing.
    Nothing,
}

/// How a class frames a text with its begin and end tokens.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Frames {
    /// As the `tokenizer.json` says.
    File,
    /// As the `tokenizer.json` says. Before version 5, as `add_bos_token` and `add_eos_token` say, or with a begin token
    /// only if they are missing.
    FileOrFields,
    /// Not at all. Before version 5, as `add_bos_token` and `add_eos_token` say.
    Nothing,
}

/// A class of transformers, with the classes that behave the same.
pub(super) struct Class {
    /// Their names, without the suffix `Tokenizer` or `TokenizerFast`.
    names: &'static [&'static str],
    /// The model types that use the class if the configuration names none.
    models: &'static [&'static str],
    pub(super) makes: Makes,
    pub(super) frames: Frames,
    /// Whether its model reads the segments of a pair.
    pub(super) segments: bool,
}

const CLASSES: [Class; 10] = [
    Class::of(
        &["Bert", "Electra", "MobileBert", "ConvBert", "LayoutLM", "Lxmert", "SqueezeBert"],
        &["bert", "electra", "mobilebert", "convbert", "layoutlm", "lxmert", "squeezebert"],
        Makes::BertNormalizer,
        Frames::File,
    )
    .with_segments(),
    Class::of(
        &["DistilBert", "MPNet", "Funnel", "Splinter"],
        &["distilbert", "mpnet", "funnel", "splinter"],
        Makes::BertNormalizer,
        Frames::File,
    ),
    Class::of(
        &["GPT2", "Roberta", "Bart", "Longformer", "LED", "CodeGen"],
        &["gpt2", "gpt_neo", "gptj", "opt", "phi", "roberta", "bart", "longformer", "led", "codegen"],
        Makes::ByteLevel,
        Frames::File,
    ),
    Class::of(&["GPTNeoX"], &["gpt_neox", "mamba", "mamba2"], Makes::ByteLevel, Frames::Nothing),
    Class::of(&["Qwen2"], &["qwen2", "qwen3"], Makes::LastByteLevel, Frames::File),
    Class::of(&["Cohere"], &["cohere", "cohere2"], Makes::LastByteLevel, Frames::FileOrFields),
    Class::of(&["Llama", "CodeLlama"], &["llama", "code_llama"], Makes::Space, Frames::FileOrFields),
    Class::of(
        &["Gemma"],
        &["gemma", "gemma2", "gemma3", "gemma3_text"],
        Makes::Nothing,
        Frames::FileOrFields,
    ),
    // Transformers 4 used Llama's class for Mistral, and 5 uses the file.
    Class::of(&[], &["mistral"], Makes::Nothing, Frames::FileOrFields),
    Class::of(&["PreTrained", "T5"], &["t5", "mt5"], Makes::Nothing, Frames::File),
];

impl Class {
    const fn of(
        names: &'static [&'static str],
        models: &'static [&'static str],
        makes: Makes,
        frames: Frames,
    ) -> Self {
        Self { names, models, makes, frames, segments: false }
    }

    const fn with_segments(self) -> Self {
        Self { segments: true, ..self }
    }
}

/// Where a folder names its tokenizer's class.
pub(super) struct Named {
    /// The class, or the model type that uses it.
    pub(super) name: String,
    /// `None` if it is not among those above.
    pub(super) class: Option<&'static Class>,
    /// If it is unknown.
    pub(super) warning: TokenizerWarning,
    /// The class of the model's type.
    pub(super) of_model: Option<&'static Class>,
}

/// Returns the class of a folder's tokenizer: the one named in `tokenizer_config.json`, or in `config.json`, or the one
/// of the model's type.
pub(super) fn class(folder: &Path, config: &File<'_>) -> Result<Option<Named>, DataError> {
    let known = |name: &str| {
        // The name from version 5 on.
        let name = if name == "TokenizersBackend" { "PreTrainedTokenizerFast" } else { name };
        let name = name.strip_suffix("Fast").unwrap_or(name).strip_suffix("Tokenizer")?;
        CLASSES.iter().find(|class| class.names.contains(&name))
    };
    let path = folder.join("config.json");
    let model = File::read(&path)?;
    let kind = model.text("model_type")?;
    let of_model = kind.and_then(|kind| CLASSES.iter().find(|class| class.models.contains(&kind)));
    for (file, field) in [(config, "tokenizer_class"), (&model, "tokenizer_class"), (&model, "model_type")] {
        let Some(name) = file.text(field)? else { continue };
        let class = if field == "model_type" { of_model } else { known(name) };
        let message = format!(
            "how transformers changes a tokenizer.json for {name:?} is unknown, so the file is used unchanged; \
             compare some ids with those of transformers, or set a class that changes nothing: \
             \"tokenizer_class\": \"PreTrainedTokenizerFast\" in {CONFIG}"
        );
        let warning = file.warning(field, message);
        return Ok(Some(Named { name: name.to_owned(), class, warning, of_model }));
    }
    Ok(None)
}
