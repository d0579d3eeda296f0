//! Templates that write a turn in another way when messages follow, after the public ones of the families named.

use super::*;
use crate::Value;

/// Phi-3's own: what ends a conversation is no part of a turn.
const PHI3: &str = "{% for message in messages %}{% if message['role'] == 'system' and message['content'] %}{{'<|system|>\n' + message['content'] + '<|end|>\n'}}{% elif message['role'] == 'user' %}{{'<|user|>\n' + message['content'] + '<|end|>\n'}}{% elif message['role'] == 'assistant' %}{{'<|assistant|>\n' + message['content'] + '<|end|>\n'}}{% endif %}{% endfor %}{% if add_generation_prompt %}{{ '<|assistant|>\n' }}{% else %}{{ eos_token }}{% endif %}";

/// Phi-4-mini's own, without tools.
const PHI4_MINI: &str = "{% for message in messages %}{{ '<|' + message['role'] + '|>' + message['content'] + '<|end|>' }}{% endfor %}{% if add_generation_prompt %}{{ '<|assistant|>' }}{% else %}{{ eos_token }}{% endif %}";

/// OLMo 3: the last answer ends in the end token, the others in that of a turn.
const OLMO3: &str = "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] }}{% if message['role'] == 'assistant' and loop.last %}{{ eos_token }}{% else %}{{ '<|im_end|>\n' }}{% endif %}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}";

/// gpt-oss: the last answer ends in `<|return|>`, the others in `<|end|>`.
const GPT_OSS: &str = "{% for message in messages %}{% if message.role == 'assistant' %}<|start|>assistant<|channel|>final<|message|>{{ message.content }}{% if loop.last and not add_generation_prompt %}<|return|>{% else %}<|end|>{% endif %}{% else %}<|start|>{{ message.role }}<|message|>{{ message.content }}<|end|>{% endif %}{% endfor %}{% if add_generation_prompt %}<|start|>assistant{% endif %}";

/// DeepSeek-R1: reasoning is dropped, and the beginning of an answer opens it.
const DEEPSEEK: &str = "{{ bos_token }}{% for message in messages %}{% if message.role == 'user' %}<｜User｜>{{ message.content }}{% else %}<｜Assistant｜>{{ message.content.split('</think>')[-1] }}<｜end▁of▁sentence｜>{% endif %}{% endfor %}{% if add_generation_prompt %}<｜Assistant｜><think>\n{% endif %}";

/// GLM-4: a turn ends where the next begins.
const GLM4: &str = "[gMASK]<sop>{% for message in messages %}<|{{ message.role }}|>\n{{ message.content }}{% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}";

/// Qwen3: the reasoning of earlier turns is dropped.
const QWEN3: &str = "{% for m in messages %}<|im_start|>{{ m.role }}\n{% if m.role == 'assistant' and not loop.last %}{{ m.content.split('</think>')[-1].lstrip('\n') }}{% else %}{{ m.content }}{% endif %}<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}";

fn turns(messages: &[(&str, &str)]) -> Conversation {
    let messages = messages.iter().map(|&(role, content)| Message::new(role, content)).collect();
    Conversation { messages, ..Conversation::default() }
}

fn answers(template: &str, conversation: &Conversation) -> Result<Vec<String>, String> {
    let template = ChatTemplate::new("ours", template).unwrap();
    let template = template.with_token("bos_token", "<s>").with_token("eos_token", "</s>");
    let chat = template.render(conversation, false).unwrap();
    let parts = template.answers(conversation, &chat).map_err(|error| error.to_string())?;
    Ok(parts.into_iter().map(|part| chat.text[part].to_owned()).collect())
}

#[test]
fn answers_are_found_where_the_last_turn_differs() {
    let several =
        [("user", " Grüße!\n"), ("assistant", "  “ok” \t\n"), ("user", "more?"), ("assistant", "yes\n\nyes")];
    let asked = [("system", "brief"), ("user", "a?"), ("assistant", "<a>"), ("user", "b?")];
    let reasoned =
        [("user", "a?"), ("assistant", "<think>\nhm\n</think>\n\n4"), ("user", "b?"), ("assistant", "6")];
    for (template, messages, expected) in [
        (PHI3, several, ["  “ok” \t\n<|end|>\n", "yes\n\nyes<|end|>\n"].as_slice()),
        (PHI3, asked, &["<a><|end|>\n"]),
        (PHI4_MINI, several, &["  “ok” \t\n<|end|>", "yes\n\nyes<|end|>"]),
        (PHI4_MINI, asked, &["<a><|end|>"]),
        (OLMO3, several, &["  “ok” \t\n<|im_end|>\n", "yes\n\nyes</s>"]),
        (OLMO3, asked, &["<a><|im_end|>\n"]),
        (
            GPT_OSS,
            several,
            &[
                "<|channel|>final<|message|>  “ok” \t\n<|end|>",
                "<|channel|>final<|message|>yes\n\nyes<|return|>",
            ],
        ),
        (DEEPSEEK, several, &["  “ok” \t\n<｜end▁of▁sentence｜>", "yes\n\nyes<｜end▁of▁sentence｜>"]),
        (DEEPSEEK, reasoned, &["\n\n4<｜end▁of▁sentence｜>", "6<｜end▁of▁sentence｜>"]),
        (GLM4, several, &["\n  “ok” \t\n", "\nyes\n\nyes"]),
        (QWEN3, reasoned, &["4<|im_end|>\n", "6<|im_end|>\n"]),
    ] {
        let found = answers(template, &turns(&messages));
        assert_eq!(
            found.as_deref(),
            Ok(expected.iter().map(|part| (*part).to_owned()).collect::<Vec<_>>().as_slice()),
            "{template}"
        );
    }
}

#[test]
fn one_turn_ends_like_several() {
    let one = [("user", "a?"), ("assistant", "yes")];
    for (template, expected) in [(PHI3, "yes<|end|>\n"), (OLMO3, "yes</s>"), (GLM4, "\nyes")] {
        assert_eq!(answers(template, &turns(&one)), Ok(vec![expected.to_owned()]), "{template}");
    }
    let empty = [("user", "a?"), ("assistant", "")];
    assert_eq!(answers(PHI3, &turns(&empty)), Ok(vec!["<|end|>\n".to_owned()]));
}

/// Llama 3.1 writes either the calls or the content.
#[test]
fn calls_of_tools_may_take_the_place_of_the_content() {
    let template = "{% for m in messages %}[{{ m.role }}]{% if m.tool_calls %}{{ m.tool_calls[0].function.name }}{% else %}{{ m.content }}{% endif %}<e>{% endfor %}{% if add_generation_prompt %}[assistant]{% endif %}";
    let mut chat = turns(&[("user", "Weather?"), ("tool", "sun"), ("assistant", "It is sunny.")]);
    let text = |text: &str| Value::Text(text.to_owned());
    let map = |name: &str, value: Value| Value::Map(vec![(name.to_owned(), value)]);
    let call = Value::List(vec![map("function", map("name", text("weather")))]);
    let fields = [("role", text("assistant")), ("content", text("I look it up.")), ("tool_calls", call)];
    let message = Message::of(&fields.map(|(name, value)| (name.to_owned(), value)));
    chat.messages.insert(1, message);
    assert_eq!(answers(template, &chat), Ok(vec!["weather<e>".to_owned(), "It is sunny.<e>".to_owned()]));
    // How many messages there are changes what it writes.
    let changes = template.replace("function.name }}", "function.name }}{{ messages|length }}");
    let error = answers(&changes, &chat).unwrap_err();
    assert!(
        error.starts_with("message 2 of the conversation: the template leaves out its `content`"),
        "{error}"
    );
}

/// OLMo 3 ends the calls of the last turn in another way, too.
#[test]
fn calls_of_tools_end_like_answers() {
    let template =
        OLMO3.replace("message['content'] }}", "(message.content or message.tool_calls[0].name) }}");
    let text = |text: &str| Value::Text(text.to_owned());
    let call = Value::List(vec![Value::Map(vec![("name".to_owned(), text("weather"))])]);
    let mut chat = turns(&[("user", "Weather?"), ("tool", "sun"), ("assistant", "It is sunny.")]);
    let fields = [("role", text("assistant")), ("tool_calls", call)];
    chat.messages.insert(1, Message::of(&fields.map(|(name, value)| (name.to_owned(), value))));
    let expected = ["weather<|im_end|>\n", "It is sunny.</s>"].map(String::from);
    assert_eq!(answers(&template, &chat), Ok(expected.to_vec()));
    assert_eq!(chat.messages.remove(3).content(), Some("It is sunny."));
    assert_eq!(answers(&template, &chat), Ok(vec![expected[0].clone()]));
}

/// SmolVLM's and Idefics3's own, which loop over the parts of a content.
const SMOLVLM: &str = "<|im_start|>{% for message in messages %}{{message['role'] | capitalize}}{% if message['content'][0]['type'] == 'image' %}{{':'}}{% else %}{{': '}}{% endif %}{% for line in message['content'] %}{% if line['type'] == 'text' %}{{line['text']}}{% elif line['type'] == 'image' %}{{ '<image>' }}{% endif %}{% endfor %}<end_of_utterance>\n{% endfor %}{% if add_generation_prompt %}{{ 'Assistant:' }}{% endif %}";

#[test]
fn a_template_of_parts_says_so() {
    let texts = turns(&[("user", "User?"), ("assistant", "Yes."), ("user", "b"), ("assistant", "No.")]);
    for template in
        [SMOLVLM.to_owned(), SMOLVLM.replace("message['role'] | capitalize", "message['role'].capitalize()")]
    {
        let error = answers(&template, &texts).unwrap_err();
        let said = "leaves out each `content` that is a text, since it reads a list of parts; write \
                    `[{\"type\": \"text\", \"text\": \"..\"}]`";
        assert!(error.contains(said), "{error}");
        // The same if it is found before the answers are looked for.
        let ours = ChatTemplate::new("ours", &template).unwrap();
        let unwritten = turns(&[("user", "zebra"), ("assistant", "quagga")]);
        let text = ours.render(&unwritten, false).unwrap().text;
        let found = ours.require_messages(&unwritten, &text).unwrap_err().to_string();
        assert!(found.contains(said), "{found}");
        let parts = Conversation {
            messages: texts.messages.iter().map(Message::in_parts).collect(),
            ..Conversation::default()
        };
        let expected = [" Yes.<end_of_utterance>\n", " No.<end_of_utterance>\n"].map(String::from);
        assert_eq!(answers(&template, &parts), Ok(expected.to_vec()));
    }
}

#[test]
fn an_error_shows_what_is_left_out_and_how_answers_begin() {
    let chat = turns(&[("user", "a"), ("assistant", "yes and no"), ("user", "b"), ("assistant", "no")]);
    let turns = "[{{ m.role }}]{% if m.role == 'user' %}{{ m.content }}{% endif %};";
    let template = format!(
        "{{% for m in messages %}}{turns}{{% endfor %}}{{% if add_generation_prompt %}}[assistant]{{% endif %}}"
    );
    let error = answers(&template, &chat).unwrap_err();
    let said = "message 2 of the conversation: the template leaves out its `content`, which begins with \"yes and no\"";
    assert!(error.starts_with(said), "{error}");
    // Nothing begins an answer as the prompt does, and nothing ends one.
    let template = "{% for m in messages %}{{ m.content }}{% endfor %}{% if add_generation_prompt %}[assistant]{% endif %}";
    let error = answers(template, &chat).unwrap_err();
    let said = "message 2 of the conversation: the template begins an answer with \"[assistant]\" \
                (`add_generation_prompt`), and writes \"yes and no\" there";
    assert!(error.starts_with(said), "{error}");
}

#[test]
fn an_error_shows_the_text_that_differs() {
    let template = "{% for m in messages %}[{{ m.role }}]{{ m.content }}{{ messages|length }};{% endfor %}{% if add_generation_prompt %}[assistant]{% endif %}";
    let chat = turns(&[("user", "a"), ("assistant", "b"), ("user", ""), ("assistant", "c")]);
    let error = answers(template, &chat).unwrap_err();
    assert!(
        error.starts_with(
            "message 2 of the conversation: the template writes \"2;[assistant]b2;\" there if it is the last message, and \
             \"4;[assistant]b4;[user]4;[assistant]c4;\" if others follow, so the tokens to learn are unknown"
        ),
        "{error}"
    );
}
