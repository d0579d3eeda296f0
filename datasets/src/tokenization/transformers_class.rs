//! Applies transformers' tokenizer classes to a `tokenizer.json`.
//!
//! A class such as `BertTokenizer` builds its normalizer or its pre-tokenizer from fields of `tokenizer_config.json`,
//! with its own defaults, regardless of the `tokenizer.json` next to it. A model trained with the class saw the
//! resulting tokens.
//!
//! This module follows version 5 and warns where version 4 makes other ids:
//!
//! - `PreTrainedTokenizerFast` disabled the prefix space of a `ByteLevel` unless `add_prefix_space` requested it, and
//!   gave models segments that `model_input_names` does not list.
//! - Llama's class and its relatives framed texts as `add_bos_token` and `add_eos_token` say. Version 5 keeps the
//!   post-processor of the `tokenizer.json`.
//! - `Qwen2Tokenizer` ignored `add_prefix_space` if its pre-tokenizer is a sequence, as it usually is.
//! - A class that transformers does not have was an error. Version 5 uses the `tokenizer.json` as it is.

use std::path::Path;

use tokenizers::{
    NormalizedString, Normalizer, NormalizerWrapper, PostProcessorWrapper, PreTokenizedString, PreTokenizer,
    PreTokenizerWrapper, Tokenizer, normalizers::BertNormalizer, pre_tokenizers::sequence::Sequence,
};

use super::{
    TokenizerWarning,
    framed::{Framing, add_nothing, added_around},
    tokenizer_config::{CLEAN_UP, CONFIG, File, INPUTS},
};
use crate::DataError;

/// The field that says whether to put a space before each text.
const SPACE: &str = "add_prefix_space";

/// Applies a folder's tokenizer class in transformers to the tokenizer, and adds warnings about what it does not
/// follow. Returns whether the class's model reads the segments of a pair, if known.
///
/// # Errors
///
/// [`DataError::Io`], and [`TokenizerError::TokenizerConfig`](crate::TokenizerError::TokenizerConfig) if a field is
/// broken, or contradicts the `tokenizer.json` in a way that cannot be resolved here.
pub(super) fn apply(
    folder: &Path,
    tokenizer: &mut Tokenizer,
    warnings: &mut Vec<TokenizerWarning>,
) -> Result<Option<bool>, DataError> {
    let path = folder.join(CONFIG);
    let config = File::read(&path)?;
    let Some(Named { name, class, warning, of_model }) = class(folder, &config)? else { return Ok(None) };
    let Some(class) = class else {
        warnings.push(warning);
        warnings.extend(space_before_5(&config, &name, tokenizer)?);
        return Ok(None);
    };
    match class.makes {
        Makes::BertNormalizer => bert_normalizer(&config, tokenizer)?,
        Makes::ByteLevel => byte_level(&config, tokenizer)?,
        Makes::LastByteLevel => warnings.extend(last_byte_level(&config, &name, tokenizer)?),
        // A byte-level Llama tokenizer is used as it is.
        Makes::Space if tokenizer.get_pre_tokenizer().is_some_and(is_byte_level) => {}
        Makes::Space => warnings.extend(space(&config, &name, tokenizer)?),
        // Before version 5, there was no such class.
        Makes::Nothing if name == "TokenizersBackend" => {}
        Makes::Nothing => {
            warnings.extend(space_before_5(&config, &name, tokenizer)?);
            if of_model.is_some_and(|model| model.segments) && !config.has(INPUTS) {
                let message = format!(
                    "it is missing, so the model gets no segments, as in transformers 5; earlier versions of {name} \
                     passed segments (`token_type_ids`): if the model was trained with them, list them in the field"
                );
                warnings.push(config.warning(INPUTS, message));
            }
        }
    }
    frame(class.frames, &config, &name, tokenizer, warnings)?;
    Ok(Some(class.segments))
}

/// Frames texts as the class does.
fn frame(
    frames: Frames,
    config: &File<'_>,
    name: &str,
    tokenizer: &mut Tokenizer,
    warnings: &mut Vec<TokenizerWarning>,
) -> Result<(), DataError> {
    if frames == Frames::File {
        return Ok(());
    }
    if frames == Frames::Nothing {
        add_nothing(tokenizer)?;
    }
    let Framing { before, after } = added_around(tokenizer)?;
    let default = frames == Frames::FileOrFields;
    for (field, default, found, place) in [
        ("add_bos_token", default, !before.is_empty(), "before"),
        ("add_eos_token", false, !after.is_empty(), "after"),
    ] {
        let given = config.flag(field)?;
        let asked = given.unwrap_or(default);
        if asked != found {
            let (older, newer) = if asked { ("a", "none") } else { ("no", "one") };
            let value = given.map_or("missing".to_owned(), |given| given.to_string());
            let message = format!(
                "it is {value}, for which {name} adds {older} special token {place} each text in transformers 4, \
                 and {newer} in transformers 5; the ids follow transformers 5; to get those of version 4, change \
                 the `post_processor` of the tokenizer.json"
            );
            warnings.push(config.warning(field, message));
        }
    }
    Ok(())
}

/// Names the class that uses a `tokenizer.json` as it is in the folder's `tokenizer_config.json`, unless it already
/// names one. Without it, transformers uses the class of the model's type, which builds its own pipeline.
///
/// # Errors
///
/// [`DataError::Io`], and [`TokenizerError::TokenizerConfig`](crate::TokenizerError::TokenizerConfig) if the file is
/// broken.
pub(super) fn name(folder: &Path, tokenizer: &Tokenizer) -> Result<(), DataError> {
    let path = folder.join(CONFIG);
    let mut config = File::read(&path)?;
    if config.text("tokenizer_class")?.is_some() {
        return Ok(());
    }
    // Versions before 5 disable the space unless this field requests it.
    if let Some(PreTokenizerWrapper::ByteLevel(bytes)) = tokenizer.get_pre_tokenizer() {
        config.set(SPACE, Some(bytes.add_prefix_space.into()));
    }
    if !config.has(CLEAN_UP) {
        config.set(CLEAN_UP, Some(false.into()));
    }
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
    let given = config.flag(SPACE)?;
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

/// Sets `add_prefix_space` of the last step of the pre-tokenizer.
fn last_byte_level(
    config: &File<'_>,
    name: &str,
    tokenizer: &mut Tokenizer,
) -> Result<Option<TokenizerWarning>, DataError> {
    let Some(PreTokenizerWrapper::Sequence(steps)) = tokenizer.get_pre_tokenizer() else {
        byte_level(config, tokenizer)?;
        return Ok(None);
    };
    let given = config.flag(SPACE)?;
    let asked = given.unwrap_or(false);
    let mut steps = steps.as_ref().to_vec();
    let Some(PreTokenizerWrapper::ByteLevel(last)) = steps.last_mut() else {
        require_space(config, tokenizer)?;
        return Ok(None);
    };
    let stored = std::mem::replace(&mut last.add_prefix_space, asked);
    tokenizer.with_pre_tokenizer(Some(Sequence::new(steps)));
    Ok((stored != asked).then(|| space_warning(config, given, name, stored, asked)))
}

/// Returns a warning if a class that uses a tokenizer.json as it is changed its prefix space before version 5.
fn space_before_5(
    config: &File<'_>,
    name: &str,
    tokenizer: &Tokenizer,
) -> Result<Option<TokenizerWarning>, DataError> {
    let Some(PreTokenizerWrapper::ByteLevel(stored)) = tokenizer.get_pre_tokenizer() else { return Ok(None) };
    let (given, stored) = (config.flag(SPACE)?, stored.add_prefix_space);
    let older = given.unwrap_or(false);
    Ok((older != stored).then(|| space_warning(config, given, name, older, stored)))
}

/// Creates the warning that versions 4 and 5 differ in the space before a text.
fn space_warning(
    config: &File<'_>,
    given: Option<bool>,
    name: &str,
    older: bool,
    newer: bool,
) -> TokenizerWarning {
    let puts = |space| if space { "a space" } else { "no space" };
    let message = format!(
        "it is {}, for which {name} adds {} before each text in transformers 4, and {} in transformers 5; the ids \
         follow transformers 5; to get the same ids in both, make the field and the tokenizer.json agree",
        given.map_or("missing".to_owned(), |given| given.to_string()),
        puts(older),
        puts(newer),
    );
    config.warning(SPACE, message)
}

/// Requires that the pipeline puts a space before a text as `add_prefix_space` says, and warns if it does not and the
/// field is missing, since version 5 then adds one.
fn space(
    config: &File<'_>,
    name: &str,
    tokenizer: &Tokenizer,
) -> Result<Option<TokenizerWarning>, DataError> {
    require_space(config, tokenizer)?;
    let lacks = config.flag(SPACE)?.is_none() && !prepends_space(tokenizer);
    Ok(lacks.then(|| {
        let message = format!(
            "it is missing, for which {name} adds a space before each text in transformers 5, but the \
             tokenizer.json does not; the ids follow the tokenizer.json, as in transformers 4; to confirm this, set \
             the field to false"
        );
        config.warning(SPACE, message)
    }))
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
    match config.flag(SPACE)? {
        Some(asked) if asked != prepends_space(tokenizer) => {
            Err(config.disagrees(SPACE, asked, "pre_tokenizer or normalizer"))
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
    result.map(drop).map_err(DataError::tokenizer("replace its normalizer"))
}

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
