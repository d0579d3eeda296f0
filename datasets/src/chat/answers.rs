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
    /// where the conversation up to the message ends. Some templates change earlier messages when others follow:
    ///
    /// - Qwen3 and DeepSeek drop earlier reasoning. There, a part is the longest end of what the message adds as the last
    ///   one that is still in its place.
    /// - Phi-3, OLMo 3 and gpt-oss end a conversation in another way than a turn. There, a part ends where the next
    ///   message begins.
    /// - Mistral changes what stands before the message if there is a system's message. There, a part is the content
    ///   with what ends the turn.
    ///
    /// # Errors
    ///
    /// [`ChatError::Unmarked`] if a message can't be found, with the text that differs; [`ChatError::Parts`] if the template
    /// leaves it out because it is a text; and [`ChatError::Rendering`].
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
            let turn = Turn { template: self, conversation, text: &chat.text, at, message, from };
            let part = turn.part().filter(|part| part.start >= from && chat.text.get(part.clone()).is_some());
            parts.push(part.ok_or_else(|| turn.unmarked())?);
        }
        Ok(parts)
    }
}

/// A message of the assistant in a rendered conversation.
struct Turn<'a> {
    template: &'a ChatTemplate,
    conversation: &'a Conversation,
    /// The whole conversation, rendered.
    text: &'a str,
    /// The place of the message.
    at: usize,
    message: &'a Message,
    /// Where the answer before it ends.
    from: usize,
}

impl Turn<'_> {
    /// Renders the first messages, with the beginning of an answer if `prompt`.
    fn upto(&self, messages: usize, prompt: bool) -> Option<String> {
        let messages = self.conversation.messages[..messages].to_vec();
        let beginning = Conversation { messages, ..self.conversation.clone() };
        Some(self.template.render(&beginning, prompt).ok()?.text)
    }

    fn part(&self) -> Option<Range<usize>> {
        let after = self.upto(self.at + 1, false)?;
        let Some(start) = self.start(&after) else {
            return by_content(self.text, self.from, self.message, &after);
        };
        let added = after.get(start..)?;
        let rest = self.text.get(start..)?;
        let length = match kept(added, rest, self.message) {
            // The end of the conversation is no part of the turn if a question for the next answer takes its place.
            Some(length) if length == rest.len() => self.without_end(&after, start).unwrap_or(length),
            Some(length) => length,
            None => self.until_next(start, common(added, rest))?,
        };
        Some(start..start + length)
    }

    /// Returns where the answer begins, after what begins it.
    fn start(&self, after: &str) -> Option<usize> {
        let Self { text, at, from, .. } = *self;
        let in_both = |before: &str| text.starts_with(before) && after.starts_with(before);
        let before = if at > 0 { self.upto(at, true) } else { None };
        if let Some(before) = before.as_deref().filter(|before| in_both(before)) {
            return Some(before.len());
        }
        // Without messages, a template may fail, or leave out what begins a text or an answer.
        let by_header = || {
            let prompted = self.upto(at + 1, true)?;
            let header = self.header(&prompted, after).filter(|header| !header.is_empty())?;
            Some(from + text.get(from..)?.find(header)? + header.len())
        };
        // The beginning of an answer may open reasoning that the message does not have.
        let by_shared_header = || {
            let base = self.upto(at, false).filter(|base| at > 0 && in_both(base))?.len();
            let header = before.as_deref()?.get(base..)?;
            let shared = common(header, &text[base..]).min(common(header, &after[base..]));
            let content = answer_of(self.message.content().unwrap_or_default());
            let content = text[base..].find(content).filter(|_| !content.is_empty());
            Some(base + shared.min(content.unwrap_or(shared))).filter(|&start| start > base)
        };
        by_header().or_else(by_shared_header)
    }

    /// Returns what `prompted` has after a conversation: the beginning of an answer. What ends the conversation alone, and no
    /// turn, may stand only in the conversation.
    fn header<'p>(&self, prompted: &'p str, conversation: &str) -> Option<&'p str> {
        prompted.strip_prefix(conversation).or_else(|| {
            let end = self.template.token("eos_token")?;
            prompted.strip_prefix(conversation.strip_suffix(end)?)
        })
    }

    /// Returns the length of the last turn without what ends the conversation alone, such as Phi-3's `<|endoftext|>`
    /// after the `<|end|>` of each turn. `None` if nothing does.
    fn without_end(&self, after: &str, start: usize) -> Option<usize> {
        let end = self.template.token("eos_token").filter(|end| !end.is_empty())?;
        let turn = after.strip_suffix(end)?;
        let prompted = self.upto(self.at + 1, true)?;
        let replaced = prompted.starts_with(turn) && !prompted.starts_with(after);
        // What is left must end a turn by itself.
        let length = turn.len().checked_sub(start)?;
        let content = self.message.content().unwrap_or_default().trim();
        let left = match content.is_empty() {
            true => &turn[start..],
            false => turn[start..].rsplit(content).next()?,
        };
        let ends = !left.trim().is_empty();
        (replaced && ends).then_some(length)
    }

    /// Returns the length of a turn that ends where the next message begins: with the longest text with which an answer
    /// begins too, such as `<|im_start|>`, between the contents of both. The content of a message that only calls tools
    /// is what is `alike` whether or not others follow.
    fn until_next(&self, start: usize, alike: usize) -> Option<usize> {
        let content = self.message.content().map(answer_of).filter(|content| !content.is_empty());
        let next = self.conversation.messages.get(self.at + 1)?.content()?.trim();
        let end = match content {
            Some(content) => start + self.text.get(start..)?.find(content)? + content.len(),
            None => self.message.get("tool_calls").map(|_| start + alike).filter(|_| alike > 0)?,
        };
        let between = &self.text[end..];
        let between = &between[..between.find(next).filter(|_| !next.is_empty())?];
        // A template may fail without messages, so that the first one tells itself how answers begin.
        let messages = self.at.max(1);
        let (base, prompted) = (self.upto(messages, false)?, self.upto(messages, true)?);
        let header = self.header(&prompted, &base).unwrap_or(&prompted[common(&prompted, &base)..]);
        let begins = between.char_indices().map(|(at, _)| (common(&between[at..], header), at));
        let (shared, next) = begins.max()?;
        // What follows must not be the content, and something must end the turn.
        (shared > 0 && next > 0).then(|| end + next - start)
    }

    fn unmarked(&self) -> ChatError {
        let is_left_out = self.left_out().is_some() && self.message.get("tool_calls").is_none();
        match is_left_out && self.template.reads_parts(self.conversation) {
            true => ChatError::Parts { name: self.template.name().to_owned() },
            false => ChatError::Unmarked { message: self.at + 1, found: self.difference() },
        }
    }

    /// Returns the content, if the template does not write it.
    fn left_out(&self) -> Option<&str> {
        let content = answer_of(self.message.content()?);
        let after = self.upto(self.at + 1, false)?;
        Some(content).filter(|content| !after.contains(content))
    }

    /// Says which text of the message differs when messages follow.
    fn difference(&self) -> String {
        let Some(after) = self.upto(self.at + 1, false) else {
            return "the template refuses the conversation up to it".to_owned();
        };
        let at = common(&after, self.text);
        match (self.left_out(), self.message.get("tool_calls")) {
            (Some(_), Some(_)) => {
                "the template leaves out its `content` since it has `tool_calls`, and what it writes changes when \
                 messages follow"
                    .to_owned()
            }
            (Some(content), None) => {
                format!("the template leaves out its `content`, which begins with {}", excerpt(content))
            }
            _ if at == after.len() => self.beginnings(&after),
            _ => format!(
                "the template writes {} there if it is the last message, and {} if others follow",
                excerpt(&after[at..]),
                excerpt(&self.text[at..])
            ),
        }
    }

    /// Says which text differs where the answer begins. `after` is the conversation up to it.
    fn beginnings(&self, after: &str) -> String {
        let Some(before) = self.upto(self.at, true) else {
            return "the template refuses the conversation before it, so nothing shows where it begins"
                .to_owned();
        };
        let at = common(&before, after);
        format!(
            "the template begins an answer with {} (`add_generation_prompt`), and writes {} there",
            excerpt(&before[at..]),
            excerpt(&after[at..])
        )
    }
}

/// The most characters of a text that an error shows.
const EXCERPT: usize = 40;

/// Returns the beginning of a text for an error.
fn excerpt(text: &str) -> String {
    format!("{:?}", text.chars().take(EXCERPT).collect::<String>())
}

/// Returns the length of the beginning that two texts share, in bytes.
fn common(one: &str, other: &str) -> usize {
    let equal = one.chars().zip(other.chars()).take_while(|(one, other)| one == other);
    equal.map(|(one, _)| one.len_utf8()).sum()
}

/// Returns a content without the reasoning before it, which templates may drop.
fn answer_of(content: &str) -> &str {
    content.rsplit("</think>").next().unwrap_or(content).trim()
}

impl ChatTemplate {
    /// Rejects a template that wrote no message of a conversation with an answer. Templates may drop or rewrite a part of
    /// a message, so the longest word of any message suffices.
    ///
    /// # Errors
    ///
    /// [`ChatError::NoMessages`], or [`ChatError::Parts`].
    pub(crate) fn require_messages(&self, conversation: &Conversation, text: &str) -> Result<(), DataError> {
        let messages = &conversation.messages;
        let is_answered =
            messages.iter().any(|message| message.is_answer() && longest_word(message).is_some());
        let name = self.name().to_owned();
        match is_answered && !messages.iter().filter_map(longest_word).any(|word| text.contains(word)) {
            true if self.reads_parts(conversation) => Err(ChatError::Parts { name }.into()),
            true => Err(ChatError::NoMessages { name }.into()),
            false => Ok(()),
        }
    }

    /// Whether the template writes all contents of a conversation if they are lists of parts.
    fn reads_parts(&self, conversation: &Conversation) -> bool {
        let messages = conversation.messages.iter().map(Message::in_parts).collect();
        let rendered = self.render(&Conversation { messages, ..conversation.clone() }, false);
        let mut words = conversation.messages.iter().filter_map(longest_word);
        rendered.is_ok_and(|chat| words.all(|word| chat.text.contains(word)))
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
    let content = answer_of(message.content().unwrap_or_default());
    // Some templates write either the content or the calls of tools.
    let drops = !added.contains(content) && message.get("tool_calls").is_some();
    if drops {
        return text.starts_with(added).then_some(added.len());
    }
    if added.is_empty() {
        return Some(0);
    }
    // An end has the content if it begins at the content's last place or before. Searching each end for it would take
    // a time square in the length of the reasoning.
    let last = added.rfind(content)?;
    let blank = added.trim_end().len();
    let mut starts = added.char_indices().map(|(at, _)| at).take_while(|&at| at <= last && at < blank);
    starts.find(|&at| text.starts_with(&added[at..])).map(|at| added.len() - at)
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

#[cfg(test)]
#[path = "answers_tests.rs"]
mod tests;
