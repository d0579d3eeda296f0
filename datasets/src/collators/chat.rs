//! Conversations as samples of a causal language model.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use serde::{Deserialize, Serialize};

use super::CausalSample;
use crate::{ChatFormat, ChatTemplate, DataError, Encoder, Encoding, Fingerprint, Input, Record, Side};

/// Which tokens of a conversation count in the loss.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub enum Learned {
    /// Those of each answer of the assistant, with the token that ends it.
    #[default]
    Answers,
    /// Those of the last answer.
    LastAnswer,
    /// All.
    All,
}

/// Encodes conversations for [`CausalLm`](super::CausalLm), by a chat template.
///
/// The ids are those of transformers' `apply_chat_template`, and with [`Learned::Answers`] and a template that marks
/// what the assistant writes, the labels are those of its `return_assistant_tokens_mask`. The template writes all
/// special tokens; the tokenizer adds none. White space after the token that ends an answer does not count: the model
/// has ended by then.
///
/// Clones share the count of cut conversations.
#[derive(Debug, Clone)]
pub struct Chat {
    template: ChatTemplate,
    format: Option<ChatFormat>,
    learned: Learned,
    cut: Arc<AtomicU64>,
}

impl Chat {
    /// Recognises the format of each record, and learns all answers.
    pub fn new(template: ChatTemplate) -> Self {
        Self { template, format: None, learned: Learned::default(), cut: Arc::default() }
    }

    /// Sets the format of the records. Default: recognised by each record's fields.
    pub fn format(self, format: Option<ChatFormat>) -> Self {
        Self { format, ..self }
    }

    /// Sets which tokens count. Default: those of the answers.
    pub fn learned(self, learned: Learned) -> Self {
        Self { learned, ..self }
    }

    /// Returns how many conversations had more tokens than the encoder's maximum, and were cut.
    pub fn cut(&self) -> u64 {
        self.cut.load(Ordering::Relaxed)
    }

    /// Returns a hash of everything that samples depend on besides the record and the encoder. `None` if the template
    /// writes the time.
    pub(super) fn settings(&self) -> Option<Fingerprint> {
        let Self { template, format, learned, cut: _ } = self;
        Fingerprint::of_settings(&(template.settings()?, format, learned))
    }

    /// Encodes the conversation of a record.
    pub(super) fn encode(&self, record: &Record, encoder: &Encoder) -> Result<CausalSample, DataError> {
        let conversation = match &self.format {
            Some(format) => format.conversation(record)?,
            None => ChatFormat::of(record)?.conversation(record)?,
        };
        let chat = self.template.render(&conversation, false)?;
        self.template.require_messages(&conversation, &chat.text)?;
        let parts = match self.learned {
            Learned::All => None,
            Learned::Answers => Some(self.template.answers(&conversation, &chat)?),
            Learned::LastAnswer => {
                Some(self.template.answers(&conversation, &chat)?.pop().into_iter().collect())
            }
        };
        let (most, _, side) = encoder.limits();
        let whole = encoder.clone().special(false).max_length(None).stride(None);
        let encoding = whole.encode(Input::Text(&chat.text), None)?.pop().unwrap_or_default();
        let mut counts = match parts {
            None => vec![true; encoding.len()],
            Some(parts) => {
                let ends_turns = !self.template.marks_answers();
                let special = |id: &u32| ends_turns && encoder.tokenizer().special().all.contains(id);
                counted(&encoding, &chat.text, &parts, special)
            }
        };
        let mut ids = encoding.ids;
        if let Some(excess) = most.and_then(|most| ids.len().checked_sub(most)).filter(|&excess| excess > 0) {
            self.cut.fetch_add(1, Ordering::Relaxed);
            encoder.lose(excess);
            let kept = match side {
                Side::Right => 0..ids.len() - excess,
                Side::Left => excess..ids.len(),
            };
            (ids, counts) = (ids[kept.clone()].to_vec(), counts[kept].to_vec());
        }
        Ok(sample(ids, &counts))
    }
}

/// Returns whether each token reaches into one of the parts of the text. In a part with special tokens, the white space
/// after the last one does not count.
fn counted(
    encoding: &Encoding,
    text: &str,
    parts: &[Range<usize>],
    special: impl Fn(&u32) -> bool,
) -> Vec<bool> {
    let mut counts = vec![false; encoding.len()];
    let mut parts = parts.iter().peekable();
    let mut ended = false;
    for (token, &(start, end)) in encoding.offsets.iter().enumerate() {
        let (start, end) = (start as usize, end as usize);
        while parts.next_if(|part| start >= part.end).is_some() {
            ended = false;
        }
        let Some(part) = parts.peek() else { break };
        if end <= part.start {
            continue;
        }
        let rest = text.get(start..part.end).unwrap_or_default();
        counts[token] = !(ended && rest.trim().is_empty());
        ended = special(&encoding.ids[token]);
    }
    counts
}

/// Creates a sample of which the marked tokens count.
fn sample(ids: Vec<u32>, counts: &[bool]) -> CausalSample {
    let mut unlearned = Vec::new();
    let mut at = 0;
    for run in counts.chunk_by(|a, b| a == b) {
        if !run[0] {
            unlearned.push(at..at + run.len());
        }
        at += run.len();
    }
    let prompt = match unlearned.first() {
        Some(first) if first.start == 0 => unlearned.remove(0).end,
        _ => 0,
    };
    CausalSample { ids, prompt, unlearned }
}

#[cfg(test)]
#[path = "chat_tests.rs"]
mod tests;
