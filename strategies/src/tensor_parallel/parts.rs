//! The parts of a model that the ranks of a tensor axis hold.

use std::collections::HashMap;
use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use burn::module::{Module, ModuleMapper, Param, ParamId};
use burn::tensor::{Device, Tensor};
use firebrick_world::{Communicator, PartShape, WorldError, host_device, on_host};

use super::TensorPlan;
use crate::error::Faults;
use crate::sharding::sum_of;
use crate::{ParamMap, Paths, SettingError, StrategyError, learns, map_params, relift};

/// An axis that the ranks divide.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Cut {
    pub axis: usize,
    pub length: usize,
    /// The units of each section.
    pub units: Vec<usize>,
}

impl Cut {
    /// Returns the part of a rank.
    fn part(&self, rank: usize, ranks: usize) -> TensorPart {
        let size = self.length / self.units.iter().sum::<usize>().max(1);
        let mut start = 0;
        let range = |units: &usize| {
            let (section, own) = (start, share(*units, rank, ranks));
            start += units * size;
            section + own.start * size..section + own.end * size
        };
        TensorPart { axis: self.axis, whole: self.length, ranges: self.units.iter().map(range).collect() }
    }
}

/// Returns the units of a rank: as many as those of each other one, or one more.
pub(crate) fn share(units: usize, rank: usize, ranks: usize) -> Range<usize> {
    let start = |rank: usize| (units * rank).div_ceil(ranks);
    start(rank)..start(rank + 1)
}

/// The part of a parameter that a rank of a tensor axis holds: some ranges of one axis, side by side.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorPart {
    /// The axis.
    pub axis: usize,
    /// The length of the axis in the whole parameter.
    pub whole: usize,
    /// The ranges of this rank, in order.
    pub ranges: Vec<Range<usize>>,
}

impl TensorPart {
    /// Returns the length of the axis in the part.
    pub fn length(&self) -> usize {
        self.ranges.iter().map(Range::len).sum()
    }

    /// Cuts the part out of a whole parameter.
    fn of<const D: usize>(&self, whole: Tensor<D>) -> Tensor<D> {
        let range = |range: &Range<usize>| whole.clone().narrow(self.axis, range.start, range.len());
        match self.ranges.as_slice() {
            [one] => range(one),
            several => Tensor::cat(several.iter().map(range).collect(), self.axis),
        }
    }
}

/// The tokens of a vocabulary of which a rank has the embeddings and the logits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OwnTokens {
    /// Those of this rank.
    pub own: Range<usize>,
    /// The number of all.
    pub all: usize,
}

/// The parts of a model's parameters that the ranks of a tensor axis hold.
pub struct TensorParts {
    /// The ranks that hold the parts of one model.
    ranks: Communicator,
    cuts: HashMap<ParamId, Cut>,
    own_tokens: Option<OwnTokens>,
    faults: Faults,
}

impl fmt::Debug for TensorParts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "TensorParts({} parameters among {} ranks)", self.cuts.len(), self.ranks.size())
    }
}

impl TensorParts {
    /// Divides a model among ranks.
    ///
    /// # Errors
    ///
    /// The plan divides nothing, a path of it matches nothing, or it has units that the ranks do not divide.
    pub(crate) fn of<M: Module>(
        model: &M,
        plan: &TensorPlan,
        ranks: Communicator,
    ) -> Result<Self, StrategyError> {
        plan.check_ranks(ranks.size())?;
        let tokens = plan.tokens().unwrap_or(ranks.size());
        SettingError::require(
            ranks.size() <= tokens,
            "tensor",
            format!("at most the {tokens} tokens of the vocabulary"),
            ranks.size(),
        )
        .map_err(|error| StrategyError::setting("Mesh", error))?;
        let cuts = plan.cuts(model)?;
        let own = |all| OwnTokens { own: share(all, ranks.rank(), ranks.size()), all };
        let own_tokens = plan.tokens().map(own);
        Ok(Self { ranks, cuts, own_tokens, faults: Faults::default() })
    }

    /// Returns the ranks that hold the parts of one model.
    pub fn ranks(&self) -> &Communicator {
        &self.ranks
    }

    /// Returns the tokens of which this rank has the embeddings and the logits, if the vocabulary is divided.
    pub fn own_tokens(&self) -> Option<&OwnTokens> {
        self.own_tokens.as_ref()
    }

    /// Returns whether the ranks divide a parameter.
    pub fn divides(&self, id: ParamId) -> bool {
        self.cuts.contains_key(&id)
    }

    /// Returns the part of a parameter that this rank holds, if it is divided.
    pub fn part(&self, id: ParamId) -> Option<TensorPart> {
        Some(self.cuts.get(&id)?.part(self.ranks.rank(), self.ranks.size()))
    }

    /// Returns this rank's part of the first rank's model. Each parameter is sent when it is first read: on all ranks in the
    /// same order.
    pub(crate) fn cut<M: Module>(self: &Arc<Self>, model: M) -> M {
        let paths = Arc::new(Paths::of(&model));
        model.map(&mut CutLater { parts: self.clone(), paths, done: HashMap::new() })
    }

    /// Makes a model whole again in host memory: on the rank `root` of the ranks that hold its parts, or on each of them if
    /// there is no root. Every rank calls it.
    ///
    /// # Errors
    ///
    /// Another rank is gone.
    pub fn whole<M: Module>(&self, model: M, root: Option<usize>) -> Result<Option<M>, StrategyError> {
        let mut joined = Joined { parts: self, root, error: None };
        let model = map_params(model, &mut joined);
        match joined.error {
            Some(error) => Err(error.into()),
            None => Ok(root.is_none_or(|root| root == self.ranks.rank()).then_some(model)),
        }
    }

    /// Sums one number of each rank that holds a part, `[1]`.
    ///
    /// # Errors
    ///
    /// Another rank is gone.
    pub(crate) fn sum_of(&self, number: Tensor<1>) -> Result<Tensor<1>, StrategyError> {
        sum_of(&self.ranks, number)
    }

    /// Returns an error if a rank was gone when a part was sent.
    ///
    /// # Errors
    ///
    /// It was.
    pub fn check(&self) -> Result<(), StrategyError> {
        self.faults.check()
    }
}

/// Cuts each parameter when it is first read.
struct CutLater {
    parts: Arc<TensorParts>,
    paths: Arc<Paths>,
    /// All places of a tied parameter stay one.
    done: HashMap<ParamId, Box<dyn std::any::Any>>,
}

impl ModuleMapper for CutLater {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        let id = param.id;
        if let Some(known) = self.done.get(&id).and_then(|known| known.downcast_ref::<Param<Tensor<D>>>()) {
            return known.clone();
        }
        let part = self.parts.part(id);
        let mut shape = param.lazy_shape();
        if let Some(part) = &part {
            shape[part.axis] = part.length();
        }
        let (device, is_trained) = (param.lazy_device(), learns(&param));
        let (parts, paths) = (self.parts.clone(), self.paths.clone());
        let cut = move |to: &Device, _: bool| {
            let own = param.base();
            let whole = parts.first_of(paths.path(id).unwrap_or_default(), &own).unwrap_or_else(|error| {
                parts.faults.report(error.into());
                own.clone().inner()
            });
            let part = match part {
                Some(part) => part.of(whole),
                None => whole,
            };
            relift(part.to_device(&to.clone().inner()), &own)
        };
        let cut = Param::uninitialized(id, cut, device, is_trained, shape);
        self.done.insert(id, Box::new(cut.clone()));
        cut
    }
}

impl TensorParts {
    /// Returns the parameter of the first rank.
    fn first_of<const D: usize>(&self, what: &str, own: &Tensor<D>) -> Result<Tensor<D>, WorldError> {
        let like = PartShape { shape: own.dims().to_vec(), dtype: own.dtype(), sum: own.dtype() };
        let whole = (self.ranks.rank() == 0).then(|| on_host(own.clone()));
        let first = self.ranks.broadcast_part(what, whole, like, 0)?;
        Ok(Tensor::from_data(first, (&own.device().inner(), own.dtype())))
    }
}

/// Joins the parts of each divided parameter.
struct Joined<'a> {
    parts: &'a TensorParts,
    root: Option<usize>,
    error: Option<WorldError>,
}

impl ParamMap for Joined<'_> {
    fn map<const D: usize>(&mut self, id: ParamId, value: Tensor<D>) -> Tensor<D> {
        let Some(cut) = self.parts.cuts.get(&id).filter(|_| self.error.is_none()) else { return value };
        match self.joined(cut, &value) {
            Ok(whole) => whole.map_or(value.clone(), |whole| relift(whole, &value)),
            Err(error) => {
                self.error = Some(error);
                value
            }
        }
    }
}

impl Joined<'_> {
    /// Returns the whole parameter, in host memory, if it is for this rank.
    fn joined<const D: usize>(&self, cut: &Cut, value: &Tensor<D>) -> Result<Option<Tensor<D>>, WorldError> {
        let (ranks, host) = (&self.parts.ranks, host_device());
        let dtype = value.dtype();
        let value = Tensor::<D>::from_data(on_host(value.clone()), (&host, dtype));
        // Parts of a vocabulary differ by a token.
        let most = cut.part(0, ranks.size()).length();
        let mut missing = value.dims();
        missing[cut.axis] = most - missing[cut.axis];
        let part = match missing[cut.axis] {
            0 => value,
            _ => Tensor::cat(vec![value, Tensor::zeros(missing, (&host, dtype))], cut.axis),
        };
        let rows = part.dims()[0];
        let all = match self.root {
            None => Some(ranks.all_gather(part)?),
            Some(root) => {
                let gathered = ranks.gather("the whole model", vec![on_host(part)], root)?;
                gathered.map(|mut parts| Tensor::from_data(parts.swap_remove(0), (&host, dtype)))
            }
        };
        let Some(all) = all else { return Ok(None) };
        // The parts stand one after the other along the first axis.
        let mut ranges = Vec::new();
        for rank in 0..ranks.size() {
            let (part, mut at) = (all.clone().narrow(0, rank * rows, rows), 0);
            for range in cut.part(rank, ranks.size()).ranges {
                ranges.push((range.start, part.clone().narrow(cut.axis, at, range.len())));
                at += range.len();
            }
        }
        ranges.sort_by_key(|(start, _)| *start);
        Ok(Some(Tensor::cat(ranges.into_iter().map(|(_, range)| range).collect(), cut.axis)))
    }
}
