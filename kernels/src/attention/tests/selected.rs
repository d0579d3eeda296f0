//! Queries, heads and features that are selected of more compute what they compute among all.

use burn::tensor::{Distribution, Tensor};

use super::{Attend, composed};
use crate::{Attending, Draws, Reads, Samples, Site, attention, dropout, testing};

/// 150 queries, of which 70 are selected: more than a block of them.
const COLUMNS: usize = 150;

fn selected() -> Vec<usize> {
    (0..35).chain(115..150).collect()
}

/// Returns the columns of `x` along an axis.
fn columns_of<const D: usize>(x: &Tensor<D>, axis: usize) -> Tensor<D> {
    let [first, last] = [0, 115].map(|at| x.clone().narrow(axis, at, 35));
    Tensor::cat(vec![first, last], axis)
}

fn assert_near<const D: usize>(found: Tensor<D>, expected: Tensor<D>) {
    let most: f32 = (found - expected).abs().max().into_scalar();
    assert!(most < 1e-5, "{most}");
}

#[test]
fn selected_queries_read_and_drop_as_among_all() {
    let device = testing::device().autodiff();
    let random = |heads| Tensor::<4>::random([2, heads, COLUMNS, 16], Distribution::Default, &device);
    let (query, key, value) = (random(4), random(2), random(2));
    let starts = [0, 9];
    let all = Reads::new([2, COLUMNS, COLUMNS], |row, query| match query < starts[row] {
        true => query..query + 1,
        false => starts[row]..query + 1,
    });
    let whole = Samples::Starting(starts.into());
    let some = Samples::Selected { columns: selected().into(), starts: starts.into() };
    for (attend, window) in [(attention as Attend, None), (attention, Some(40)), (composed, None)] {
        let windowed = |reads: &Reads| window.map_or_else(|| reads.clone(), |window| reads.within(window));
        let of = |query: &Tensor<4>, reads: &Reads, samples: &Samples| {
            let [query, key, value] = [query, &key, &value].map(|x| x.clone().detach().require_grad());
            let site = Site { draws: Draws { seed: 5, epoch: 1, first: 3 }, number: 2, samples, from: 0 };
            let reads = windowed(reads);
            let how = Attending { reads: &reads, scale: 0.7, cap: None, dropout: Some((0.3, site)) };
            let y = attend(query.clone(), key.clone(), value.clone(), None, how);
            let of_selected = if y.dims()[2] == COLUMNS { columns_of(&y, 2) } else { y };
            let grads = of_selected.clone().sum().backward();
            let of_query = query.grad(&grads).unwrap();
            let of_query = if of_query.dims()[2] == COLUMNS { columns_of(&of_query, 2) } else { of_query };
            [of_selected.inner(), of_query, key.grad(&grads).unwrap(), value.grad(&grads).unwrap()]
        };
        let expected = of(&query, &all, &whole);
        let found = of(&columns_of(&query, 2), &all.select(selected().into()), &some);
        for (found, expected) in found.into_iter().zip(expected) {
            assert_near(found, expected);
        }
    }
}

#[test]
fn selected_columns_drop_as_among_all() {
    let device = testing::device();
    let x = Tensor::<3>::ones([2, COLUMNS, 8], &device);
    let starts = [0, 9];
    let site = |samples| Site { draws: Draws { seed: 7, epoch: 0, first: 0 }, number: 1, samples, from: 0 };
    let whole = Samples::Starting(starts.into());
    let whole = dropout(x.clone(), 0.5, &[1], site(&whole));
    let some = Samples::Selected { columns: selected().into(), starts: starts.into() };
    let found = dropout(columns_of(&x, 1), 0.5, &[1], site(&some));
    assert_eq!(found.into_data(), columns_of(&whole, 1).into_data());
}

#[test]
fn some_heads_and_features_drop_as_among_all() {
    let device = testing::device().autodiff();
    let random = |heads| Tensor::<4>::random([2, heads, 20, 16], Distribution::Default, &device);
    let (query, key, value) = (random(4), random(2), random(2));
    let reads = Reads::new([2, 20, 20], |_, query| 0..query + 1);
    let site = |from| Site {
        draws: Draws { seed: 5, epoch: 1, first: 3 },
        number: 2,
        samples: &Samples::Columns,
        from,
    };
    for attend in [attention as Attend, composed] {
        let of = |[query, key, value]: [Tensor<4>; 3], from| {
            let how = Attending { reads: &reads, scale: 0.7, cap: None, dropout: Some((0.3, site(from))) };
            let query = query.detach().require_grad();
            let y = attend(query.clone(), key, value, None, how);
            let gradient = query.grad(&y.clone().sum().backward()).unwrap();
            [y.inner(), gradient]
        };
        let whole = of([&query, &key, &value].map(Clone::clone), 0);
        let half = of(
            [query.clone().narrow(1, 2, 2), key.clone().narrow(1, 1, 1), value.clone().narrow(1, 1, 1)],
            2,
        );
        for (found, whole) in half.into_iter().zip(whole) {
            assert_near(found, whole.narrow(1, 2, 2));
        }
    }
    let x = Tensor::<3>::ones([2, 20, 8], &device);
    let [whole, half] =
        [(x.clone(), 0), (x.narrow(2, 5, 3), 5)].map(|(x, from)| dropout(x, 0.5, &[1], site(from)));
    assert_eq!(half.into_data(), whole.narrow(2, 5, 3).into_data());
}
