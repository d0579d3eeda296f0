//! Tensors that updates write in place, and tensors that they copy.

use burn::backend::Flex;
use firebrick_kernels::optim::copies;

use super::*;

/// Returns the address of a tensor's storage.
fn address<const D: usize>(tensor: &Tensor<D>) -> Option<usize> {
    let tensor = tensor.clone().try_into_primitive::<Flex>().ok()?;
    Some(tensor.bytes().as_ptr().addr())
}

/// Returns the address of each parameter.
fn addresses(net: &Net) -> Vec<Option<usize>> {
    let of = |linear: &Linear| {
        let bias = linear.bias.as_ref().unwrap().val().inner();
        [address(&linear.weight.val().inner()), address(&bias)]
    };
    [&net.hidden, &net.head].into_iter().flat_map(of).collect()
}

#[test]
fn training_copies_nothing() {
    for [ours, _] in pairs() {
        let before = copies();
        let (net, ours) = trained(ours, 0..1, net());
        let places = addresses(&net);
        let (net, _) = trained(ours, 1..6, net);
        assert_eq!(copies(), before);
        assert!(places.iter().all(Option::is_some));
        assert_eq!(addresses(&net), places);
    }
}

#[test]
fn what_something_else_holds_is_copied_and_never_written() {
    for [optimizer, _] in pairs() {
        let start = net();
        let (held, before) = (parameters(&start), copies());
        let (first, _) = trained(optimizer.clone(), 0..1, start.clone());
        assert_eq!(copies(), before + 4, "the four parameters");
        assert_eq!(parameters(&start), held);
        let (alone, _) = trained(optimizer, 0..1, net());
        assert_eq!(parameters(&first), parameters(&alone));
    }
}

#[test]
fn the_moments_of_a_cloned_optimizer_stay_its_own() {
    // AdamW keeps two moments for each of four parameters, plain SGD none.
    for ([optimizer, _], moments) in pairs().into_iter().zip([8, 4, 4, 0]) {
        let [(a, optimizer), (b, _)] = [(); 2].map(|()| trained(optimizer.clone(), 0..1, net()));
        let (kept, before) = (optimizer.clone(), copies());
        let (a, _) = trained(optimizer, 1..4, a);
        assert_eq!(copies(), before + moments, "once, by the one that steps first");
        let (b, _) = trained(kept, 1..4, b);
        assert_eq!(copies(), before + moments, "it is alone now");
        assert_eq!(parameters(&a), parameters(&b));
    }
}

#[test]
fn views_are_updated_as_what_they_show() {
    let burns = burns_sgd(0.1, 0.9, 0.0, false);
    let ours = Sgd::new().weight_decay(0.1).momentum(0.9);
    let matrix = |seed| vector(numbers(60, seed)).reshape([6, 10]);
    let views: [fn(Tensor<2>) -> Tensor<2>; 4] = [
        |whole| whole.transpose(),
        |whole| whole.narrow(0, 2, 3),
        |whole| whole.narrow(1, 2, 3),
        |whole| whole.narrow(0, 1, 1).expand([4, 10]),
    ];
    for of_param in views {
        let param = || of_param(matrix(1));
        for of_grad in views.into_iter().filter(|view| view(matrix(2)).dims() == param().dims()) {
            let (a, a_state) = ours.step(0.1, param(), of_grad(matrix(2)), None);
            let (b, b_state) = burns.step(0.1, param(), of_grad(matrix(2)), None);
            assert_eq!(bits(&a), bits(&b));
            // Once updated, a view is a tensor of its own.
            let (a, _) = ours.step(0.1, a, of_grad(matrix(3)), a_state);
            let (b, _) = burns.step(0.1, b, of_grad(matrix(3)), b_state);
            assert_eq!(bits(&a), bits(&b));
        }
    }
}

#[test]
fn a_view_that_is_alone_is_updated_in_place_and_nothing_beside_it() {
    let whole = vector(numbers(100, 1));
    let other = whole.clone();
    let view = whole.narrow(0, 30, 40);
    let before = copies();
    let (updated, _) = Sgd::new().step(1.0, view.clone(), vector(vec![1.0; 40]), None);
    assert_eq!(copies(), before + 1);
    assert_eq!(bits(&other), bits(&vector(numbers(100, 1))));
    drop((other, view));

    let view = vector(numbers(100, 1)).narrow(0, 30, 40);
    let (in_place, _) = Sgd::new().step(1.0, view, vector(vec![1.0; 40]), None);
    assert_eq!(copies(), before + 1);
    assert_eq!(bits(&in_place), bits(&updated));
}
