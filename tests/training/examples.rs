//! Runs the examples in Rust for a few steps.

#[path = "../../examples/compose.rs"]
#[allow(dead_code)]
mod compose;
#[path = "../../examples/masked_lm.rs"]
#[allow(dead_code)]
mod masked_lm;
#[path = "../../examples/seq2seq.rs"]
#[allow(dead_code)]
mod seq2seq;

#[test]
fn compose_in_rust() {
    compose::main().unwrap();
}

#[test]
fn masked_lm_in_rust() {
    let [first, later] = [1, 3].map(|epochs| masked_lm::fill_in(epochs).unwrap().valid_loss.unwrap());
    assert!(later < first, "{later} {first}");
}

#[test]
fn seq2seq_in_rust() {
    let texts = seq2seq::learn_numbers(1, &["seven", "two hundred"]).unwrap();
    assert_eq!(texts.len(), 2);
}
