//! Packs matrices and leaves placeholders in their place.

use std::any::Any;
use std::collections::{HashMap, HashSet};

use burn::module::{Module, Param, ParamId, Reparameterization, Reparameterizer};
use burn::tensor::{FloatDType, Tensor};
use firebrick_kernels::packed::{PackedMatrix, Packing};
use firebrick_world::on_host;

use crate::{Adaptation, PackedBase, apart, relift};

/// Packs the selected parameters, one after the other.
pub(super) struct Attach<'a> {
    pub packing: Packing,
    pub matrices: HashSet<ParamId>,
    pub adaptation: &'a mut Adaptation,
    /// The first matrix with a number that is not finite, which cannot be packed.
    pub not_finite: &'a mut Option<String>,
    /// The placeholders so far: a tied matrix has one at all of its places.
    pub done: HashMap<ParamId, Box<dyn Any>>,
}

impl Attach<'_> {
    fn placeholder<const D: usize>(
        &mut self,
        path: &str,
        param: Param<Tensor<D>>,
        base: &PackedBase,
    ) -> Param<Tensor<D>> {
        let id = param.id;
        if let Some(done) = self.done.get(&id).and_then(|param| param.downcast_ref::<Param<Tensor<D>>>()) {
            return done.clone();
        }
        let param = apart(param).map(|value| {
            let shape = value.dims();
            let [from, to] = [shape[0], shape[D - 1]];
            let number = Tensor::zeros([1; D], (&value.device().inner(), value.dtype()));
            let placeholder = relift(number, &value);
            let numbers: Vec<f32> = on_host(value).iter().collect();
            if !numbers.iter().all(|number| number.is_finite()) {
                self.not_finite.get_or_insert_with(|| path.into());
            }
            base.set(PackedMatrix::new(self.packing.pack(&numbers, [from, to])));
            placeholder
        });
        self.done.insert(id, Box::new(param.clone()));
        param
    }
}

impl Reparameterizer for Attach<'_> {
    type Reparam = Unpacking;

    /// The factors of an adapted matrix stay attached to it: they read the base that is set here.
    fn reparameterize<const D: usize>(
        &mut self,
        path: &str,
        param: Param<Tensor<D>>,
    ) -> (Param<Tensor<D>>, Option<Unpacking>) {
        if !self.matrices.contains(&param.id) {
            return (param, None);
        }
        let base = self.adaptation.base_of(param.id);
        (self.placeholder(path, param, &base), Some(Unpacking { base }))
    }
}

/// Reads a packed matrix that has no factors.
#[derive(Module, Debug)]
pub(super) struct Unpacking {
    #[module(skip)]
    base: PackedBase,
}

impl Reparameterization for Unpacking {
    const NAME: &'static str = "quantized";

    /// The placeholder has the dtype that the layer computes in.
    fn apply<const D: usize>(&self, placeholder: Tensor<D>) -> Tensor<D> {
        let dtype = FloatDType::from(placeholder.dtype());
        self.base.read(&placeholder, dtype).unwrap_or(placeholder)
    }
}
