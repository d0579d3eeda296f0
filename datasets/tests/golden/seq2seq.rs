//! Sources, targets and decoder inputs.

use firebrick_datasets::collators::{Seq2Seq, Seq2SeqSample, Tokens};
use firebrick_datasets::{Batch, Collator, IGNORE, Input, Padding};
use serde::Deserialize;

use crate::{Pad, Sided, drawn, encoder, flat, golden, numbers, pad_id, record, shared, text};

#[derive(Deserialize)]
struct All {
    sources: Vec<String>,
    targets: Vec<String>,
    cases: Vec<Case>,
    prompted: Prompted,
}

#[derive(Deserialize)]
struct Case {
    tokenizer: String,
    start: u32,
    prefix: String,
    max_source: Option<usize>,
    max_target: Option<usize>,
    cut: Sided,
    pad: Pad,
    #[serde(flatten)]
    theirs: Theirs,
}

#[derive(Deserialize)]
struct Prompted {
    source: String,
    target: String,
    prompt: usize,
    #[serde(flatten)]
    theirs: Theirs,
}

#[derive(Deserialize)]
struct Theirs {
    input_ids: Vec<Vec<i32>>,
    attention_mask: Vec<Vec<i32>>,
    token_type_ids: Option<Vec<Vec<i32>>>,
    labels: Vec<Vec<i32>>,
    decoder_input_ids: Vec<Vec<i32>>,
}

#[test]
fn sources_and_targets() {
    let all: All = golden("collators", "seq2seq");
    assert_eq!(all.cases.len(), 3 * (4 * 4 + 2));
    for case in &all.cases {
        let Case { tokenizer, start, prefix, max_source, max_target, cut, pad, .. } = case;
        let what = format!("{tokenizer} {start} {prefix} {max_source:?} {max_target:?} {cut:?} {pad:?}");
        let padding = pad.padding();
        let sources = encoder(tokenizer, *max_source, None).cut((*cut).into());
        let targets = encoder(tokenizer, *max_target, None).cut((*cut).into());
        let task = Seq2Seq::new(sources.clone(), targets)
            .pad_id(pad_id(tokenizer))
            .prefix(prefix)
            .start_id(case.start)
            .padding(padding, padding);
        let samples = all.sources.iter().zip(&all.targets).map(|(source, target)| {
            let mut samples =
                task.encode(&record([("source", text(source)), ("target", text(target))])).unwrap();
            // A deliberate difference: an empty target yields no sample.
            let nothing = tokenizer == "bytebpe" && target.is_empty();
            assert_eq!(samples.len(), usize::from(!nothing), "{what}");
            samples.pop().unwrap_or_else(|| {
                let source =
                    sources.encode(Input::Text(&format!("{prefix}{source}")), None).unwrap().remove(0);
                Seq2SeqSample { source: Tokens::of(source, sources.tokenizer()), ..Seq2SeqSample::default() }
            })
        });
        let samples = drawn(samples);
        let batch = task.collate(&samples).unwrap();
        let theirs = &case.theirs;
        assert_eq!(batch.source().host_ids(), flat(&theirs.input_ids), "{what}");
        assert_eq!(numbers(batch.source().host_mask()), flat(&theirs.attention_mask), "{what}");
        if let Some(segments) = &theirs.token_type_ids {
            assert_eq!(batch.source().host_type_ids(), flat(segments), "{what}");
        }
        assert_eq!(batch.host_labels(), flat(&theirs.labels), "{what}");
        let real = |&label: &i32| i32::from(label != IGNORE);
        let mask: Vec<_> = theirs.labels.concat().iter().map(real).collect();
        assert_eq!(numbers(batch.host_decoder_mask()), mask, "{what}");
        assert_eq!(batch.items(), mask.iter().filter(|&&real| real == 1).count(), "{what}");
        assert_eq!(
            task.padded(&shared(&samples)),
            batch.source().host_ids().len() + batch.host_labels().len(),
            "{what}"
        );
        let mut expected = theirs.decoder_input_ids.clone();
        if case.pad.side == Sided::Left {
            // A deliberate difference: the start token is right before the target, not before the padding, where the
            // target would follow a padding token.
            for (drawn, row) in samples.iter().zip(&mut expected) {
                let padding = row.len() - drawn.sample.target.len();
                assert_eq!(row[0] as u32, case.start, "{what}");
                row[..padding].fill(0);
                row.get_mut(padding).into_iter().for_each(|first| *first = case.start as i32);
            }
        }
        assert_eq!(batch.host_decoder_ids(), flat(&expected), "{what}");
    }
}

/// A deliberate difference: the decoder reads the prompt, which does not count.
#[test]
fn a_prompt_of_the_target() {
    let all: All = golden("collators", "seq2seq");
    let Prompted { source, target, prompt, theirs } = &all.prompted;
    let encoder = encoder("unigram", None, None);
    let task = Seq2Seq::new(encoder.clone(), encoder).pad_id(0);
    let plain = task.encode(&record([("source", text(source)), ("target", text(target))])).unwrap().remove(0);
    let sample = Seq2SeqSample { prompt: *prompt, ..plain };
    let target = sample.target.clone();
    let batch = task.padding(Padding::default(), Padding::default()).collate(&drawn([sample])).unwrap();
    assert_eq!(batch.host_labels(), flat(&theirs.labels));
    assert_eq!(batch.items(), target.len() - prompt);
    assert!(theirs.decoder_input_ids[0].iter().all(|&id| id == 0), "they show padding instead");
    assert_eq!(
        batch.host_decoder_ids()[1..],
        target[..target.len() - 1].iter().map(|&id| id as i32).collect::<Vec<_>>()
    );
    assert!(batch.host_labels().contains(&IGNORE));
}
