//! Small states of ranks, and a bit-exact check of checkpoints against them.
#![allow(dead_code, reason = "each test uses some of it")]

use std::collections::BTreeMap;
use std::ops::Range;
use std::path::Path;

use firebrick_checkpoints::{
    Checkpoint, Dtype, Folder, Manifest, Piece, RankState, Result, Saved, Scalar, Staging,
};

/// Generates bytes from a seed, the same on every machine (SplitMix64).
pub fn bytes(seed: u64, count: usize) -> Vec<u8> {
    let mut state = seed;
    let mut next = || {
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (state ^ (state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    };
    (0..count).map(|_| next() as u8).collect()
}

/// Generates finite numbers between -1 and 1 from a seed, as little-endian f32.
pub fn floats(seed: u64, count: usize) -> Vec<u8> {
    let numbers = bytes(seed, 2 * count);
    let numbers = numbers.chunks_exact(2).map(|b| f32::from(i16::from_le_bytes([b[0], b[1]])) / 32768.0);
    numbers.flat_map(f32::to_le_bytes).collect()
}

/// Makes a piece of a whole tensor.
pub fn whole(name: &str, dtype: Dtype, shape: &[usize], bytes: Vec<u8>) -> Piece {
    Piece { name: name.into(), dtype, shape: shape.into(), rows: None, columns: None, bytes: bytes.into() }
}

/// Makes a piece of some rows of a tensor.
pub fn rows(piece: &Piece, rows: Range<usize>) -> Piece {
    let all = piece.bytes.get().unwrap();
    let row = all.len() / piece.shape[0].max(1);
    Piece {
        name: piece.name.clone(),
        dtype: piece.dtype,
        shape: piece.shape.clone(),
        bytes: all[rows.start * row..rows.end * row].to_vec().into(),
        rows: Some(rows),
        columns: None,
    }
}

/// Makes a piece of some columns of a piece that holds whole rows of a matrix, or of a whole tensor with one axis.
pub fn columns(piece: &Piece, columns: &[Range<usize>]) -> Piece {
    let all = piece.bytes.get().unwrap();
    let (element, last) = (piece.dtype.bitsize() / 8, *piece.shape.last().unwrap());
    let rows = all.chunks_exact((last * element).max(1));
    let held = rows.flat_map(|row| columns.iter().map(|c| &row[c.start * element..c.end * element]));
    Piece {
        name: piece.name.clone(),
        dtype: piece.dtype,
        shape: piece.shape.clone(),
        rows: piece.rows.clone(),
        columns: Some(columns.to_vec()),
        bytes: held.collect::<Vec<_>>().concat().into(),
    }
}

/// Returns the state of all ranks together at a step.
pub fn whole_state(step: u64) -> RankState {
    let f32s = |name: &str, salt: u64, shape: &[usize]| {
        whole(name, Dtype::F32, shape, floats(step * 100 + salt, shape.iter().product()))
    };
    let half = floats(step * 100 + 9, 6);
    RankState {
        rank: 0,
        ranks: 1,
        parameters: vec![
            f32s("embedding.weight", 1, &[7, 3]),
            f32s("blocks.0.weight", 2, &[4, 5]),
            f32s("scale", 3, &[]),
            f32s("nothing", 4, &[0, 3]),
            whole("seen", Dtype::I64, &[2], bytes(step, 16)),
            whole("half", Dtype::BF16, &[12], half),
        ],
        optimizer: vec![
            f32s("embedding.weight/momentum.moment_1", 5, &[7, 3]),
            f32s("blocks.0.weight/momentum.moment_1", 6, &[4, 5]),
        ],
        scalars: BTreeMap::from([
            ("blocks.0.weight/momentum.time".into(), Scalar::UInt(step)),
            ("blocks.0.weight/decay".into(), Scalar::Float(0.1)),
        ]),
        average: Some(vec![f32s("embedding.weight", 7, &[7, 3]), f32s("blocks.0.weight", 8, &[4, 5])]),
    }
}

/// Returns a rank's rows. Ranks get equal numbers of rows, or differ by one.
pub fn share(length: usize, rank: usize, ranks: usize) -> Range<usize> {
    rank * length / ranks..(rank + 1) * length / ranks
}

/// Returns one rank's state: rows of the tensors that can be cut; rank 0 also holds the others.
pub fn rank_state(step: u64, rank: usize, ranks: usize) -> RankState {
    let state = whole_state(step);
    if ranks == 1 {
        return state;
    }
    let cut = |pieces: Vec<Piece>| {
        let piece_of = |piece: Piece| match piece.shape.first() {
            Some(&length) if piece.name != "half" => Some(rows(&piece, share(length, rank, ranks))),
            _ => (rank == 0).then_some(piece),
        };
        pieces.into_iter().filter_map(piece_of).collect()
    };
    RankState {
        rank,
        ranks,
        parameters: cut(state.parameters),
        optimizer: cut(state.optimizer),
        scalars: state.scalars,
        average: state.average.map(cut),
    }
}

/// Returns the text of the trainer's file.
pub fn trainer(step: u64) -> String {
    format!("(step: {step}, cursor: (epoch: 0, samples: {}))\n", step * 12)
}

/// Writes all ranks' files, one rank after the other, and publishes them.
pub fn save_in(staging: &Staging, step: u64, ranks: usize) -> Result<Saved> {
    let mut files = Vec::new();
    for rank in 0..ranks {
        files.extend(staging.write_rank(&rank_state(step, rank, ranks))?);
    }
    let aliases = [("head.weight".to_owned(), "embedding.weight".to_owned())];
    let manifest = Manifest::new("run", step, ranks, "0.1.0").files(files).aliases(aliases);
    staging.publish(manifest.metric(10.0 / step as f64), &trainer(step))
}

/// Saves a step.
pub fn save(folder: &Folder, step: u64, ranks: usize) -> Result<Saved> {
    save_in(&folder.staging(step, "test"), step, ranks)
}

/// Opens a checkpoint and checks that it holds the state of a step, bit for bit.
pub fn open_as(path: &Path, step: u64) -> Checkpoint {
    let checkpoint = Checkpoint::open(path).unwrap_or_else(|error| panic!("{error}"));
    assert_eq!(checkpoint.manifest().step, step);
    assert_eq!(checkpoint.trainer(), trainer(step));
    let state = whole_state(step);
    let kinds = [
        (checkpoint.parameters(), &state.parameters),
        (checkpoint.optimizer(), &state.optimizer),
        (checkpoint.average().unwrap(), state.average.as_ref().unwrap()),
    ];
    for (tensors, pieces) in kinds {
        assert_eq!(tensors.names().count(), pieces.len());
        for piece in pieces {
            let info = tensors.info(&piece.name).unwrap();
            assert_eq!((info.dtype, &info.shape), (piece.dtype, &piece.shape), "{}", piece.name);
            assert_eq!(tensors.read(&piece.name).unwrap(), &*piece.bytes.get().unwrap(), "{}", piece.name);
        }
    }
    assert_eq!(checkpoint.optimizer().scalars(), &state.scalars);
    checkpoint
}
