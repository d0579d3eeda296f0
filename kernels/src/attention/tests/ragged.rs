//! Rows of different lengths, one after the other, against the same rows padded.

use burn::tensor::{Device, FloatDType, Tensor, TensorData};
use proptest::prelude::*;

use super::super::{Attending, Reads, attention};
use super::{Case, assert_close, cases, nearness};
use crate::device::is_flex;
use crate::{Draws, Ragged, Samples, Site, testing};

/// The lengths of ragged rows' queries and keys, and what the case of the longest says.
fn ragged_cases() -> impl Strategy<Value = (Case, Vec<[usize; 2]>)> {
    let length = || prop_oneof![Just(0usize), 1usize..20, 60usize..140];
    (cases(), prop::collection::vec([length(), length()], 1..6)).prop_map(|(case, rows)| {
        let longest = |at: usize| rows.iter().map(|row| row[at]).max().unwrap_or(0).max(1);
        let (length, read) = (longest(0), longest(1));
        let bias = case.bias.map(|bias| if bias == 1 { 1 } else { rows.len() });
        let case = Case { batch: rows.len(), length, read, bias, starts: None, rows: rows.len(), ..case };
        (case, rows)
    })
}

/// What a query of a row reads, of `read` keys.
fn range_of(case: &Case, row: usize, query: usize, read: usize) -> std::ops::Range<usize> {
    match case.bounds.len() {
        0 => 0..(query + 1).min(read),
        bounds => {
            let [from, to] = case.bounds[(row * 7 + query) % bounds];
            from as usize * read / 256..(to as usize * read).div_ceil(256)
        }
    }
}

/// The rows of a padded tensor, one after the other.
fn joined(x: &Tensor<4>, lengths: impl Iterator<Item = usize>) -> Tensor<4> {
    let rows = lengths.enumerate().filter(|(_, length)| *length > 0);
    Tensor::cat(rows.map(|(row, length)| x.clone().narrow(0, row, 1).narrow(2, 0, length)).collect(), 2)
}

/// The outputs and the gradients of ragged rows, or of the same rows padded: those of the real positions.
fn of_rows(
    (case, lengths): &(Case, Vec<[usize; 2]>),
    is_ragged: bool,
    dtype: FloatDType,
    device: &Device,
) -> Vec<Option<Vec<f64>>> {
    let inputs = case.inputs().map(|data| Tensor::<4>::from_data(data, device).cast(dtype).require_grad());
    let [query, key, value, bias] = inputs.clone();
    let of = |at: usize| lengths.iter().map(move |row| row[at]);
    let [queries, keys] = [0, 1].map(|at| Ragged::new(of(at)));
    let samples = if is_ragged { Samples::Ragged(queries.clone()) } else { Samples::Columns };
    let site = Site { draws: Draws { seed: 5, epoch: 1, first: 3 }, number: 2, samples: &samples, from: 0 };
    let reads = match is_ragged {
        true => Reads::ragged(&queries, &keys, |row, query| range_of(case, row, query, lengths[row][1])),
        false => {
            Reads::new([case.batch, case.length, case.read], |row, query| match query < lengths[row][0] {
                true => range_of(case, row, query, lengths[row][1]),
                false => 0..0,
            })
        }
    };
    let how =
        Attending { reads: &reads, scale: 0.7, cap: case.cap, dropout: case.drop.map(|prob| (prob, site)) };
    let bias = case.bias.map(|_| bias);
    let y = match is_ragged {
        true => attention(joined(&query, of(0)), joined(&key, of(1)), joined(&value, of(1)), bias, how),
        false => joined(&attention(query, key, value, bias, how), of(0)),
    };
    let count = y.shape().num_elements();
    let slopes: Vec<f32> = (0..count).map(|at| ((at * 7919) % 17) as f32 / 8.0 - 1.0).collect();
    let slopes = Tensor::<4>::from_data(TensorData::new(slopes, y.dims()), device).cast(dtype);
    let values = |x: Tensor<4>| -> Vec<f64> { x.into_data().iter().collect() };
    let output = values(y.clone());
    let grads = (y * slopes).sum().backward();
    let found = inputs.map(|input| input.grad(&grads).map(values));
    std::iter::once(Some(output)).chain(found).collect()
}

proptest! {
    #![proptest_config(testing::cases(48))]

    /// Ragged rows give what padded rows give at their real positions, dropout included.
    #[test]
    fn ragged_rows_are_computed_as_padded_ones(rows in ragged_cases()) {
        let (case, lengths) = &rows;
        prop_assume!([0, 1].iter().all(|at| lengths.iter().any(|row| row[*at] > 0)));
        let device = testing::device().autodiff();
        let expected = of_rows(&rows, false, FloatDType::F64, &Device::flex().autodiff());
        for (dtype, near) in testing::computed(nearness(&device)) {
            assert_close(case, &of_rows(&rows, true, dtype, &device), &expected, near);
        }
        if is_flex(&device) {
            let [ragged, padded] = [true, false].map(|is| of_rows(&rows, is, FloatDType::F32, &device));
            prop_assert_eq!(&ragged[0], &padded[0]);
        }
    }
}

#[test]
fn ragged_rows_are_the_same_bits_on_any_number_of_threads() {
    let device = testing::device().autodiff();
    let lengths = vec![[3, 5], [700, 650], [0, 4], [20, 20], [1, 1]];
    for bias in [None, Some(1)] {
        let case = Case { bias, drop: Some(0.1), read: 650, rows: 5, ..Case::plain([5, 2, 700, 8]) };
        let rows = (case, lengths.clone());
        let run = |threads| {
            let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
            pool.install(|| of_rows(&rows, true, FloatDType::F32, &device))
        };
        let one = run(1);
        assert!([2, 3, 8].into_iter().all(|threads| run(threads) == one), "{bias:?}");
    }
}

/// A decoder and its source are padded apart from each other.
#[test]
fn padding_at_the_left_of_queries_or_of_keys_changes_no_mask() {
    let device = testing::device();
    let [length, read, heads, size] = [5, 70, 2, 8];
    let waves = |positions: usize, by: f64| -> Tensor<4> {
        let count = (heads * positions * size) as i64;
        let waves = (Tensor::<1, burn::tensor::Int>::arange(0..count, &device).float() * by).sin();
        waves.reshape([1, heads, positions, size])
    };
    let attended = |[queries, keys]: [usize; 2], dtype: FloatDType| -> Vec<f64> {
        let padded = |x: Tensor<4>, start: usize| {
            let padding = || Tensor::<4>::ones([1, heads, start, size], &device);
            let x = if start > 0 { Tensor::cat(vec![padding(), x], 2) } else { x };
            x.cast(dtype)
        };
        let query = padded(waves(length, 1.7), queries);
        let [key, value] = [2.3, 0.9].map(|by| padded(waves(read, by), keys));
        let reads = Reads::new([1, queries + length, keys + read], |_, _| keys..keys + read);
        let reads = reads.with_key_starts([keys]);
        let samples = Samples::Starting([queries].into());
        let site =
            Site { draws: Draws { seed: 5, epoch: 1, first: 3 }, number: 2, samples: &samples, from: 0 };
        let how = Attending { reads: &reads, scale: 0.7, cap: None, dropout: Some((0.5, site)) };
        attention(query, key, value, None, how).narrow(2, queries, length).into_data().iter().collect()
    };
    for dtype in [FloatDType::F32, FloatDType::F64].into_iter().filter(|dtype| device.supports_dtype(*dtype))
    {
        let alone = attended([0, 0], dtype);
        for starts in [[2, 0], [0, 3], [2, 67], [66, 1]] {
            let found = attended(starts, dtype);
            let apart = alone.iter().zip(&found).map(|(alone, found)| (alone - found).abs());
            assert!(apart.fold(0.0, f64::max) < 1e-6, "{starts:?} in {dtype:?}");
        }
    }
}

#[test]
fn a_ragged_mask_is_block_diagonal() {
    let rows = Ragged::new([2, 1]);
    let reads = Reads::ragged(&rows, &rows, |_, query| 0..query + 1);
    let masked: Vec<bool> = reads.masked(&testing::device()).into_data().iter().collect();
    assert_eq!(masked, [false, true, true, false, false, true, true, true, false]);
    let windowed = reads.within(1);
    assert_eq!([windowed.of(0, 1), windowed.of(1, 0)], [1..2, 0..1]);
}

#[test]
fn a_window_around_a_query_ends_where_its_row_and_its_range_do() {
    let rows = Ragged::new([4, 1]);
    let reads = Reads::ragged(&rows, &rows, |row, _| if row == 0 { 1..4 } else { 0..1 });
    let around = reads.around(1);
    let found = [0, 1, 2, 3].map(|query| around.of(0, query));
    assert_eq!(found, [1..2, 1..3, 1..4, 2..4]);
    assert_eq!((around.of(1, 0), reads.around(0).of(0, 0), reads.around(9).of(0, 0)), (0..1, 0..0, 1..4));
}
