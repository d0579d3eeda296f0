//! Blocks and recipes that cannot be recomputed.

use super::*;

#[test]
fn a_captured_tensor_that_carries_a_gradient_is_told() {
    let _alone = ALONE.lock();
    let model = Model::new(2, 0.0, &device());
    let pass = pass(&model, &Recompute::every_block());
    let scale = waves(WIDTH, 0.0, &device()).require_grad();
    let x = input(3, &device());
    pass.segment(&model.blocks[1], x, move |block, x: Tensor<2>, _| {
        block.forward(x) * scale.clone().unsqueeze()
    });
    let error = pass.check().unwrap_err();
    assert_eq!(error, StrategyError::Captured { segment: "blocks.1".into() });
    assert!(error.to_string().contains("part of the input"), "{error}");
    pass.check().expect("reported once");
}

#[test]
fn burns_dropout_inside_is_found_out_unless_it_drops_nothing() {
    let _alone = ALONE.lock();
    let model = Model::new(2, 0.2, &device());
    let pass = pass(&model, &Recompute::every(2));
    gradients(&model, model.forward(input(9, &device()), &pass).sum());
    let error = pass.check().unwrap_err().to_string();
    assert!(error.contains("blocks.0") && error.contains("Dropout of Burn"), "{error}");
    assert!(error.contains("Use firebrick's Dropout"), "{error}");

    // A single huge channel must not hide dropped elements, and a dropout of 0 is not an error.
    for (dropout, is_told) in [(0.2, true), (0.0, false)] {
        let model = Model::new(1, dropout, &device());
        let pass = self::pass(&model, &Recompute::every_block());
        let huge = Tensor::<2>::zeros([9, 1], &device()) + 1e6;
        let x = Tensor::cat(vec![input(9, &device()).slice([0..9, 1..WIDTH]), huge], 1);
        gradients(&model, model.forward(x, &pass).sum());
        assert_eq!(pass.check().is_err(), is_told, "dropout {dropout}");
    }
}

#[test]
fn a_poisoned_block_is_not_blamed_for_nan() {
    let _alone = ALONE.lock();
    let model = Model::new(2, 0.0, &device());
    let pass = pass(&model, &Recompute::every_block());
    gradients(&model, model.forward(input(2, &device()) * f64::NAN, &pass).sum());
    pass.check().unwrap();
}

#[test]
fn impossible_recipes_are_refused() {
    let model = Model::new(2, 0.0, &device());
    let device = device();
    let refused = |recipe: Recompute| {
        let result = recipe.start(&mut Setup::new(&model, &device));
        result.err().unwrap_or_else(|| panic!("{recipe:?} is refused")).to_string()
    };
    assert!(refused(Recompute::every(0)).contains("`every` must be at least 1"));
    assert!(refused(Recompute::within(0)).contains("at least 1 byte"));
    assert!(refused(Recompute::paths(Vec::<String>::new())).contains("at least one path"));
    let unknown = refused(Recompute::paths(["blocks.7"]));
    assert!(unknown.contains("matches `blocks.7`; the nearest are `blocks`, `blocks.0`"), "{unknown}");
    assert!(refused(Recompute::elementwise().offloaded()).contains("keeps no inputs"));
    let twice = Composed::new().with(Recompute::elementwise()).with(Recompute::every_block());
    let twice = twice.start(&mut Setup::new(&model, &device)).err();
    assert_eq!(twice, Some(StrategyError::Twice("Recompute")));
    assert_eq!(Paths::of(&model).module_of(&model.blocks[1]), Some("blocks.1"));
}
