//! Tokens as their own labels.

use firebrick_datasets::collators::{CausalLm, CausalSample};
use firebrick_datasets::{Collator, IGNORE, Input};
use serde::Deserialize;

use crate::{Pad, Sided, drawn, encoder, flat, golden, numbers, pad_id, record, shared, text};

#[derive(Deserialize)]
struct All {
    texts: Vec<String>,
    cases: Vec<Case>,
}

#[derive(Deserialize)]
struct Case {
    tokenizer: String,
    pad: Pad,
    max_length: Option<usize>,
    cut: Sided,
    input_ids: Vec<Vec<i32>>,
    attention_mask: Vec<Vec<i32>>,
    labels: Vec<Vec<i32>>,
}

#[test]
fn causal_lm() {
    let all: All = golden("collators", "causal_lm");
    assert_eq!(all.cases.len(), 3 * 4 * 3);
    for case in &all.cases {
        let what = format!("{} {:?} {:?} {:?}", case.tokenizer, case.pad, case.max_length, case.cut);
        let pad = pad_id(&case.tokenizer) as i32;
        let encoder = encoder(&case.tokenizer, case.max_length, None).cut(case.cut.into());
        let task = CausalLm::new(encoder.clone()).padding(case.pad.padding()).pad_id(pad as u32);
        let samples = all.texts.iter().map(|of| {
            let encoded = task.encode(&record([("text", text(of))])).unwrap().pop();
            let ids = encoder.encode(Input::Text(of), None).unwrap().remove(0).ids;
            // A deliberate difference: fewer than two tokens yield no sample.
            assert_eq!(encoded.is_none(), ids.len() < 2, "{of}");
            encoded.unwrap_or(CausalSample { ids, ..Default::default() })
        });
        let samples = drawn(samples);
        let batch = task.collate(&samples).unwrap();
        let [_, length] = batch.shape();
        assert_eq!(batch.host_ids(), flat(&case.input_ids), "{what}");
        assert_eq!(numbers(batch.host_mask()), flat(&case.attention_mask), "{what}");
        assert_eq!(task.padded(&shared(&samples)), batch.host_ids().len(), "{what}");

        // Two deliberate differences: a real end token is a label even if it is also the padding token, and with
        // padding before it, the first token of a row is not a label.
        let (mut expected, mut ends, mut firsts) = (flat(&case.labels), 0, 0);
        for (row, drawn) in samples.iter().enumerate() {
            let tokens = drawn.sample.ids.len();
            let start = row * length + if case.pad.side == Sided::Left { length - tokens } else { 0 };
            for (place, &id) in drawn.sample.ids.iter().enumerate() {
                if id as i32 == pad {
                    assert_eq!(std::mem::replace(&mut expected[start + place], pad), IGNORE, "{what}");
                    ends += 1;
                }
            }
            if case.pad.side == Sided::Left && 0 < tokens && tokens < length {
                assert_ne!(std::mem::replace(&mut expected[start], IGNORE), IGNORE, "{what}");
                firsts += 1;
            }
        }
        assert_eq!(batch.host_labels(), expected, "{what}");
        // Only GPT-2's kind pads with the end token, and one text ends with it.
        assert_eq!(ends, usize::from(case.tokenizer == "bytebpe"), "{what}");
        assert_eq!(firsts > 0, case.pad.side == Sided::Left, "{what}");
    }
}
