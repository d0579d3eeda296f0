//! What the first rank of a pipeline has.

use firebrick::TrainError;
use firebrick_strategies::{Order, Paths, Pipelined};

use crate::RunError;
use crate::run::Shape;

/// The first rank of a pipeline, which has the first of the stages, the most blocks and the most micro-batches in flight.
pub(super) struct FirstRank {
    pipelined: Pipelined,
    paths: Vec<String>,
    /// Whether it has each block.
    has: Vec<bool>,
    micro_batches: usize,
}

impl FirstRank {
    /// Returns the first rank of a composition's pipeline, if it has one.
    ///
    /// # Errors
    ///
    /// The model has fewer blocks than there are stages.
    pub fn of(order: &Order, paths: &Paths, shapes: &[Shape]) -> Result<Option<Self>, RunError> {
        let Some(pipelined) = order.pipeline() else { return Ok(None) };
        let paths: Vec<String> = paths.blocks().map(str::to_string).collect();
        let mut sizes = vec![0; paths.len()];
        for shape in shapes {
            if let Some(block) = block_of(&paths, shape) {
                sizes[block] += shape.elements() as usize;
            }
        }
        let logits = shapes.iter().filter(|shape| shape.computes_logits);
        if let Some(last) = sizes.last_mut() {
            *last += logits.map(|shape| shape.elements() as usize).sum::<usize>();
        }
        let stages = pipelined.blocks_of_stages(&sizes).map_err(TrainError::from)?;
        let mut has = vec![false; paths.len()];
        stages.into_iter().step_by(pipelined.ranks).flatten().for_each(|block| has[block] = true);
        Ok(Some(Self { pipelined, paths, has, micro_batches: order.micro_batches() }))
    }

    /// Whether it has a parameter: of its blocks, and of what is in no block.
    pub fn has(&self, shape: &Shape) -> bool {
        block_of(&self.paths, shape).is_none_or(|block| self.has[block])
    }

    /// Whether it has gradients of a parameter outside blocks by itself: what a model declares before its blocks is read before them.
    pub fn reads(shapes: &[Shape], shape: &Shape) -> bool {
        shapes.iter().take_while(|one| !one.in_block).any(|one| one.path == shape.path)
    }

    /// The share of the blocks that it has.
    pub fn share(&self) -> f64 {
        self.has.iter().filter(|has| **has).count() as f64 / self.has.len().max(1) as f64
    }

    /// Returns the number of stages of the model, and of this rank.
    pub fn stages(&self) -> (usize, usize) {
        let chunks = self.pipelined.schedule.chunks();
        (self.pipelined.ranks * chunks, chunks)
    }

    /// The fewest micro-batches of which as many are between forward and backward as of all.
    pub fn traced_micro_batches(&self) -> usize {
        let Pipelined { ranks, schedule, .. } = &self.pipelined;
        let all = schedule.held(self.micro_batches, 0, *ranks);
        (1..self.micro_batches)
            .find(|few| schedule.held(*few, 0, *ranks) == all)
            .unwrap_or(self.micro_batches)
    }

    /// How many of a model's layers it has.
    pub fn layers(&self, layers: usize) -> usize {
        (self.share() * layers as f64).round() as usize
    }

    /// How long each rank waits for the others, as a share of the time in which it computes: (p-1)/(v m) of `v` stages on each
    /// of `p` ranks (Narayanan et al., 2021, arXiv:2104.04473, section 2.2).
    pub fn bubble(&self) -> f64 {
        let chunks = self.pipelined.schedule.chunks();
        (self.pipelined.ranks - 1) as f64 / (chunks * self.micro_batches).max(1) as f64
    }
}

/// Returns the number of the block that a parameter belongs to alone.
fn block_of(paths: &[String], shape: &Shape) -> Option<usize> {
    let is_in =
        |path: &String| shape.path.strip_prefix(path.as_str()).is_some_and(|rest| rest.starts_with('.'));
    shape.in_block.then(|| paths.iter().position(is_in)).flatten()
}
