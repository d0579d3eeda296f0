use proptest::prelude::*;

use super::*;
use crate::collators::testing::{bytebpe, drawn, record, text};
use crate::{Batch, Compared, IGNORE, Reference, Tokenizer, Truncated, Value};

/// Characters of which `.` ends texts.
fn letters(most: Option<usize>) -> Preferences {
    let encoder = Encoder::new(Arc::new(Tokenizer::characters("abcdefgh.").unwrap())).max_length(most);
    Preferences::new(encoder, Dpo::default()).unwrap().end_id(0)
}

fn pair(prompt: &str, chosen: &str, rejected: &str) -> Record {
    record(vec![("prompt", text(prompt)), ("chosen", text(chosen)), ("rejected", text(rejected))])
}

fn of(pairs: &Preferences, record: &Record) -> Option<PreferenceSample> {
    let mut samples = pairs.encode(record).unwrap();
    assert!(samples.len() < 2);
    samples.pop()
}

#[test]
fn a_row_keeps_its_start_or_its_end_and_a_pair_without_an_answer_is_left_out() {
    let row = |sample: &CausalSample| (sample.ids.clone(), sample.prompt);
    let whole = of(&letters(None), &pair("abc", "d", "ef")).unwrap();
    assert_eq!(row(whole.chosen()), (vec![1, 2, 3, 4, 0], 3));
    assert_eq!(row(whole.rejected()), (vec![1, 2, 3, 5, 6, 0], 3));
    let truncated = Truncated::default();
    let start = letters(Some(5));
    let start = Preferences { encoder: start.encoder.clone().counting(truncated.clone()), ..start };
    let cut = of(&start, &pair("abc", "d", "ef")).unwrap();
    assert_eq!(row(cut.chosen()), row(whole.chosen()));
    assert_eq!(row(cut.rejected()), (vec![1, 2, 3, 5, 6], 3));
    assert_eq!((truncated.texts(), truncated.tokens()), (1, 1));
    let end = letters(Some(4)).kept(KeptEnd::End);
    let cut = of(&end, &pair("abc", "d", "ef")).unwrap();
    assert_eq!(row(cut.chosen()), (vec![2, 3, 4, 0], 2));
    assert_eq!(row(cut.rejected()), (vec![3, 5, 6, 0], 1));
    // The prompt fills the row.
    assert_eq!(of(&letters(Some(3)), &pair("abc", "d", "ef")), None);
    assert!(of(&letters(Some(3)).kept(KeptEnd::End), &pair("abc", "d", "ef")).is_some());
}

#[test]
fn an_answer_begins_where_the_tokens_of_the_prompt_end_to_be_the_same() {
    let tokenizer = bytebpe();
    let pairs = Preferences::new(Encoder::new(tokenizer.clone()), Dpo::default()).unwrap();
    let found = of(&pairs, &pair("The river", "s rise.", " rose.")).unwrap();
    let ids = |text: &str| tokenizer.encode(text).unwrap();
    let [prompt, chosen] = ["The river", "The rivers rise."].map(ids);
    let both = shared(&prompt, &chosen).min(shared(&prompt, &ids("The river rose.")));
    assert_eq!((found.chosen().prompt, found.rejected().prompt), (both, both));
    assert_eq!(found.chosen().ids[..chosen.len()], chosen);
    // GPT-2's end token ends each text, once.
    let end = tokenizer.special().eos.unwrap();
    assert_eq!(found.chosen().ids[chosen.len()..], [end]);
    let ended = of(&pairs, &pair("The river", "s rise.<|endoftext|>", " rose.")).unwrap();
    assert_eq!(ended.chosen(), found.chosen());
}

#[test]
fn conversations_are_rendered_and_need_a_template() {
    let template = "{% for m in messages %}{{ m.role[0] }}{{ m.content }}.{% endfor %}\
                    {% if add_generation_prompt %}a{% endif %}";
    let message = |role: &str, content: &str| {
        Value::Map(vec![("role".into(), text(role)), ("content".into(), text(content))])
    };
    let conversation =
        |of: &[(&str, &str)]| Value::List(of.iter().map(|(role, content)| message(role, content)).collect());
    let record = record(vec![
        ("prompt", conversation(&[("user", "q")])),
        ("chosen", conversation(&[("assistant", "bc")])),
        ("rejected", conversation(&[("assistant", "d")])),
    ]);
    let tokenizer = Tokenizer::characters("abcdqu.").unwrap();
    let error = Preferences::new(Encoder::new(Arc::new(tokenizer.clone())), Dpo::default()).unwrap();
    let error = error.encode(&record).unwrap_err().to_string();
    assert!(error.contains("no chat template"), "{error}");
    let tokenizer = Arc::new(tokenizer.with_chat_template("ours", template).unwrap());
    let pairs = Preferences::new(Encoder::new(tokenizer.clone()), Dpo::default()).unwrap();
    let found = of(&pairs, &record).unwrap();
    assert_eq!(found.chosen().ids, tokenizer.encode("uq.abc.").unwrap());
    assert_eq!(found.rejected().ids, tokenizer.encode("uq.ad.").unwrap());
    assert_eq!((found.chosen().prompt, found.rejected().prompt), (4, 4));
}

#[test]
fn equal_answers_and_a_template_without_messages_are_refused() {
    let refused = |pairs: &Preferences, record: &Record| pairs.encode(record).unwrap_err().to_string();
    let error = refused(&letters(None), &pair("ab", "c", "c"));
    assert!(error.contains("field `rejected`: expected another answer than `chosen`"), "{error}");
    // Answers that only their cut ends tell apart are another matter.
    assert!(of(&letters(Some(3)), &pair("ab", "cd", "ce")).is_some());
    let message = |content: &str| {
        Value::List(vec![Value::Map(vec![
            ("role".into(), text("assistant")),
            ("content".into(), text(content)),
        ])])
    };
    let record = record(vec![("chosen", message("bc")), ("rejected", message("d"))]);
    let template = "{% for m in messages %}{{ m.role[0] }}{{ m.text }}.{% endfor %}";
    let tokenizer = Tokenizer::characters("a.").unwrap().with_chat_template("ours", template).unwrap();
    let pairs = Preferences::new(Encoder::new(Arc::new(tokenizer)), Dpo::default()).unwrap();
    let error = refused(&pairs, &record);
    assert!(error.contains("ours: the template writes the content of no message"), "{error}");
}

#[test]
fn a_batch_has_two_rows_for_each_pair() {
    let pairs = letters(None);
    let samples = [pair("ab", "c", "def"), pair("a", "gh", "b")].map(|record| of(&pairs, &record).unwrap());
    let ids: Vec<u128> = samples.iter().map(|pair| pair.id()).collect();
    assert_eq!((pairs.length(&samples[0]), pairs.padded(&samples.clone().map(Arc::new))), (6, 24));
    let mut batch = pairs.collate(&drawn(samples)).unwrap();
    assert_eq!((batch.items(), batch.samples(), batch.tokens()), (2, 2, 4 + 6 + 4 + 3));
    assert_eq!(batch.rows().shape(), [4, 6]);
    assert_eq!(batch.rows().host_ids()[6..12], [1, 2, 4, 5, 6, 0]);
    assert_eq!(batch.rows().host_labels()[6..12], [IGNORE, IGNORE, 4, 5, 6, 0]);
    assert_eq!(batch.compared(), Some(Compared { with: Reference::Frozen, samples: ids }));
    batch.answered(vec![-1.0, -2.0, -3.0, -4.0]);
    assert_eq!(batch.reference(), Some(&[-1.0, -2.0, -3.0, -4.0][..]));
}

#[test]
fn settings_out_of_range_are_refused() {
    let refused = |dpo: Dpo| dpo.check().unwrap_err().to_string();
    for beta in [0.0, -1.0, f64::NAN, f64::INFINITY] {
        let error = refused(Dpo { beta, ..Dpo::default() });
        assert!(error.contains("beta must be above 0 and at most 1000"), "{error}");
    }
    for label_smoothing in [-0.1, 0.5, f64::NAN] {
        let error = refused(Dpo { label_smoothing, ..Dpo::default() });
        assert!(error.contains("label_smoothing must be at least 0 and below 0.5"), "{error}");
    }
}

proptest! {
    /// A cache of answers would give those of another pair.
    #[test]
    fn pairs_that_differ_have_other_ids(
        one in prop::collection::vec(0u32..3, 0..4),
        other in prop::collection::vec(0u32..3, 0..4),
        [first, second] in prop::array::uniform2(0usize..3),
    ) {
        let sample = |ids: &[u32], prompt| CausalSample { ids: ids.to_vec(), prompt, ..Default::default() };
        let new = |chosen, rejected| PreferenceSample::new(chosen, rejected);
        let pair = new(sample(&one, first), sample(&other, second));
        let swapped = new(sample(&other, second), sample(&one, first));
        prop_assert_eq!(pair == swapped, pair.id() == swapped.id());
        let longer = new(sample(&one, first + 1), sample(&other, second));
        prop_assert_ne!(pair.id(), longer.id());
    }
}
