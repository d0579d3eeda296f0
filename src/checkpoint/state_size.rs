//! The size of an optimizer's state.

use std::collections::{BTreeMap, HashSet};

use burn::module::{Module, ParamId};
use firebrick_strategies::each_distinct_param;
use firebrick_strategies::optim::ModelOptimizer;

/// The bytes of parameters whose states are read at once.
const AT_ONCE: usize = 1 << 20;

/// The size of an optimizer's state.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct StateSize {
    pub tensors: usize,
    pub bytes: usize,
}

impl StateSize {
    /// Measures the optimizer's state of a model's parameters, copying the states of a few parameters at a time.
    pub fn of<M: Module>(optimizer: &ModelOptimizer, model: &M) -> Self {
        let mut size = Self::default();
        for ids in few(model) {
            let states = optimizer.states(Some(&ids)).into_iter().flat_map(BTreeMap::into_values);
            for (_, data) in states.flat_map(|state| state.tensors) {
                size.tensors += 1;
                size.bytes += data.num_elements() * data.dtype().size();
            }
        }
        size
    }
}

/// The parameters of a model, each once, in runs of about [`AT_ONCE`] bytes.
fn few<M: Module>(model: &M) -> Vec<HashSet<ParamId>> {
    let (mut runs, mut sum) = (Vec::<HashSet<ParamId>>::new(), 0);
    each_distinct_param(model, |param| {
        let bytes = param.bytes();
        if runs.is_empty() || sum + bytes > AT_ONCE {
            runs.push(HashSet::new());
            sum = 0;
        }
        sum += bytes;
        if let Some(run) = runs.last_mut() {
            run.insert(param.id());
        }
    });
    runs
}
