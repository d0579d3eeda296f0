use super::*;
use crate::collators::CausalLm;
use crate::collators::testing::{record, text};
use crate::{Collator, Tokenizer, Value};

/// Answers are not marked.
const TEMPLATE: &str = "{% for message in messages %}<{{ message.role[0] }}>{{ message.content }};{% endfor %}\
                        {% if add_generation_prompt %}<a>{% endif %}";
const TEXT: &str = "<u>hi;<a>yo;<u>so;<a>no;";

/// Encodes two questions and answers, one token for each character, and returns the sample's text, that of the tokens
/// that count, and how many conversations were cut.
fn encoded(learned: Learned, most: Option<usize>) -> (String, String, u64) {
    let message =
        |role, content| Value::Map(vec![("role".into(), text(role)), ("content".into(), text(content))]);
    let [first, second] = [("hi", "yo"), ("so", "no")]
        .map(|(question, answer)| [message("user", question), message("assistant", answer)]);
    let messages = Value::List([first, second].concat());
    let tokenizer = Arc::new(Tokenizer::characters(TEXT).unwrap());
    let chat = Chat::new(ChatTemplate::new("ours", TEMPLATE).unwrap()).learned(learned);
    let task = CausalLm::new(Encoder::new(tokenizer.clone()).max_length(most)).chat(chat.clone());
    let sample = task.encode(&record(vec![("messages", messages)])).unwrap().remove(0);
    let counts = |at: usize| at >= sample.prompt && !sample.unlearned.iter().any(|part| part.contains(&at));
    let counted: Vec<u32> = (0..sample.ids.len()).filter(|&at| counts(at)).map(|at| sample.ids[at]).collect();
    (tokenizer.decode(&sample.ids).unwrap(), tokenizer.decode(&counted).unwrap(), chat.cut())
}

#[test]
fn a_template_that_writes_no_messages_is_refused() {
    let refused = |template: &str, content: &str| {
        let message = |role: &str, content: &str| {
            Value::Map(vec![("role".into(), text(role)), ("content".into(), text(content))])
        };
        let messages = Value::List(vec![message("user", "YO?"), message("assistant", content)]);
        let tokenizer = Arc::new(Tokenizer::characters("<user>asitn;YO?").unwrap());
        let chat = Chat::new(ChatTemplate::new("ours", template).unwrap()).learned(Learned::All);
        let task = CausalLm::new(Encoder::new(tokenizer)).chat(chat);
        task.encode(&record(vec![("messages", messages)])).err().map(|error| error.to_string())
    };
    for template in
        ["<user>", "{% for message in messages %}<{{ message.role }}>{{ message.text }};{% endfor %}"]
    {
        let error = refused(template, "YO").unwrap();
        assert!(error.contains("ours: the template writes the content of no message"), "{error}");
        assert_eq!(refused(template, " "), None, "there is no answer");
    }
    let one = "{% for message in messages[1:] %}{{ message.content }}{% endfor %}";
    assert_eq!(refused(one, "YO"), None);
}

#[test]
fn answers_count_with_what_ends_them() {
    assert_eq!(encoded(Learned::Answers, None), (TEXT.into(), "yo;no;".into(), 0));
}

#[test]
fn the_last_answer_counts_alone() {
    assert_eq!(encoded(Learned::LastAnswer, None), (TEXT.into(), "no;".into(), 0));
}

#[test]
fn all_tokens_count() {
    assert_eq!(encoded(Learned::All, None), (TEXT.into(), TEXT.into(), 0));
}

#[test]
fn a_long_conversation_is_cut_and_counted() {
    assert_eq!(encoded(Learned::Answers, Some(14)), ("<u>hi;<a>yo;<u".into(), "yo;".into(), 1));
    assert_eq!(encoded(Learned::Answers, Some(TEXT.len())).2, 0);
}
