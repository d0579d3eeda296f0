//! Reads that begin while the device still computes.

use std::fmt;

use burn::tensor::Tensor;

/// A read of numbers from a device, which has begun: the device copies them as soon as it has computed them, and computes
/// what is queued behind them meanwhile.
///
/// Burn's own reads begin when their result is first looked at, behind everything that is queued by then.
pub struct Reading {
    #[cfg(feature = "cube")]
    begun: cube::Begun,
    #[cfg(not(feature = "cube"))]
    never: std::convert::Infallible,
}

impl Reading {
    /// Begins to read the numbers of several tensors, each `[1]` in f32, outside autodiff. Returns `None` if they are not
    /// on one device of CubeCL's, such as a GPU: other reads wait for nothing that runs beside the program.
    ///
    /// ```
    /// use burn::tensor::{Device, Tensor};
    /// use firebrick_kernels::Reading;
    ///
    /// assert!(Reading::begin(&[Tensor::from_data([1.0], &Device::flex())]).is_none());
    /// ```
    pub fn begin(numbers: &[Tensor<1>]) -> Option<Self> {
        #[cfg(feature = "cube")]
        return Some(Self { begun: cube::Begun::new(numbers)? });
        #[cfg(not(feature = "cube"))]
        {
            let _ = numbers;
            None
        }
    }

    /// Waits for the numbers, in the order of the tensors.
    ///
    /// # Errors
    ///
    /// The device has failed: its message.
    pub fn wait(self) -> Result<Vec<f32>, String> {
        #[cfg(feature = "cube")]
        return self.begun.wait();
        #[cfg(not(feature = "cube"))]
        match self.never {}
    }
}

impl fmt::Debug for Reading {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Reading")
    }
}

#[cfg(feature = "cube")]
mod cube {
    use std::future::poll_fn;
    use std::mem::replace;
    use std::sync::mpsc::{Receiver, TryRecvError, channel};
    use std::sync::{Mutex, PoisonError};
    use std::task::{Context, Poll, Waker};

    use burn::tensor::{Bytes, DType, Device, Tensor};
    use burn_cubecl::tensor::CubeTensor;
    use cubecl::future::{DynFut, block_on};
    use cubecl::server::ServerError;

    use crate::cube::{contiguous, has_kernels, of_cube, run_many};

    type Copies = DynFut<Result<Vec<Bytes>, ServerError>>;

    pub struct Begun {
        /// The copies, as soon as the queue has reached them. In a mutex, so that the read can be shared.
        copies: Mutex<Receiver<Copies>>,
        device: Device,
    }

    impl Begun {
        pub fn new(numbers: &[Tensor<1>]) -> Option<Self> {
            let device = numbers.first()?.device();
            let all: Vec<_> = numbers.iter().map(|number| number.clone().into_dispatch()).collect();
            let fits = numbers.iter().all(|number| number.dtype() == DType::F32 && number.dims() == [1]);
            if !fits || !has_kernels(&all) {
                return None;
            }
            let (sender, copies) = channel();
            run_many(of_cube(all), Vec::new(), move |inputs: Vec<CubeTensor>| {
                let client = inputs[0].client.clone();
                let handles = inputs.into_iter().map(|number| contiguous(number).handle).collect();
                let mut copies: Copies = Box::pin(async move {
                    let begun = client.read_async(handles);
                    let mut is_later = false;
                    let later = |_: &mut Context<'_>| match replace(&mut is_later, true) {
                        true => Poll::Ready(()),
                        false => Poll::Pending,
                    };
                    poll_fn(later).await;
                    begun.await
                });
                // The first poll queues the copies and ends before it waits for them.
                let _ = copies.as_mut().poll(&mut Context::from_waker(Waker::noop()));
                // Nothing receives the copies if the reading was dropped.
                let _ = sender.send(copies);
                Vec::new()
            });
            Some(Self { copies: Mutex::new(copies), device })
        }

        pub fn wait(self) -> Result<Vec<f32>, String> {
            let copies = self.copies.into_inner().unwrap_or_else(PoisonError::into_inner);
            let failed = |error: &dyn std::fmt::Display| error.to_string();
            let copies: Copies = match copies.try_recv() {
                Ok(copies) => copies,
                Err(TryRecvError::Disconnected) => return Err("the device has dropped a read".into()),
                Err(TryRecvError::Empty) => {
                    // Its operation is still queued on the host.
                    self.device.flush().map_err(|error| failed(&error))?;
                    copies.recv().map_err(|error| failed(&error))?
                }
            };
            let read = block_on(copies).map_err(|error| format!("{error:?}"))?;
            Ok(read.into_iter().map(|bytes| bytemuck::pod_read_unaligned(&bytes[..4])).collect())
        }
    }
}
