//! Splits matrices and vectors into columns among ranks, and reads them in any way.
#![expect(clippy::single_range_in_vec_init, reason = "columns are lists of ranges")]

use std::fs;
use std::ops::Range;

use firebrick_checkpoints::{
    Checkpoint, CheckpointError, Consolidate, Dtype, Folder, Manifest, Piece, RankState, What, consolidate,
};
use proptest::prelude::*;

use crate::slices::saved;
use crate::state::{bytes, columns, rows, whole};

/// Some columns of some rows of all the bytes of a tensor.
fn picked(piece: &Piece, rows: Range<usize>, picks: &[Range<usize>]) -> Vec<u8> {
    let all = piece.bytes.get().unwrap();
    let (element, last) = (piece.dtype.bitsize() / 8, *piece.shape.last().unwrap());
    let of_row = |row: usize| {
        let of_range =
            move |c: &Range<usize>| (row * last + c.start) * element..(row * last + c.end) * element;
        picks.iter().map(of_range)
    };
    rows.flat_map(of_row).flat_map(|range| all[range].to_vec()).collect()
}

/// The columns of a rank of two, of a joint projection whose thirds have four columns.
fn half_of_thirds(rank: usize) -> [Range<usize>; 3] {
    [0, 4, 8].map(|third| third + 2 * rank..third + 2 * rank + 2)
}

fn weight() -> Piece {
    whole("joint.weight", Dtype::F32, &[5, 12], bytes(1, 240))
}

fn bias() -> Piece {
    whole("joint.bias", Dtype::BF16, &[12], bytes(2, 24))
}

/// Two ranks share the columns, and two the rows. Those with the first rows save the bias.
fn two_by_two() -> Vec<Vec<Piece>> {
    let rank = |at: usize| {
        let (half, of_rows) = (half_of_thirds(at % 2), [0..3, 3..5][at / 2].clone());
        let bias = (at < 2).then(|| columns(&bias(), &half));
        [columns(&rows(&weight(), of_rows), &half)].into_iter().chain(bias).collect()
    };
    (0..4).map(rank).collect()
}

#[test]
fn a_matrix_of_rows_and_columns_is_read_back() {
    let (output, checkpoint) = saved(two_by_two());
    let parameters = checkpoint.parameters();
    assert_eq!(parameters.info("joint.weight").unwrap().shape, [5, 12]);
    for tensor in [weight(), bias()] {
        assert_eq!(parameters.read(&tensor.name).unwrap(), &*tensor.bytes.get().unwrap());
    }
    for rows in [0..5, 2..4, 3..3, 4..5] {
        let whole = [0..12];
        assert_eq!(
            parameters.read_rows("joint.weight", rows.clone()).unwrap(),
            picked(&weight(), rows.clone(), &whole)
        );
        for picks in [&half_of_thirds(1)[..], &whole, &[1..3], &[0..1, 1..7, 11..12], &[12..12]] {
            let found = parameters.read_columns("joint.weight", rows.clone(), picks).unwrap();
            assert_eq!(found, picked(&weight(), rows.clone(), picks), "{rows:?} {picks:?}");
        }
    }
    for picks in [&half_of_thirds(0)[..], &[0..12], &[3..5, 5..6], &[0..0]] {
        let found = parameters.read_columns("joint.bias", 0..1, picks).unwrap();
        assert_eq!(found, picked(&bias(), 0..1, picks), "{picks:?}");
        // Whatever the rows.
        assert_eq!(parameters.read_columns("joint.bias", 0..12, picks).unwrap(), found);
    }
    assert_eq!(parameters.read_rows("joint.bias", 1..7).unwrap(), picked(&bias(), 0..1, &[1..7]));

    // Merged, the files are those of a single rank.
    let (alone, whole) = saved(vec![vec![weight(), bias()]]);
    let merged = [(&output, &checkpoint), (&alone, &whole)].map(|(output, checkpoint)| {
        let to = output.path().join("model.safetensors");
        consolidate(checkpoint, What::Parameters, &to, &Consolidate::default(), |_, _| {}).unwrap();
        fs::read(to).unwrap()
    });
    assert_eq!(merged[0], merged[1]);
    assert!(firebrick_checkpoints::diff(&checkpoint, &whole, |_, _| {}).unwrap().is_empty());
}

#[test]
fn one_rank_may_hold_all_columns_in_several_ranges() {
    let all = [0..4, 4..8, 8..12];
    let (_output, checkpoint) = saved(vec![vec![columns(&weight(), &all), columns(&bias(), &all)]]);
    for tensor in [weight(), bias()] {
        assert_eq!(checkpoint.parameters().read(&tensor.name).unwrap(), &*tensor.bytes.get().unwrap());
    }
}

#[test]
fn a_matrix_that_is_larger_than_what_is_read_at_once_is_read_back() {
    // Rows of 1.5 MB, of which each rank has parts.
    let (height, width) = (37, 1_500_000);
    let tensor = whole("w", Dtype::U8, &[height, width], bytes(3, height * width));
    let cut = 700_001;
    let halves = [&[0..cut][..], &[cut..width]].map(|half| vec![columns(&tensor, half)]);
    let (_output, checkpoint) = saved(halves.into());
    let parameters = checkpoint.parameters();
    assert!(parameters.read("w").unwrap() == *tensor.bytes.get().unwrap());
    let picks = [5..6, cut - 1..cut + 2];
    let found = parameters.read_columns("w", 1..height, &picks).unwrap();
    assert!(found == picked(&tensor, 1..height, &picks));
}

/// Saves each rank's pieces and returns the error of opening them.
fn refused(ranks: Vec<Vec<Piece>>) -> CheckpointError {
    let output = tempfile::tempdir().unwrap();
    let count = ranks.len();
    let staging = Folder::new(output.path()).staging(1, "a");
    let files = ranks.into_iter().enumerate().flat_map(|(rank, parameters)| {
        staging.write_rank(&RankState { rank, ranks: count, parameters, ..Default::default() }).unwrap()
    });
    let manifest = Manifest::new("run", 1, count, "0.1.0").files(files);
    let saved = staging.publish(manifest, "()").unwrap();
    Checkpoint::open(saved.path).map(drop).unwrap_err()
}

#[test]
fn columns_must_form_a_whole_matrix() {
    let w = || whole("w", Dtype::U8, &[4, 6], (0..24).collect());
    let held =
        |of_rows: Range<usize>, of_columns: &[Range<usize>]| vec![columns(&rows(&w(), of_rows), of_columns)];
    for (ranks, message) in [
        (vec![held(0..4, &[0..3])], "expected 6 columns in rows 0..4, found 3 columns"),
        (vec![held(0..4, &[1..6])], "expected columns from 0 in rows 0..4, found columns 1..6"),
        (
            vec![held(0..4, &[0..2]), held(0..4, &[3..6])],
            "expected columns from 2 in rows 0..4, found columns 3..6",
        ),
        (
            vec![held(0..4, &[0..4]), held(0..4, &[3..6])],
            "expected columns from 4 in rows 0..4, found columns 3..6",
        ),
        (
            vec![held(0..4, &[0..3, 4..6]), held(0..4, &[2..4])],
            "expected columns from 3 in rows 0..4, found columns 2..4",
        ),
        (
            vec![held(0..4, &[0..3]), held(0..4, &[0..3])],
            "expected columns from 3 in rows 0..4, found columns 0..3",
        ),
        (vec![held(0..4, &[0..6]), held(0..4, &[2..2])], "expected rows from 4, found rows 0..4"),
        (vec![held(0..4, &[0..3]), held(0..4, &[2..2]), held(0..4, &[3..6])], "expected columns from 3"),
        // Bands of different rows.
        (vec![held(0..2, &[0..3]), held(0..3, &[3..6])], "expected 6 columns in rows 0..2, found 3 columns"),
        (vec![held(0..2, &[0..6]), held(2..4, &[0..3])], "expected 6 columns in rows 2..4, found 3 columns"),
        (vec![held(0..2, &[0..6]), held(1..4, &[0..6])], "expected rows from 2, found rows 1..4"),
        (vec![held(0..2, &[0..3]), held(0..2, &[3..6])], "expected 4 rows, found 2 rows"),
        (vec![held(0..4, &[0..3]), vec![rows(&w(), 0..4)]], "expected rows from 4, found rows 0..4"),
        (vec![held(0..4, &[0..3]), vec![w()]], "found the whole tensor, and more of it elsewhere"),
    ] {
        let error = refused(ranks);
        assert!(matches!(error, CheckpointError::Slices { .. }), "{error:?}");
        assert!(
            error.to_string().contains("tensor `w`") && error.to_string().contains(message),
            "{message}: {error}"
        );
    }
    // Empty pieces where others meet.
    for ranks in [
        vec![held(0..4, &[0..3]), held(0..4, &[3..3]), held(0..4, &[3..6])],
        vec![held(0..0, &[1..2]), held(0..4, &[0..6]), held(4..4, &[0..5])],
        vec![held(0..2, &[0..2]), held(0..2, &[2..6]), held(2..2, &[2..6]), vec![rows(&w(), 2..4)]],
    ] {
        let (_output, checkpoint) = saved(ranks);
        assert_eq!(checkpoint.parameters().read("w").unwrap(), &*w().bytes.get().unwrap());
    }
}

#[test]
fn columns_must_form_a_whole_vector() {
    let v = || whole("v", Dtype::U8, &[6], (0..6).collect());
    let held = |of_columns: &[Range<usize>]| vec![columns(&v(), of_columns)];
    for (ranks, message) in [
        (vec![held(&[0..1, 2..3])], "expected rows from 1, found rows 2..3"),
        (vec![held(&[0..1, 3..4]), held(&[1..3, 4..5])], "expected 6 rows, found 5 rows"),
        (vec![held(&[0..2, 3..4]), held(&[1..3, 4..6])], "expected rows from 2, found rows 1..3"),
        (vec![held(&[0..6]), vec![v()]], "found the whole tensor, and more of it elsewhere"),
    ] {
        let error = refused(ranks);
        assert!(matches!(error, CheckpointError::Slices { .. }), "{error:?}");
        assert!(error.to_string().contains(message), "{message}: {error}");
    }
    for ranks in [
        vec![held(&[0..1, 3..4]), held(&[1..3, 4..6])],
        vec![held(&[0..1, 3..6]), vec![rows(&v(), 1..3)], held(&[6..6])],
    ] {
        let (_output, checkpoint) = saved(ranks);
        assert_eq!(checkpoint.parameters().read("v").unwrap(), &*v().bytes.get().unwrap());
    }
}

#[test]
fn pieces_with_columns_that_do_not_exist_are_not_saved() {
    let output = tempfile::tempdir().unwrap();
    let piece = |shape: &[usize], rows, columns: &[Range<usize>], count: usize| Piece {
        name: "w".into(),
        dtype: Dtype::U8,
        shape: shape.into(),
        rows,
        columns: Some(columns.into()),
        bytes: vec![0; count].into(),
    };
    for (piece, message) in [
        (piece(&[4, 6], None, &[0..7], 28), "found `w`: columns 0..7 of 6"),
        (piece(&[4, 6], None, &[], 0), "an empty list of columns"),
        (piece(&[4, 6], None, &[2..3, 0..1], 8), "columns 0..1 after columns 2..3"),
        (piece(&[2, 2, 2], None, &[0..1], 4), "columns of a tensor with 3 axes, not one or two"),
        (piece(&[], None, &[0..1], 1), "columns of a tensor with 0 axes"),
        (piece(&[6], Some(0..6), &[0..1], 1), "rows 0..6 and columns of a tensor with one axis"),
        (
            piece(&[4, 6], Some(0..2), &[0..1, 5..6], 5),
            "expected 4 bytes for rows Some(0..2) and columns Some([0..1, 5..6]) of shape [4, 6], found 5 bytes",
        ),
    ] {
        let state = RankState { ranks: 1, parameters: vec![piece], ..Default::default() };
        let error = Folder::new(output.path()).staging(1, "a").write_rank(&state).unwrap_err();
        assert!(matches!(error, CheckpointError::State { .. }), "{error:?}");
        assert!(error.to_string().contains(message), "{message}: {error}");
    }
}

#[test]
fn columns_that_a_tensor_lacks_are_errors() {
    let others = [whole("s", Dtype::U8, &[], vec![1]), whole("c", Dtype::U8, &[2, 2, 2], vec![0; 8])];
    let (_output, checkpoint) = saved(vec![[weight(), bias()].into_iter().chain(others).collect()]);
    let parameters = checkpoint.parameters();
    for (name, picks, message) in [
        (
            "joint.weight",
            &[0..13][..],
            "tensor `joint.weight`: expected ascending ranges of columns between 0 and 12, found columns 0..13 of 12",
        ),
        ("joint.weight", &[], "found an empty list of columns"),
        ("joint.weight", &[4..6, 5..7], "found columns 5..7 after columns 4..6"),
        ("joint.bias", &[0..usize::MAX], "of 12: request columns that the tensor has"),
        ("s", &[0..1], "expected a tensor with one or two axes, found U8 []"),
        ("c", &[0..1], "expected a tensor with one or two axes, found U8 [2, 2, 2]"),
    ] {
        let error = parameters.read_columns(name, 0..1, picks).unwrap_err();
        assert!(matches!(error, CheckpointError::Columns { .. }), "{error:?}");
        assert!(error.to_string().contains(message), "{message}: {error}");
        assert_eq!(error.path(), Some(checkpoint.path()));
    }
    let error = parameters.read_columns("joint.weight", 0..6, &[0..1]).unwrap_err();
    assert!(matches!(error, CheckpointError::Rows { .. }), "{error:?}");
    assert!(error.to_string().contains("expected rows between 0 and 5, found 0..6"), "{error}");
    let error = parameters.read_columns("x", 0..1, &[0..1]).unwrap_err();
    assert!(matches!(error, CheckpointError::NoTensor { .. }), "{error:?}");
}

/// A matrix, or a vector if it has no height, and how it is cut and read.
#[derive(Debug, Clone)]
struct Case {
    dtype: Dtype,
    height: Option<usize>,
    width: usize,
    /// Sorted rows where bands end, except the last.
    cuts: Vec<usize>,
    /// For each band and column, the rank that holds it.
    owners: Vec<Vec<usize>>,
    /// Rows, and whether each column is read.
    reads: Vec<(Range<usize>, Vec<bool>)>,
}

const RANKS: usize = 4;

fn cases() -> impl Strategy<Value = Case> {
    let dtype = prop::sample::select(vec![Dtype::U8, Dtype::BF16, Dtype::F32, Dtype::F64]);
    (dtype, prop::option::of(1usize..7), 1usize..14, 0usize..4).prop_flat_map(
        |(dtype, height, width, cuts)| {
            let rows = height.unwrap_or(1);
            let cuts = prop::collection::vec(0..=rows, if height.is_some() { cuts } else { 0 });
            let owners = prop::collection::vec(prop::collection::vec(0..RANKS, width), 4);
            let of_columns = prop::collection::vec(any::<bool>(), width);
            let reads = prop::collection::vec(((0..=rows, 0..=rows), of_columns), 0..6);
            (cuts, owners, reads).prop_map(move |(mut cuts, owners, reads)| {
                cuts.sort();
                let reads =
                    reads.into_iter().map(|((a, b), columns)| (a.min(b)..a.max(b), columns)).collect();
                Case { dtype, height, width, cuts, owners, reads }
            })
        },
    )
}

/// Ranges of the columns that are chosen; each range one column, or as long as possible.
fn ranges(width: usize, joined: bool, chosen: impl Fn(usize) -> bool) -> Vec<Range<usize>> {
    let mut ranges = Vec::<Range<usize>>::new();
    for column in (0..width).filter(|&column| chosen(column)) {
        match ranges.last_mut() {
            Some(last) if joined && last.end == column => last.end += 1,
            _ => ranges.push(column..column + 1),
        }
    }
    ranges
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn any_columns_are_read_of_matrices_cut_anywhere(case in cases(), joined in any::<bool>()) {
        let Case { dtype, height, width, cuts, owners, reads } = case;
        let shape: Vec<usize> = height.into_iter().chain([width]).collect();
        let count = shape.iter().product::<usize>() * dtype.bitsize() / 8;
        let tensor = whole("t", dtype, &shape, bytes(1, count));
        let rows_of_all = height.unwrap_or(1);
        let ends = [&[0][..], &cuts, &[rows_of_all]].concat();
        let mut ranks = Vec::new();
        for (band, owners) in ends.windows(2).zip(&owners) {
            let band = match height {
                Some(_) => rows(&tensor, band[0]..band[1]),
                None => whole("t", dtype, &shape, bytes(1, count)),
            };
            for rank in 0..RANKS {
                let held = ranges(width, joined, |column| owners[column] == rank);
                if !held.is_empty() {
                    ranks.push(vec![columns(&band, &held)]);
                }
            }
        }
        let (_output, checkpoint) = saved(ranks);
        let parameters = checkpoint.parameters();
        prop_assert_eq!(&*parameters.read("t").unwrap(), &*tensor.bytes.get().unwrap());
        for (rows, chosen) in reads {
            if height.is_some() {
                let found = parameters.read_rows("t", rows.clone()).unwrap();
                prop_assert_eq!(found, picked(&tensor, rows.clone(), std::slice::from_ref(&(0..width))));
            }
            let picks = ranges(width, !joined, |column| chosen[column]);
            if !picks.is_empty() {
                let found = parameters.read_columns("t", rows.clone(), &picks).unwrap();
                let rows = if height.is_some() { rows } else { 0..1 };
                prop_assert_eq!(found, picked(&tensor, rows, &picks));
            }
        }
    }
}
