//! Gradient sums over the ranks.

use std::collections::HashMap;
use std::ops::Range;

use burn::module::{Module, ModuleVisitor, Param, ParamId};
use burn::optim::GradientsParams;
use burn::tensor::{DType, Device, FloatDType, Tensor, TensorData};
use firebrick_world::{OnDevices, PartShape, on_host};

use super::sharding::{Sharding, buckets};
use crate::StrategyError;
use firebrick_kernels::cast;

/// A gradient on its way to the other ranks.
pub struct Part {
    /// The parameter.
    pub id: ParamId,
    /// The shape of the whole parameter.
    pub shape: Vec<usize>,
    /// The dtype of the gradient.
    pub dtype: DType,
    /// `None` if this rank has nothing to add.
    pub data: Option<TensorData>,
}

impl Part {
    /// Returns the bytes of the whole gradient.
    pub fn bytes(&self) -> usize {
        self.shape.iter().product::<usize>() * self.dtype.size()
    }

    /// Returns a copy without the data.
    pub fn empty(&self) -> Self {
        Self { id: self.id, shape: self.shape.clone(), dtype: self.dtype, data: None }
    }

    /// Returns this part with its data, and leaves it without data.
    pub fn take(&mut self) -> Self {
        Self { data: self.data.take(), ..self.empty() }
    }
}

/// Adds a gradient delivered from elsewhere to a parameter's sum.
pub(crate) fn add(sums: &mut HashMap<ParamId, TensorData>, id: ParamId, more: TensorData) {
    let sum = match sums.remove(&id) {
        None => more,
        Some(found) => sum(found, more),
    };
    sums.insert(id, sum);
}

/// Adds two gradients and rounds once, to the dtype of the first.
fn sum(a: TensorData, b: TensorData) -> TensorData {
    let (dtype, shape) = (a.dtype(), a.shape().clone());
    let [a, b] = [a, b].map(|data| data.iter::<f64>().collect::<Vec<_>>());
    let sums: Vec<f64> = std::iter::zip(a, b).map(|(a, b)| a + b).collect();
    TensorData::new(sums, shape).convert_dtype(dtype)
}

impl Sharding {
    /// Sums all gradients of a model over the ranks, run by run. `parts` lists the gradients that this rank may have;
    /// some have data already.
    pub fn reduce_all<M: Module>(
        &self,
        model: &M,
        params: &mut GradientsParams,
        parts: Vec<Part>,
    ) -> Result<Vec<(ParamId, TensorData)>, StrategyError> {
        let runs = runs(&parts);
        let mut parts = Parts { params, parts, at: HashMap::new() };
        let mut sums = Vec::new();
        for run in runs {
            sums.extend(self.reduce("the gradients", parts.read(model, run))?);
        }
        Ok(sums)
    }

    /// Like [`reduce_all`](Self::reduce_all) if nothing is sharded and the ranks' devices sum by themselves. The sums
    /// replace the gradients.
    pub fn reduce_all_on_devices<M: Module>(
        &self,
        on_devices: OnDevices<'_>,
        model: &M,
        params: &mut GradientsParams,
        mut parts: Vec<Part>,
        device: &Device,
    ) -> Result<(), StrategyError> {
        for run in runs(&parts) {
            let parts = &mut parts[run];
            let at = parts.iter().enumerate().map(|(at, part)| (part.id, at)).collect();
            let grads = vec![None; parts.len()];
            let like: Vec<_> = parts.iter().map(|part| self.shape_of(part)).collect();
            let mut flat = Flat { params, parts, device, at, grads };
            model.visit(&mut flat);
            let sums = on_devices.all_reduce("the gradients", flat.grads, &like)?;
            let sums = std::iter::zip(parts, sums).filter_map(|(part, sum)| Some((part.id, sum?))).collect();
            model.visit(&mut Shaped { params, sums });
        }
        Ok(())
    }

    /// Returns the devices' sum if the ranks' devices can sum these parts, each whole on every rank.
    pub fn on_devices(&self, parts: &[Part]) -> Option<OnDevices<'_>> {
        let like: Vec<_> = parts.iter().map(|part| self.shape_of(part)).collect();
        self.world.on_devices(&like)
    }

    /// Sums gradients over all ranks; a rank may lack some of them. Returns this rank's shard of the sharded ones, and
    /// the others whole.
    pub fn reduce(&self, what: &str, parts: Vec<Part>) -> Result<Vec<(ParamId, TensorData)>, StrategyError> {
        let (sharded, replicated): (Vec<_>, Vec<_>) =
            parts.into_iter().partition(|part| self.shards(part.id));
        let mut sums = Vec::new();
        for (parts, is_sharded) in [(sharded, true), (replicated, false)] {
            if parts.is_empty() {
                continue;
            }
            let ids: Vec<_> = parts.iter().map(|part| part.id).collect();
            let like: Vec<_> = parts.iter().map(|part| self.shape_of(part)).collect();
            let data = parts.into_iter().zip(&like).map(|(part, like)| {
                let data = part.data?.convert_dtype(like.dtype);
                Some(match self.rows(part.id) {
                    None => data,
                    Some(rows) => rows.pad(data),
                })
            });
            let data: Vec<_> = data.collect();
            let found = match is_sharded {
                true => self.world.reduce_scatter_parts(what, data, &like)?,
                false => self.world.all_reduce_parts(what, data, &like)?,
            };
            sums.extend(std::iter::zip(ids, found).filter_map(|(id, data)| Some((id, data?))));
        }
        Ok(sums)
    }

    /// Returns a part's shape, dtype on the wire, and dtype of the sum, which is never narrower than the part's.
    fn shape_of(&self, part: &Part) -> PartShape {
        let wire = self.wire.map_or(part.dtype, DType::from);
        let sum = if wire.size() > part.dtype.size() { wire } else { part.dtype };
        let mut shape = part.shape.clone();
        if let Some(rows) = self.rows(part.id) {
            shape[0] = rows.padded();
        }
        PartShape { shape, dtype: wire, sum }
    }
}

/// Splits the parts into runs of neighbours to sum at once.
fn runs(parts: &[Part]) -> Vec<Range<usize>> {
    let mut end = 0;
    let ranges = buckets(parts, Part::bytes).into_iter().map(|run| {
        end += run.len();
        end - run.len()..end
    });
    ranges.collect()
}

/// Takes a run's gradients out of `params`, flat and still on the device.
struct Flat<'a> {
    params: &'a mut GradientsParams,
    parts: &'a mut [Part],
    device: &'a Device,
    at: HashMap<ParamId, usize>,
    grads: Vec<Option<Tensor<1>>>,
}

impl ModuleVisitor for Flat<'_> {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        let Some(&at) = self.at.get(&param.id) else { return };
        let dtype = self.parts[at].dtype;
        let grad = self.params.remove::<D>(param.id).map(|grad| cast(grad, FloatDType::from(dtype)));
        let delivered = self.parts[at].data.take();
        let delivered = delivered.map(|data| Tensor::<D>::from_data(data, (self.device, dtype)));
        let sum = match (delivered, grad) {
            (Some(delivered), Some(grad)) => Some(delivered + grad),
            (delivered, grad) => delivered.or(grad),
        };
        // A tied parameter is visited again, without a gradient.
        if let Some(sum) = sum {
            self.grads[at] = Some(sum.reshape([-1]));
        }
    }
}

/// Puts flat sums in place of the gradients.
struct Shaped<'a> {
    params: &'a mut GradientsParams,
    sums: HashMap<ParamId, Tensor<1>>,
}

impl ModuleVisitor for Shaped<'_> {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        if let Some(sum) = self.sums.remove(&param.id) {
            self.params.register::<D>(param.id, sum.reshape(param.lazy_shape()));
        }
    }
}

/// The gradients of this rank, on their way to the others.
struct Parts<'a> {
    params: &'a mut GradientsParams,
    parts: Vec<Part>,
    /// Indices of the run being read.
    at: HashMap<ParamId, usize>,
}

impl Parts<'_> {
    /// Takes a run's gradients out of `params`.
    fn read<M: Module>(&mut self, model: &M, run: Range<usize>) -> Vec<Part> {
        self.at = run.clone().map(|at| (self.parts[at].id, at)).collect();
        model.visit(self);
        self.parts[run].iter_mut().map(Part::take).collect()
    }
}

impl ModuleVisitor for Parts<'_> {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        if let Some(&at) = self.at.get(&param.id)
            && let Some(grad) = self.params.remove::<D>(param.id)
        {
            let part = &mut self.parts[at];
            let data = on_host(grad).convert_dtype(part.dtype);
            part.data = Some(match part.data.take() {
                None => data,
                Some(delivered) => sum(delivered, data),
            });
        }
    }
}
