//! Several classes for each text. The inputs are those of plain padding.

use firebrick_datasets::collators::{Labels, SequenceClassification, Target};
use firebrick_datasets::{Batch, Collator, Value};
use serde::Deserialize;

use crate::{Pad, Sided, classification::Theirs, drawn, encoder, flat, golden, pad_id, record, shared, text};

#[derive(Deserialize)]
struct All {
    texts: Vec<String>,
    classes: Vec<Vec<i64>>,
    cases: Vec<Case>,
}

#[derive(Deserialize)]
struct Case {
    tokenizer: String,
    max_length: Option<usize>,
    cut: Sided,
    pad: Pad,
    labels: Vec<Vec<f32>>,
    #[serde(flatten)]
    inputs: Theirs,
}

#[test]
fn multi_hot() {
    let all: All = golden("collators", "multi_hot");
    assert_eq!(all.cases.len(), 3 * (4 * 3 + 2 * 2));
    for case in &all.cases {
        let what = format!("{} {:?} {:?} {:?}", case.tokenizer, case.max_length, case.cut, case.pad);
        let encoder = encoder(&case.tokenizer, case.max_length, None).cut(case.cut.into());
        let classes = Target::Classes(Labels::new(["a", "b", "c"]).unwrap());
        let task = SequenceClassification::new(encoder, classes)
            .padding(case.pad.padding())
            .pad_id(pad_id(&case.tokenizer));
        let samples = all.texts.iter().zip(&all.classes).map(|(of, classes)| {
            let classes = classes.iter().map(|&class| Value::Integer(class)).collect();
            let record = record([("text", text(of)), ("label", Value::List(classes))]);
            let mut samples = task.encode(&record).unwrap();
            assert_eq!(samples.len(), 1, "{what}");
            samples.remove(0)
        });
        let samples = drawn(samples);
        let batch = task.collate(&samples).unwrap();
        case.inputs.assert_equal(batch.inputs(), &what);
        assert_eq!(batch.host_multi_hot().unwrap(), flat(&case.labels), "{what}");
        assert_eq!(batch.items(), 3 * all.texts.len(), "{what}");
        assert_eq!(task.padded(&shared(&samples)), batch.inputs().host_ids().len(), "{what}");
    }
}
