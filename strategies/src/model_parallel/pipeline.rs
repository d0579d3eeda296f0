//! The stages of a pipeline: which rank has which blocks, and how stages reach one another.

use std::cmp::Reverse;
use std::collections::{HashMap, HashSet};
use std::ops::Range;
use std::sync::{Mutex, PoisonError};

use burn::module::{Module, ParamId};
use burn::tensor::{Device, Tensor, TensorData};
use firebrick_world::{Communicator, PartShape, WorldError, on_host};
use serde::{Deserialize, Serialize};

use super::NAME;
use super::schedule::{PipelineSchedule, PipelineStep};
use crate::{Paths, SettingError, StrategyError, each_distinct_param};

/// The ranks that have the stages of a pipeline, and what they do.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Pipelined {
    /// The ranks that have the stages.
    pub ranks: usize,
    /// The order in which they run micro-batches.
    pub schedule: PipelineSchedule,
    /// The number of blocks of each stage, or nothing to balance them.
    pub blocks: Vec<usize>,
    /// What stages have as much of, where their blocks are not given.
    pub balance: StageBalance,
}

/// What the stages of a pipeline have about as much of.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum StageBalance {
    /// Parameters, where the [layer that computes the logits](crate::TensorPlan::logits) counts with the last block. The same in
    /// each run.
    #[default]
    Parameters,
    /// The time that blocks take, as the first rank measures it before the run: it computes the first micro-batch with the whole model.
    /// What comes before the blocks and behind them counts with the first and the last one. A run that is resumed measures again,
    /// and sums in another order if other blocks come of it.
    MeasuredTime,
}

impl Pipelined {
    /// Returns the number of stages.
    fn stages(&self) -> usize {
        self.ranks.saturating_mul(self.schedule.chunks())
    }

    /// Returns the blocks of each stage, of a model whose blocks cost as much as this.
    ///
    /// # Errors
    ///
    /// There are fewer blocks than stages, or the given numbers of blocks are not those of the model.
    ///
    /// ```
    /// use firebrick_strategies::Pipelined;
    ///
    /// let three = Pipelined { ranks: 3, ..Pipelined::default() };
    /// assert_eq!(three.blocks_of_stages(&[1; 7])?, [0..3, 3..5, 5..7]);
    /// // With an output layer that costs as much as two blocks.
    /// assert_eq!(three.blocks_of_stages(&[1, 1, 1, 1, 1, 1, 3])?, [0..3, 3..6, 6..7]);
    /// # Ok::<(), firebrick_strategies::StrategyError>(())
    /// ```
    pub fn blocks_of_stages(&self, costs: &[usize]) -> Result<Vec<Range<usize>>, StrategyError> {
        let (count, given) = (self.stages(), &self.blocks);
        let require = |fits, setting, expected: String, found: String| {
            SettingError::require(fits, setting, expected, found)
                .map_err(|error| StrategyError::setting(NAME, error))
        };
        let expected = format!("at most {} stages, one for each block of the model", costs.len());
        require(count <= costs.len(), "pipeline", expected, count.to_string())?;
        let fits = given.is_empty()
            || given.len() == count
                && given.iter().fold(0, |sum: usize, of| sum.saturating_add(*of)) == costs.len()
                && !given.contains(&0);
        let expected = format!("the numbers of blocks of {count} stages, which are {} together", costs.len());
        require(fits, "stages", expected, format!("{given:?}"))?;
        Ok(if given.is_empty() { balanced(costs, count) } else { runs(given) })
    }
}

/// The stages of a model's blocks on the ranks of a pipeline axis: stage `s` of `p` ranks is on rank `s mod p`. The parameters
/// outside blocks are on each rank.
#[derive(Debug)]
pub struct Pipeline {
    /// The ranks that have the stages of one model.
    ranks: Communicator,
    schedule: PipelineSchedule,
    /// The paths of the blocks.
    paths: Vec<String>,
    /// The blocks of each stage.
    stages: Vec<Range<usize>>,
    /// The block of each parameter that is in one block alone.
    block_of: HashMap<ParamId, usize>,
    /// The shapes of these parameters on the ranks that have them.
    shapes: HashMap<ParamId, Vec<usize>>,
    /// Between each stage and the next one, in both directions, if this rank has one of them.
    edges: Vec<Option<[Communicator; 2]>>,
    /// The stages of this rank that have run.
    known: Mutex<HashSet<usize>>,
}

impl Pipeline {
    /// Divides the blocks of a model among the ranks of a pipeline axis, of which the last one computes the logits by these
    /// parameters. `costs` are those of the blocks, if they are measured. `cut` reduces the shape of a parameter to that of this rank's
    /// part.
    ///
    /// # Errors
    ///
    /// The model has fewer blocks than there are stages, or the given numbers of blocks are not those of the model.
    pub(super) fn of<M: Module>(
        model: &M,
        ranks: Communicator,
        pipelined: &Pipelined,
        logits: &[ParamId],
        costs: Option<&[usize]>,
        cut: impl Fn(ParamId, &mut Vec<usize>),
    ) -> Result<Self, StrategyError> {
        let all = Paths::of(model);
        let paths: Vec<String> = all.blocks().map(str::to_string).collect();
        let mut found: HashMap<ParamId, Option<usize>> = HashMap::new();
        for place in all.places() {
            let block = place.block().and_then(|block| paths.iter().position(|path| path == block));
            let first = *found.entry(place.id).or_insert(block);
            if first != block {
                found.insert(place.id, None);
            }
        }
        let block_of: HashMap<_, _> =
            found.into_iter().filter_map(|(id, block)| Some((id, block?))).collect();
        let (mut sizes, mut shapes) = (vec![0; paths.len()], HashMap::new());
        each_distinct_param(model, |param| {
            if let (true, Some(last)) = (logits.contains(&param.id()), sizes.last_mut()) {
                *last += param.shape().iter().product::<usize>();
            }
            if let Some(block) = block_of.get(&param.id()) {
                let mut shape = param.shape();
                sizes[*block] += shape.iter().product::<usize>();
                cut(param.id(), &mut shape);
                shapes.insert(param.id(), shape);
            }
        });
        let costs = costs.filter(|costs| costs.len() == sizes.len()).unwrap_or(&sizes);
        let stages = pipelined.blocks_of_stages(costs)?;
        let edge = |stage: usize| {
            let ends = [stage % ranks.size(), (stage + 1) % ranks.size()];
            // Each of the other ranks is alone. All ranks make all groups.
            let group = |rank: usize| if ends.contains(&rank) { 0 } else { rank + 1 };
            let pair = [(); 2].map(|()| ranks.split(group));
            ends.contains(&ranks.rank()).then_some(pair)
        };
        let edges = (1..stages.len()).map(|stage| edge(stage - 1)).collect();
        Ok(Self {
            schedule: pipelined.schedule,
            paths,
            stages,
            block_of,
            shapes,
            edges,
            ranks,
            known: Mutex::default(),
        })
    }

    /// Returns the ranks that have the stages of one model.
    pub fn ranks(&self) -> &Communicator {
        &self.ranks
    }

    /// Returns what this rank does in an optimizer step of so many micro-batches.
    pub fn steps(&self, micro_batches: usize) -> Vec<PipelineStep> {
        self.schedule.steps(micro_batches, self.ranks.rank(), self.ranks.size())
    }

    /// Returns the number of stages on each rank.
    pub fn chunks(&self) -> usize {
        self.schedule.chunks()
    }

    /// Returns the rank that has a parameter, unless each rank has it.
    pub fn rank_of(&self, id: ParamId) -> Option<usize> {
        Some(self.stage_of(*self.block_of.get(&id)?) % self.ranks.size())
    }

    /// Returns the shape of a parameter on the rank that has it, given that of what this one has.
    pub(super) fn shape_of<const D: usize>(&self, id: ParamId, own: [usize; D]) -> [usize; D] {
        let known = self.shapes.get(&id).and_then(|shape| shape.as_slice().try_into().ok());
        known.unwrap_or(own)
    }

    fn stage_of(&self, block: usize) -> usize {
        self.stages.iter().position(|blocks| blocks.contains(&block)).unwrap_or_default()
    }

    /// Returns the number of the block at this path.
    pub(crate) fn block(&self, path: &str) -> Option<usize> {
        self.paths.iter().position(|known| known == path)
    }

    /// Returns the blocks of this rank's `chunk`-th stage.
    pub(crate) fn blocks(&self, chunk: usize) -> Range<usize> {
        self.stages[self.stage(chunk)].clone()
    }

    /// Returns whether this rank's `chunk`-th stage is the first one of the model, and whether it is the last one.
    pub(crate) fn is_end(&self, chunk: usize) -> [bool; 2] {
        [self.stage(chunk) == 0, self.stage(chunk) + 1 == self.stages.len()]
    }

    fn stage(&self, chunk: usize) -> usize {
        chunk * self.ranks.size() + self.ranks.rank()
    }

    /// Returns whether this rank's `chunk`-th stage runs for the first time.
    pub(crate) fn is_new(&self, chunk: usize) -> bool {
        self.known.lock().unwrap_or_else(PoisonError::into_inner).insert(chunk)
    }

    /// Sends what the `chunk`-th stage returns to the next one, or the gradients of what it read to the one before.
    ///
    /// # Errors
    ///
    /// The world is over.
    pub(crate) fn send(&self, chunk: usize, to: Neighbour, parts: Vec<TensorData>) -> Result<(), WorldError> {
        let (edge, what) = self.edge(chunk, to, true);
        edge.map_or(Ok(()), |edge| edge.send(&what, parts))
    }

    /// Waits for what the stage before returns, or for the gradients of what this one returned.
    ///
    /// # Errors
    ///
    /// Another rank is gone.
    pub(crate) fn receive(
        &self,
        chunk: usize,
        from: Neighbour,
        like: Vec<PartShape>,
    ) -> Result<Vec<TensorData>, WorldError> {
        let (edge, what) = self.edge(chunk, from, false);
        edge.map_or(Ok(Vec::new()), |edge| edge.receive(&what, like))
    }

    /// Returns the ranks on both sides of a stage's end, and what passes there.
    fn edge(&self, chunk: usize, neighbour: Neighbour, sends: bool) -> (Option<&Communicator>, String) {
        let stage = self.stage(chunk);
        let edge = match neighbour {
            Neighbour::Before => stage.checked_sub(1),
            Neighbour::After => Some(stage),
        };
        let goes_on = sends == (neighbour == Neighbour::After);
        let what = match goes_on {
            true => format!("the states of stage {}", edge.unwrap_or_default()),
            false => format!("the gradients of the states of stage {}", edge.unwrap_or_default()),
        };
        let pair = edge.and_then(|edge| self.edges.get(edge)?.as_ref());
        (pair.map(|pair| &pair[usize::from(!goes_on)]), what)
    }

    /// Returns zeros in place of a parameter that could not be sent.
    pub(crate) fn zeros<const D: usize>(&self, id: ParamId, own: Tensor<D>) -> Tensor<D> {
        Tensor::zeros(self.shape_of(id, own.dims()), (&own.device(), own.dtype()))
    }

    /// Returns a parameter of a block on every rank, which the rank that has it sends. A parameter that each rank has is returned as it
    /// is. All ranks call it together.
    ///
    /// # Errors
    ///
    /// Another rank is gone.
    pub(crate) fn of_all<const D: usize>(
        &self,
        what: &str,
        id: ParamId,
        own: Tensor<D>,
    ) -> Result<Tensor<D>, WorldError> {
        let (Some(rank), Some(shape)) = (self.rank_of(id), self.shapes.get(&id)) else { return Ok(own) };
        let (device, dtype): (Device, _) = (own.device(), own.dtype());
        let part = (rank == self.ranks.rank()).then(|| on_host(own.clone()));
        let like = PartShape { shape: shape.clone(), dtype, sum: dtype };
        let sent = self.ranks.broadcast_part(what, part, like, rank)?;
        Ok(if rank == self.ranks.rank() { own } else { Tensor::from_data(sent, (&device, dtype)) })
    }
}

/// A stage beside another one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Neighbour {
    Before,
    After,
}

/// Returns runs of so many blocks.
fn runs(blocks: &[usize]) -> Vec<Range<usize>> {
    let mut start = 0;
    let run = |count: &usize| {
        start += count;
        start - count..start
    };
    blocks.iter().map(run).collect()
}

/// Divides blocks of these sizes into so many runs, as even as can be. Of runs of the same sizes, the first ones are larger.
fn balanced(sizes: &[usize], count: usize) -> Vec<Range<usize>> {
    /// The size of the largest run, the sum of the squares of all, and where the last run starts.
    type Best = (usize, u128, Reverse<usize>);
    let of = |range: Range<usize>| sizes[range].iter().sum::<usize>();
    let first = |end| (of(0..end), (of(0..end) as u128).pow(2), Reverse(0));
    // Of the blocks up to each one, in the runs so far.
    let mut best: Vec<Vec<Best>> = vec![(0..=sizes.len()).map(first).collect()];
    for run in 1..count {
        let last = &best[run - 1];
        let next = |end: usize| {
            let cut = |start: usize| {
                let size = of(start..end);
                (last[start].0.max(size), last[start].1 + (size as u128).pow(2), Reverse(start))
            };
            (run..end).map(cut).min().unwrap_or((usize::MAX, 0, Reverse(0)))
        };
        let next = (0..=sizes.len()).map(next).collect();
        best.push(next);
    }
    let (mut end, mut found) = (sizes.len(), Vec::new());
    for run in best.iter().rev() {
        let Reverse(start) = run[end].2;
        found.push(start..end);
        end = start;
    }
    found.reverse();
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_largest_stage_is_as_small_as_can_be() {
        assert_eq!(balanced(&[1; 6], 3), [0..2, 2..4, 4..6]);
        assert_eq!(balanced(&[5, 1, 1, 1, 5], 3), [0..1, 1..4, 4..5]);
        assert_eq!(balanced(&[1, 1, 1, 9], 2), [0..3, 3..4]);
        assert_eq!(balanced(&[1, 2], 2), [0..1, 1..2]);
        assert_eq!(balanced(&[1; 3], 2), [0..2, 2..3]);
        assert_eq!(balanced(&[1, 1, 1, 1, 1, 3], 2), [0..4, 4..6]);
        assert_eq!(balanced(&[1, 1, 1, 10], 2), [0..3, 3..4]);
        let most = usize::MAX;
        let pipelined = |schedule, blocks| Pipelined { ranks: 2, schedule, blocks, ..Pipelined::default() };
        assert!(pipelined(PipelineSchedule::Interleaved(most), vec![]).blocks_of_stages(&[1; 3]).is_err());
        assert!(pipelined(PipelineSchedule::GPipe, vec![most, 4]).blocks_of_stages(&[1; 3]).is_err());
        assert_eq!(balanced(&[1; 11], 4), [0..3, 3..6, 6..9, 9..11]);
    }
}
