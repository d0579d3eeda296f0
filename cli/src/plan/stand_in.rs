//! Data that stands for a run's own, for plans from shapes alone: rows of one length, and a tokenizer.

use std::fs;
use std::path::{Path, PathBuf};

use firebrick_datasets::{Amount, SpecialNames};
use firebrick_models::inference::LabelKind;
use serde_json::{Map, Value, json};
use tempfile::TempDir;

use super::MOST_ALIKE;
use crate::hub::{FileSet, local_folder};
use crate::{
    CausalLmTask, DataConfig, DataRun, DpoTask, MaskedLmTask, PlanError, Rows, Run, RunError, Seq2SeqTask,
    SequenceClassificationTask, TaskConfig, TokenClassificationTask, TokenizerConfig,
};

/// The tokens of a row of a plan without a run file, unless it says otherwise.
const USUAL: usize = 512;

/// The most tokens of the rows of an update: their text is 32 MB.
const MOST: usize = 1 << 24;

/// Tokens of a tokenizer of characters, whose number is not known without the data.
const CHARACTERS: usize = 256;

/// The word that all texts consist of, and one that makes a text another one.
const WORD: &str = "a";
const OTHER: &str = "b";

/// Rows of one length and a tokenizer, in a folder that goes when this is dropped.
#[derive(Debug)]
pub(crate) struct StandIn {
    folder: TempDir,
    tokens: usize,
}

impl StandIn {
    /// Creates an empty folder, for rows of `tokens`. Default: 512.
    ///
    /// # Errors
    ///
    /// The system has no folder for temporary files.
    pub fn new(tokens: Option<usize>) -> Result<Self, RunError> {
        let folder = tempfile::tempdir().map_err(|error| unwritten(&std::env::temp_dir(), &error))?;
        Ok(Self { folder, tokens: tokens.unwrap_or(USUAL) })
    }

    /// The tokens of a row.
    pub fn tokens(&self) -> usize {
        self.tokens
    }

    /// Writes the run file of a model of which only the configuration is known: `config` is its file, its folder, or its
    /// name on the Hub. Without a class in `architectures`, the task is the one that its kind of model is trained on first.
    ///
    /// # Errors
    ///
    /// The configuration cannot be read.
    pub fn run_file(&self, config: &Path) -> Result<PathBuf, RunError> {
        let folder = match config.is_file() {
            true => {
                // Whatever the file is called, and whatever is beside it.
                let here = self.folder.path().join("model");
                let copied = fs::create_dir(&here).and_then(|()| fs::copy(config, here.join("config.json")));
                copied.map_err(|error| unwritten(config, &error))?;
                here
            }
            false => local_folder(config, FileSet::Beside, &crate::console::tell)?.into_owned(),
        };
        let described = config_of(&folder);
        let task = usual_task(&described);
        let output = self.folder.path().join("output");
        let file = self.folder.path().join("plan.ron");
        let length = if task == "CausalLm" { "block" } else { "max_length" };
        // The data is a place for the rows.
        let text = format!(
            "(\n    task: {task}(),\n    data: (path: \"\", tokenizer: Characters, {length}: {tokens}),\n    \
             model: Pretrained({folder:?}),\n    optimizer: AdamW(),\n    schedule: Constant(lr: 1e-5),\n    \
             batch: (micro: 1),\n    steps: 1,\n    output: {output:?},\n)\n",
            tokens = self.tokens,
        );
        fs::write(&file, text).map_err(|error| unwritten(&file, &error))?;
        Ok(file)
    }

    /// Returns the run with rows of this length in place of its data, and of its tokenizer where that is learned from the
    /// data or is not there.
    ///
    /// # Errors
    ///
    /// The task is a program's own, the rows are too short or too many, or a file cannot be written.
    pub fn of(&self, run: &Run) -> Result<Run, RunError> {
        let mut run = run.clone();
        let tokens = self.tokens;
        let of_batch = match run.batch.amount() {
            Amount::Tokens(most) => most.div_ceil(tokens.max(1)),
            Amount::Samples(samples) => samples,
        };
        let rows = of_batch.saturating_mul(DataRun::from(&run).micro_batches());
        if tokens < 2 || rows.saturating_mul(tokens) > MOST {
            return Err(PlanError::StandInRows { tokens, rows, most: MOST }.into());
        }
        let described = run.model.folder().map(config_of).unwrap_or_default();
        let data = self.folder.path().join("rows.jsonl");
        let (task, row) = self.task_and_row(&run.task, &described)?;
        run.task = task;
        let tokenizer = match &run.data.tokenizer {
            TokenizerConfig::File(path) if path.exists() => run.data.tokenizer.clone(),
            TokenizerConfig::Bpe { vocabulary } => self.tokenizer(*vocabulary)?,
            // A model of a folder may know more tokens than its tokenizer has.
            TokenizerConfig::File(_) | TokenizerConfig::Characters => self.tokenizer(CHARACTERS)?,
        };
        let special = match tokenizer == run.data.tokenizer {
            true => run.data.special.clone(),
            false => SpecialNames::default(),
        };
        let is_window =
            run.task.downcast_ref::<CausalLmTask>().is_some_and(|task| task.rows == Rows::Windows);
        run.data = DataConfig {
            valid: Some(data.clone().into()),
            special,
            block: is_window.then_some(self.tokens),
            max_length: (!is_window).then_some(self.tokens),
            cache: false,
            padding: run.data.padding,
            ..DataConfig::new(&data, tokenizer)
        };
        // One more, as a window needs the token after it.
        let rows = rows.max(MOST_ALIKE.div_ceil(tokens) + 2) + 1;
        let row = format!("{row}\n");
        fs::write(&data, row.repeat(rows)).map_err(|error| unwritten(&data, &error))?;
        Ok(run)
    }

    /// Returns the task with what a row of it needs, and such a row as JSON.
    fn task_and_row(
        &self,
        task: &TaskConfig,
        described: &Map<String, Value>,
    ) -> Result<(TaskConfig, Value), RunError> {
        let text = vec![WORD; self.tokens].join(" ");
        let row = |fields: Vec<(&str, Value)>| {
            Value::Object(fields.into_iter().map(|(name, value)| (name.to_owned(), value)).collect())
        };
        let names = |own: &[String]| match own {
            [] => labels(described),
            own => own.to_vec(),
        };
        if let Some(task) = task.downcast_ref::<CausalLmTask>() {
            // A conversation takes as much as its text.
            let task = CausalLmTask { prompt: None, chat: None, ..task.clone() };
            let row = row(vec![(&task.text, text.into())]);
            return Ok((task.into(), row));
        }
        if let Some(task) = task.downcast_ref::<MaskedLmTask>() {
            return Ok((task.clone().into(), row(vec![(&task.text, text.into())])));
        }
        if let Some(task) = task.downcast_ref::<TokenClassificationTask>() {
            let task = TokenClassificationTask { names: names(&task.names), new_head: true, ..task.clone() };
            let labels = vec![task.names[0].clone(); self.tokens];
            let words = vec![WORD; self.tokens];
            let row = row(vec![(&task.words, words.into()), (&task.labels, labels.into())]);
            return Ok((task.into(), row));
        }
        if let Some(task) = task.downcast_ref::<SequenceClassificationTask>() {
            let mut task = SequenceClassificationTask { pair: None, new_head: true, ..task.clone() };
            let label = match task.kind {
                LabelKind::Number => json!(0.0),
                LabelKind::Class | LabelKind::Classes => {
                    task.names = names(&task.names);
                    let first = json!(task.names[0]);
                    if task.kind == LabelKind::Class { first } else { json!([first]) }
                }
            };
            let row = row(vec![(&task.text, text.into()), (&task.label, label)]);
            return Ok((task.into(), row));
        }
        if let Some(task) = task.downcast_ref::<Seq2SeqTask>() {
            let max_target_length = task.max_target_length.or(Some(self.tokens));
            let task = Seq2SeqTask { target_prompt: None, max_target_length, ..task.clone() };
            let row = row(vec![(&task.source, text.clone().into()), (&task.target, text.into())]);
            return Ok((task.into(), row));
        }
        if let Some(task) = task.downcast_ref::<DpoTask>() {
            let task = DpoTask { chat: None, ..task.clone() };
            let mut half = vec![WORD; self.tokens / 2];
            let (text, last) = (half.join(" "), half.len() - 1);
            half[last] = OTHER;
            let row = row(vec![
                (&task.prompt, text.clone().into()),
                (&task.chosen, text.into()),
                (&task.rejected, half.join(" ").into()),
            ]);
            return Ok((task.into(), row));
        }
        Err(PlanError::NoStandIn { task: task.name() }.into())
    }

    /// Writes a tokenizer of so many tokens.
    fn tokenizer(&self, tokens: usize) -> Result<TokenizerConfig, RunError> {
        let special = ["[PAD]", "[UNK]", "<s>", "</s>", "[CLS]", "[SEP]", "[MASK]"];
        let further = (0..tokens.saturating_sub(special.len() + 2)).map(|token| format!("w{token}"));
        let names =
            special.map(String::from).into_iter().chain([WORD, OTHER].map(String::from)).chain(further);
        let vocabulary: Map<String, Value> = names.zip(0..).map(|(name, id)| (name, json!(id))).collect();
        let added = special.iter().enumerate().map(|(id, content)| {
            json!({
                "id": id, "content": content, "special": true, "single_word": false, "lstrip": false,
                "rstrip": false, "normalized": false,
            })
        });
        let tokenizer = json!({
            "version": "1.0", "truncation": null, "padding": null, "added_tokens": added.collect::<Vec<_>>(),
            "normalizer": null, "pre_tokenizer": { "type": "WhitespaceSplit" }, "post_processor": null,
            "decoder": null, "model": { "type": "WordLevel", "vocab": vocabulary, "unk_token": "[UNK]" },
        });
        let path = self.folder.path().join("tokenizer.json");
        fs::write(&path, tokenizer.to_string()).map_err(|error| unwritten(&path, &error))?;
        Ok(TokenizerConfig::File(path))
    }
}

/// Reads the configuration of a folder. What is wrong with it is said where the model is opened.
fn config_of(folder: impl AsRef<Path>) -> Map<String, Value> {
    let text = fs::read_to_string(folder.as_ref().join("config.json")).unwrap_or_default();
    serde_json::from_str(&text).unwrap_or_default()
}

/// Returns the names of a classifier's labels, or of two.
fn labels(described: &Map<String, Value>) -> Vec<String> {
    let mut named: Vec<(usize, String)> = described
        .get("id2label")
        .and_then(Value::as_object)
        .into_iter()
        .flatten()
        .filter_map(|(id, name)| Some((id.parse().ok()?, name.as_str()?.to_owned())))
        .collect();
    named.sort_unstable();
    match named.len() {
        0 => vec!["no".into(), "yes".into()],
        _ => named.into_iter().map(|(_, name)| name).collect(),
    }
}

/// Returns the name of the task that a model of this configuration learns.
fn usual_task(described: &Map<String, Value>) -> &'static str {
    let classes = described.get("architectures").and_then(Value::as_array);
    let class = classes.and_then(|classes| classes.first()?.as_str()).unwrap_or_default();
    let kind = described.get("model_type").and_then(Value::as_str).unwrap_or_default();
    let is_encoder = ["bert", "electra", "deberta"].iter().any(|name| kind.contains(name));
    match class {
        _ if class.ends_with("ForTokenClassification") => "TokenClassification",
        _ if class.ends_with("ForSequenceClassification") => "SequenceClassification",
        _ if class.ends_with("ForConditionalGeneration") || ["t5", "mt5", "bart"].contains(&kind) => {
            "Seq2Seq"
        }
        _ if class.ends_with("ForMaskedLM") || is_encoder => "MaskedLm",
        _ => "CausalLm",
    }
}

fn unwritten(path: &Path, error: &std::io::Error) -> RunError {
    PlanError::StandIn { path: path.into(), reason: error.to_string() }.into()
}
