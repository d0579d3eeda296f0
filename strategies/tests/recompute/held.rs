//! What recomputed segments hold in memory between the forward and the backward pass.

use super::*;

/// An upper bound for the bytes of graphs and of the allocator.
const BOOKKEEPING: usize = 128 * 1024;

/// Returns a model that has run before, so that one-time allocations are done.
fn warm_model(blocks: usize) -> Model {
    let model = Model::new(blocks, 0.0, &device());
    held(&model, 2048, &plain());
    model
}

fn live() -> usize {
    in_use(&device()).unwrap()
}

/// Returns the bytes that a forward pass leaves allocated for its backward pass.
fn held(model: &Model, rows: usize, pass: &Pass) -> usize {
    let x = input(rows, &device());
    let before = live();
    let loss = model.forward(x, pass).sum();
    let held = live() - before;
    loss.backward();
    pass.check().unwrap();
    held
}

#[test]
fn what_is_held_is_the_inputs() {
    let _alone = ALONE.lock();
    let (blocks, rows) = (6, 2048);
    let model = warm_model(blocks);
    let of_input = rows * WIDTH * 4;
    let all = held(&model, rows, &plain());
    let none = held(&model, rows, &pass(&model, &Recompute::every_block()));
    assert!(all > 7 * blocks * of_input, "{all}");
    // The inputs of the blocks, the result, and bookkeeping.
    assert!(none < (blocks + 1) * of_input + BOOKKEEPING, "{none} {of_input}");
    let setup_of = |recipe: &Recompute| {
        let device = device();
        let mut setup = Setup::new(&model, &device);
        let mut stage = recipe.start(&mut setup).unwrap();
        (stage.init_master(model.clone()).unwrap(), setup.into_pass())
    };
    let (balanced, pass_of) = setup_of(&Recompute::elementwise());
    let x = input(rows, pass_of.device());
    let before = live();
    let loss = balanced.forward(x, &pass_of).sum();
    let elementwise = live() - before;
    drop(loss);
    assert!(elementwise < all * 8 / 10, "{elementwise} of {all}");
    let half = held(&model, rows, &pass(&model, &Recompute::every(2)));
    assert!(half > (all + none) * 4 / 10 && half < (all + none) * 6 / 10, "{half}");
}

#[test]
fn a_budget_is_kept_with_as_few_segments_as_can_be() {
    let _alone = ALONE.lock();
    let (blocks, rows) = (6, 2048);
    let model = warm_model(blocks);
    let all = held(&model, rows, &plain());
    for share in [0.3, 0.5, 0.8, 1.2] {
        let budget = (all as f64 * share) as usize;
        let pass = pass(&model, &Recompute::within(budget));
        let measuring = held(&model, rows, &pass);
        assert!(measuring < all / 4, "until it is measured, everything is recomputed: {measuring}");
        let kept = held(&model, rows, &pass.drawing(pass.draws()));
        assert!(kept <= budget + BOOKKEEPING, "{kept} of {budget}");
        // One more kept segment would not fit.
        assert!(kept + all / blocks + BOOKKEEPING > budget.min(all), "{kept} of {budget}");
        // More rows than measured: recomputes everything again.
        let larger = held(&model, 2 * rows, &pass.drawing(pass.draws()));
        assert!(larger < 2 * all / 4, "{larger}");
    }
    let pass = pass(&model, &Recompute::within(10_000));
    held(&model, rows, &pass);
    let loss = model.forward(input(rows, &device()), &pass.drawing(pass.draws())).sum();
    let error = pass.check().unwrap_err();
    assert!(matches!(error, StrategyError::Budget { budget: 10_000, needed } if needed > 400_000), "{error}");
    drop(loss);
}
