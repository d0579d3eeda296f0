//! Records which parameters a forward pass reads.

use std::sync::{Arc, Mutex, PoisonError};

use burn::module::{Module, Param, Reparameterization, Reparameterizer};
use burn::tensor::{DType, FloatDType, Tensor};
use firebrick_strategies::float_name;

/// The reads so far, in order.
#[derive(Clone, Debug, Default)]
pub(super) struct Reads(Arc<Mutex<Vec<ParamRead>>>);

#[derive(Clone, Debug)]
struct ParamRead {
    path: String,
    dtype: DType,
}

impl Reads {
    /// Returns the parameter that most likely caused a panic, and its dtype: among those that the last layer read, the
    /// first that is not in `dtype`, or else the first.
    pub fn suspect(&self, dtype: FloatDType) -> Option<(String, &'static str)> {
        let reads = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let layer = |read: &ParamRead| read.path.rsplit_once('.').map(|(layer, _)| layer.to_string());
        let last = layer(reads.last()?);
        let of_layer = reads.iter().rev().take_while(|read| layer(read) == last).count();
        let of_layer = &reads[reads.len() - of_layer..];
        let other = of_layer.iter().find(|read| read.dtype != DType::from(dtype));
        let read = other.or(of_layer.first())?;
        Some((read.path.clone(), float_name(FloatDType::from(read.dtype))))
    }
}

/// Returns the same model; its reads of parameters are recorded.
pub(super) fn watched<M: Module>(model: M, reads: &Reads) -> M {
    model.apply_reparameterization(Attach(reads.clone()))
}

struct Attach(Reads);

impl Reparameterizer for Attach {
    type Reparam = Note;

    fn reparameterize<const D: usize>(
        &mut self,
        path: &str,
        param: Param<Tensor<D>>,
    ) -> (Param<Tensor<D>>, Option<Note>) {
        (param, Some(Note { path: path.into(), reads: self.0.clone() }))
    }
}

/// Records a read of a parameter, and returns its value unchanged.
#[derive(Module, Debug)]
struct Note {
    #[module(skip)]
    path: String,
    #[module(skip)]
    reads: Reads,
}

impl Reparameterization for Note {
    const NAME: &'static str = "note";

    fn apply<const D: usize>(&self, base: Tensor<D>) -> Tensor<D> {
        let read = ParamRead { path: self.path.clone(), dtype: base.dtype() };
        self.reads.0.lock().unwrap_or_else(PoisonError::into_inner).push(read);
        base
    }
}

#[cfg(test)]
mod tests {
    use burn::nn::{Linear, LinearConfig};

    use super::*;

    #[test]
    fn the_last_layer_is_suspected_and_in_it_what_is_in_another_dtype() {
        let device = crate::testing::device();
        let layers: Vec<Linear> = (0..2).map(|_| LinearConfig::new(2, 2).init(&device)).collect();
        let reads = Reads::default();
        assert_eq!(reads.suspect(FloatDType::F32), None);
        let layers = watched(layers, &reads);
        let x = layers[0].forward(Tensor::<1>::ones([2], &device));
        assert_eq!(reads.suspect(FloatDType::F32), Some(("0.weight".into(), "f32")));
        layers[1].forward(x);
        assert_eq!(reads.suspect(FloatDType::F32), Some(("1.weight".into(), "f32")));
        reads.0.lock().unwrap().last_mut().unwrap().dtype = DType::BF16;
        assert_eq!(reads.suspect(FloatDType::F32), Some(("1.bias".into(), "bf16")));
    }
}
