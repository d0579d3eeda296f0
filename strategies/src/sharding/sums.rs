//! Gradients on their way to the other ranks, and their sums.

use std::collections::HashMap;
use std::ops::Range;

use burn::module::{Module, ModuleVisitor, Param, ParamId};
use burn::optim::GradientsParams;
use burn::tensor::{DType, Device, FloatDType, Tensor};
use firebrick_kernels::cast;
use firebrick_world::{Communicator, PartShape, Summing};

use super::Sharding;
use crate::StrategyError;
use crate::moving::buckets;

/// A gradient on its way to the other ranks.
pub struct Part {
    /// The parameter.
    pub id: ParamId,
    /// The shape of the whole parameter.
    pub shape: Vec<usize>,
    /// The dtype of the gradient.
    pub dtype: DType,
    /// The gradient, flat; `None` if this rank has nothing to add.
    pub grad: Option<Tensor<1>>,
}

impl Part {
    /// Returns the bytes of the whole gradient.
    pub fn bytes(&self) -> usize {
        self.shape.iter().product::<usize>() * self.dtype.size()
    }

    /// Returns a copy without the gradient.
    pub fn empty(&self) -> Self {
        Self { id: self.id, shape: self.shape.clone(), dtype: self.dtype, grad: None }
    }

    /// Returns this part with its gradient, and leaves it without.
    pub fn take(&mut self) -> Self {
        Self { grad: self.grad.take(), ..self.empty() }
    }

    /// Adds a gradient, cast to the part's dtype.
    pub fn add<const D: usize>(&mut self, grad: Tensor<D>) {
        let grad = cast(grad, FloatDType::from(self.dtype)).reshape([-1]);
        self.grad = Some(match self.grad.take() {
            None => grad,
            Some(sum) => sum + grad,
        });
    }
}

/// Sums of gradients in flight.
pub struct Reducing(Vec<Bucket>);

/// The sums that travel together.
struct Bucket {
    ids: Vec<ParamId>,
    summing: Summing,
    /// Whether every rank gets the sums whole.
    is_whole: bool,
    /// The second sum, over the copies of the shards, that follows the first.
    then: Option<OverCopies>,
}

/// A sum of shards over their copies.
struct OverCopies {
    copies: Communicator,
    what: String,
    like: Vec<PartShape>,
    to: Device,
}

impl Bucket {
    /// Waits for the first sum and begins the second, if there are two.
    fn advanced(self) -> Result<Self, StrategyError> {
        let Self { ids, summing, is_whole, then } = self;
        let Some(OverCopies { copies, what, like, to }) = then else {
            return Ok(Self { ids, summing, is_whole, then });
        };
        let summing = copies.begin_all_reduce(&what, summing.wait()?, &like, &to)?;
        Ok(Self { ids, summing, is_whole, then: None })
    }
}

impl Reducing {
    /// Returns whether a second sum follows the first, over the copies of the shards.
    pub fn has_copies(&self) -> bool {
        self.0.iter().any(|bucket| bucket.then.is_some())
    }

    /// Splits off the sums that every rank gets whole.
    pub fn without_whole(self) -> (Self, Self) {
        let (whole, shards) = self.0.into_iter().partition(|bucket| bucket.is_whole);
        (Self(shards), Self(whole))
    }

    /// Begins the second sums, if any are to follow. Waits for the first ones.
    pub fn advance(&mut self) -> Result<(), StrategyError> {
        let buckets = std::mem::take(&mut self.0).into_iter();
        self.0 = buckets.map(Bucket::advanced).collect::<Result<_, _>>()?;
        Ok(())
    }

    /// Waits for the sums that have begun, and begins no others: a rank that gives a pass up must not make a call that the
    /// other ranks make only later.
    pub fn end(self) {
        for bucket in self.0 {
            // A world that is over says so at its next call.
            let _ = bucket.summing.wait();
        }
    }

    /// Waits for the sums, each flat: this rank's shard of a sharded one, and the others whole.
    pub fn wait(mut self) -> Result<Vec<(ParamId, Tensor<1>)>, StrategyError> {
        self.advance()?;
        let mut sums = Vec::new();
        for Bucket { ids, summing, .. } in self.0 {
            sums.extend(std::iter::zip(ids, summing.wait()?).filter_map(|(id, sum)| Some((id, sum?))));
        }
        Ok(sums)
    }
}

impl Sharding {
    /// Sums all gradients of a model over the ranks, run by run, onto the device `to`. `parts` lists the gradients that
    /// this rank may have; some have a part of it already. While one run is on its way, the next one is taken.
    pub fn reduce_all<M: Module>(
        &self,
        model: &M,
        params: &mut GradientsParams,
        mut parts: Vec<Part>,
        to: &Device,
    ) -> Result<Vec<(ParamId, Tensor<1>)>, StrategyError> {
        let (mut sums, mut under_way) = (Vec::new(), None);
        for run in runs(&parts, self.bucket) {
            let parts = &mut parts[run];
            let at = parts.iter().enumerate().map(|(at, part)| (part.id, at)).collect();
            model.visit(&mut Take { params, parts, at });
            let parts = parts.iter_mut().map(Part::take).collect();
            if let Some(reducing) = under_way.replace(self.begin_reduce("the gradients", parts, to)?) {
                sums.extend(Reducing::wait(reducing)?);
            }
        }
        if let Some(reducing) = under_way {
            sums.extend(reducing.wait()?);
        }
        Ok(sums)
    }

    /// Begins to sum gradients over all ranks, onto the device `to`; a rank may lack some of them.
    pub fn begin_reduce(&self, what: &str, parts: Vec<Part>, to: &Device) -> Result<Reducing, StrategyError> {
        let (sharded, replicated): (Vec<_>, Vec<_>) =
            parts.into_iter().partition(|part| self.shards(part.id));
        let mut sums = Vec::new();
        for (mut parts, is_sharded) in [(sharded, true), (replicated, false)] {
            for run in runs(&parts, self.bucket) {
                let parts = &mut parts[run];
                let like: Vec<_> = parts.iter().map(|part| self.shape_of(part)).collect();
                let ids = parts.iter().map(|part| part.id).collect();
                let grads = parts.iter_mut().map(|part| {
                    let grad = part.grad.take()?;
                    Some(match self.rows(part.id) {
                        None => grad,
                        Some(rows) => rows.pad(grad),
                    })
                });
                let grads = grads.collect();
                let summing = match is_sharded {
                    true => self.sharing.begin_reduce_scatter(what, grads, &like, to)?,
                    false => self.world.begin_all_reduce(what, grads, &like, to)?,
                };
                let copies = self.copies.clone().filter(|_| is_sharded);
                let then = copies.map(|copies| {
                    let shard = |part: &PartShape| PartShape {
                        sum: part.sum,
                        ..PartShape::flat(part.shape[0] / self.sharing.size(), part.dtype)
                    };
                    let like = like.iter().map(shard).collect();
                    OverCopies { copies, what: what.to_string(), like, to: to.clone() }
                });
                sums.push(Bucket { ids, summing, is_whole: !is_sharded, then });
            }
        }
        Ok(Reducing(sums))
    }

    /// Returns the bytes that this rank holds of the sums of these parts.
    pub fn bytes_of_sums(&self, parts: &[Part]) -> usize {
        let held = parts.iter().map(|part| {
            let like = self.shape_of(part);
            let ranks = if self.shards(part.id) { self.sharing.size() } else { 1 };
            like.shape[0] / ranks * like.sum.size()
        });
        held.sum()
    }

    /// Returns a part's elements with their padding, dtype on the wire, and dtype of the sum, which is never narrower
    /// than the part's.
    fn shape_of(&self, part: &Part) -> PartShape {
        let wire = self.wire.map_or(part.dtype, DType::from);
        let sum = if wire.size() > part.dtype.size() { wire } else { part.dtype };
        let row: usize = part.shape[1..].iter().product();
        let rows = self.rows(part.id).map_or(part.shape[0], |rows| rows.padded());
        PartShape { sum, ..PartShape::flat(rows * row, wire) }
    }
}

/// Splits the parts into runs of neighbours to sum at once.
fn runs(parts: &[Part], most: usize) -> Vec<Range<usize>> {
    let mut end = 0;
    let ranges = buckets(parts, most, Part::bytes).into_iter().map(|run| {
        end += run.len();
        end - run.len()..end
    });
    ranges.collect()
}

/// Takes a run's gradients out of `params`.
struct Take<'a> {
    params: &'a mut GradientsParams,
    parts: &'a mut [Part],
    at: HashMap<ParamId, usize>,
}

impl ModuleVisitor for Take<'_> {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        // A tied parameter is visited again, without a gradient.
        if let Some(&at) = self.at.get(&param.id)
            && let Some(grad) = self.params.remove::<D>(param.id)
        {
            self.parts[at].add(grad);
        }
    }
}
