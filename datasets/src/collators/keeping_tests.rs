//! Samples come back from their bytes, and everything that they depend on is in their settings.

use std::collections::BTreeSet;
use std::fmt::Debug;
use std::sync::Arc;

use super::testing::{list, record, text, wordpiece};
use super::*;
use crate::{ChatTemplate, Collator, Encoder, Fingerprint, Padding, Record, SpecialNames, Tokenizer, Value};

fn encoder() -> Encoder {
    Encoder::new(wordpiece())
}

/// Returns the settings of a collator whose samples of these records come back.
fn settings<C: Collator<Sample: PartialEq + Debug>>(collator: C, records: &[Record]) -> Fingerprint {
    let keeping = collator.keeping().unwrap();
    let samples: Vec<_> =
        records.iter().flat_map(|record| collator.encode(record).unwrap()).map(Arc::new).collect();
    assert!(!samples.is_empty());
    let bytes = keeping.write(&samples).unwrap();
    let read = keeping.read(&bytes).unwrap();
    assert_eq!(read.iter().collect::<Vec<_>>(), samples.iter().map(|sample| &**sample).collect::<Vec<_>>());
    for damaged in [&bytes[1..], &bytes[..bytes.len() - 1], b""] {
        assert!(keeping.read(damaged).is_none_or(|read| read.len() != samples.len()));
    }
    keeping.settings()
}

fn differ(all: impl IntoIterator<Item = Fingerprint>) {
    let all: Vec<_> = all.into_iter().map(String::from).collect();
    assert_eq!(all.iter().collect::<BTreeSet<_>>().len(), all.len());
}

#[test]
fn encoders() {
    let settings = |encoder: Encoder| encoder.settings().unwrap();
    differ([
        settings(encoder()),
        settings(encoder().special(false)),
        settings(encoder().max_length(Some(8))),
        settings(encoder().max_length(Some(8)).stride(Some(1))),
        settings(encoder().cut(crate::Side::Left)),
        settings(encoder().truncation(crate::Truncation::OnlySecond)),
        settings(Encoder::new(Arc::new(Tokenizer::characters("abc").unwrap()))),
        settings(Encoder::new(Arc::new(Tokenizer::characters("abd").unwrap()))),
    ]);
    let counting = encoder().counting(crate::Truncated::default());
    counting.encode(crate::Input::Text("a"), None).unwrap();
    assert_eq!(settings(counting), settings(encoder()));
    let named = |pad: &str| SpecialNames { pad: Some(pad.into()), ..SpecialNames::default() };
    let letters = Tokenizer::characters("abc").unwrap();
    let roles = ["a", "b"].map(|pad| letters.clone().with_special(named(pad)).unwrap().settings().unwrap());
    differ(roles.into_iter().chain(letters.settings()));
}

#[test]
fn causal_lm() {
    let records =
        [record(vec![("text", text("hello world")), ("prompt", text("hello ")), ("other", text("a b"))])];
    let task = || CausalLm::new(encoder());
    let settings = |task| settings(task, &records);
    let plain = settings(task());
    differ([
        plain,
        settings(task().field("other")),
        settings(task().prompted("prompt", "text")),
        settings(task().end(true).end_id(3)),
        settings(task().end(true).end_id(4)),
        settings(CausalLm::new(encoder().special(false))),
    ]);
    assert_eq!(settings(task().padding(Padding::default().side(crate::Side::Left)).pad_id(7)), plain);
}

#[test]
fn chats_whose_template_tells_no_time() {
    let turn = |role: &str, content: &str| {
        Value::Map(vec![("role".into(), text(role)), ("content".into(), text(content))])
    };
    let records =
        [record(vec![("messages", Value::List(vec![turn("user", "hello"), turn("assistant", "world")]))])];
    let template = |source: &str| ChatTemplate::new("ours", source).unwrap();
    let chat =
        |source: &str| CausalLm::new(encoder()).chat(Chat::new(template(source)).learned(Learned::All));
    let source = "{% for m in messages %}{{ m.content }} {% endfor %}";
    let one = settings(chat(source), &records);
    let other = settings(chat(&format!("{source}!")), &records);
    let tokens = Chat::new(template(source).with_token("eos_token", "x")).learned(Learned::All);
    differ([one, other, settings(CausalLm::new(encoder()).chat(tokens), &records)]);
    assert!(chat("{{ strftime_now('%Y') }}").keeping().is_none());
}

#[test]
fn the_other_tasks() {
    let labels = |names: [&str; 2]| Labels::new(names).unwrap();
    let words = || list(&["hello", "world"]);
    let records = [record(vec![
        ("text", text("hello world")),
        ("other", text("world")),
        ("words", words()),
        ("labels", list(&["a", "b"])),
        ("label", text("a")),
        ("flags", list(&["a", "b"])),
        ("number", Value::Float(0.1)),
        ("chosen", text("hello world")),
        ("rejected", text("hello hello")),
    ])];
    let masked = || MaskedLm::new(encoder(), Masking::default()).mask_id(4).pad_id(0);
    let of_words = |names| TokenClassification::new(encoder(), labels(names)).pad_id(0);
    let classified = |target| SequenceClassification::new(encoder(), target).pad_id(0);
    let numbers = classified(Target::Number).label("number");
    let pairs = |kept| Preferences::new(encoder(), Dpo::default()).unwrap().kept(kept).end(false);
    let pair = || Seq2Seq::new(encoder(), encoder()).fields("text", "other").pad_id(0);
    differ([
        settings(masked(), &records),
        settings(masked().field("other"), &records),
        settings(of_words(["a", "b"]), &records),
        settings(of_words(["b", "a"]), &records),
        settings(of_words(["a", "b"]).subwords(Subwords::All).unwrap(), &records),
        settings(
            TokenClassification::new(encoder(), Labels::collect(["a", "b"]).unwrap()).pad_id(0),
            &records,
        ),
        settings(classified(Target::Class(labels(["a", "b"]))), &records),
        settings(classified(Target::Class(labels(["b", "a"]))), &records),
        settings(classified(Target::Class(Labels::collect(["a", "b"]).unwrap())), &records),
        settings(classified(Target::Classes(labels(["a", "b"]))).label("flags"), &records),
        settings(numbers, &records),
        settings(pairs(KeptEnd::Start), &records),
        settings(pairs(KeptEnd::End), &records),
        settings(pair(), &records),
        settings(pair().prefix("hello "), &records),
        settings(pair().target_prompt("chosen"), &records),
    ]);
    let other = MaskedLm::new(encoder(), Masking { probability: 0.3, seed: 1, ..Masking::default() })
        .mask_id(4)
        .pad_id(0);
    assert_eq!(settings(other, &records), settings(masked(), &records));
}
