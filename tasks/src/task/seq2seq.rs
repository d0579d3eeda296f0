//! One text from another.

use firebrick_datasets::collators::Seq2Seq;
use firebrick_datasets::{DataError, Record, Tokenizer, Value as Field};
use firebrick_models::inference::Question;
use firebrick_strategies::SettingError;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::fields::record_json;
use super::{Asks, Examples, Suggestion, Task, Writing};
use crate::{DataConfig, LoadError, Loaded, Loading};

/// `task: Seq2Seq(..)`: generates one text from another.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Seq2SeqTask {
    /// The field of the input text. Default: `source`.
    pub source: String,
    /// The field of the output text. Default: `target`.
    pub target: String,
    /// Text that is added before each source. Default: none.
    pub prefix: String,
    /// The field of a beginning of the target that does not count in the loss. Default: none.
    pub target_prompt: Option<String>,
    /// The most tokens of a target. Default: `data.max_length`.
    pub max_target_length: Option<usize>,
    /// The name of the token that the decoder starts with. Default: the `decoder_start_token_id` in the configuration
    /// of a `Pretrained` folder, otherwise the padding token.
    pub start: Option<String>,
    /// The most tokens that each evaluation generates for each source, which adds the metrics of
    /// [`WrittenScores`](firebrick_models::WrittenScores). Default: evaluation generates none.
    pub generate: Option<usize>,
}

impl Default for Seq2SeqTask {
    fn default() -> Self {
        Self {
            source: "source".into(),
            target: "target".into(),
            prefix: String::new(),
            target_prompt: None,
            max_target_length: None,
            start: None,
            generate: None,
        }
    }
}

/// A number far above any use, so that a typo is reported instead of tried.
const MOST: usize = 1_000_000_000;

impl Task for Seq2SeqTask {
    fn check(&self, _: &DataConfig) -> Result<(), SettingError> {
        let tokens = self.generate.unwrap_or(1);
        let possible = (1..=MOST).contains(&tokens);
        SettingError::require(possible, "generate", "at least 1 and at most a billion", tokens)
    }

    fn check_data(&self, data: &DataConfig) -> Result<(), SettingError> {
        let expected = "left out for Seq2Seq, whose pairs are not split";
        SettingError::require(data.stride.is_none(), "stride", expected, "given")
    }

    /// Text that is generated in evaluation does not affect what the model learns.
    fn changeable(&self) -> &'static [&'static str] {
        &["generate"]
    }

    fn texts<'r>(&self, record: &'r Record) -> Result<Vec<&'r str>, DataError> {
        let fields = [&self.source, &self.target].into_iter().chain(&self.target_prompt);
        fields.map(|field| record.text(field)).collect()
    }

    fn load(&self, loading: &Loading<'_>) -> Result<Loaded, LoadError> {
        let tokenizer = loading.tokenizer()?;
        let targets = loading.encoder(&tokenizer, self.max_target_length);
        let padding = loading.padding(&tokenizer);
        let collator = Seq2Seq::new(loading.encoder(&tokenizer, None), targets)
            .fields(&self.source, &self.target)
            .prefix(&self.prefix)
            .padding(padding, padding);
        let collator = match &self.target_prompt {
            Some(field) => collator.target_prompt(field),
            None => collator,
        };
        let collator = match self.start_id(loading.start_of_model(), &tokenizer)? {
            Some(id) => collator.start_id(id),
            None => collator,
        };
        let loaded = loading.loaded(tokenizer, loading.batches(collator)?);
        // A model with positions has as many for targets as for sources.
        let of_targets = self.max_target_length.map(|most| padding.length(most));
        let longest_row = loaded.longest_row.map(|longest| longest.max(of_targets.unwrap_or(0)));
        Ok(Loaded { longest_row, ..loaded })
    }

    fn evaluated_tokens(&self) -> Option<usize> {
        self.generate
    }

    /// The token that the task names, otherwise the one in the model's configuration, otherwise the padding token.
    fn start_id(&self, of_model: Option<u32>, tokenizer: &Tokenizer) -> Result<Option<u32>, DataError> {
        match &self.start {
            Some(name) => tokenizer.id(name).map(Some),
            None => Ok(of_model.or(tokenizer.special().pad)),
        }
    }

    fn suggest(&self, examples: &Examples) -> Result<Suggestion, String> {
        const USUAL: [(&str, &str); 8] = [
            ("source", "target"),
            ("src", "tgt"),
            ("input", "output"),
            ("prompt", "completion"),
            ("question", "answer"),
            ("document", "summary"),
            ("article", "highlights"),
            ("text", "summary"),
        ];
        let is_text =
            |field: &&str| examples.values(field).all(|value| matches!(value, Some(Field::Text(_))));
        let texts: Vec<&str> = examples.fields().into_iter().filter(is_text).collect();
        let usual =
            USUAL.into_iter().find(|(source, target)| texts.contains(source) && texts.contains(target));
        let (source, target) = match (usual, &texts[..]) {
            (Some(pair), _) => pair,
            (None, [source, target, ..]) => (*source, *target),
            (None, _) if examples.records.is_empty() => ("source", "target"),
            _ => return Err(examples.lack("each record needs two texts: a source and a target")),
        };
        let ((of_source, note), (of_target, _)) = (examples.length(&[source]), examples.length(&[target]));
        let suggestion = Suggestion::default()
            .field("source", source, "source")
            .field("target", target, "target")
            .data("max_length", (of_source.max(of_target), note))
            .special("(pad: \"<pad>\", eos: \"</s>\")");
        Ok(suggestion.found(format!("the model writes `{target}` from `{source}`")))
    }
}

impl Asks for Seq2SeqTask {
    fn question(&self, record: &Record) -> Result<(Question, Option<Value>), DataError> {
        let source = self.prefix.clone() + record.text(&self.source)?;
        Ok((Question::Text(source), record_json(record, &self.target)))
    }

    fn typed(&self, line: &str) -> Vec<(String, Field)> {
        vec![(self.source.clone(), Field::Text(line.into()))]
    }

    fn writing(&self) -> Option<Writing> {
        Some(Writing::FromSource { prefix: self.prefix.clone() })
    }
}
