//! Faults of a rank: every rank ends with an error that names it.

use std::time::Duration;

use burn::tensor::{DType, TensorData};

use crate::testing::{gather, gathered, outcomes, run, sums};
use crate::{Communicator, PartShape, World, WorldError};

fn rank_error(error: &WorldError) -> (usize, &str, &str) {
    match error {
        WorldError::Rank { rank, call, reason } => (*rank, call, reason),
        error => panic!("{error}"),
    }
}

#[test]
fn a_rank_that_fails_is_named_with_its_reason() {
    let found = run(World::threads(3), |rank| {
        rank.barrier()?;
        if rank.rank() == 1 {
            rank.fail("the disk is full");
        }
        let error = rank.numbers("loss", &[1.0]).unwrap_err();
        assert_eq!(rank.failure(), Some(error.clone()));
        // Every later call returns it too, with the call that noticed it.
        let again = rank.barrier().unwrap_err();
        Ok((error, again))
    });
    for found in found {
        let (error, again) = found.unwrap();
        assert_eq!(error.to_string(), "rank 1 failed: the disk is full; this rank was in numbers of loss");
        assert_eq!(rank_error(&again), (1, "barrier", "failed: the disk is full"));
    }
}

#[test]
fn a_rank_that_panics_is_named() {
    let found = outcomes(World::threads(4), |rank| {
        assert!(rank.rank() != 2, "this panic is part of a test");
        rank.barrier()
    });
    assert!(found[2].is_none());
    for rank in [0, 1, 3] {
        let error = found[rank].clone().unwrap().unwrap_err();
        assert_eq!(rank_error(&error), (2, "barrier", "panicked"));
    }
}

/// Nobody waits for a rank that returns early, with an error of its own or without.
#[test]
fn a_rank_that_has_ended_is_named() {
    let found = run(World::threads(3), |rank| {
        rank.barrier()?;
        if rank.rank() == 0 { Ok(()) } else { rank.barrier() }
    });
    assert_eq!(found[0], Ok(()));
    for found in &found[1..] {
        let error = found.clone().unwrap_err();
        assert_eq!(rank_error(&error), (0, "barrier", "has ended while others continue"));
    }
}

/// Messages that a rank sent before it ended still arrive.
#[test]
fn the_last_call_of_a_rank_counts() {
    let mut ranks = World::threads(2).join().unwrap().into_iter();
    let (first, second) = (ranks.next().unwrap(), ranks.next().unwrap());
    let theirs = gather(&second, "", vec![TensorData::from([2.0f32])]).unwrap();
    drop((theirs, second));
    let mine = gather(&first, "", vec![TensorData::from([1.0f32])]).unwrap();
    assert_eq!(gathered(mine.wait().unwrap()), [TensorData::from([1.0f32, 2.0])]);
    assert_eq!(rank_error(&first.barrier().unwrap_err()).0, 1);
}

/// The error names exactly the missing ranks, and their last known calls.
#[test]
fn a_deadline_names_exactly_the_ranks_that_are_missing() {
    let limit = Duration::from_millis(50);
    let mut ranks = World::threads(4).deadline(limit).join().unwrap();
    let (third, second) = (ranks.pop().unwrap(), ranks.pop().unwrap());
    let first = ranks.pop().unwrap();
    // Ranks 1 and 3 have posted their part of one call and make no other.
    let like = [PartShape { shape: vec![4], dtype: DType::F32, sum: DType::F32 }];
    let part = || vec![TensorData::from([1.0f32])];
    let held = [gather(&first, "block 7", part()), gather(&third, "block 7", part())];
    let found = std::thread::scope(|scope| {
        let threads = [&ranks[0], &second].map(|rank| {
            let (rank, like) = (rank.clone(), &like);
            scope.spawn(move || {
                let gathered = gather(&rank, "block 7", vec![TensorData::from([1.0f32])]);
                gathered.and_then(|gathered| gathered.wait())?;
                sums(Communicator::begin_all_reduce, &rank, "block 8", vec![None], like)
            })
        });
        threads.map(|thread| thread.join().unwrap().unwrap_err())
    });
    let expected = WorldError::Deadline {
        ranks: vec![1, 3],
        call: "all_reduce of block 8 (1 part, 4 elements)".to_string(),
        limit,
        seen: vec![Some("all_gather of block 7 (1 part, 1 elements)".to_string()); 2],
    };
    assert_eq!(found, [expected.clone(), expected.clone()]);
    assert!(expected.to_string().starts_with(
        "within 50ms ranks 1, 3 did not arrive at all_reduce of block 8 (1 part, 4 elements) (last seen in"
    ));
    // The late ranks learn that the others gave up.
    drop(held);
    assert_eq!(first.barrier(), Err(expected.clone()));
    assert_eq!(third.failure(), Some(expected));
}

#[test]
fn ranks_in_different_calls_are_named_with_both() {
    let found = run(World::threads(2), |rank| match rank.rank() {
        0 => rank.barrier(),
        _ => rank.numbers("loss", &[1.0]).map(|_| ()),
    });
    let calls = ["barrier", "numbers of loss"];
    // The rank that notices first names both.
    let noticed = |rank: usize| WorldError::Mismatch {
        rank,
        call: calls[rank].to_string(),
        other: 1 - rank,
        found: calls[1 - rank].to_string(),
    };
    assert!([noticed(0), noticed(1)].map(Err).contains(&found[0]));
    assert_eq!(found[0], found[1]);
}

#[test]
fn a_mismatched_part_is_shown() {
    let found = run(World::threads(2), |rank| {
        let shape = [vec![2, 4], vec![4, 2]][rank.rank()].clone();
        let part = PartShape { shape, dtype: DType::F32, sum: DType::F32 };
        let same = PartShape { shape: vec![4], dtype: DType::F32, sum: DType::F32 };
        sums(Communicator::begin_all_reduce, &rank, "unit", vec![None, None], &[same, part])
    });
    let error = found[0].clone().unwrap_err().to_string();
    let call = |shape| format!("all_reduce of unit (2 parts, 12 elements) with part 1 {shape} f32");
    assert!(error.contains(&call("[2, 4]")) && error.contains(&call("[4, 2]")), "{error}");

    let found = run(World::threads(2), |rank| {
        let data = TensorData::from([1.0f32]);
        let data = if rank.rank() == 0 { data } else { data.convert::<f64>() };
        Ok(gathered(gather(&rank, "", vec![data])?.wait()?))
    });
    let error = found[0].clone().unwrap_err().to_string();
    assert!(error.contains("all_gather of [1] f32") && error.contains("all_gather of [1] f64"), "{error}");
}

/// The error reports the first failure: its consequences would hide the cause.
#[test]
fn the_first_failure_is_reported() {
    let ranks = World::threads(2).join().unwrap();
    ranks[0].fail("first");
    ranks[1].fail("second");
    for rank in &ranks {
        assert_eq!(rank_error(&rank.barrier().unwrap_err()).2, "failed: first");
    }
}

/// A rank's lateness is the time that others wait for it; a rank's own waiting does not count.
#[test]
fn lateness_names_the_slow_rank() {
    let ranks = World::threads(2).join().unwrap();
    let (entered, enters) = std::sync::mpsc::channel();
    std::thread::scope(|scope| {
        let first = ranks[0].clone();
        scope.spawn(move || {
            gather(&first, "", vec![]).unwrap().wait().unwrap();
            entered.send(()).unwrap();
            first.barrier().unwrap();
        });
        gather(&ranks[1], "", vec![]).unwrap().wait().unwrap();
        enters.recv().unwrap();
        ranks[1].barrier().unwrap();
    });
    let [first, second] = [ranks[0].lateness(), ranks[1].lateness()];
    assert_eq!((first[0], second[1]), (0.0, 0.0));
    assert!(first[1] > 0.0 || second[0] > 0.0, "{first:?} {second:?}");
}
