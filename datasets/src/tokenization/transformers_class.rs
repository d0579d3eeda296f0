//! Applies transformers' tokenizer classes to a `tokenizer.json`.
//!
//! A class such as `BertTokenizer` builds its normalizer or its pre-tokenizer from fields of `tokenizer_config.json`,
//! with its own defaults, regardless of the `tokenizer.json` next to it. A model trained with the class saw the
//! resulting tokens.
//!
//! Versions 4 and 5 agree, except for `PreTrainedTokenizerFast`: before 5, it disabled the prefix space unless
//! `add_prefix_space` requested it, and gave models segments that `model_input_names` does not list. This module
//! follows version 5.

use std::path::Path;

use tokenizers::{
    NormalizedString, Normalizer, NormalizerWrapper, PostProcessorWrapper, PreTokenizedString, PreTokenizer,
    PreTokenizerWrapper, Tokenizer, normalizers::BertNormalizer,
};

use super::tokenizer_config::{CONFIG, File};
use crate::DataError;

/// The effect of a class.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Makes {
    /// Builds a `BertNormalizer` from `do_lower_case`, `strip_accents` and `tokenize_chinese_chars`.
    BertNormalizer,
    /// Builds a `ByteLevel` from `add_prefix_space`.
    ByteLevel,
    /// Adds a space before the text if `add_prefix_space` says so.
    Space,
    /// Changes nothing.
    Nothing,
}

/// A class of transformers, with the classes that behave the same.
struct Class {
    /// Their names, without the suffix `Tokenizer` or `TokenizerFast`.
    names: &'static [&'static str],
    /// The model types that use the class if the configuration names none.
    models: &'static [&'static str],
    makes: Makes,
    /// Whether its model reads the segments of a pair.
    segments: bool,
}

const CLASSES: [Class; 6] = [
    Class {
        names: &["Bert", "Electra", "MobileBert", "ConvBert", "LayoutLM", "Lxmert", "SqueezeBert"],
        models: &["bert", "electra", "mobilebert", "convbert", "layoutlm", "lxmert", "squeezebert"],
        makes: Makes::BertNormalizer,
        segments: true,
    },
    Class {
        names: &["DistilBert", "MPNet", "Funnel", "Splinter"],
        models: &["distilbert", "mpnet", "funnel", "splinter"],
        makes: Makes::BertNormalizer,
        segments: false,
    },
    Class {
        names: &["GPT2", "Roberta", "Bart", "Longformer", "LED", "CodeGen", "GPTNeoX"],
        models: &["gpt2", "roberta", "bart", "longformer", "led", "codegen", "gpt_neox"],
        makes: Makes::ByteLevel,
        segments: false,
    },
    Class { names: &["Llama", "CodeLlama"], models: &["llama"], makes: Makes::Space, segments: false },
    Class { names: &["PreTrained"], models: &[], makes: Makes::Nothing, segments: false },
    Class { names: &["T5"], models: &["t5"], makes: Makes::Nothing, segments: false },
];

/// Returns the class of a folder's tokenizer: the one named in `tokenizer_config.json`, or in `config.json`, or the one
/// of the model's type.
fn class(folder: &Path, config: &File<'_>) -> Result<Option<&'static Class>, DataError> {
    let named = |name: &str| {
        // The name from version 5 on.
        let name = if name == "TokenizersBackend" { "PreTrainedTokenizerFast" } else { name };
        let name = name.strip_suffix("Fast").unwrap_or(name).strip_suffix("Tokenizer")?;
        CLASSES.iter().find(|class| class.names.contains(&name))
    };
    if let Some(name) = config.text("tokenizer_class")? {
        return Ok(named(name));
    }
    let path = folder.join("config.json");
    let model = File::read(&path)?;
    if let Some(name) = model.text("tokenizer_class")? {
        return Ok(named(name));
    }
    let kind = model.text("model_type")?;
    Ok(kind.and_then(|kind| CLASSES.iter().find(|class| class.models.contains(&kind))))
}

/// Applies a folder's tokenizer class in transformers to the tokenizer. Returns whether the class's model reads the
/// segments of a pair, if known.
///
/// # Errors
///
/// [`DataError::Io`], and [`DataError::TokenizerConfig`] if a field is broken, or contradicts the `tokenizer.json` in a
/// way that cannot be resolved here.
pub(super) fn apply(folder: &Path, tokenizer: &mut Tokenizer) -> Result<Option<bool>, DataError> {
    let path = folder.join(CONFIG);
    let config = File::read(&path)?;
    let Some(class) = class(folder, &config)? else { return Ok(None) };
    match class.makes {
        Makes::BertNormalizer => bert_normalizer(&config, tokenizer)?,
        Makes::ByteLevel => byte_level(&config, tokenizer)?,
        // A byte-level Llama tokenizer is used as it is.
        Makes::Space if tokenizer.get_pre_tokenizer().is_some_and(is_byte_level) => {}
        Makes::Space => require_space(&config, tokenizer)?,
        Makes::Nothing => {}
    }
    Ok(Some(class.segments))
}

/// Names the class that uses a `tokenizer.json` as it is in the folder's `tokenizer_config.json`, unless it already
/// names one. Without it, transformers uses the class of the model's type, which builds its own pipeline.
///
/// # Errors
///
/// [`DataError::Io`], and [`DataError::TokenizerConfig`] if the file is broken.
pub(super) fn name(folder: &Path, tokenizer: &Tokenizer) -> Result<(), DataError> {
    let path = folder.join(CONFIG);
    let mut config = File::read(&path)?;
    if config.text("tokenizer_class")?.is_some() {
        return Ok(());
    }
    // Versions before 5 disable the space unless this field requests it.
    if let Some(PreTokenizerWrapper::ByteLevel(bytes)) = tokenizer.get_pre_tokenizer() {
        config.set("add_prefix_space", Some(bytes.add_prefix_space.into()));
    }
    config.set("clean_up_tokenization_spaces", Some(false.into()));
    config.set("tokenizer_class", Some("PreTrainedTokenizerFast".into()));
    config.write()
}

fn bert_normalizer(config: &File<'_>, tokenizer: &mut Tokenizer) -> Result<(), DataError> {
    let fields = ["do_lower_case", "strip_accents", "tokenize_chinese_chars"];
    let mut flags = [None; 3];
    for (flag, field) in flags.iter_mut().zip(fields) {
        *flag = config.flag(field)?;
    }
    let [lowercase, strip_accents, chinese] = flags;
    let asked = |clean_text| {
        let (lowercase, chinese) = (lowercase.unwrap_or(true), chinese.unwrap_or(true));
        BertNormalizer::new(clean_text, chinese, strip_accents, lowercase)
    };
    if let Some(NormalizerWrapper::BertNormalizer(stored)) = tokenizer.get_normalizer() {
        let asked = asked(stored.clean_text);
        return replaced(tokenizer.with_normalizer(Some(asked)));
    }
    // Any other normalizer is kept as it is if it has the same effect.
    for (flag, field) in flags.into_iter().zip(fields) {
        let Some(flag) = flag else { continue };
        let probe = match field {
            "do_lower_case" => "A",
            "strip_accents" => "é",
            _ => "a中",
        };
        let stored = tokenizer.get_normalizer().map_or_else(|| probe.to_owned(), |it| normalized(it, probe));
        if stored.trim() != normalized(&asked(true), probe).trim() {
            return Err(config.disagrees(field, flag, "normalizer"));
        }
    }
    Ok(())
}

fn byte_level(config: &File<'_>, tokenizer: &mut Tokenizer) -> Result<(), DataError> {
    let given = config.flag("add_prefix_space")?;
    let asked = given.unwrap_or(false);
    match tokenizer.get_pre_tokenizer() {
        Some(PreTokenizerWrapper::ByteLevel(stored)) => {
            let stored = stored.add_prefix_space(asked);
            tokenizer.with_pre_tokenizer(Some(stored));
        }
        _ => return require_space(config, tokenizer),
    }
    if let Some(PostProcessorWrapper::Roberta(stored)) = tokenizer.get_post_processor() {
        let mut stored = stored.clone();
        stored.add_prefix_space = asked;
        tokenizer.with_post_processor(Some(stored));
    }
    Ok(())
}

fn is_byte_level(pre_tokenizer: &PreTokenizerWrapper) -> bool {
    match pre_tokenizer {
        PreTokenizerWrapper::ByteLevel(_) => true,
        PreTokenizerWrapper::Sequence(steps) => steps.as_ref().iter().any(is_byte_level),
        _ => false,
    }
}

/// Returns an error if `add_prefix_space` is set and differs from what the pipeline does.
fn require_space(config: &File<'_>, tokenizer: &Tokenizer) -> Result<(), DataError> {
    match config.flag("add_prefix_space")? {
        Some(asked) if asked != prepends_space(tokenizer) => {
            Err(config.disagrees("add_prefix_space", asked, "pre_tokenizer or normalizer"))
        }
        _ => Ok(()),
    }
}

/// Returns whether the pipeline adds a space before a text, in any of the usual notations.
fn prepends_space(tokenizer: &Tokenizer) -> bool {
    let text = tokenizer.get_normalizer().map_or_else(|| "a".to_owned(), |it| normalized(it, "a"));
    let mut pieces = PreTokenizedString::from(text);
    if let Some(pre_tokenizer) = tokenizer.get_pre_tokenizer()
        && pre_tokenizer.pre_tokenize(&mut pieces).is_err()
    {
        return false;
    }
    let pieces = pieces.get_splits(tokenizers::OffsetReferential::Normalized, tokenizers::OffsetType::None);
    pieces.first().is_some_and(|(piece, ..)| piece.starts_with([' ', '▁', 'Ġ']))
}

fn normalized(normalizer: &impl Normalizer, text: &str) -> String {
    let mut text = NormalizedString::from(text);
    match normalizer.normalize(&mut text) {
        Ok(()) => text.get().to_owned(),
        Err(_) => String::new(),
    }
}

fn replaced<T>(result: tokenizers::Result<T>) -> Result<(), DataError> {
    result.map(drop).map_err(DataError::tokenizer("be given another normalizer"))
}
