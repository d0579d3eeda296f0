//! The parts of a model that its ranks hold.

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use burn::module::{Module, ModuleMapper, Param, ParamId};
use burn::tensor::{Device, Tensor};
use firebrick_world::{Communicator, PartShape, WorldError, host_device, on_host};

use super::pipeline::{Pipeline, Pipelined};
use super::{Factors, NAME, SharedAxis, TensorPlan};
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
    fn part(&self, rank: usize, ranks: usize) -> ModelPart {
        let size = self.length / self.units.iter().sum::<usize>().max(1);
        let mut start = 0;
        let range = |units: &usize| {
            let (section, own) = (start, share(*units, rank, ranks));
            start += units * size;
            section + own.start * size..section + own.end * size
        };
        ModelPart { axis: self.axis, whole: self.length, ranges: self.units.iter().map(range).collect() }
    }
}

/// Returns the units of a rank: as many as those of each other one, or one more.
pub(crate) fn share(units: usize, rank: usize, ranks: usize) -> Range<usize> {
    let start = |rank: usize| (units * rank).div_ceil(ranks);
    start(rank)..start(rank + 1)
}

/// The part of a parameter that a rank holds: some ranges of one axis, side by side, or none.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ModelPart {
    /// The axis.
    pub axis: usize,
    /// The length of the axis in the whole parameter.
    pub whole: usize,
    /// The ranges of this rank, in order.
    pub ranges: Vec<Range<usize>>,
}

impl ModelPart {
    /// Returns the length of the axis in the part.
    pub fn length(&self) -> usize {
        self.ranges.iter().map(Range::len).sum()
    }

    /// Cuts the part out of a whole parameter.
    fn of<const D: usize>(&self, whole: Tensor<D>) -> Tensor<D> {
        let range = |range: &Range<usize>| whole.clone().narrow(self.axis, range.start, range.len());
        match self.ranges.as_slice() {
            [one] => range(one),
            [] => {
                let mut shape = whole.dims();
                shape[self.axis] = 0;
                Tensor::empty(shape, (&whole.device(), whole.dtype()))
            }
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

/// The parts of a model's parameters that ranks hold: of a tensor axis, which divides layers, and of a pipeline axis, which divides
/// blocks. Of `t` ranks of the tensor axis, rank `t s + i` of those that hold one model has part `i` of the layers of stage `s`.
pub struct ModelParts {
    /// The ranks that hold the parts of one model.
    ranks: Communicator,
    /// Those of the same stage, which divide its layers.
    tensor: Communicator,
    cuts: HashMap<ParamId, Cut>,
    /// The factors that each rank has whole, of matrices that are cut along the other axis.
    partial: HashSet<ParamId>,
    own_tokens: Option<OwnTokens>,
    pipeline: Option<Arc<Pipeline>>,
    faults: Faults,
}

impl fmt::Debug for ModelParts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ModelParts({} divided parameters among {} ranks)", self.cuts.len(), self.ranks.size())
    }
}

impl ModelParts {
    /// Divides a model among ranks: layers by the plan among those that are neighbours, and blocks into the stages of a pipeline.
    ///
    /// # Errors
    ///
    /// There are ranks to divide layers and the plan divides nothing, a path of it matches nothing, or it has units that the ranks do not
    /// divide; the model has fewer blocks than the pipeline has stages; or factors are outside blocks.
    pub(crate) fn of<M: Module>(
        model: &M,
        plan: &TensorPlan,
        ranks: Communicator,
        pipelined: &Pipelined,
        block_costs: Option<&[usize]>,
        factors: &Factors,
    ) -> Result<Self, StrategyError> {
        let stages = pipelined.ranks.max(1);
        let size = ranks.size() / stages;
        let tensor = ranks.split(|rank| rank / size);
        let mut parts = Self {
            tensor,
            cuts: HashMap::new(),
            partial: HashSet::new(),
            own_tokens: None,
            pipeline: None,
            faults: Faults::default(),
            ranks,
        };
        if size > 1 {
            plan.check_ranks(size)?;
            let tokens = plan.tokens().unwrap_or(size);
            let expected = format!("at most the {tokens} tokens of the vocabulary");
            SettingError::require(size <= tokens, "tensor", expected, size)
                .map_err(|error| StrategyError::setting(NAME, error))?;
            plan.require_factors_in_blocks(&Paths::of(model), factors)?;
            parts.cuts = plan.cuts(model, factors)?;
            let is_partial = |(id, shared): &(&ParamId, &SharedAxis)| {
                parts.cuts.contains_key(&shared.matrix) && !parts.cuts.contains_key(*id)
            };
            parts.partial = factors.iter().filter(is_partial).map(|(id, _)| *id).collect();
            let own = |all| OwnTokens { own: share(all, parts.tensor.rank(), size), all };
            parts.own_tokens = plan.tokens().map(own);
        }
        if stages > 1 {
            let ranks = parts.ranks.split(|rank| rank % size);
            let part = |id, shape: &mut Vec<usize>| {
                if let Some(part) = parts.cut_part(id) {
                    shape[part.axis] = part.length();
                }
            };
            let logits = plan.of_logits(&Paths::of(model))?;
            parts.pipeline =
                Some(Arc::new(Pipeline::of(model, ranks, pipelined, &logits, block_costs, part)?));
        }
        Ok(parts)
    }

    /// Returns the ranks that hold the parts of one model.
    pub fn ranks(&self) -> &Communicator {
        &self.ranks
    }

    /// Returns the ranks that divide the layers of a stage, if there are several.
    pub fn tensor(&self) -> Option<&Communicator> {
        (self.tensor.size() > 1).then_some(&self.tensor)
    }

    /// Returns the stages that blocks are divided into, if they are.
    pub fn pipeline(&self) -> Option<&Arc<Pipeline>> {
        self.pipeline.as_ref()
    }

    /// Returns the tokens of which this rank has the embeddings and the logits, if the vocabulary is divided.
    pub fn own_tokens(&self) -> Option<&OwnTokens> {
        self.own_tokens.as_ref()
    }

    /// Returns the ranks that hold a parameter together, of those that hold the parts of one model; `None` if each of them has the
    /// whole parameter. Others may have copies.
    pub fn holders(&self, id: ParamId) -> Option<Range<usize>> {
        let size = self.tensor.size();
        let stage = self.stage_of(id);
        match (self.cuts.contains_key(&id), stage) {
            (false, None) => None,
            (true, stage) => Some(stage.unwrap_or(0) * size..(stage.unwrap_or(0) + 1) * size),
            (false, Some(stage)) => Some(stage * size..stage * size + 1),
        }
    }

    /// Returns whether this rank is the one to count a parameter, or its part of it, in what is summed over the ranks.
    pub fn counts(&self, id: ParamId) -> bool {
        self.holders(id).unwrap_or(0..1).contains(&self.ranks.rank())
    }

    /// Returns the axis along which the ranks of a stage divide a parameter, if they do.
    pub(crate) fn divided_axis(&self, id: ParamId) -> Option<usize> {
        self.cuts.get(&id).map(|cut| cut.axis)
    }

    /// Returns whether this rank has a part of the gradient of a parameter that it has whole: of a factor whose matrix is divided along
    /// the other axis.
    pub(crate) fn has_part_of_gradient(&self, id: ParamId) -> bool {
        self.partial.contains(&id)
    }

    /// Returns whether there is such a parameter.
    pub(crate) fn has_parts_of_gradients(&self) -> bool {
        !self.partial.is_empty()
    }

    /// Returns the part of a parameter that this rank holds, if that is not the whole.
    pub fn part(&self, id: ParamId, shape: &[usize]) -> Option<ModelPart> {
        match self.is_away(id) {
            true => {
                Some(ModelPart { axis: 0, whole: shape.first().copied().unwrap_or(1), ranges: Vec::new() })
            }
            false => self.cut_part(id),
        }
    }

    /// Returns whether a parameter belongs to a stage of another rank, so that this one has nothing of it.
    pub fn is_away(&self, id: ParamId) -> bool {
        self.stage_of(id).is_some_and(|stage| stage != self.ranks.rank() / self.tensor.size())
    }

    /// Returns the rank of the pipeline axis whose stage has a parameter, if one has.
    fn stage_of(&self, id: ParamId) -> Option<usize> {
        self.pipeline.as_ref()?.rank_of(id)
    }

    fn cut_part(&self, id: ParamId) -> Option<ModelPart> {
        Some(self.cuts.get(&id)?.part(self.tensor.rank(), self.tensor.size()))
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
        let mut joined = JoinParts { parts: self, root, error: None };
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
    parts: Arc<ModelParts>,
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
        let mut shape = param.lazy_shape();
        let part = self.parts.part(id, shape.as_slice());
        let is_away = self.parts.is_away(id);
        if let Some(part) = &part {
            shape[part.axis] = part.length();
        }
        let (device, is_trained) = (param.lazy_device(), learns(&param) && !is_away);
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
            let part = relift(part.to_device(&to.clone().inner()), &own);
            if is_away { part.set_require_grad(false) } else { part }
        };
        let cut = Param::uninitialized(id, cut, device, is_trained, shape);
        self.done.insert(id, Box::new(cut.clone()));
        cut
    }
}

impl ModelParts {
    /// Returns the parameter of the first rank.
    fn first_of<const D: usize>(&self, what: &str, own: &Tensor<D>) -> Result<Tensor<D>, WorldError> {
        let like = PartShape { shape: own.dims().to_vec(), dtype: own.dtype(), sum: own.dtype() };
        let whole = (self.ranks.rank() == 0).then(|| on_host(own.clone()));
        let first = self.ranks.broadcast_part(what, whole, like, 0)?;
        Ok(Tensor::from_data(first, (&own.device().inner(), own.dtype())))
    }
}

/// Joins the parts of each divided parameter.
struct JoinParts<'a> {
    parts: &'a ModelParts,
    root: Option<usize>,
    error: Option<WorldError>,
}

impl ParamMap for JoinParts<'_> {
    fn map<const D: usize>(&mut self, id: ParamId, value: Tensor<D>) -> Tensor<D> {
        if self.parts.holders(id).is_none() || self.error.is_some() {
            return value;
        }
        match self.joined(id, &value) {
            Ok(whole) => whole.map_or(value.clone(), |whole| relift(whole, &value)),
            Err(error) => {
                self.error = Some(error);
                value
            }
        }
    }
}

impl JoinParts<'_> {
    /// Returns the whole parameter, in host memory, if it is for this rank.
    fn joined<const D: usize>(
        &self,
        id: ParamId,
        value: &Tensor<D>,
    ) -> Result<Option<Tensor<D>>, WorldError> {
        let ModelParts { ranks, tensor, cuts, pipeline, .. } = self.parts;
        let (size, stage) = (tensor.size(), self.parts.stage_of(id));
        let is_here = |rank: usize| rank / size == ranks.rank() / size;
        // The ranks of the stage join their parts on the first of them, which then sends the whole to the others.
        let root = match stage {
            Some(stage) => Some(stage * size),
            None => self.root,
        };
        let own = Tensor::<D>::from_data(on_host(value.clone()), (&host_device(), value.dtype()));
        let whole = match cuts.get(&id) {
            _ if self.parts.is_away(id) || root.is_some_and(|root| !is_here(root)) => None,
            Some(cut) => self.side_by_side(cut, own, root.map(|root| root % size))?,
            None => Some(own),
        };
        let (Some(stage), Some(pipeline)) = (stage, pipeline) else { return Ok(whole) };
        if self.root == Some(stage * size) {
            return Ok(whole.filter(|_| self.root == Some(ranks.rank())));
        }
        let mut shape = pipeline.shape_of(id, value.dims());
        if let Some(cut) = cuts.get(&id) {
            shape[cut.axis] = cut.length;
        }
        let like = PartShape { shape: shape.to_vec(), dtype: value.dtype(), sum: value.dtype() };
        let part = (ranks.rank() == stage * size).then(|| whole.map(Tensor::into_data)).flatten();
        let sent = ranks.broadcast_part("the whole model", part, like, stage * size)?;
        Ok(Some(Tensor::from_data(sent, (&host_device(), value.dtype()))))
    }

    /// Joins the parts of the ranks of a tensor axis.
    fn side_by_side<const D: usize>(
        &self,
        cut: &Cut,
        value: Tensor<D>,
        root: Option<usize>,
    ) -> Result<Option<Tensor<D>>, WorldError> {
        let (ranks, host) = (&self.parts.tensor, host_device());
        let dtype = value.dtype();
        // Parts of a vocabulary differ by a token.
        let most = cut.part(0, ranks.size()).length();
        let mut missing = value.dims();
        missing[cut.axis] = most - missing[cut.axis];
        let part = match missing[cut.axis] {
            0 => value,
            _ => Tensor::cat(vec![value, Tensor::zeros(missing, (&host, dtype))], cut.axis),
        };
        let rows = part.dims()[0];
        let all = match root {
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
