//! Reads that begin while the device still computes.

use std::fmt;

use burn::tensor::{Bytes, Tensor};

use crate::off::Kernel;

/// A read of tensors from a device, which has begun: the device copies them as soon as it has computed them, whatever is
/// queued behind them.
///
/// Burn's own reads begin when their result is first looked at, behind everything that is queued by then.
///
/// On CUDA, CubeCL 0.11 copies into pinned (page-locked) memory of its pool, while the system grants any.
pub struct Reading {
    #[cfg(feature = "cube")]
    begun: cube::PendingRead,
    #[cfg(not(feature = "cube"))]
    never: std::convert::Infallible,
}

impl Reading {
    /// Begins to read several flat tensors in f32, bf16 or f16, outside autodiff. The device copies them in its queue:
    /// what is queued behind them waits for the copies, so this is for a few numbers. Returns `None` if they are not on one
    /// device of CubeCL's, such as a GPU: other reads wait for nothing that runs beside the program.
    ///
    /// ```
    /// use burn::tensor::{Device, Tensor};
    /// use firebrick_kernels::Reading;
    ///
    /// assert!(Reading::begin(&[Tensor::from_data([1.0], &Device::flex())]).is_none());
    /// ```
    pub fn begin(tensors: &[Tensor<1>]) -> Option<Self> {
        Self::new(tensors, false)
    }

    /// Like [`begin`](Self::begin), but the device copies in a queue of its own, beside what it computes. This is for large
    /// tensors. Until [`wait`](Self::wait), they are held.
    pub fn beside(tensors: &[Tensor<1>]) -> Option<Self> {
        Self::new(tensors, true)
    }

    fn new(tensors: &[Tensor<1>], beside: bool) -> Option<Self> {
        if Kernel::Transfers.is_off() {
            return None;
        }
        #[cfg(feature = "cube")]
        return Some(Self { begun: cube::PendingRead::new(tensors, beside)? });
        #[cfg(not(feature = "cube"))]
        {
            let _ = (tensors, beside);
            None
        }
    }

    /// Waits for the bytes of each tensor, in order. They are in memory of the device's pool, which nothing else uses until
    /// you drop them: drop them soon, since later copies need it.
    ///
    /// # Errors
    ///
    /// The device has failed: its message.
    pub fn wait(self) -> Result<Vec<Bytes>, String> {
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
    use std::sync::mpsc::{Receiver, SendError, TryRecvError, channel};
    use std::sync::{Mutex, OnceLock, PoisonError};
    use std::task::{Context, Poll, Waker};

    use burn::tensor::{Bytes, Device, Tensor};
    use burn_backend::StreamId;
    use burn_cubecl::tensor::CubeTensor;
    use cubecl::future::{DynFut, block_on};
    use cubecl::server::{CopyDescriptor, ServerError};

    use crate::cube::{contiguous, has_kernels, of_cube, run_many, run_now};

    type Copies = DynFut<Result<Vec<Bytes>, ServerError>>;

    /// The queue of copies beside the computation, on every device.
    static BESIDE: OnceLock<StreamId> = OnceLock::new();

    pub struct PendingRead {
        /// The copies, as soon as the queue has reached them. In a mutex, so that the read can be shared.
        copies: Mutex<Receiver<Copies>>,
        device: Device,
    }

    impl PendingRead {
        pub fn new(tensors: &[Tensor<1>], beside: bool) -> Option<Self> {
            let device = tensors.first()?.device();
            let all: Vec<_> = tensors.iter().map(|tensor| tensor.clone().into_dispatch()).collect();
            if !has_kernels(&all) {
                return None;
            }
            let (sender, copies) = channel();
            let host = move |inputs: Vec<CubeTensor>| {
                let client = inputs[0].client.clone();
                let inputs: Vec<_> = inputs.into_iter().map(contiguous).collect();
                let copied = |tensor: &CubeTensor| {
                    let (shape, strides) = (tensor.meta.shape().clone(), tensor.meta.strides().clone());
                    CopyDescriptor::new(tensor.handle.clone().binding(), shape, strides, tensor.elem_size())
                };
                let descriptors: Vec<_> = inputs.iter().map(copied).collect();
                let mut copies: Copies = Box::pin(async move {
                    let begun = client.read_tensor_async(descriptors);
                    let mut is_later = false;
                    let later = |_: &mut Context<'_>| match replace(&mut is_later, true) {
                        true => Poll::Ready(()),
                        false => Poll::Pending,
                    };
                    poll_fn(later).await;
                    let read = begun.await;
                    // While a copy beside the queue goes on, no kernel of the queue may write into the tensors: it would,
                    // if nothing else held them.
                    drop(inputs);
                    read
                });
                // The first poll queues the copies and ends before it waits for them.
                let mut begin = || copies.as_mut().poll(&mut Context::from_waker(Waker::noop()));
                let _ = match beside {
                    false => begin(),
                    true => BESIDE.get_or_init(StreamId::allocate).executes(begin),
                };
                // Nothing receives the copies if the reading was dropped.
                if let Err(SendError(copies)) = sender.send(copies) {
                    end(copies);
                }
                Vec::new()
            };
            match beside {
                false => run_many(of_cube(all), Vec::new(), host),
                true => run_now(of_cube(all), Vec::new(), host),
            };
            Some(Self { copies: Mutex::new(copies), device })
        }

        pub fn wait(mut self) -> Result<Vec<Bytes>, String> {
            let copies = self.copies.get_mut().unwrap_or_else(PoisonError::into_inner);
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
            block_on(copies).map_err(|error| format!("{error:?}"))
        }
    }

    impl Drop for PendingRead {
        fn drop(&mut self) {
            let copies = self.copies.get_mut().unwrap_or_else(PoisonError::into_inner);
            if let Ok(copies) = copies.try_recv() {
                end(copies);
            }
        }
    }

    /// Waits for copies that nobody looks at: what they write is free memory afterwards.
    fn end(copies: Copies) {
        let _ = block_on(copies);
    }
}
