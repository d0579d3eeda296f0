//! Texts that a trained model writes after prompts, or makes of sources.

use std::sync::Arc;

use firebrick_datasets::Tokenizer;
use serde_json::Value;

use super::TrainedRun;
use crate::answers::Question;
use crate::decoding::Decoding;
use crate::models::pretrained::Folder;
use crate::run::{ForModel, TaskConfig, Trainable};
use crate::{Run, RunError, device};

impl TrainedRun {
    /// The texts of each prompt, `decoding.returned` of them; of a causal language model with the prompt before them.
    /// Texts end at the tokenizer's end token, where `decoding` names no other.
    ///
    /// # Errors
    ///
    /// The task is not one that writes, a setting cannot be, or the device fails.
    pub fn generate(&self, prompts: &[String], decoding: &Decoding) -> Result<Vec<Vec<String>>, RunError> {
        if !matches!(self.run.task, TaskConfig::CausalLm { .. } | TaskConfig::Seq2Seq { .. }) {
            return Err(RunError::WritesNothing { task: self.run.task.name() });
        }
        let generating = Generating { run: &self.run, prompts, decoding };
        self.run.for_model_of(Some(self.weights()?), generating)
    }
}

struct Generating<'a> {
    run: &'a Run,
    prompts: &'a [String],
    decoding: &'a Decoding,
}

impl ForModel for Generating<'_> {
    type Output = Vec<Vec<String>>;

    fn with<M: Trainable>(self, folder: Option<Folder>) -> Result<Vec<Vec<String>>, RunError> {
        let Self { run, prompts, decoding } = self;
        let folder = folder.ok_or_else(|| RunError::NotTrained { folder: run.output.clone() })?;
        let (device, _) = device::find(&run.device)?;
        let config = M::config_of(&folder)?;
        let tokenizer = Tokenizer::from_file(folder.path())?.with_special(run.data.special.clone())?;
        let tokenizer = Arc::new(tokenizer);
        let model = folder.load::<M>(&config, &device)?.model;
        let asking = run.asking::<M>(&config, &tokenizer, &device, decoding.clone());
        let (before, prefix) = match &run.task {
            TaskConfig::Seq2Seq { prefix, .. } => (false, prefix.as_str()),
            _ => (true, ""),
        };
        let questions: Vec<_> =
            prompts.iter().map(|prompt| Question::Text(format!("{prefix}{prompt}"))).collect();
        let answers = model.answers(&questions, &asking)?;
        let texts = prompts.iter().zip(answers).map(|(prompt, mut answer)| {
            let texts = match answer.remove("texts") {
                Some(Value::Array(texts)) => texts,
                _ => answer.remove("predicted").into_iter().collect(),
            };
            let written = texts.into_iter().filter_map(|text| text.as_str().map(str::to_owned));
            written.map(|text| if before { format!("{prompt}{text}") } else { text }).collect()
        });
        Ok(texts.collect())
    }
}
