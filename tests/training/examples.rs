//! Runs the examples in Rust for a few steps.

#[path = "../../examples/compose.rs"]
#[allow(dead_code)]
mod compose;
#[path = "../../examples/first_model.rs"]
#[allow(dead_code)]
mod first_model;
#[path = "../../examples/masked_lm.rs"]
#[allow(dead_code)]
mod masked_lm;
#[path = "../../examples/own_model.rs"]
#[allow(dead_code)]
mod own_model;
#[path = "../../examples/own_strategy.rs"]
#[allow(dead_code)]
mod own_strategy;
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
fn the_first_model_in_rust() {
    let loss = first_model::train(20).unwrap().report.train_loss;
    assert!(loss < 0.05, "{loss}");
}

#[test]
fn a_model_and_a_data_set_of_their_own_in_rust() {
    let report = own_model::train(1).unwrap();
    assert!(report.valid_scores["top_two"] > 0.7 && report.valid_scores["accuracy"] > 40.0, "{report:?}");
    assert_eq!((report.steps, report.ranks.len()), (30, 2));
}

#[test]
fn a_strategy_of_its_own_in_rust() {
    let [first, later] = [5, 20].map(|steps| own_strategy::train(steps).unwrap().train_loss);
    assert!(later < first, "{later} {first}");
}

#[test]
fn seq2seq_in_rust() {
    let texts = seq2seq::learn_numbers(1, &["seven", "two hundred"]).unwrap();
    assert_eq!(texts.len(), 2);
}
