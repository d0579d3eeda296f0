//! Tests which parts of a global batch follow from the others.

use proptest::prelude::*;

use super::*;
use crate::import::source::Source;

fn solved(ds: &str, args: Option<&str>, ranks: Option<u64>) -> Result<Batch, String> {
    let args = args.map(|text| Source::parse("args.json", text).unwrap());
    let mut inputs = Inputs { ds: Source::parse("ds.json", ds).unwrap(), args, ranks, alone: false };
    read(&mut inputs).map_err(|error| error.to_string())
}

/// Returns the micro-batch, the number of micro-batches, and the ranks (0 if unknown).
fn parts(ds: &str, ranks: Option<u64>) -> [u64; 3] {
    let batch = solved(ds, None, ranks).unwrap();
    assert!(!batch.micro.suggested && !batch.accumulate.suggested, "{ds}");
    [batch.micro.value, batch.accumulate.value, batch.ranks.unwrap_or(0)]
}

const ALL: &str =
    r#"{"train_batch_size": 64, "train_micro_batch_size_per_gpu": 4, "gradient_accumulation_steps": 2}"#;
const MICRO_GIVEN: &str = r#"{"train_batch_size": 64, "train_micro_batch_size_per_gpu": 4}"#;
const COUNT_GIVEN: &str = r#"{"train_batch_size": 64, "gradient_accumulation_steps": 2}"#;

#[test]
fn missing_parts_are_derived() {
    assert_eq!(parts(ALL, None), [4, 2, 8]);
    assert_eq!(parts(ALL, Some(8)), [4, 2, 8]);
    assert_eq!(parts(MICRO_GIVEN, Some(4)), [4, 4, 4]);
    assert_eq!(parts(MICRO_GIVEN, None), [4, 16, 1]);
    assert_eq!(parts(COUNT_GIVEN, Some(4)), [8, 2, 4]);
    assert_eq!(parts(r#"{"train_batch_size": 64}"#, Some(4)), [16, 1, 4]);
    assert_eq!(parts(r#"{"train_micro_batch_size_per_gpu": 4}"#, None), [4, 1, 0]);
    assert_eq!(parts(r#"{"train_micro_batch_size_per_gpu": 4}"#, Some(2)), [4, 1, 2]);
}

#[test]
fn a_contradiction_has_its_numbers() {
    let said = |ds, ranks| solved(ds, None, ranks).unwrap_err();
    assert_eq!(
        said(ALL, Some(4)),
        "ds.json:1: `train_batch_size` is 64, but micro-batches of 4 x 2 of them in an update x 4 ranks = 32: \
         change one of the four"
    );
    assert_eq!(
        said(MICRO_GIVEN, Some(3)),
        "ds.json:1: `train_batch_size` is 64, which is no multiple of 12, the samples of a micro-batch of 4 on \
         3 ranks: change one of them"
    );
    let uneven =
        r#"{"train_batch_size": 10, "train_micro_batch_size_per_gpu": 4, "gradient_accumulation_steps": 1}"#;
    assert!(
        said(uneven, None).contains("10, which is no multiple of 4, the samples of 1 micro-batch(es) of 4")
    );
    assert!(said(r#"{"train_batch_size": 0}"#, None).contains("must be a whole number from 1 to 1000000000"));
    let many =
        r#"{"train_batch_size": 1e9, "train_micro_batch_size_per_gpu": 1, "gradient_accumulation_steps": 1}"#;
    assert!(said(many, None).contains("that of at most 100000 ranks, found 1000000000.0"));
}

#[test]
fn training_arguments_fill_in_and_must_agree() {
    let auto = r#"{"train_batch_size": "auto", "train_micro_batch_size_per_gpu": "auto"}"#;
    let args = r#"{"per_device_train_batch_size": 4, "gradient_accumulation_steps": 3}"#;
    let batch = solved(auto, Some(args), Some(2)).unwrap();
    assert_eq!(batch.summary(), "2 ranks x 3 micro-batches of 4 = 24 samples in an update");
    assert_eq!(solved(auto, Some("{}"), None).unwrap().micro, Known::certain(8));
    let said = solved(ALL, Some(args), None).unwrap_err();
    assert!(said.contains("`gradient_accumulation_steps` is 2, but `gradient_accumulation_steps`"), "{said}");
}

#[test]
fn auto_alone_is_left_open_unless_it_can_be_derived() {
    let auto = r#"{"train_batch_size": 64, "train_micro_batch_size_per_gpu": "auto", "gradient_accumulation_steps": 4}"#;
    assert_eq!(parts(auto, Some(2)), [8, 4, 2]);
    let open = r#"{"train_micro_batch_size_per_gpu": "auto", "gradient_accumulation_steps": "auto"}"#;
    let batch = solved(open, None, None).unwrap();
    assert_eq!((batch.micro, batch.accumulate), (Known::suggested(8), Known::suggested(1)));
    assert_eq!(solved("{}", None, None).unwrap().micro, Known::suggested(8));
    assert_eq!(batch.summary(), "1 micro-batch of 8 = 8 samples in an update of each rank");
}

proptest! {
    #[test]
    fn any_two_parts_give_the_third(micro in 1u64..999, accumulate in 1u64..999, ranks in 1u64..999) {
        let global = micro * accumulate * ranks;
        let all = format!(
            r#"{{"train_batch_size": {global}, "train_micro_batch_size_per_gpu": {micro}, "gradient_accumulation_steps": {accumulate}}}"#
        );
        let without_count = format!(
            r#"{{"train_batch_size": {global}, "train_micro_batch_size_per_gpu": {micro}}}"#
        );
        let without_micro = format!(
            r#"{{"train_batch_size": {global}, "gradient_accumulation_steps": {accumulate}}}"#
        );
        let expected = [micro, accumulate, ranks];
        prop_assert_eq!(parts(&all, None), expected);
        prop_assert_eq!(parts(&without_count, Some(ranks)), expected);
        prop_assert_eq!(parts(&without_micro, Some(ranks)), expected);
    }
}
