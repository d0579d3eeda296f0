//! Tensors that another thread goes on with.

use std::fmt;

use burn::tensor::Tensor;
#[cfg(feature = "cube")]
use burn_cubecl::tensor::CubeTensor;

/// Tensors that another thread goes on with, while this one computes.
///
/// Where Burn fuses operations, a tensor is freed behind the operation that was the last to take it when it was called. If
/// another thread queues operations behind those of this one and both hold a tensor, its last operation may be queued before
/// the other thread's, which then finds nothing. These tensors have the memory of the originals, and no other holder.
///
/// ```
/// use burn::tensor::{Device, Tensor};
/// use firebrick_kernels::Handover;
///
/// let shard = Tensor::<1>::ones([2], &Device::flex());
/// let handed_over = Handover::of(vec![shard.clone()]);
/// let sum = std::thread::spawn(move || handed_over.into_tensors().remove(0).sum().into_scalar::<f32>());
/// drop(shard * 2.0);
/// assert_eq!(sum.join().unwrap(), 2.0);
/// ```
pub struct Handover {
    tensors: Vec<Tensor<1>>,
    #[cfg(feature = "cube")]
    begun: Option<cube::PendingHandover>,
}

impl Handover {
    /// Hands over flat float tensors, outside autodiff. They must be on one device: tensors of several are handed over as they
    /// are, and another holder may free them as described above.
    pub fn of(tensors: Vec<Tensor<1>>) -> Self {
        #[cfg(feature = "cube")]
        if let Some(device) = tensors.first().map(Tensor::device)
            && crate::device::is_cube(&device)
            && tensors.iter().all(|tensor| tensor.device() == device)
        {
            let (tensors, begun) = cube::begin(tensors);
            return Self { tensors, begun: Some(begun) };
        }
        Self {
            tensors,
            #[cfg(feature = "cube")]
            begun: None,
        }
    }

    /// Returns the tensors. If you compute with them, hold a clone of each meanwhile: CubeCL 0.11 lets a kernel write into a
    /// tensor that has no other handle, also if another thread is about to queue a kernel that reads it.
    pub fn into_tensors(self) -> Vec<Tensor<1>> {
        self.tensors
    }

    /// Waits until the device has done what was queued on it when they were handed over, whatever was queued since. Returns
    /// each tensor, and its place in the device's memory. `None` if it is no device of CubeCL's.
    ///
    /// # Errors
    ///
    /// The device has failed.
    #[cfg(feature = "cube")]
    pub fn computed(self) -> Result<Option<Vec<(Tensor<1>, CubeTensor)>>, String> {
        let Some(begun) = self.begun else { return Ok(self.tensors.is_empty().then(Vec::new)) };
        let places = begun.computed()?;
        Ok(Some(self.tensors.into_iter().zip(places).collect()))
    }
}

impl fmt::Debug for Handover {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Handover({} tensors)", self.tensors.len())
    }
}

#[cfg(feature = "cube")]
mod cube {
    use std::sync::mpsc::{Receiver, channel};
    use std::sync::{Mutex, PoisonError};

    use burn::tensor::Tensor;
    use burn_cubecl::tensor::CubeTensor;
    use cubecl::future::{DynFut, block_on};
    use cubecl::server::ServerError;

    use crate::cube::{Spec, contiguous, into_dispatch, of_cube, run_now};

    type Places = (Vec<CubeTensor>, DynFut<Result<(), ServerError>>);

    pub struct PendingHandover {
        /// The tensors in the device's memory, and the end of what is queued there so far.
        places: Mutex<Receiver<Places>>,
    }

    pub fn begin(tensors: Vec<Tensor<1>>) -> (Vec<Tensor<1>>, PendingHandover) {
        let specs = tensors.iter().map(|tensor| Spec::new(tensor.shape(), tensor.dtype())).collect();
        let all = tensors.into_iter().map(Tensor::into_dispatch).collect();
        let (sender, places) = channel();
        let tensors = run_now(of_cube(all), specs, move |inputs: Vec<CubeTensor>| {
            let tensors: Vec<_> = inputs.into_iter().map(contiguous).collect();
            // Nothing receives them if they are only computed with.
            let _ = sender.send((tensors.clone(), tensors[0].client.sync()));
            tensors
        });
        let tensors = into_dispatch(tensors).into_iter().map(Tensor::from_dispatch).collect();
        (tensors, PendingHandover { places: Mutex::new(places) })
    }

    impl PendingHandover {
        pub fn computed(self) -> Result<Vec<CubeTensor>, String> {
            let places = self.places.into_inner().unwrap_or_else(PoisonError::into_inner);
            let (places, end) = places.try_recv().map_err(|_| "the device has dropped an operation")?;
            block_on(end).map_err(|error| format!("{error:?}"))?;
            Ok(places)
        }
    }
}

#[cfg(test)]
mod tests {
    #[cfg(feature = "cube")]
    use burn::tensor::TensorData;

    use super::*;
    use crate::testing;

    /// Each thread holds the same tensors and drops them at another time.
    #[test]
    fn both_threads_compute_what_one_alone_would() {
        let device = testing::device();
        for round in 0..100 {
            let shard = Tensor::<1>::ones([100], &device) * round as f32;
            let handed_over = Handover::of(vec![shard.clone(), Tensor::empty([3], &device)]);
            let stream = burn::tensor::StreamId::current();
            let there = std::thread::spawn(move || {
                stream.executes(|| {
                    let mut tensors = handed_over.into_tensors();
                    let _held = tensors.clone();
                    (tensors.remove(0) + 1.0).sum().into_scalar::<f32>()
                })
            });
            let here = (shard * 2.0).sum().into_scalar::<f32>();
            assert_eq!((here, there.join().unwrap()), (200.0 * round as f32, 100.0 * (round + 1) as f32));
        }
    }

    #[cfg(feature = "cube")]
    #[test]
    fn they_are_in_the_device_s_memory() {
        let device = testing::device();
        assert!(Handover::of(Vec::new()).computed().unwrap().unwrap().is_empty());
        let handed_over = Handover::of(vec![Tensor::<1>::ones([5], &device)]);
        let Some(there) = handed_over.computed().unwrap() else { return };
        assert_eq!(there[0].1.meta.shape().dims::<1>(), [5]);
        assert_eq!(there[0].0.to_data(), TensorData::from([1.0f32; 5]));
    }
}
