//! Finds what the assistant wrote in a rendered conversation.

use std::ops::Range;

use super::{ChatTemplate, Conversation, Message, RenderedChat};
use crate::{ChatError, DataError};

impl ChatTemplate {
    /// Returns the bytes of a rendered conversation that the assistant's messages add, one part for each, in order:
    /// the answer and what ends the turn, but not what begins it.
    ///
    /// If the template [marks](Self::marks_answers) what the assistant writes, these are the marked parts. Otherwise, a
    /// part begins where the conversation before the message ends, rendered with the beginning of an answer, and ends
    /// where the conversation up to the message ends. Some templates change earlier messages when others follow, such
    /// as Qwen3's, which drops earlier reasoning. There, a part is the longest end of what the message adds as the last
    /// one that is still in its place; and if the template changes what stands before it, such as Mistral's with a
    /// system's message, it is the content with what ends the turn.
    ///
    /// # Errors
    ///
    /// [`ChatError::Unmarked`] if a message can't be found, and [`ChatError::Rendering`].
    pub fn answers(
        &self,
        conversation: &Conversation,
        chat: &RenderedChat,
    ) -> Result<Vec<Range<usize>>, DataError> {
        if self.marks_answers() {
            return Ok(chat.generated.clone());
        }
        let mut parts: Vec<Range<usize>> = Vec::new();
        for (at, message) in
            conversation.messages.iter().enumerate().filter(|(_, message)| message.is_answer())
        {
            let from = parts.last().map_or(0, |part| part.end);
            let upto = |messages: usize, prompt| {
                let messages = conversation.messages[..messages].to_vec();
                self.render(&Conversation { messages, ..conversation.clone() }, prompt).ok()
            };
            let after = upto(at + 1, false);
            let part = after.and_then(|RenderedChat { text: after, .. }| {
                let before = upto(at, true).filter(|_| at > 0);
                let is_prefix = |before: &RenderedChat| {
                    [&chat.text, &after].iter().all(|text| text.starts_with(&before.text))
                };
                let common = before.filter(is_prefix).map(|before| before.text.len());
                // Without messages, a template may fail, or leave out what begins a text or an answer.
                let Some(start) = common.or_else(|| {
                    let prompted = upto(at + 1, true)?;
                    let header = prompted.text.strip_prefix(&after).filter(|header| !header.is_empty())?;
                    Some(from + chat.text[from..].find(header)? + header.len())
                }) else {
                    return by_content(&chat.text, from, message, &after);
                };
                let length = kept(after.get(start..)?, &chat.text[start..], message)?;
                Some(start..start + length)
            });
            match part.filter(|part| part.start >= from && part.start <= part.end) {
                Some(part) => parts.push(part),
                None => {
                    let found = "the template writes it in another way when messages follow".to_owned();
                    return Err(ChatError::Unmarked { message: at + 1, found }.into());
                }
            }
        }
        Ok(parts)
    }
}

impl ChatTemplate {
    /// Rejects a template that wrote no message of a conversation with an answer. Templates may drop or rewrite a part of
    /// a message, so the longest word of any message suffices.
    ///
    /// # Errors
    ///
    /// [`ChatError::NoMessages`].
    pub(crate) fn require_messages(&self, conversation: &Conversation, text: &str) -> Result<(), DataError> {
        let messages = &conversation.messages;
        let is_answered =
            messages.iter().any(|message| message.is_answer() && longest_word(message).is_some());
        match is_answered && !messages.iter().filter_map(longest_word).any(|word| text.contains(word)) {
            true => Err(ChatError::NoMessages { name: self.name().to_owned() }.into()),
            false => Ok(()),
        }
    }
}

impl ChatTemplate {
    /// Returns what follows an answer in a conversation that ends with it, such as `<|im_end|>` and a new line. `None`
    /// if the template refuses a question with an answer, or changes the answer.
    pub(crate) fn end_of_answer(&self) -> Option<String> {
        const ANSWER: &str = "Yes";
        let messages = vec![Message::new("user", "Is it?"), Message::new("assistant", ANSWER)];
        let chat = self.render(&Conversation { messages, ..Conversation::default() }, false).ok()?;
        chat.text.rsplit_once(ANSWER).map(|(_, end)| end.to_owned())
    }
}

fn longest_word(message: &Message) -> Option<&str> {
    message.content()?.split_whitespace().max_by_key(|word| word.len())
}

/// Returns the length of a message at the beginning of `text`, in bytes. `added` is the text that the template adds for
/// the message if it is the last one. If other messages follow, the template may drop the reasoning before the content,
/// so `text` may begin with an end of `added` that has the content.
fn kept(added: &str, text: &str, message: &Message) -> Option<usize> {
    let content = message.content().unwrap_or_default();
    let content = content.rsplit("</think>").next().unwrap_or(content).trim();
    let ends = added.char_indices().map(|(at, _)| &added[at..]);
    let mut ends = ends.take_while(|end| !end.trim().is_empty() && end.contains(content));
    match added.is_empty() {
        true => Some(0),
        false => ends.find(|end| text.starts_with(end)).map(str::len),
    }
}

/// Finds a message by its content and by how a text ends that ends with the message. Mistral's template writes the
/// system's message into the last message of the user, so no beginning of the conversation is one of the text.
fn by_content(text: &str, from: usize, message: &Message, last: &str) -> Option<Range<usize>> {
    let content = message.content()?.trim();
    let added = &last[last.rfind(content).filter(|_| !content.is_empty())?..];
    // The content alone could be anywhere.
    let ends = added.len() > content.len();
    let start = from + text.get(from..)?.find(added).filter(|_| ends)?;
    Some(start..start + added.len())
}
