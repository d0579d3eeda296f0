//! The optimizer of a whole model: the update of all its parameters, and their states.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use burn::module::{Module, ModuleMapper, Param, ParamGroup, ParamId};
use burn::optim::{DynState, GradientsParams, LearningRate, ModuleOptimizer, StateSink, StateSource};
use burn::store::RecordError;
use burn::tensor::{Device, Tensor};
use firebrick_kernels::optim::Together;
use firebrick_world::all_on_host;

use super::of_burn;
use super::param_optimizer::AnyOptimizer;
use super::states::{OptimizerStates, ParamState};
use crate::params::Lifting;

/// Updates the parameters of a model, in [groups](super::Groups) with optimizers of their own, and keeps their states.
///
/// The optimizers of this crate [create it](super::AdamW::init). Any optimizer of Burn becomes one too:
///
/// ```
/// use burn::optim::AdamWConfig;
/// use firebrick_strategies::optim::{AdamW, ModelOptimizer};
///
/// let ours: ModelOptimizer = AdamW::new().init()?;
/// let of_burn = ModelOptimizer::from(AdamWConfig::new().init());
/// # let _ = (ours, of_burn);
/// # Ok::<(), firebrick_strategies::SettingError>(())
/// ```
#[derive(Clone)]
pub struct ModelOptimizer(Inner);

#[derive(Clone)]
enum Inner {
    Groups {
        /// The last one that matches a parameter updates it.
        groups: Vec<ParamsOptimizer>,
        states: HashMap<ParamId, LiveState>,
    },
    /// Burn's own has groups and states of its own.
    Burns(ModuleOptimizer),
}

/// The optimizer of the parameters of a group.
#[derive(Clone)]
pub(super) struct ParamsOptimizer {
    params: ParamGroup,
    /// The factor of their learning rate.
    lr_scale: f64,
    optimizer: Arc<dyn AnyOptimizer>,
}

/// The state of one parameter.
#[derive(Clone)]
struct LiveState {
    /// The index of the parameter's group.
    group: usize,
    path: Option<String>,
    state: DynState,
}

impl From<ModuleOptimizer> for ModelOptimizer {
    fn from(optimizer: ModuleOptimizer) -> Self {
        Self(Inner::Burns(optimizer))
    }
}

impl ParamsOptimizer {
    pub fn new(params: ParamGroup, lr_scale: f64, optimizer: impl AnyOptimizer) -> Self {
        Self { params, lr_scale, optimizer: Arc::new(optimizer) }
    }
}

impl ModelOptimizer {
    /// Creates an optimizer of groups, of which each parameter belongs to the last one that matches it.
    pub(super) fn of(groups: Vec<ParamsOptimizer>) -> Self {
        Self(Inner::Groups { groups, states: HashMap::new() })
    }

    /// Creates an optimizer for all parameters of a model, at the learning rate itself.
    pub(super) fn of_all(optimizer: impl AnyOptimizer) -> Self {
        Self::of(vec![ParamsOptimizer::new(ParamGroup::all(), 1.0, optimizer)])
    }

    /// Updates the parameters that have a gradient.
    pub fn step<M: Module>(&mut self, rate: LearningRate, model: M, grads: GradientsParams) -> M {
        let mut together = Together::new();
        let model = self.update(rate, model, grads, &mut together);
        together.launch();
        model
    }

    /// Updates the parameters that have a gradient, those of the optimizers of this crate `together`: their values are there
    /// once it is launched.
    ///
    /// Of a tied parameter, only the first place is updated; and an update is in place only if nothing else holds the tensor.
    pub fn update<M: Module>(
        &mut self,
        rate: LearningRate,
        model: M,
        grads: GradientsParams,
        together: &mut Together,
    ) -> M {
        match &mut self.0 {
            Inner::Burns(optimizer) => optimizer.step(rate, model, grads),
            Inner::Groups { groups, states } => {
                model.map(&mut Update { rate, groups, states, grads, together, path: Vec::new() })
            }
        }
    }

    /// Undoes what the host has recorded of the last update of these parameters, which the device has
    /// [refused](Together::if_finite). All of them must have [waited](Together::waiting) for its launch.
    pub fn retract(&mut self, params: &HashSet<ParamId>) {
        if let Inner::Groups { groups, states } = &mut self.0 {
            for id in params {
                if let Some(LiveState { group, path, state }) = states.remove(id) {
                    let state = groups[group].optimizer.retracted(state);
                    states.insert(*id, LiveState { group, path, state });
                }
            }
        }
    }

    /// Returns a copy with the states in host memory, for which it waits once for [many tensors](all_on_host). Those of
    /// optimizers of Burn stay where they are.
    pub fn on_host(&self) -> Self {
        let mut copy = self.clone();
        if let Inner::Groups { groups, states } = &mut copy.0 {
            let mut tensors = Vec::new();
            for LiveState { group, state, .. } in states.values() {
                groups[*group].optimizer.read(state.clone(), &mut |tensor| {
                    tensors.push(tensor);
                    None
                });
            }
            let mut data = all_on_host(tensors).into_iter();
            for LiveState { group, state, .. } in states.values_mut() {
                *state = groups[*group].optimizer.read(state.clone(), &mut |_| data.next());
            }
        }
        copy
    }

    /// Returns copies of the states of some parameters, or of all. On a device, they may still be in the device's memory.
    ///
    /// # Errors
    ///
    /// A state of an optimizer of Burn cannot be read.
    pub fn states(&self, ids: Option<&HashSet<ParamId>>) -> Result<OptimizerStates, RecordError> {
        let (groups, states) = match &self.0 {
            Inner::Burns(optimizer) => return of_burn::states(optimizer, ids),
            Inner::Groups { groups, states } => (groups, states),
        };
        let wanted = states.iter().filter(|(id, _)| ids.is_none_or(|ids| ids.contains(*id)));
        let read = |(id, LiveState { group, path, state }): (&ParamId, &LiveState)| {
            let mut sink = StateSink::default();
            groups[*group].optimizer.states().state_flatten("", state, &mut sink);
            let StateSink { tensors, scalars } = sink;
            (*id, ParamState { axes: state.rank(), path: path.clone(), tensors, scalars })
        };
        Ok(wanted.map(read).collect())
    }

    /// Replaces the states of all parameters, and has them on `device`. Those that its optimizers cannot use are dropped.
    ///
    /// Burn restores the states of its own optimizers on its default device instead, and moves each of them when its parameter
    /// is updated.
    ///
    /// # Errors
    ///
    /// A state of an optimizer of Burn cannot be restored.
    pub fn load(&mut self, loaded: OptimizerStates, device: &Device) -> Result<(), RecordError> {
        let (groups, states) = match &mut self.0 {
            Inner::Burns(optimizer) => return of_burn::load(optimizer, loaded),
            Inner::Groups { groups, states } => (groups, states),
        };
        let restored = |(id, ParamState { axes, path, tensors, scalars })| {
            let mut source = StateSource::new(scalars.into_iter().collect());
            tensors.into_iter().for_each(|(field, data)| source.insert_tensor(field, data));
            let group = group_of(groups, id, path.as_deref());
            let state = groups[group].optimizer.states().state_unflatten(axes, "", &mut source, device)?;
            Some((id, LiveState { group, path, state }))
        };
        *states = loaded.into_iter().filter_map(restored).collect();
        Ok(())
    }

    /// Returns whether gradients are clipped by an optimizer of Burn, tensor by tensor.
    pub fn has_gradient_clipping(&self) -> bool {
        matches!(&self.0, Inner::Burns(optimizer) if optimizer.has_gradient_clipping())
    }
}

/// Returns the index of the last group that matches a parameter.
fn group_of(groups: &[ParamsOptimizer], id: ParamId, path: Option<&str>) -> usize {
    let matching = groups.iter().rposition(|group| group.params.matches(&id, path));
    matching.expect("the first group has all parameters")
}

/// An update of a model.
struct Update<'a> {
    rate: LearningRate,
    groups: &'a [ParamsOptimizer],
    states: &'a mut HashMap<ParamId, LiveState>,
    grads: GradientsParams,
    together: &'a mut Together,
    /// The modules that the walk is in.
    path: Vec<String>,
}

impl ModuleMapper for Update<'_> {
    fn enter_module(&mut self, name: &str, _: &str) {
        self.path.push(name.into());
    }

    fn exit_module(&mut self, _: &str, _: &str) {
        self.path.pop();
    }

    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        let Some(grad) = self.grads.remove::<D>(param.id) else { return param };
        let (id, value, mapper) = param.consume();
        let (lifting, device) = (Lifting::of(&value), grad.device());
        let value = value.inner();
        // An update is made where its gradient is.
        let value = if value.device() == device { value } else { value.to_device(&device) };
        let path = self.path.join(".");
        let (group, state) = match self.states.remove(&id) {
            Some(LiveState { group, state, .. }) => (group, Some(state)),
            None => (group_of(self.groups, id, Some(&path)), None),
        };
        let ParamsOptimizer { lr_scale, optimizer, .. } = &self.groups[group];
        let state = state.map(|state| optimizer.states().to_device_dyn(state, &device));
        let operands = (value.into_bridge(), grad.into_bridge());
        let (value, state) = optimizer.update(D, lr_scale * self.rate, operands, state, self.together);
        if let Some(state) = state {
            self.states.insert(id, LiveState { group, path: Some(path), state });
        }
        Param::from_mapped_value(id, lifting.lift(Tensor::from_bridge(value)), mapper)
    }
}
