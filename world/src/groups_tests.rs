//! Groups of ranks: what they exchange does not mix, and a fault in one ends all.

use std::time::Duration;

use burn::tensor::{DType, TensorData};

use crate::testing::{gather, gathered, outcomes, run, sums};
use crate::{Collective, Communicator, PartShape, World, WorldError};

/// Two nodes of four ranks: the rank's node, and the ranks with its place in each node.
fn grid(rank: &Communicator) -> (Communicator, Communicator) {
    (rank.split(|rank| rank / 4), rank.split(|rank| rank % 4))
}

/// Collectives of the world and of both kinds of groups are in flight together, and end in another order.
#[test]
fn groups_keep_their_exchanges_apart() {
    let found = run(World::threads(8), |rank| {
        let (node, across) = grid(&rank);
        assert_eq!((node.rank(), node.size()), (rank.rank() % 4, 4));
        assert_eq!((across.rank(), across.size()), (rank.rank() / 4, 2));
        let number = |factor: f32| vec![TensorData::from([factor * rank.rank() as f32])];
        let of_all = gather(&rank, "number", number(1.0))?;
        let of_node = gather(&node, "number", number(10.0))?;
        let of_column = gather(&across, "number", number(100.0))?;
        let like = [PartShape::flat(4, DType::F32)];
        let ones = vec![Some(TensorData::from([1.0f32, 2.0, 3.0, rank.rank() as f32]))];
        let chunk = sums(Communicator::begin_reduce_scatter, &node, "ones", ones, &like)?;
        let whole =
            sums(Communicator::begin_all_reduce, &across, "chunk", chunk, &[PartShape::flat(1, DType::F32)])?;
        let all = [of_column, of_node, of_all].map(|gathering| gathering.wait().map(gathered));
        let [of_column, of_node, of_all] = all;
        Ok((of_column?, of_node?, of_all?, whole, rank.traffic()))
    });
    for (at, found) in found.into_iter().enumerate() {
        let (of_column, of_node, of_all, whole, traffic) = found.unwrap();
        let numbers = |ranks: &[usize], factor: f32| {
            let numbers: Vec<_> = ranks.iter().map(|rank| factor * *rank as f32).collect();
            vec![TensorData::from(numbers.as_slice())]
        };
        let (first, place) = (at / 4 * 4, at % 4);
        assert_eq!(of_all, numbers(&[0, 1, 2, 3, 4, 5, 6, 7], 1.0));
        assert_eq!(of_node, numbers(&[first, first + 1, first + 2, first + 3], 10.0));
        assert_eq!(of_column, numbers(&[place, place + 4], 100.0));
        assert_eq!(whole, [Some(TensorData::from([[8.0f32, 16.0, 24.0, 28.0][place]]))]);
        // Three gathers, of eight, four and two ranks; three quarters of four elements; and half of one or the other half.
        assert_eq!(traffic.of(Collective::AllGather).elements, 7 + 3 + 1);
        assert_eq!(traffic.of(Collective::ReduceScatter).elements, 3);
        assert_eq!(traffic.of(Collective::AllReduce).elements, 1);
    }
}

#[test]
fn a_group_splits_again() {
    let found = run(World::threads(8), |rank| {
        let pair = rank.split(|rank| rank % 2).split(|rank| rank / 2);
        let numbers = pair.numbers("rank", &[rank.rank() as f64])?;
        // The handle to the world is gone, and the rank is not.
        drop(rank);
        pair.barrier()?;
        Ok(numbers.concat())
    });
    let found: Vec<_> = found.into_iter().map(Result::unwrap).collect();
    assert_eq!(found[0], [0.0, 2.0]);
    assert_eq!(found[5], [5.0, 7.0]);
    assert_eq!(found[7], found[5]);
}

#[test]
fn a_fault_in_one_group_ends_all_with_the_rank_of_the_world() {
    let found = run(World::threads(8), |rank| {
        let (node, across) = grid(&rank);
        if rank.rank() == 5 {
            node.fail("the disk is full");
        }
        Ok(across.barrier().and_then(|()| node.barrier()).unwrap_err())
    });
    for found in found {
        assert!(matches!(found.unwrap(), WorldError::Rank { rank: 5, .. }));
    }
    // A rank that panics while it has only the handle to a group.
    let found = outcomes(World::threads(8), |rank| {
        let (node, _) = grid(&rank);
        let number = rank.rank();
        drop(rank);
        assert!(number != 6, "this panic is part of a test");
        node.barrier()?;
        node.barrier()
    });
    for (at, found) in found.into_iter().enumerate() {
        match at {
            6 => assert!(found.is_none()),
            // The other node may be done before.
            0..4 => assert!(found.is_some()),
            _ => assert!(matches!(found, Some(Err(WorldError::Rank { rank: 6, .. }))), "{found:?}"),
        }
    }
}

#[test]
fn who_is_late_is_named_by_its_rank_of_the_world() {
    let found = run(World::threads(4).deadline(Duration::from_millis(20)), |rank| {
        let pair = rank.split(|rank| rank / 2);
        if rank.rank() == 3 {
            while rank.failure().is_none() {
                std::thread::yield_now();
            }
            return Ok(None);
        }
        Ok(pair.barrier().err())
    });
    let found: Vec<_> = found.into_iter().map(Result::unwrap).collect();
    assert_eq!(found[..2], [None, None]);
    let Some(WorldError::Deadline { ranks, .. }) = &found[2] else { panic!("{:?}", found[2]) };
    assert_eq!(ranks, &[3]);
}
