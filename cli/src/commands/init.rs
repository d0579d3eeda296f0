//! The command `init`: drafts a run file.

use std::path::PathBuf;
use std::sync::Arc;

use clap::Args;

use crate::RunError;
use crate::console::{print, tell};
use crate::init::DraftRequest;
use crate::run::Registries;

const EXAMPLES: &str = "\
Examples:
  firebrick init SequenceClassification --data reviews.csv > run.ron
  firebrick init TokenClassification --data train.conll --model bert-base-cased > run.ron
  firebrick init CausalLm --data chats.jsonl --model Qwen3-0.6B > run.ron
  firebrick init Seq2Seq --data corpus/train > run.ron      # corpus/train.en and corpus/train.fr
  firebrick train run.ron --steps 3";

/// `firebrick init`.
#[derive(Debug, Args)]
// A program that adds tasks lists them instead.
#[command(after_help = after_help(Registries::built_in().tasks.names()))]
pub(crate) struct InitArgs {
    /// The task that the model learns, as listed below.
    task: String,
    /// The data: a file, a folder, a pattern with `*`, the beginning that two parallel files share, or a file on the
    /// Hub, as in `hub:org/name/train.jsonl`. Default: a placeholder.
    #[arg(long, value_name = "FILE")]
    data: Option<PathBuf>,
    /// The validation data. Default: `valid.csv` beside `train.csv`, or `x.valid.csv` beside `x.csv`; otherwise a tenth
    /// of the data.
    #[arg(long, value_name = "FILE", requires = "data")]
    valid: Option<PathBuf>,
    /// The Hugging Face folder of the model to train further, with its tokenizer, or `hub:org/name`. Default: a small
    /// fresh model.
    #[arg(long, value_name = "FOLDER")]
    model: Option<PathBuf>,
}

/// Returns what stands below the help: examples, and the names of the tasks.
pub(crate) fn after_help(tasks: &[&str]) -> String {
    format!("{EXAMPLES}\n\nTasks: {}", tasks.join(", "))
}

/// Runs `firebrick init`.
pub(crate) fn init(args: &InitArgs, registries: &Arc<Registries>) -> Result<(), RunError> {
    let InitArgs { task, data, valid, model } = args;
    let given =
        DraftRequest { task, data: data.as_deref(), valid: valid.as_deref(), model: model.as_deref() };
    let drafted = given.draft(registries)?;
    drafted.found.iter().for_each(|line| tell(line));
    print(&drafted.text);
    Ok(())
}
