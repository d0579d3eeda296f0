//! Records as pairs of answers.

use serde::{Deserialize, Serialize};

use crate::{ChatError, ChatFormat, Conversation, DataError, Message, Record, Tokenizer, Value};

/// The fields of a record that hold a pair of answers.
///
/// All three are texts, or lists of messages with `role` and `content`. Without a prompt, it is what both answers begin
/// with: the same messages, or the same text. A text for a prompt is left out where the answers are messages, as in
/// trl: they are whole conversations then.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct PreferenceFields {
    /// The prompt, which a record may lack. Default: `prompt`.
    pub prompt: String,
    /// The better answer. Default: `chosen`.
    pub chosen: String,
    /// The worse answer. Default: `rejected`.
    pub rejected: String,
}

impl Default for PreferenceFields {
    fn default() -> Self {
        let [prompt, chosen, rejected] = ["prompt", "chosen", "rejected"].map(str::to_owned);
        Self { prompt, chosen, rejected }
    }
}

/// A prompt, and the prompt with each of its answers.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Pair {
    Texts { prompt: String, chosen: String, rejected: String },
    Conversations { prompt: Conversation, chosen: Conversation, rejected: Conversation },
}

impl PreferenceFields {
    /// Returns the pair of a record.
    pub(super) fn pair(&self, record: &Record) -> Result<Pair, DataError> {
        match record.get(&self.chosen) {
            Some(Value::List(_)) => self.conversations(record),
            Some(Value::Text(chosen)) => self.texts(record, chosen),
            _ => Err(record.expected(&self.chosen, "a text, or a list of messages")),
        }
    }

    /// Returns the prompt of a record and its better answer, if it has one that is a text. `tokenizer` has the template
    /// of conversations; the prompt ends with the beginning of an answer. A record may be a prompt alone.
    ///
    /// # Errors
    ///
    /// A field is missing or of another type, or there is no template, or it refuses the conversation.
    pub fn question(
        &self,
        record: &Record,
        tokenizer: Option<&Tokenizer>,
    ) -> Result<(String, Option<String>), DataError> {
        let rendered = |prompt: &Conversation| {
            let template = tokenizer.ok_or(ChatError::NoTemplate)?.chat_template()?;
            Ok::<_, DataError>(template.render(prompt, true)?.text)
        };
        if record.get(&self.chosen).is_none() {
            let Some(Value::List(_)) = record.get(&self.prompt) else {
                return Ok((record.text(&self.prompt)?.to_owned(), None));
            };
            let (tools, documents) = ChatFormat::tools(record)?;
            let messages = ChatFormat::messages(record, &self.prompt)?;
            return Ok((rendered(&Conversation { messages, tools, documents })?, None));
        }
        match self.pair(record)? {
            Pair::Texts { prompt, chosen, .. } => {
                let answer = chosen.get(prompt.len()..).map(|answer| answer.trim().to_owned());
                Ok((prompt, answer))
            }
            Pair::Conversations { prompt, chosen, .. } => {
                let answer = chosen.messages.get(prompt.messages.len()).and_then(Message::content);
                Ok((rendered(&prompt)?, answer.map(|answer| answer.trim().to_owned())))
            }
        }
    }

    /// Returns the prompt with the better answer, as one text; a conversation as the tokenizer's chat template writes it.
    ///
    /// # Errors
    ///
    /// A field is missing or of another type, or there is no template, or it refuses the conversation.
    pub fn chosen_text(&self, record: &Record, tokenizer: &Tokenizer) -> Result<String, DataError> {
        match self.pair(record)? {
            Pair::Texts { chosen, .. } => Ok(chosen),
            Pair::Conversations { chosen, .. } => Ok(tokenizer.chat_template()?.render(&chosen, false)?.text),
        }
    }

    fn texts(&self, record: &Record, chosen: &str) -> Result<Pair, DataError> {
        let rejected = record.text(&self.rejected)?;
        let joined = |prompt: &str, answer: &str| format!("{prompt}{answer}");
        Ok(match record.get(&self.prompt) {
            None | Some(Value::Null) => Pair::Texts {
                prompt: shared_text(chosen, rejected).to_owned(),
                chosen: chosen.to_owned(),
                rejected: rejected.to_owned(),
            },
            Some(_) => {
                let prompt = record.text(&self.prompt)?;
                Pair::Texts {
                    prompt: prompt.to_owned(),
                    chosen: joined(prompt, chosen),
                    rejected: joined(prompt, rejected),
                }
            }
        })
    }

    fn conversations(&self, record: &Record) -> Result<Pair, DataError> {
        let of = |field: &str| ChatFormat::messages(record, field);
        let (mut chosen, mut rejected) = (of(&self.chosen)?, of(&self.rejected)?);
        let prompt = match record.get(&self.prompt) {
            Some(Value::List(messages)) if !messages.is_empty() => {
                let prompt = of(&self.prompt)?;
                chosen.splice(0..0, prompt.iter().cloned());
                rejected.splice(0..0, prompt.iter().cloned());
                prompt
            }
            _ => {
                let shared = chosen.iter().zip(&rejected).take_while(|(one, other)| one == other).count();
                chosen[..shared].to_vec()
            }
        };
        let (tools, documents) = ChatFormat::tools(record)?;
        let whole = |messages: Vec<Message>| Conversation {
            messages,
            tools: tools.clone(),
            documents: documents.clone(),
        };
        Ok(Pair::Conversations { prompt: whole(prompt), chosen: whole(chosen), rejected: whole(rejected) })
    }
}

/// Returns what both texts begin with, without a space at its end.
fn shared_text<'a>(chosen: &'a str, rejected: &str) -> &'a str {
    let shared = chosen.chars().zip(rejected.chars()).take_while(|(one, other)| one == other);
    let shared = &chosen[..shared.map(|(one, _)| one.len_utf8()).sum()];
    shared.strip_suffix(' ').unwrap_or(shared)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::collators::testing::{record, text};

    fn messages(of: &[(&str, &str)]) -> Value {
        let message = |&(role, content): &(&str, &str)| {
            Value::Map(vec![("role".into(), text(role)), ("content".into(), text(content))])
        };
        Value::List(of.iter().map(message).collect())
    }

    fn contents(pair: Pair) -> [Vec<String>; 3] {
        let Pair::Conversations { prompt, chosen, rejected } = pair else { panic!("{pair:?}") };
        let contents = |of: Conversation| {
            of.messages.iter().map(|message| message.content().unwrap_or_default().to_owned()).collect()
        };
        [prompt, chosen, rejected].map(contents)
    }

    #[test]
    fn an_implicit_text_prompt_is_what_both_begin_with() {
        let of = |chosen: &str, rejected: &str| {
            let record = record(vec![("chosen", text(chosen)), ("rejected", text(rejected))]);
            let Pair::Texts { prompt, chosen: whole, .. } =
                PreferenceFields::default().pair(&record).unwrap()
            else {
                panic!("texts are no conversations")
            };
            assert_eq!(whole, chosen);
            prompt
        };
        assert_eq!(of("The sky is blue.", "The sky is red."), "The sky is");
        assert_eq!(of("über den", "über das"), "über d");
        assert_eq!(of("a", "b"), "");
    }

    #[test]
    fn conversations_are_whole_with_or_without_a_prompt() {
        let (question, answers) = (("user", "Q"), [("assistant", "A"), ("assistant", "B")]);
        let expected = [vec!["Q"], vec!["Q", "A"], vec!["Q", "B"]];
        let explicit = vec![
            ("prompt", messages(&[question])),
            ("chosen", messages(&answers[..1])),
            ("rejected", messages(&answers[1..])),
        ];
        let implicit = |prompt: Vec<(&'static str, Value)>| {
            let whole = [
                ("chosen", messages(&[question, answers[0]])),
                ("rejected", messages(&[question, answers[1]])),
            ];
            prompt.into_iter().chain(whole).collect::<Vec<_>>()
        };
        for fields in [explicit, implicit(vec![]), implicit(vec![("prompt", text("Q"))])] {
            assert_eq!(contents(PreferenceFields::default().pair(&record(fields)).unwrap()), expected);
        }
    }

    #[test]
    fn faults_name_their_field() {
        let fault = |fields| PreferenceFields::default().pair(&record(fields)).unwrap_err().to_string();
        let error = fault(vec![("prompt", text("Q"))]);
        assert!(error.contains("field `chosen`: expected a text, or a list of messages"), "{error}");
        let error = fault(vec![("chosen", text("A")), ("rejected", messages(&[("assistant", "B")]))]);
        assert!(error.contains("field `rejected`: expected a text"), "{error}");
        let error = fault(vec![("chosen", messages(&[("assistant", "A")])), ("rejected", text("B"))]);
        assert!(error.contains("field `rejected`: expected a list of messages"), "{error}");
    }
}
