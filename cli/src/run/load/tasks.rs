//! The collator of each task, configured by the run file.

use std::sync::Arc;

use firebrick_datasets::{
    CausalLm, Labels, MaskedLm, Reader, Seq2Seq, SequenceClassification, Target, TokenClassification,
    Tokenizer,
};

use super::{Loading, TaskData, Weighted};
use crate::run::{LabelKind, Rows, RunError, TaskConfig};

impl Loading<'_> {
    /// Returns the names of the labels, with the ids of the model's classifier if it has one.
    fn labels(&self, field: &str, names: &[String]) -> Result<Labels, RunError> {
        let own = || self.own_labels(field, names);
        match &self.run.settled.classifier {
            Some(classifier) => classifier.labels(names, own),
            None => own(),
        }
    }

    /// Returns the names of the labels, given or collected from the data.
    fn own_labels(&self, field: &str, names: &[String]) -> Result<Labels, RunError> {
        if !names.is_empty() {
            return Ok(Labels::new(names)?);
        }
        let corpora = self.corpora()?;
        let records = corpora.iter().flat_map(|Weighted { corpus, .. }| {
            (0..corpus.parts()).flat_map(|part| {
                corpus.open(part).unwrap_or_else(|error| Box::new(std::iter::once(Err(error))))
            })
        });
        Ok(Labels::from_records(records, field, self.config.malformed)?)
    }

    pub(super) fn samples(&self, tokenizer: &Arc<Tokenizer>) -> Result<TaskData, RunError> {
        let encoder = self.config.encoder(tokenizer, None);
        let padding = self.config.padding(tokenizer);
        Ok(match &self.run.task {
            TaskConfig::CausalLm { rows, text, prompt, end } => {
                let causal = CausalLm::new(encoder).padding(padding);
                let causal = match prompt {
                    Some(prompt) => causal.prompted(prompt, text),
                    None => causal.field(text),
                };
                let causal = causal.end(end.unwrap_or(tokenizer.special().eos.is_some()));
                TaskData::CausalLm(match rows {
                    Rows::Packed => self.packed(causal, tokenizer)?,
                    Rows::Samples | Rows::Windows => self.data(causal)?,
                })
            }
            TaskConfig::MaskedLm { text, masking } => {
                let masking = masking.seed(self.run.seed);
                TaskData::MaskedLm(self.data(MaskedLm::new(encoder, masking).field(text).padding(padding))?)
            }
            TaskConfig::TokenClassification { words, labels, subwords, names, .. } => {
                let names = self.labels(labels, names)?;
                let task = TokenClassification::new(encoder, names.clone()).fields(words, labels);
                let data = self.data(task.subwords(*subwords)?.padding(padding))?;
                TaskData::TokenClassification(data, names)
            }
            TaskConfig::SequenceClassification { text, pair, label, kind, names, .. } => {
                let (label_kind, names) = match kind {
                    LabelKind::Number => (Target::Number, None),
                    LabelKind::Class => {
                        let names = self.labels(label, names)?;
                        (Target::Class(names.clone()), Some(names))
                    }
                    LabelKind::Classes => {
                        let names = self.labels(label, names)?;
                        (Target::Classes(names.clone()), Some(names))
                    }
                };
                let task = SequenceClassification::new(encoder, label_kind).field(text).label(label);
                let task = match pair {
                    Some(pair) => task.pair(text, pair),
                    None => task,
                };
                TaskData::SequenceClassification(self.data(task.padding(padding))?, names)
            }
            TaskConfig::Seq2Seq { source, target, prefix, target_prompt, max_target_length, .. } => {
                let targets = self.config.encoder(tokenizer, *max_target_length);
                let task = Seq2Seq::new(encoder, targets).fields(source, target).prefix(prefix);
                let task = task.padding(padding, padding);
                let task = match target_prompt {
                    Some(field) => task.target_prompt(field),
                    None => task,
                };
                let task = match self.run.task.start_id(self.run.settled.start, tokenizer)? {
                    Some(id) => task.start_id(id),
                    None => task,
                };
                TaskData::Seq2Seq(self.data(task)?)
            }
        })
    }
}
