//! Queries, heads and features that are selected of more compute what they compute among all.

use burn::tensor::{Distribution, FloatDType, Int, Tensor};

use super::{Attend, composed};
use crate::off::Kernel;
use crate::{
    Attending, AttentionInParts, Draws, Reads, Samples, Site, attends_in_tiles, attention, dropout, testing,
};

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
    assert_within(found, expected, 1e-5);
}

/// Asserts that they are apart by at most this share of the largest one, or of 1.
fn assert_within<const D: usize>(found: Tensor<D>, expected: Tensor<D>, most: f32) {
    let [found, expected] = [found, expected].map(|x| x.cast(FloatDType::F32));
    let [apart, largest] = [found - expected.clone(), expected].map(|x| x.abs().max().into_scalar::<f32>());
    assert!(apart < most * largest.max(1.0), "{apart} of {largest}");
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

/// The keys come in three parts, two of which are not in one piece. Some queries read nothing of a part, and one nothing at all.
fn assert_parts_give_what_all_keys_give(dtype: FloatDType, most: f32) {
    let device = testing::device().autodiff();
    let random =
        |heads| Tensor::<4>::random([2, heads, COLUMNS, 32], Distribution::Default, &device).cast(dtype);
    let (query, key, value) = (columns_of(&random(4), 2), random(2), random(2));
    let starts = [0, 9];
    let all = Reads::new([2, COLUMNS, COLUMNS], |row, query| match query {
        3 => 0..0,
        query if query < starts[row] => query..query + 1,
        query => starts[row]..query + 1,
    });
    let samples = Samples::Selected { columns: selected().into(), starts: starts.into() };
    let site = Site { draws: Draws { seed: 5, epoch: 1, first: 3 }, number: 2, samples: &samples, from: 0 };
    let parts = [(0..20).chain(130..150).collect(), (20..40).chain(110..130).collect(), (40..110).collect()];
    let parts: [Vec<usize>; 3] = parts;
    let at = |x: &Tensor<4>, part: &[usize]| {
        let part: Vec<i64> = part.iter().map(|column| *column as i64).collect();
        x.clone().select(2, Tensor::<1, Int>::from_data(&part[..], &x.device()))
    };
    let assert_near = |found: Tensor<4>, expected: Tensor<4>| assert_within(found, expected, most);
    for (window, cap, dropout) in
        [(None, None, None), (Some(40), None, Some((0.3, site))), (None, Some(0.5), None)]
    {
        let reads = window.map_or_else(|| all.clone(), |window| all.within(window)).select(selected().into());
        let how = Attending { reads: &reads, scale: 0.7, cap, dropout };
        let [query, key, value] = [&query, &key, &value].map(|x| x.clone().detach().require_grad());
        let columns = parts.clone().map(Into::into);
        let Some(attention_in_parts) = AttentionInParts::of(&query, how, &columns) else {
            // Burn's operations do not give logarithms.
            assert!(!attends_in_tiles(&device, dtype) && (cap.is_some() || Kernel::Attention.is_off()));
            continue;
        };
        let expected = attention(query.clone(), key.clone(), value.clone(), None, how);
        let grad = Tensor::<4>::random(expected.dims(), Distribution::Default, &device).inner().cast(dtype);
        let grads = (expected.clone() * Tensor::from_inner(grad.clone())).sum().backward();

        let inner = [&query, &key, &value].map(|x| x.clone().inner());
        let of_part = |part: usize| [&inner[1], &inner[2]].map(|x| at(x, &parts[part]));
        let join = |so_far, part| Some(attention_in_parts.join(part, &inner[0], of_part(part), so_far));
        let whole = [2, 0, 1].into_iter().fold(None, join).unwrap();
        let output = whole.output(&inner[0]);
        assert_near(output.clone(), expected.inner());
        let mut of_query = Tensor::<4>::zeros_like(&inner[0]).cast(FloatDType::F32);
        for (part, columns) in parts.iter().enumerate() {
            let found =
                attention_in_parts.gradients(part, &inner[0], of_part(part), (&output, &whole), grad.clone());
            let [of_queries, of_keys, of_values] = found;
            of_query = of_query + of_queries.cast(FloatDType::F32);
            assert_near(of_keys, at(&key.grad(&grads).unwrap(), columns));
            assert_near(of_values, at(&value.grad(&grads).unwrap(), columns));
        }
        assert_near(of_query.cast(dtype), query.grad(&grads).unwrap());
    }
}

#[test]
fn parts_of_the_keys_give_what_all_keys_give() {
    assert_parts_give_what_all_keys_give(FloatDType::F32, 1e-5);
}

/// In half precision, of which NVIDIA's GPUs compute tiles.
#[test]
fn parts_of_the_keys_give_what_all_keys_give_in_half_precision() {
    if testing::device().supports_dtype(FloatDType::BF16) {
        assert_parts_give_what_all_keys_give(FloatDType::BF16, 0.02);
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
