//! Compares collectives with sums taken by hand, for several numbers of ranks, shapes and dtypes.

use burn::tensor::{DType, Device, FloatDType, Tensor, TensorData, bf16, f16};

use crate::testing::{device, gather, gathered, run, sums};
use crate::{Collective, Communicator, PartShape, World, WorldError};

const RANKS: [usize; 5] = [1, 2, 3, 4, 5];

/// Returns numbers whose sums round differently in another order or precision.
fn number(rank: usize, at: usize) -> f32 {
    let bits = (rank * 7919 + at * 104_729 + 1) as f32 * 0.618_034;
    (bits.fract() - 0.4) * [1.0, 1e3, 1e-3][(rank + at) % 3]
}

fn tensor<const D: usize>(rank: usize, shape: [usize; D], dtype: FloatDType) -> Tensor<D> {
    let numbers: Vec<f32> = (0..shape.iter().product()).map(|at| number(rank, at)).collect();
    let host = Tensor::<D>::from_data(TensorData::new(numbers, shape), &Device::flex()).cast(dtype);
    Tensor::from_data(host.into_data(), (&device(), DType::from(dtype)))
}

/// Returns the dtypes that the tests' device supports.
fn dtypes() -> Vec<FloatDType> {
    let all = [FloatDType::F32, FloatDType::F64, FloatDType::F16, FloatDType::BF16];
    all.into_iter().filter(|dtype| device().supports_dtype(*dtype)).collect()
}

/// Sums in rank order, element by element.
fn sum_by_hand(ranks: usize, elements: usize, dtype: FloatDType) -> TensorData {
    let sum_32 = |round: fn(f32) -> f32| -> Vec<f32> {
        let sum = |at| (1..ranks).fold(round(number(0, at)), |sum, rank| sum + round(number(rank, at)));
        (0..elements).map(sum).collect()
    };
    match dtype {
        FloatDType::F64 => {
            let sum = |at| (0..ranks).map(|rank| f64::from(number(rank, at))).reduce(|a, b| a + b).unwrap();
            TensorData::new((0..elements).map(sum).collect(), [elements])
        }
        FloatDType::F16 => {
            let sums = sum_32(|x| f16::from_f32(x).to_f32());
            TensorData::new(sums.into_iter().map(f16::from_f32).collect(), [elements])
        }
        FloatDType::BF16 => {
            let sums = sum_32(|x| bf16::from_f32(x).to_f32());
            TensorData::new(sums.into_iter().map(bf16::from_f32).collect(), [elements])
        }
        _ => TensorData::new(sum_32(|x| x), [elements]),
    }
}

#[test]
fn all_reduce_is_the_sum_in_rank_order_on_every_rank() {
    for (ranks, dtype) in RANKS.into_iter().flat_map(|ranks| dtypes().into_iter().map(move |d| (ranks, d))) {
        for shape in [[1, 1], [3, 7], [4, 5], [0, 3], [61, 1153]] {
            let found = run(World::threads(ranks), move |rank| {
                Ok(rank.all_reduce(tensor(rank.rank(), shape, dtype))?.into_data())
            });
            let sum = sum_by_hand(ranks, shape[0] * shape[1], dtype);
            for found in found {
                let found = found.unwrap();
                assert_eq!((found.as_bytes(), found.dtype()), (sum.as_bytes(), dtype.into()));
                assert_eq!(found.shape().as_slice(), shape);
            }
        }
    }
}

#[test]
fn reduce_scatter_is_each_ranks_chunk_of_the_sum() {
    for (ranks, dtype) in RANKS.into_iter().flat_map(|ranks| dtypes().into_iter().map(move |d| (ranks, d))) {
        for shape in [[ranks, 1, 5], [3 * ranks, 7, 1], [0, 2, 2]] {
            let found = run(World::threads(ranks), move |rank| {
                Ok(rank.reduce_scatter(tensor(rank.rank(), shape, dtype))?.into_data())
            });
            let sum = sum_by_hand(ranks, shape.iter().product(), dtype);
            let chunk = sum.as_bytes().len() / ranks;
            for (rank, found) in found.into_iter().enumerate() {
                let found = found.unwrap();
                assert_eq!(found.as_bytes(), &sum.as_bytes()[rank * chunk..(rank + 1) * chunk]);
                assert_eq!(found.shape().as_slice(), [shape[0] / ranks, shape[1], shape[2]]);
            }
        }
    }
}

#[test]
fn all_gather_and_broadcast_move_every_bit() {
    for (ranks, dtype) in RANKS.into_iter().flat_map(|ranks| dtypes().into_iter().map(move |d| (ranks, d))) {
        let found = run(World::threads(ranks), move |rank| {
            let mine = tensor(rank.rank(), [2, 3], dtype);
            let gathered = rank.all_gather(mine.clone())?;
            let last = rank.broadcast(mine, rank.size() - 1)?;
            Ok((gathered.into_data(), last.into_data()))
        });
        let all: Vec<u8> =
            (0..ranks).flat_map(|rank| tensor(rank, [2, 3], dtype).into_data().as_bytes().to_vec()).collect();
        for found in found {
            let (gathered, last) = found.unwrap();
            assert_eq!((gathered.as_bytes(), gathered.shape().as_slice()), (&*all, &[2 * ranks, 3][..]));
            let root = tensor(ranks - 1, [2, 3], dtype).into_data();
            assert_eq!((last.as_bytes(), last.shape().as_slice()), (root.as_bytes(), &[2, 3][..]));
        }
    }
}

/// If the ranks do not divide the rows, the last ranks get fewer or none; only the root reads its part.
#[test]
fn scatter_deals_the_rows_of_the_root() {
    for (ranks, dtype) in RANKS.into_iter().flat_map(|ranks| dtypes().into_iter().map(move |d| (ranks, d))) {
        for rows in [0, 1, 3, 4, 11] {
            let root = ranks - 1;
            let whole = move || tensor(root, [rows, 3], dtype).into_data();
            let found = run(World::threads(ranks), move |rank| {
                let like = like([rows, 3], dtype.into(), dtype.into());
                rank.scatter("", (rank.rank() == root).then(whole), like, root)
            });
            let each = rows.div_ceil(ranks);
            let row = 3 * DType::from(dtype).size();
            for (rank, found) in found.into_iter().enumerate() {
                let (found, place) = (found.unwrap(), |rank: usize| (rank * each).min(rows));
                let own = place(rank)..place(rank + 1);
                assert_eq!(found.shape().as_slice(), [own.len(), 3]);
                assert_eq!(found.as_bytes(), &whole().as_bytes()[own.start * row..own.end * row]);
                assert_eq!(found.dtype(), dtype.into());
            }
        }
    }
}

/// A NaN keeps its payload and a zero its sign if nothing is added.
#[test]
fn gathering_keeps_every_bit() {
    let odd = [f32::from_bits(0x7FC1_2345), -0.0, f32::MIN_POSITIVE / 2.0];
    let found = run(World::threads(2), move |rank| {
        Ok(gathered(gather(&rank, "", vec![TensorData::from(odd)])?.wait()?))
    });
    let bits = |data: &TensorData| -> Vec<u32> {
        data.as_slice::<f32>().unwrap().iter().map(|x| x.to_bits()).collect()
    };
    let expected = bits(&TensorData::from(odd));
    for found in found {
        assert_eq!(bits(&found.unwrap()[0]), [&*expected, &expected].concat());
    }
    let zeros = run(World::threads(3), |rank| {
        let part = vec![Some(TensorData::from([-0.0f32]))];
        sums(Communicator::begin_all_reduce, &rank, "", part, &[PartShape::flat(1, DType::F32)])
    });
    for zero in zeros {
        assert_eq!(bits(zero.unwrap()[0].as_ref().unwrap()), [(-0.0f32).to_bits()]);
    }
}

fn like(shape: [usize; 2], dtype: DType, sum: DType) -> PartShape {
    PartShape { shape: shape.to_vec(), dtype, sum }
}

/// Rank 1 lacks the second part and no rank has the third; the first is summed from bf16 to f32.
#[test]
fn parts_may_be_missing_and_keep_the_unrounded_sum() {
    let likes = [
        PartShape { sum: DType::F32, ..PartShape::flat(12, DType::BF16) },
        PartShape::flat(3, DType::F32),
        PartShape::flat(9, DType::F64),
    ];
    let parts = |rank: usize| {
        let first = tensor(rank, [6, 2], FloatDType::F32).into_data().convert::<bf16>();
        let second = tensor(rank, [3, 1], FloatDType::F32).into_data();
        vec![Some(first), (rank != 1).then_some(second), None]
    };
    let wide: Vec<f32> = (0..12)
        .map(|at| (0..3).map(|rank| bf16::from_f32(number(rank, at)).to_f32()).reduce(|a, b| a + b).unwrap())
        .collect();
    let thin: Vec<f32> = (0..3).map(|at| number(0, at) + number(2, at)).collect();
    let like = likes.clone();
    let scattered = run(World::threads(3), move |rank| {
        sums(Communicator::begin_reduce_scatter, &rank, "unit", parts(rank.rank()), &like)
    });
    for (rank, found) in scattered.into_iter().enumerate() {
        let first = TensorData::new(wide[4 * rank..4 * rank + 4].to_vec(), [4]);
        let second = TensorData::new(vec![thin[rank]], [1]);
        assert_eq!(found.unwrap(), [Some(first), Some(second), None]);
    }
    let reduced = run(World::threads(3), move |rank| {
        sums(Communicator::begin_all_reduce, &rank, "unit", parts(rank.rank()), &likes)
    });
    for found in reduced {
        let (first, second) = (TensorData::new(wide.clone(), [12]), TensorData::new(thin.clone(), [3]));
        assert_eq!(found.unwrap(), [Some(first), Some(second), None]);
    }
}

#[test]
fn sums_may_be_wider_or_narrower_than_their_parts() {
    let floats = [DType::F64, DType::F32, DType::F16, DType::BF16];
    for (dtype, sum) in floats.into_iter().flat_map(|dtype| floats.map(|sum| (dtype, sum))) {
        let found = run(World::threads(2), move |rank| {
            let part = TensorData::from([0.5f32 + rank.rank() as f32, -3.0]).convert_dtype(dtype);
            let like = [PartShape { sum, ..PartShape::flat(2, dtype) }];
            sums(Communicator::begin_all_reduce, &rank, "", vec![Some(part)], &like)
        });
        for found in found {
            let expected = TensorData::from([2.0f32, -6.0]).convert_dtype(sum);
            assert_eq!(found.unwrap(), [Some(expected)], "{dtype:?} to {sum:?}");
        }
    }
}

#[test]
fn only_the_root_gets_gathered_shards() {
    for ranks in RANKS {
        let found = run(World::threads(ranks), |rank| {
            let shards =
                vec![TensorData::from([[rank.rank() as f32]]), TensorData::from([rank.rank() as i32])];
            rank.gather("optimizer", shards, rank.size() / 2)
        });
        for (rank, found) in found.into_iter().enumerate() {
            let floats = TensorData::new((0..ranks).map(|rank| rank as f32).collect(), [ranks, 1]);
            let ints = TensorData::new((0..ranks).map(|rank| rank as i32).collect(), [ranks]);
            assert_eq!(found.unwrap(), (rank == ranks / 2).then(|| vec![floats, ints]));
        }
    }
}

#[test]
fn numbers_are_exact_and_may_be_empty() {
    let found =
        run(World::threads(3), |rank| rank.numbers("norms", &[0.1, f64::MIN_POSITIVE, -0.0][..rank.rank()]));
    for found in found {
        let found = found.unwrap();
        assert_eq!(found, [&[][..], &[0.1], &[0.1, f64::MIN_POSITIVE]]);
    }
}

#[test]
fn bytes_of_any_length_arrive_in_rank_order_apart_from_tensors() {
    let long: Vec<u8> = (0..=255).cycle().take(100_000).collect();
    for ranks in RANKS {
        let found = run(World::threads(ranks), |rank| {
            let mine = [&[][..], b"rank 1", &long, &[0, 255]][rank.rank() % 4];
            let before = rank.traffic();
            let all = rank.all_gather_bytes("records", mine)?;
            Ok((all, mine.len(), rank.traffic().since(&before)))
        });
        let expected: Vec<_> =
            (0..ranks).map(|rank| [&[][..], b"rank 1", &long, &[0, 255]][rank % 4].to_vec()).collect();
        for found in found {
            let (all, mine, traffic) = found.unwrap();
            assert_eq!(all, expected);
            let (moved, others) = (traffic.of(Collective::Scalars), (ranks - 1) as u64);
            let received = expected.iter().map(Vec::len).sum::<usize>() - mine;
            let counted = (moved.calls, moved.elements, moved.sent, moved.received);
            assert_eq!(counted, (1, mine as u64 * others, mine as u64 * others, received as u64));
            assert_eq!(traffic.tensors(), Default::default());
        }
    }
}

/// Gathers in flight disturb neither each other nor the calls between them, and one may be given up.
#[test]
fn gathers_are_waited_for_in_any_order() {
    let found = run(World::threads(4), |rank| {
        let start = |n: usize| gather(&rank, "", vec![TensorData::from([(10 * n + rank.rank()) as f32])]);
        let (first, second, third) = (start(1)?, start(2)?, start(3)?);
        drop(second);
        let numbers = rank.numbers("", &[rank.rank() as f64])?;
        let (third, first) = (gathered(third.wait()?), gathered(first.wait()?));
        rank.barrier()?;
        Ok((first, third, numbers.concat()))
    });
    for found in found {
        let (first, third, numbers) = found.unwrap();
        assert_eq!(first, [TensorData::from([10.0f32, 11.0, 12.0, 13.0])]);
        assert_eq!(third, [TensorData::from([30.0f32, 31.0, 32.0, 33.0])]);
        assert_eq!(numbers, [0.0, 1.0, 2.0, 3.0]);
    }
}

/// Traffic of four ranks, counted by hand: what each sends to others, in the dtype on the wire.
#[test]
fn traffic_counts_data_sent_to_others() {
    let found = run(World::threads(4), |rank| {
        let before = {
            rank.barrier()?;
            rank.traffic()
        };
        rank.all_reduce(tensor(0, [5, 2], FloatDType::F32))?;
        let parts = vec![Some(TensorData::from([1.0f32, 2.0, 3.0, 4.0]).convert::<bf16>()), None];
        let likes = [
            PartShape { sum: DType::F32, ..PartShape::flat(4, DType::BF16) },
            PartShape::flat(36, DType::F32),
        ];
        sums(Communicator::begin_reduce_scatter, &rank, "", parts, &likes)?;
        rank.all_gather(tensor(0, [2, 3], FloatDType::F32))?;
        rank.broadcast(tensor(0, [2, 3], FloatDType::F32), 1)?;
        let rows = tensor(0, [6, 1], FloatDType::F32).into_data();
        rank.scatter("", Some(rows), like([6, 1], DType::F32, DType::F32), 0)?;
        rank.gather("", vec![TensorData::from([1.0f32])], 2)?;
        rank.numbers("", &[1.0, 2.0])?;
        let traffic = rank.traffic().since(&before);
        assert_eq!(traffic.of(Collective::Barrier), Default::default());
        Ok(traffic)
    });
    // Of 10 elements, ranks 0 to 2 sum three each and rank 3 the last one.
    let all_reduce = [(7 + 9, 7 + 9), (7 + 9, 7 + 9), (7 + 9, 7 + 9), (9 + 3, 3 + 9)];
    for (rank, found) in found.into_iter().enumerate() {
        let found = found.unwrap();
        let moved = |kind| {
            let moved = found.of(kind);
            (moved.calls, moved.elements, moved.sent, moved.received)
        };
        let (sent, received) = all_reduce[rank];
        assert_eq!(moved(Collective::AllReduce), (1, sent, 4 * sent, 4 * received));
        assert_eq!(moved(Collective::ReduceScatter), (1, 3, 6, 6));
        assert_eq!(moved(Collective::AllGather), (1, 18, 72, 72));
        assert_eq!(moved(Collective::Broadcast), if rank == 1 { (1, 18, 72, 0) } else { (1, 0, 0, 24) });
        // Of six rows, ranks 1 and 2 get two each and the last rank none.
        let scattered = [(1, 4, 16, 0), (1, 0, 0, 8), (1, 0, 0, 8), (1, 0, 0, 0)];
        assert_eq!(moved(Collective::Scatter), scattered[rank]);
        assert_eq!(moved(Collective::Gather), if rank == 2 { (1, 0, 0, 12) } else { (1, 1, 4, 0) });
        assert_eq!(moved(Collective::Scalars), (1, 6, 48, 48));
        assert_eq!(found.tensors().calls, 6);
    }
}

#[test]
fn a_world_of_one_sends_nothing() {
    let rank = Communicator::default();
    let x = tensor(0, [3, 5], FloatDType::F32);
    for same in [rank.all_reduce(x.clone()), rank.reduce_scatter(x.clone()), rank.all_gather(x.clone())] {
        assert_eq!(same.unwrap().into_data(), x.to_data());
    }
    assert_eq!((rank.traffic().tensors().calls, rank.traffic().tensors().sent), (3, 0));
}

#[test]
fn mismatched_shapes_fail_before_sending() {
    let ranks = World::threads(2).join().unwrap();
    let rank = &ranks[0];
    let error = rank.reduce_scatter(tensor(0, [3, 2], FloatDType::F32)).unwrap_err();
    assert_eq!(
        error.to_string(),
        "reduce_scatter of [3, 2] f32: expected a first axis that 2 ranks divide, found [3, 2]"
    );
    let error = rank.broadcast(tensor(0, [1], FloatDType::F32), 2).unwrap_err();
    assert_eq!(error.to_string(), "broadcast of [1] f32: root must be one of the 2 ranks, found 2");
    let error = rank.scatter("head", None, like([2, 1], DType::F32, DType::F32), 0).unwrap_err();
    assert_eq!(
        error.to_string(),
        "scatter of head (1 part, 2 elements) from rank 0: expected the part of this rank to be [2, 1] f32, found none"
    );
    let half = Some(TensorData::from([[1.0f32, 2.0]]));
    let error = rank.broadcast_part("", half, like([1, 2], DType::BF16, DType::BF16), 0).unwrap_err();
    assert!(error.to_string().contains("to be [1, 2] bf16, found [1, 2] f32"), "{error}");
    let part = || vec![Some(TensorData::from([1.0f32, 2.0]))];
    let summed = |part, like: &[PartShape]| sums(Communicator::begin_all_reduce, rank, "head", part, like);
    let error = summed(part(), &[PartShape::flat(3, DType::F32)]).unwrap_err();
    assert_eq!(
        error.to_string(),
        "all_reduce of head (1 part, 3 elements): expected part 0 to be [3], found [2]"
    );
    assert!(matches!(summed(part(), &[]).unwrap_err(), WorldError::Shape { .. }));
    let error = summed(vec![None], &[PartShape::flat(2, DType::I32)]).unwrap_err();
    assert!(matches!(error, WorldError::Dtype { .. }));
    assert_eq!(World::threads(0).join().unwrap_err(), WorldError::Size(0));
    assert_eq!(rank.failure(), None);
    assert_eq!(rank.traffic().tensors(), Default::default());
}

/// A rehearsal sends what the first rank of a real world sends, also where the ranks do not divide the elements.
#[test]
fn a_rehearsal_sends_what_the_first_rank_sends() {
    let call = |rank: &Communicator| {
        let group = rank.split(|rank| rank / 3);
        let like = [PartShape::flat(7, DType::BF16), PartShape::flat(1, DType::F32)];
        let part = |like: &PartShape| TensorData::full([like.shape[0]], 1.0f32).convert_dtype(like.dtype);
        let parts = || vec![Some(part(&like[0])), Some(part(&like[1]))];
        let whole = sums(Communicator::begin_all_reduce, rank, "", parts(), &like)?;
        let of_group = sums(Communicator::begin_all_reduce, &group, "", parts(), &like)?;
        let even = [PartShape::flat(12, DType::F32)];
        let shard = sums(Communicator::begin_reduce_scatter, rank, "", vec![Some(part(&even[0]))], &even)?;
        let gathered = gather(rank, "", vec![part(&like[0])])?.wait().map(gathered)?;
        let lengths =
            |all: Vec<Option<TensorData>>| all.into_iter().map(|one| one.map(|one| one.num_elements()));
        let lengths: Vec<_> = lengths(whole).chain(lengths(of_group)).chain(lengths(shard)).collect();
        let sent = [Collective::AllReduce, Collective::ReduceScatter, Collective::AllGather].map(|kind| {
            let moved = rank.traffic().of(kind);
            (moved.calls, moved.elements, moved.sent)
        });
        Ok((lengths, gathered[0].num_elements(), sent))
    };
    let real = run(World::threads(6), |rank| call(&rank)).remove(0).unwrap();
    assert_eq!(call(&Communicator::rehearsal(6)), Ok(real));
}
