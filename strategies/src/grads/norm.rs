//! The norm of all gradients, and what the ranks tell each other with it.

use burn::backend::DispatchTensor;
use burn::module::Module;
use burn::tensor::Tensor;
use firebrick_kernels::{l2_norm, sum_of_squares};
use firebrick_world::numbers;

use super::visits::{Distinct, Squares};
use super::{Agreement, Grads};
use crate::StrategyError;

/// The norm, on the device, and as a number once something has read it.
pub(super) struct Norm {
    tensor: Tensor<1>,
    read: Option<f64>,
}

impl Grads {
    /// Returns the L2 norm over all gradients together, shape `[1]`, in f32. It is infinite or NaN if any gradient is,
    /// or if it is above about 1.8e19, because its square overflows f32.
    ///
    /// For shards, and for parts of a model, this is the norm over the gradients of all ranks together, the same on each
    /// rank.
    ///
    /// The norm is computed once, and keeps its value when something [bounds](Self::bound) the gradients.
    ///
    /// # Errors
    ///
    /// Another rank is gone, if the gradients are shards or parts.
    pub fn norm<M: Module>(&mut self, model: &M) -> Result<Tensor<1>, StrategyError> {
        if let Some(norm) = &self.norm {
            return Ok(norm.tensor.clone());
        }
        let Squares { sharding, parts, shards, wholes } = self.squares(model);
        let device = model.devices()[0].clone().inner();
        let or_zero = |grads: Vec<DispatchTensor>, reduce: fn(Vec<DispatchTensor>) -> Tensor<1>| {
            if grads.is_empty() { Tensor::zeros([1], &device) } else { reduce(grads) }
        };
        let shards = sharding.map(|sharding| (sharding, or_zero(shards, sum_of_squares)));
        // Ranks that know that they skip the step no longer sum: some may have no gradients.
        let is_summed = !self.is_skipped_by_all();
        let (shards, parts) = (shards.filter(|_| is_summed), parts.filter(|_| is_summed));
        if shards.is_none() && parts.is_none() {
            let norm = Norm { tensor: or_zero(wholes, l2_norm), read: None };
            return Ok(self.norm.insert(norm).tensor.clone());
        }
        let wholes = or_zero(wholes, sum_of_squares);
        let (sharding, shards) = shards.unzip();
        // The ranks that hold the parts of a model are neighbours.
        let holding = parts.as_ref().map_or(1, |parts| parts.ranks().size());
        let norm = match self.open_agreement() {
            None => {
                let of_shards = shards.zip(sharding).map(|(shards, sharding)| sharding.sum_of(shards));
                let squares = of_shards.transpose()?.map_or(wholes.clone(), |shards| shards + wholes);
                let squares = parts.map_or(Ok(squares.clone()), |parts| parts.sum_of(squares))?;
                Norm { tensor: squares.sqrt(), read: None }
            }
            Some(agreement) => {
                let device = wholes.device();
                let agreed = agreement.make_with(self.skip.as_ref(), shards, Some(wholes))?;
                self.skip = agreed.skip.clone();
                let sum = |numbers: &[f64], ranks: usize| numbers.iter().take(ranks).sum::<f64>() as f32;
                let sharing = sharding.map_or(0, |sharding| sharding.sharing() * holding);
                let norm = (sum(&agreed.squares, sharing) + sum(&agreed.wholes, holding)).sqrt();
                Norm { tensor: Tensor::from_data([norm], &device), read: Some(norm.into()) }
            }
        };
        Ok(self.norm.insert(norm).tensor.clone())
    }

    /// Returns the sharded and the other gradients.
    fn squares<M: Module>(&mut self, model: &M) -> Squares {
        let (sharding, parts) = (self.sharding.clone(), self.parts.clone());
        let mut squares = Squares { sharding, parts, shards: Vec::new(), wholes: Vec::new() };
        model.visit(&mut Distinct::new(&mut self.params, &mut squares));
        squares
    }

    /// Makes the ranks' exchange about the step, unless it has been made. The norm of all gradients is then
    /// [known](Self::known_norm).
    ///
    /// # Errors
    ///
    /// Another rank is gone, or the device has failed.
    pub fn agree<M: Module>(&mut self, model: &M) -> Result<(), StrategyError> {
        if self.open_agreement().is_none() {
            return Ok(());
        }
        let tensor = self.norm(model)?;
        // The norm of shards has made the exchange.
        let Some(agreement) = self.open_agreement() else { return Ok(()) };
        let agreed = agreement.make_with(self.skip.as_ref(), None, Some(tensor.clone()))?;
        self.skip = agreed.skip.clone();
        self.norm = Some(Norm { tensor, read: Some(agreed.wholes[0]) });
        Ok(())
    }

    /// Returns the ranks' exchange, if it has not been made.
    fn open_agreement(&self) -> Option<Agreement> {
        self.agreement.clone().filter(|agreement| agreement.made().is_none())
    }

    /// Returns whether all ranks know that they skip the step. Some may have no gradients.
    fn is_skipped_by_all(&self) -> bool {
        self.agreement.as_ref().and_then(Agreement::made).is_some_and(|agreed| agreed.skip.is_some())
    }

    /// Returns the [norm](Self::norm) as a number. Only the first call waits for the device.
    ///
    /// # Errors
    ///
    /// Another rank is gone, or the device has failed.
    pub fn read_norm<M: Module>(&mut self, model: &M) -> Result<f64, StrategyError> {
        self.agree(model)?;
        let tensor = self.norm(model)?;
        if let Some(read) = self.known_norm() {
            return Ok(read);
        }
        let read = numbers(vec![tensor.clone()]).map_err(|error| StrategyError::Read(error.to_string()))?[0];
        self.norm = Some(Norm { tensor, read: Some(read) });
        Ok(read)
    }

    /// Returns the [norm](Self::norm), if something has read it.
    pub fn known_norm(&self) -> Option<f64> {
        self.norm.as_ref()?.read
    }
}

#[cfg(test)]
mod tests {
    use burn::nn::{Linear, LinearConfig};
    use burn::optim::GradientsParams;
    use firebrick_world::World;

    use super::*;
    use crate::testing;

    fn linear() -> Linear {
        LinearConfig::new(1, 2).with_bias(false).init(&testing::device().autodiff())
    }

    #[test]
    fn the_norm_is_over_all_parameters_and_counts_a_tied_one_once() {
        let (one, other) = (linear(), linear());
        let mut params = GradientsParams::new();
        for (linear, grad) in [(&one, [[2.0, 4.0]]), (&other, [[2.0, 1.0]])] {
            params.register(linear.weight.id, Tensor::<2>::from_data(grad, &testing::device()));
        }
        let model = vec![one.clone(), one, other];
        assert_eq!(Grads::new(params, true).norm(&model).unwrap().into_scalar::<f32>(), 5.0);
    }

    #[test]
    fn the_norm_of_no_gradients_is_zero() {
        let mut none = Grads::new(GradientsParams::new(), true);
        assert_eq!(none.norm(&linear()).unwrap().into_scalar::<f32>(), 0.0);
    }

    /// Devices may round what all ranks have in their own ways, here so far that one norm is infinite.
    #[test]
    fn ranks_decide_by_the_norm_of_the_first() {
        let norms = [[3.0, 4.0], [3.0, f32::INFINITY]];
        let ranks = World::threads(2).join().unwrap().into_iter().zip(norms).map(|(rank, grad)| {
            std::thread::spawn(move || {
                let (linear, mut params) = (linear(), GradientsParams::new());
                params.register(linear.weight.id, Tensor::<2>::from_data([grad], &testing::device()));
                let agreement = Agreement::new(&rank, None, Vec::new);
                Grads::new(params, true).agreeing(Some(agreement)).read_norm(&linear).unwrap()
            })
        });
        let norms = ranks.collect::<Vec<_>>().into_iter().map(|rank| rank.join().unwrap());
        assert_eq!(norms.collect::<Vec<_>>(), [5.0, 5.0]);
    }
}
