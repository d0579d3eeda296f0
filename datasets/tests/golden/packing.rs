//! Several texts in one row.

use std::sync::Arc;

use firebrick_datasets::collators::{CausalLm, CausalSample, Pack, Packing};
use firebrick_datasets::{Batch, Collator, IGNORE, Input, Padding};
use serde::Deserialize;

use crate::{Pad, Sided, drawn, encoder, flat, golden, numbers, pad_id, record, shared, text};

#[derive(Deserialize)]
struct All {
    texts: Vec<String>,
    packs: Vec<Vec<usize>>,
    prompts: Vec<usize>,
    cases: Vec<Case>,
}

#[derive(Deserialize)]
struct Case {
    tokenizer: String,
    max_length: Option<usize>,
    cut: Sided,
    prompted: bool,
    pad: Pad,
    input_ids: Vec<Vec<i32>>,
    attention_mask: Vec<Vec<i32>>,
    labels: Vec<Vec<i32>>,
    /// Not padded, since nothing in `transformers` pads them.
    position_ids: Vec<Vec<i32>>,
    /// Not padded either; samples are counted from 0.
    seq_idx: Vec<Vec<i32>>,
}

/// Pads rows with 0.
fn padded(rows: impl IntoIterator<Item = Vec<i32>>, padding: &Padding, side: Sided) -> Vec<i32> {
    let rows: Vec<_> = rows.into_iter().collect();
    let length = padding.length(rows.iter().map(Vec::len).max().unwrap());
    let pad = |row: Vec<i32>| {
        let zeros = vec![0; length - row.len()];
        if side == Sided::Left { [zeros, row].concat() } else { [row, zeros].concat() }
    };
    rows.into_iter().flat_map(pad).collect()
}

#[test]
fn packing() {
    let all: All = golden("collators", "flattening");
    assert_eq!(all.cases.len(), 3 * 4 * 4);
    for case in &all.cases {
        let Case { tokenizer, max_length, cut, prompted, pad, .. } = case;
        let what = format!("{tokenizer} {max_length:?} {cut:?} {prompted} {pad:?}");
        let encoder = encoder(tokenizer, *max_length, None).cut((*cut).into());
        let causal = CausalLm::new(encoder.clone()).padding(pad.padding()).pad_id(pad_id(tokenizer));
        let task = Packing::new(causal, case.input_ids[0].len());
        let sample = |&index: &usize| {
            let of = all.texts[index].as_str();
            let encoded = task.encode(&record([("text", text(of))])).unwrap().pop();
            // Deliberate differences: a single token yields no sample. For an empty text, `transformers` makes a label
            // without a token, so no pack contains one.
            let ids = encoder.encode(Input::Text(of), None).unwrap().remove(0).ids;
            assert_eq!(encoded.is_none(), ids.len() < 2, "{what}");
            let ids = encoded.map_or(ids, |pack| pack[0].ids.clone());
            let prompt = if *prompted { all.prompts[index] } else { 0 };
            (!ids.is_empty()).then(|| Arc::new(CausalSample { ids, prompt, ..Default::default() }))
        };
        let packs = all.packs.iter().map(|pack| pack.iter().filter_map(sample).collect::<Pack>());
        let packs = drawn(packs);
        let batch = task.collate(&packs).unwrap();
        assert_eq!(batch.shape(), [case.input_ids.len(), case.input_ids[0].len()], "{what}");
        assert_eq!(batch.host_ids(), flat(&case.input_ids), "{what}");
        assert_eq!(batch.host_labels(), flat(&case.labels), "{what}");
        assert_eq!(numbers(batch.host_mask()), flat(&case.attention_mask), "{what}");
        let positions = padded(case.position_ids.clone(), &pad.padding(), pad.side);
        assert_eq!(batch.host_position_ids().unwrap(), positions, "{what}");
        // `transformers` counts samples from 0; here 0 is padding.
        let segments = case.seq_idx.iter().map(|row| row.iter().map(|sample| sample + 1).collect());
        assert_eq!(batch.host_segments().unwrap(), padded(segments, &pad.padding(), pad.side), "{what}");
        let counted = case.labels.concat().iter().filter(|&&label| label != IGNORE).count();
        assert_eq!(batch.items(), counted, "{what}");
        assert_eq!(task.padded(&shared(&packs)), batch.host_ids().len(), "{what}");
    }
}
