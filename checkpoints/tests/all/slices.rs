//! Splits tensors among ranks in any way, and reads them in any way.

use std::io;
use std::ops::Range;

use firebrick_checkpoints::{Bytes, Checkpoint, CheckpointError, Dtype, Folder, Manifest, Piece, RankState};
use proptest::prelude::*;

use crate::faulty_disk::FaultyDisk;
use crate::state::{bytes, rows, whole};

const DTYPES: [Dtype; 13] = [
    Dtype::F64,
    Dtype::F32,
    Dtype::BF16,
    Dtype::F16,
    Dtype::I64,
    Dtype::I32,
    Dtype::I16,
    Dtype::I8,
    Dtype::U64,
    Dtype::U32,
    Dtype::U16,
    Dtype::U8,
    Dtype::BOOL,
];

/// A tensor, the rows where it is cut, and the rows to read.
#[derive(Debug, Clone)]
struct Case {
    dtype: Dtype,
    shape: Vec<usize>,
    /// Sorted, one fewer than the ranks.
    cuts: Vec<usize>,
    reads: Vec<Range<usize>>,
}

fn cases() -> impl Strategy<Value = Case> {
    let shape = (0usize..9, prop::collection::vec(0usize..4, 0..3));
    (shape, 0..DTYPES.len(), 1usize..12).prop_flat_map(|((first, others), dtype, ranks)| {
        let cuts = prop::collection::vec(0..=first, ranks - 1);
        let reads = prop::collection::vec((0..=first, 0..=first), 0..6);
        (cuts, reads).prop_map(move |(mut cuts, reads)| {
            cuts.sort();
            let shape = [&[first][..], &others].concat();
            let reads = reads.into_iter().map(|(a, b)| a.min(b)..a.max(b)).collect();
            Case { dtype: DTYPES[dtype], shape, cuts, reads }
        })
    })
}

/// Saves each rank's pieces and opens the checkpoint.
pub fn saved(ranks: Vec<Vec<Piece>>) -> (tempfile::TempDir, Checkpoint) {
    let output = tempfile::tempdir().unwrap();
    let count = ranks.len();
    let staging = Folder::new(output.path()).with_disk(FaultyDisk::sound()).staging(1, "a");
    let files = ranks.into_iter().enumerate().flat_map(|(rank, parameters)| {
        let state = RankState { rank, ranks: count, parameters, ..Default::default() };
        staging.write_rank(&state).unwrap()
    });
    let manifest = Manifest::new("run", 1, count, "0.1.0").files(files);
    let checkpoint = Checkpoint::open(staging.publish(manifest, "()").unwrap().path).unwrap();
    (output, checkpoint)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn any_rows_are_read_of_slices_cut_anywhere(cases in prop::collection::vec(cases(), 1..4)) {
        let tensors: Vec<Piece> = cases.iter().enumerate().map(|(at, case)| {
            let count = case.shape.iter().product::<usize>() * case.dtype.bitsize() / 8;
            whole(&format!("t{at}"), case.dtype, &case.shape, bytes(at as u64, count))
        }).collect();
        let count = cases.iter().map(|case| case.cuts.len() + 1).max().unwrap();
        let mut ranks: Vec<Vec<Piece>> = (0..count).map(|_| Vec::new()).collect();
        for (case, tensor) in cases.iter().zip(&tensors) {
            let ends = [&[0][..], &case.cuts, &[case.shape[0]]].concat();
            // Rank 0 need not have the first rows.
            for (at, range) in ends.windows(2).enumerate() {
                ranks[(at + 3) % (case.cuts.len() + 1)].push(rows(tensor, range[0]..range[1]));
            }
        }
        let (_output, checkpoint) = saved(ranks);
        let parameters = checkpoint.parameters();
        for (case, tensor) in cases.iter().zip(&tensors) {
            let all = tensor.bytes.get().unwrap();
            prop_assert_eq!(&*parameters.read(&tensor.name).unwrap(), &*all);
            let row = all.len() / case.shape[0].max(1);
            for read in &case.reads {
                let found = parameters.read_rows(&tensor.name, read.clone()).unwrap();
                prop_assert_eq!(&found, &all[read.start * row..read.end * row]);
            }
        }
    }
}

#[test]
fn missing_rows_are_errors() {
    let tensors = vec![whole("w", Dtype::U8, &[4, 2], bytes(1, 8)), whole("s", Dtype::F32, &[], bytes(2, 4))];
    let (_output, checkpoint) = saved(vec![tensors]);
    let parameters = checkpoint.parameters();
    #[expect(clippy::reversed_empty_ranges, reason = "that is the mistake")]
    for wrong in [0..5, 3..2, 5..5, usize::MAX..usize::MAX] {
        let error = parameters.read_rows("w", wrong).unwrap_err();
        assert!(error.to_string().contains("tensor `w`: expected rows between 0 and 4"), "{error}");
    }
    assert_eq!(parameters.read_rows("s", 0..1).unwrap(), bytes(2, 4));
    assert!(parameters.read_rows("s", 0..0).unwrap().is_empty());
    let Err(CheckpointError::NoTensor { hint, .. }) = parameters.read("x") else { panic!() };
    assert!(hint.contains("it has 2 tensors, such as `s`"), "{hint}");
}

#[test]
fn tensors_larger_than_what_is_written_at_once_are_saved() {
    // Pieces that are collected, one that is written in parts, and the pieces after it.
    let sizes = [1 << 10, (9 << 20) + 3, 5, 4 << 20, (4 << 20) - 1, 1 << 21, 1 << 21, 7];
    let tensors = || {
        sizes
            .iter()
            .enumerate()
            .map(|(at, &size)| whole(&format!("t{at}"), Dtype::U8, &[size], bytes(at as u64, size)))
    };
    let (_output, checkpoint) = saved(vec![tensors().collect()]);
    for tensor in tensors() {
        assert!(
            checkpoint.parameters().read(&tensor.name).unwrap() == *tensor.bytes.get().unwrap(),
            "{}",
            tensor.name
        );
    }
}

#[test]
fn a_piece_that_is_read_when_it_is_written_is_saved_alike_and_its_errors_are_named() {
    let expected = bytes(3, 5 << 20);
    let held = whole("w", Dtype::U8, &[5 << 20], expected.clone());
    let content = expected.clone();
    let read = Piece {
        name: "w".into(),
        dtype: Dtype::U8,
        shape: vec![5 << 20],
        rows: None,
        columns: None,
        bytes: Bytes::read_by(5 << 20, move || Ok(content.clone())),
    };
    let sums = [held, read].map(|piece| {
        let (_output, checkpoint) = saved(vec![vec![piece]]);
        assert!(checkpoint.parameters().read("w").unwrap() == expected);
        checkpoint.manifest().files.iter().map(|file| file.sum.to_string()).collect::<Vec<_>>()
    });
    assert_eq!(sums[0], sums[1]);

    let output = tempfile::tempdir().unwrap();
    for (bytes, said) in [
        (Bytes::read_by(4, || Err(io::Error::other("the disk is gone"))), "the disk is gone"),
        (Bytes::read_by(4, || Ok(vec![0; 3])), "expected 4 bytes, found 3"),
    ] {
        let piece =
            Piece { name: "w".into(), dtype: Dtype::F32, shape: vec![], rows: None, columns: None, bytes };
        let state = RankState { ranks: 1, optimizer: vec![piece], ..RankState::default() };
        let staging = Folder::new(output.path()).staging(1, "a");
        for error in [staging.write_rank(&state).unwrap_err(), state.is_finite().unwrap_err()] {
            let text = error.to_string();
            assert!(text.contains("tensor `w` cannot be read") && text.contains(said), "{text}");
        }
    }
}
