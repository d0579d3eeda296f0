//! Samples in memory or streamed, shuffled, mixed, grouped and packed as the run file says.

use std::sync::Arc;

use firebrick_datasets::collators::{CausalLm, CausalSample, Packing};
use firebrick_datasets::{
    Amount, Batcher, Collator, DataError, GroupedByLength, InMemory, Mixed, Packs, ReadError, Reader,
    SampleError, Samples, Skipped, Source, TokenBatch, Tokenizer, WholeRecords, counted,
};

use super::{Loading, Part, Weighted, no_samples};
use crate::LoadError;
use firebrick::Data;

type AnySamples<C> = Arc<dyn Samples<Sample = <C as Collator>::Sample>>;

/// Training samples and validation samples.
struct Split<S> {
    train: Vec<Weighted<InMemory<S>>>,
    valid: Option<InMemory<S>>,
}

impl Loading<'_> {
    pub(super) fn source<C: Collator>(
        &self,
        reader: Box<dyn Reader>,
        collator: &Arc<C>,
        skipped: Skipped,
    ) -> Source<C> {
        Source::new(reader, collator.clone()).malformed(self.config.malformed).counting(skipped)
    }

    fn require_some(&self, samples: usize, what: &str, place: String) -> Result<(), DataError> {
        let place = format!("{what}, {place},");
        match samples {
            0 => Err(no_samples(place, &self.skipped)),
            _ => Ok(()),
        }
    }

    /// Loads the validation data, if it is given separately. It may have no samples if all of its records are left out:
    /// training needs none of them, and each evaluation says that it has nothing to score.
    fn given_valid<C: Collator>(&self, collator: &Arc<C>) -> Result<Option<InMemory<C::Sample>>, LoadError> {
        let Some(paths) = &self.config.valid else { return Ok(None) };
        (self.say)(&format!("reading {}", paths.summary()));
        let opened = self.open(paths, self.config.format.as_ref())?;
        let before = self.skipped.left_out();
        let samples = self.samples_of((Part::Valid, "validation"), opened, collator)?;
        let left_out = self.skipped.left_out() - before;
        match samples.is_empty() && left_out > 0 {
            true => (self.say)(&format!(
                "warning: no evaluation has anything to score: all {} of `data.valid`, {}, are left out",
                counted(left_out, "record"),
                paths.summary()
            )),
            false => self.require_some(samples.len(), "`data.valid`", paths.summary())?,
        }
        Ok(Some(self.evaluated(samples, &**collator)?))
    }

    /// Returns the validation samples that are evaluated: those of all records, or of the first ones.
    fn evaluated<C: Collator>(
        &self,
        samples: InMemory<C::Sample>,
        collator: &C,
    ) -> Result<InMemory<C::Sample>, DataError> {
        let end = self.evaluate_samples.and_then(|most| starts(&samples, collator).nth(most));
        match end {
            Some(end) => samples.part(0..end),
            None => Ok(samples),
        }
    }

    /// Loads all training samples into memory, along with the validation samples.
    fn in_memory<C: Collator>(&self, collator: &Arc<C>) -> Result<Split<C::Sample>, LoadError> {
        (self.say)(&format!("reading and tokenizing {}", self.config.summary()));
        let mut corpora = Vec::new();
        for Weighted { corpus, weight } in self.corpora()? {
            let data = self.settled.part();
            let corpus = self.samples_of((Part::Train, data), corpus, collator)?;
            self.require_some(corpus.len(), &format!("the {data} data"), self.config.summary())?;
            corpora.push(Weighted { corpus, weight });
        }
        if let Some(valid) = self.given_valid(collator)? {
            return Ok(Split { train: corpora, valid: Some(valid) });
        }
        let [Weighted { corpus: all, .. }] = &mut corpora[..] else {
            return Ok(Split { train: corpora, valid: None });
        };
        // Keep at least one sample to train on.
        let kept = (all.len() as f64 * self.config.valid_fraction) as usize;
        let train = all.len() - kept.min(all.len().saturating_sub(1));
        let train = if train < all.len() { between_records(all, &**collator, train) } else { train };
        let valid = (train < all.len()).then(|| all.part(train..all.len())).transpose()?;
        let valid = valid.map(|valid| self.evaluated(valid, &**collator)).transpose()?;
        *all = all.part(0..train)?;
        Ok(Split { train: corpora, valid })
    }

    /// Returns shuffled batches of samples.
    pub fn batches<C: Collator>(&self, collator: C) -> Result<Data<C::Batch>, LoadError> {
        let collator = Arc::new(collator);
        let (train, valid): (AnySamples<C>, _) = match self.config.stream {
            Some(window) => {
                (self.say)(&format!("counting the samples of {}", self.config.summary()));
                let first = self
                    .corpora()?
                    .into_iter()
                    .next()
                    .ok_or(DataError::Sample(SampleError::EmptyCorpus { corpus: 0 }))?;
                let stream = self.stream_of(first.corpus, window, &collator)?;
                self.require_some(stream.samples(0), "the training data", self.config.summary())?;
                (Arc::new(stream.shuffled(self.seed)), self.given_valid(&collator)?)
            }
            None => {
                let Split { mut train, valid } = self.in_memory(&collator)?;
                // Scores are those of whole records, in the order of the data.
                if self.settled.is_evaluated
                    && valid.is_none()
                    && let Some(Weighted { corpus, .. }) = train.pop()
                {
                    return Ok(self.cut(Data::new(WholeRecords::new(corpus, collator))));
                }
                (self.mixed(train)?, valid)
            }
        };
        let train = match self.config.group_by_length {
            true => self.grouped(train, &collator)?,
            false => train,
        };
        if let (Amount::Tokens(most), None) = (self.micro_batch, self.config.stream) {
            require_room(&train, &*collator, most)?;
        }
        let data = Data::new(Batcher::new(train, collator.clone()));
        Ok(self.cut(match valid {
            Some(valid) => data.valid(WholeRecords::new(valid, collator)),
            None => data,
        }))
    }

    /// Combines shuffled corpora into one stream.
    fn mixed<S: Send + Sync + 'static>(
        &self,
        mut corpora: Vec<Weighted<InMemory<S>>>,
    ) -> Result<Arc<dyn Samples<Sample = S>>, LoadError> {
        let seed = self.seed;
        if corpora.len() == 1 {
            return Ok(Arc::new(corpora.remove(0).corpus.shuffled(seed)));
        }
        let shuffled = (0..).zip(corpora);
        let shuffled = shuffled.map(|(at, Weighted { corpus, weight })| {
            // Corpora of the same size must not share one order.
            (corpus.shuffled(seed.wrapping_add(at)), weight)
        });
        Ok(Arc::new(Mixed::new(shuffled.collect(), seed, self.config.mix_until)?))
    }

    fn grouped<C: Collator>(
        &self,
        train: AnySamples<C>,
        collator: &Arc<C>,
    ) -> Result<AnySamples<C>, LoadError> {
        // The batch of all ranks, so that the order does not depend on the number of ranks.
        let batch = self.global_batch;
        let collator = collator.clone();
        let length = move |sample: &C::Sample| collator.length(sample);
        let grouped = GroupedByLength::new(train, self.seed, batch, length)?;
        match self.config.stream {
            // A group that spans several windows would be read again for each of its batches.
            Some(window) if window < grouped.group() => {
                Err(LoadError::from(DataError::Read(ReadError::ReaderSetting {
                    setting: "data.stream",
                    expected: format!(
                        "at least {}, 50 batches, where samples are grouped by length",
                        grouped.group()
                    ),
                    found: window.to_string(),
                })))
            }
            _ => Ok(Arc::new(grouped)),
        }
    }

    /// Packs whole samples into rows.
    pub(crate) fn packed(
        &self,
        causal: CausalLm,
        tokenizer: &Arc<Tokenizer>,
    ) -> Result<Data<TokenBatch>, LoadError> {
        let collator = Arc::new(causal.clone());
        let Split { train, valid } = self.in_memory(&collator)?;
        let capacity = self.config.most_tokens(tokenizer).unwrap_or(1);
        let packing = Arc::new(Packing::new(causal, capacity));
        let packs = |samples| {
            let length = |sample: &CausalSample| sample.ids.len();
            Packs::new(samples, self.seed, capacity, length)
        };
        let data = Data::new(Batcher::new(packs(self.mixed(train)?)?, packing.clone()));
        Ok(self.cut(match valid {
            Some(valid) => data.valid(Batcher::new(packs(Arc::new(valid))?, packing)),
            None => data,
        }))
    }
}

/// Returns where records begin.
fn starts<C: Collator>(samples: &InMemory<C::Sample>, collator: &C) -> impl Iterator<Item = usize> {
    samples.iter().enumerate().filter(move |(_, sample)| collator.begins_record(sample)).map(|(at, _)| at)
}

/// Returns the place between two records that is nearest to `at`, towards the end if there is one: the pieces of a text
/// would otherwise be trained on and evaluated.
fn between_records<C: Collator>(samples: &InMemory<C::Sample>, collator: &C, at: usize) -> usize {
    let after = starts(samples, collator).find(|start| *start >= at);
    let before = || starts(samples, collator).take_while(|start| *start < at).last();
    after.or_else(before).filter(|start| *start > 0).unwrap_or(samples.len())
}

/// Rejects a sample that alone exceeds the tokens of a micro-batch. Otherwise the error would appear only when training
/// reaches the sample.
fn require_room<C: Collator>(train: &AnySamples<C>, collator: &C, most: usize) -> Result<(), LoadError> {
    for position in 0..train.samples(0) {
        let tokens = collator.padded(&[train.sample(0, position)?.sample]);
        if tokens > most {
            return Err(
                DataError::Sample(SampleError::SampleTooLong { epoch: 0, position, tokens, most }).into()
            );
        }
    }
    Ok(())
}
