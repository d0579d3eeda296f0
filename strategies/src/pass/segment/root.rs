//! The parameters outside blocks, gathered once for all passes of an optimizer step.

use std::sync::Mutex;

use burn::module::Module;
use burn::tensor::Device;

use super::lock;
use super::units::{Handling, Values};
use crate::StrategyError;

/// The gathered parameters outside blocks, from the first pass of an optimizer step to its last.
///
/// They belong to the master that was [published](crate::Stage::publish) last. A pass after another publication
/// gathers them again.
#[derive(Debug, Default)]
pub(crate) struct Root(Mutex<Option<GatheredRoot>>);

#[derive(Debug)]
struct GatheredRoot {
    /// The publication that they were gathered after.
    publication: u64,
    /// With their padding.
    values: Values,
}

impl Root {
    /// Returns the model with the gathered parameters outside blocks. Gathers them now if the passes of its step do not
    /// share `root`, or if the first of them begins.
    pub fn fill<M: Module>(root: Option<&Self>, model: M, handling: &Handling) -> Result<M, StrategyError> {
        let Some(sharding) = handling.sharding.as_ref().filter(|_| handling.gathers) else {
            return Ok(model);
        };
        let gather = |model: &M| {
            sharding.gather_flat(model, "what is in no block", |id| !handling.units.has(id), None)
        };
        // A rank with a copy of its own exchanges nothing, and what it gathers are the shards themselves.
        let Some(root) = root.filter(|_| sharding.is_shared()) else {
            let values = gather(&model)?;
            return Ok(sharding.put(model, values, None));
        };
        let mut there = lock(&root.0);
        let publication = sharding.publication();
        let known = there.take().filter(|there| there.publication == publication);
        let values = match known {
            Some(GatheredRoot { values, .. }) => values,
            None => gather(&model)?,
        };
        *there = Some(GatheredRoot { publication, values: values.clone() });
        Ok(sharding.put(model, values, None))
    }

    /// Drops the parameters: the step has no further pass.
    pub fn release(&self) {
        lock(&self.0).take();
    }

    /// Returns the bytes that the passes of the step share on a device.
    pub fn bytes(&self, device: &Device) -> usize {
        let there = lock(&self.0);
        let values = there.iter().flat_map(|there| there.values.values());
        let here = values.filter(|value| value.device() == *device);
        here.map(|value| value.dims()[0] * value.dtype().size()).sum()
    }
}
