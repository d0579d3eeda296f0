//! The sequence of global batches depends only on the data, the seed and the global batch: not on the number of ranks
//! or workers, the micro-batch or interruptions.

use std::{path::Path, sync::Arc};

use firebrick_datasets::collators::{MaskedLm, Masking};
use firebrick_datasets::{
    Amount, Batch, Batcher, Batches, Collator, Cursor, Cut, DataError, Drawn, Encoder, InMemory, Mixed,
    Packs, Prefetch, Reader, Record, RecordPlace, Records, Request, Requests, Source, Stream, TokenBatch,
    TokenFile, TokenWriter, Tokenizer, Until, Value, Windows,
};
use proptest::prelude::*;

/// The number of global batches that are compared.
const BATCHES: usize = 1000;

type Data = Arc<dyn Batches<Batch = TokenBatch>>;

/// Creates a sample with some tokens. Its first token is its number plus one.
fn sample(number: usize) -> Vec<u32> {
    let length = 1 + number * 7919 % 97 % 23;
    std::iter::once(number as u32 + 1).chain(std::iter::repeat_n(0, length - 1)).collect()
}

/// Collates rows of ids.
struct Ids;

impl Collator for Ids {
    type Sample = Vec<u32>;
    type Batch = TokenBatch;

    fn encode(&self, record: &Record) -> Result<Vec<Vec<u32>>, DataError> {
        match record.get("number") {
            Some(Value::Integer(number)) => Ok(vec![sample(*number as usize)]),
            _ => Err(record.expected("number", "a number")),
        }
    }

    fn length(&self, sample: &Vec<u32>) -> usize {
        sample.len()
    }

    fn padded(&self, samples: &[Arc<Vec<u32>>]) -> usize {
        samples.len() * samples.iter().map(|sample| sample.len()).max().unwrap_or(0)
    }

    fn collate(&self, samples: &[Drawn<Vec<u32>>]) -> Result<TokenBatch, DataError> {
        TokenBatch::from_rows(samples.iter().map(|drawn| drawn.sample.to_vec()).collect(), 0)
    }
}

/// Collates several samples into each row.
struct PackedIds;

impl Collator for PackedIds {
    type Sample = Vec<Arc<Vec<u32>>>;
    type Batch = TokenBatch;

    fn encode(&self, record: &Record) -> Result<Vec<Self::Sample>, DataError> {
        Ok(vec![Ids.encode(record)?.into_iter().map(Arc::new).collect()])
    }

    fn length(&self, pack: &Self::Sample) -> usize {
        pack.iter().map(|sample| sample.len()).sum()
    }

    fn padded(&self, packs: &[Arc<Self::Sample>]) -> usize {
        packs.len() * packs.iter().map(|pack| self.length(pack)).max().unwrap_or(0)
    }

    fn collate(&self, packs: &[Drawn<Self::Sample>]) -> Result<TokenBatch, DataError> {
        let row = |drawn: &Drawn<Self::Sample>| drawn.sample.iter().flat_map(|ids| ids.to_vec()).collect();
        TokenBatch::from_rows(packs.iter().map(row).collect(), 0)
    }
}

/// A reader of numbers, with parts of these sizes.
#[derive(Debug)]
struct Numbers(Vec<usize>);

impl Reader for Numbers {
    fn parts(&self) -> usize {
        self.0.len()
    }

    fn open(&self, part: usize) -> Result<Records, DataError> {
        let start: usize = self.0[..part].iter().sum();
        Ok(Box::new((start..start + self.0[part]).map(|number| {
            let place = RecordPlace { file: Path::new("numbers").into(), line: number as u64 };
            Ok(Record::new(place, vec![("number".into(), Value::Integer(number as i64))]))
        })))
    }
}

fn in_memory(samples: usize) -> InMemory<Vec<u32>> {
    InMemory::new((0..samples).map(sample).collect())
}

/// Returns each kind of data by number.
fn data(kind: usize, samples: usize, seed: u64) -> Data {
    let shuffled = in_memory(samples).shuffled(seed);
    match kind {
        0 => Arc::new(Batcher::new(shuffled, Ids)),
        1 => {
            let grouped =
                in_memory(samples).grouped_by_length(seed, amounts(1).0, |ids: &Vec<u32>| ids.len());
            let grouped = grouped.unwrap();
            Arc::new(Batcher::new(grouped, Ids))
        }
        2 => {
            let parts = Numbers(vec![samples / 3, samples / 2, samples - samples / 3 - samples / 2]);
            let stream = Stream::open(Source::new(parts, Arc::new(Ids)), 13, |_| ()).unwrap();
            Arc::new(Batcher::new(stream.shuffled(seed), Ids))
        }
        3 => {
            let other = InMemory::new((0..5).map(|number| sample(1_000_000 + number)).collect());
            let corpora = vec![(shuffled, 2.0), (other.shuffled(seed), 1.0)];
            Arc::new(Batcher::new(Mixed::new(corpora, seed, Until::AllAreUsedUp).unwrap(), Ids))
        }
        4 => Arc::new(Batcher::new(Packs::new(shuffled, seed, 40, Vec::len).unwrap(), PackedIds)),
        5 => {
            let folder = tempfile::tempdir().unwrap();
            let tokenizer = Tokenizer::characters(&('a'..='z').collect::<String>()).unwrap();
            let mut writer = TokenWriter::create(folder.path().join("tokens"), &tokenizer).unwrap();
            writer.document(&(0..samples as u32 * 3).map(|at| at % 26).collect::<Vec<_>>()).unwrap();
            writer.finish().unwrap();
            let file = TokenFile::open(folder.path().join("tokens")).unwrap();
            Arc::new(Windows::new(file, 5).unwrap().shuffled(seed))
        }
        _ => unreachable!(),
    }
}

/// Returns the rows of a batch without their padding.
fn rows(batch: &TokenBatch) -> Vec<Vec<i32>> {
    let [rows, length] = batch.shape();
    let labels = |row: usize| &batch.host_labels()[row * length..(row + 1) * length];
    (0..rows).map(|row| labels(row).iter().copied().filter(|&label| label >= 0).collect()).collect()
}

/// A global batch: the cursor after it, and its rows.
type Global = (Cursor, Vec<Vec<i32>>);

/// Returns the next global batch of one rank: the cursor after it, and its micro-batches.
fn share(prefetch: &mut Prefetch<Data>) -> (Cursor, Vec<(Request, TokenBatch)>) {
    let mut micro_batches = Vec::new();
    loop {
        let (request, batch) = prefetch.next().unwrap().unwrap();
        let closes = request.ends_step;
        micro_batches.push((request, batch));
        if let Some(after) = closes {
            return (after, micro_batches);
        }
    }
}

fn ranks(
    data: &Data,
    from: Cursor,
    global: Amount,
    micro: Amount,
    ranks: usize,
    workers: usize,
) -> Vec<Prefetch<Data>> {
    let cut = Cut::new(global, micro).unwrap();
    (0..ranks)
        .map(|rank| {
            let requests = Requests::new(data.clone(), from, cut.for_rank(rank, ranks).unwrap());
            Prefetch::new(data.clone(), requests, workers, 6)
        })
        .collect()
}

/// Returns the global batch of all ranks together.
fn global(ranks: &mut [Prefetch<Data>], micro: Amount) -> Global {
    let shares: Vec<_> = ranks.iter_mut().map(share).collect();
    let after = shares[0].0;
    let count = shares[0].1.len();
    let mut global = Vec::new();
    for (cursor, micro_batches) in &shares {
        assert_eq!((*cursor, micro_batches.len()), (after, count), "ranks work in step");
        for (_, batch) in micro_batches {
            match micro {
                Amount::Samples(most) => assert!(batch.samples() <= most),
                Amount::Tokens(most) => assert!(batch.shape().iter().product::<usize>() <= most),
            }
            global.extend(rows(batch));
        }
    }
    (after, global)
}

fn reference(data: &Data, amount: Amount) -> Vec<Global> {
    let mut alone = ranks(data, Cursor::default(), amount, amount, 1, 0);
    (0..BATCHES).map(|_| global(&mut alone, amount)).collect()
}

/// Returns the amounts for a kind of data: global, and two for micro-batches.
fn amounts(kind: usize) -> (Amount, [Amount; 2]) {
    match kind {
        1 | 2 => (Amount::Tokens(160), [Amount::Tokens(60), Amount::Samples(3)]),
        4 => (Amount::Tokens(120), [Amount::Tokens(40), Amount::Samples(1)]),
        _ => (Amount::Samples(7), [Amount::Samples(2), Amount::Samples(16)]),
    }
}

#[test]
fn ranks_workers_and_micro_batches_change_nothing() {
    for kind in 0..6 {
        let data = data(kind, 101, 42);
        let (amount, micros) = amounts(kind);
        let expected = reference(&data, amount);
        let counts = [1, 2, 3, 8].into_iter();
        let grid = counts.flat_map(|count| [0, 1, 4].map(|workers| (count, workers, (count + workers) % 2)));
        for (count, workers, micro) in grid {
            let mut together = ranks(&data, Cursor::default(), amount, micros[micro], count, workers);
            for (step, expected) in expected.iter().enumerate() {
                let found = global(&mut together, micros[micro]);
                assert_eq!(found, *expected, "kind {kind}, {count} ranks, {workers} workers, step {step}");
            }
        }
    }
}

#[test]
fn each_epoch_has_each_sample_once() {
    for kind in [0, 1, 2, 4] {
        let data = data(kind, 101, 7);
        let mut seen = Vec::new();
        for (after, rows) in reference(&data, amounts(kind).0) {
            seen.extend(rows.into_iter().flatten().filter(|&token| token > 0));
            if after.consumed == 0 {
                seen.sort();
                assert!(seen.drain(..).eq(1..102), "kind {kind}, before epoch {}", after.epoch);
            }
        }
    }
}

/// The masks of a masked language model depend on the sample and the epoch, but not on how the global batch is cut,
/// which worker collates it, or whether training was interrupted.
#[test]
fn masks_are_drawn_by_sample_and_epoch() {
    let tokenizer = Arc::new(Tokenizer::characters(&('a'..='z').collect::<String>()).unwrap());
    let masking = Masking::default().probability(0.5).unwrap().seed(3);
    let task = Arc::new(MaskedLm::new(Encoder::new(tokenizer), masking).pad_id(0).mask_id(1));
    let record = |number: usize| {
        let text = ('a'..='z').cycle().skip(number).take(5 + number % 30).collect();
        let place = RecordPlace { file: Path::new("texts").into(), line: number as u64 };
        Record::new(place, vec![("text".into(), Value::Text(text))])
    };
    let samples = (0..50).map(|number| task.encode(&record(number)).unwrap().remove(0)).collect();
    let data = Arc::new(Batcher::new(InMemory::new(samples).shuffled(9), task));
    // The inputs and labels of 300 samples, without padding.
    let rows = |from: Cursor, micro: usize, workers: usize, count: usize| -> Vec<_> {
        let cut = Cut::new(Amount::Samples(7), Amount::Samples(micro)).unwrap();
        let ranks =
            (0..count).map(|rank| Requests::new(data.clone(), from, cut.for_rank(rank, count).unwrap()));
        let mut rows = std::collections::BTreeMap::new();
        for requests in ranks {
            let mut ahead = Prefetch::new(data.clone(), requests, workers, 4);
            while let Some(Ok((request, batch))) = ahead
                .next()
                .filter(|next| next.as_ref().is_ok_and(|(request, _)| request.epoch < from.epoch + 3))
            {
                let length = batch.inputs().shape()[1];
                for (row, position) in request.positions.clone().enumerate() {
                    let cells = row * length..(row + 1) * length;
                    let read = batch.inputs().host_ids()[cells.clone()].iter();
                    let labels = batch.host_labels()[cells.clone()].iter();
                    let real = batch.inputs().host_mask()[cells].iter();
                    let row: Vec<_> = read.zip(labels).zip(real).filter(|(_, real)| **real).collect();
                    rows.insert((request.epoch, position), format!("{row:?}"));
                }
            }
        }
        rows.into_iter().collect()
    };
    let expected = rows(Cursor::default(), 7, 0, 1);
    assert_eq!(expected.len(), 150);
    for (micro, workers, count) in [(1, 4, 1), (3, 0, 2), (2, 1, 3), (2, 4, 8)] {
        assert_eq!(rows(Cursor::default(), micro, workers, count), expected);
    }
    let resumed = rows(Cursor { epoch: 1, consumed: 21 }, 2, 1, 3);
    assert_eq!(resumed[..79], expected[71..]);
    assert_ne!(expected[..50], expected[50..100]);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    /// Saving after any step and restoring, on any number of ranks and workers, gives the same remaining batches.
    #[test]
    fn a_cursor_continues_anywhere(
        kind in 0_usize..6, samples in 1_usize..150, seed: u64, stop in 0_usize..200,
        count in prop::sample::select(vec![1_usize, 2, 3, 8]),
        workers in prop::sample::select(vec![0_usize, 1, 4]),
        micro in 0_usize..2,
    ) {
        let data = data(kind, samples, seed);
        let (amount, micros) = amounts(kind);
        let mut straight = ranks(&data, Cursor::default(), amount, amount, 1, 0);
        let mut cursor = Cursor::default();
        for _ in 0..stop {
            cursor = global(&mut straight, amount).0;
        }
        let saved = serde_json::to_string(&cursor).unwrap();
        prop_assert!(saved.len() < 60);
        let restored = serde_json::from_str(&saved).unwrap();
        let mut resumed = ranks(&data, restored, amount, micros[micro], count, workers);
        for _ in 0..40 {
            prop_assert_eq!(global(&mut resumed, micros[micro]), global(&mut straight, amount));
        }
    }
}
