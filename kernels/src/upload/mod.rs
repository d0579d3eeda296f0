//! Copies of tensors to a device, beside what the device computes.

#[cfg(feature = "cube")]
mod joined;
#[cfg(test)]
mod tests;

use std::fmt;

use burn::tensor::{Bytes, DType, Device, Tensor};

use crate::off::Kernel;

/// Copies data that go up to a device into memory from which it can copy by itself, on CUDA pinned (page-locked) memory. The
/// thread that feeds the device would do it otherwise, and launch nothing meanwhile. Returns the data as they are if they are
/// fewer than 1 MiB, or if there is no such memory.
///
/// ```
/// use burn::tensor::{Bytes, Device};
///
/// let data = firebrick_kernels::staged(Bytes::from_bytes_vec(vec![1, 2]), &Device::flex());
/// assert_eq!(data[..], [1, 2]);
/// ```
pub fn staged(data: Bytes, to: &Device) -> Bytes {
    #[cfg(feature = "cube")]
    return cube::staged(data, to);
    #[cfg(not(feature = "cube"))]
    {
        let _ = to;
        data
    }
}

/// Flat tensors on their way from host memory to a device, in one copy and a queue of its own.
///
/// The copy begins when the device has computed what was queued before it, so the memory that this frees can take it, and
/// goes on beside what is queued after it. Another thread reads the tensors and joins them, on CUDA in pinned
/// (page-locked) memory of CubeCL's pool, while the system grants any.
///
/// ```
/// use burn::tensor::{DType, Device, Tensor};
/// use firebrick_kernels::Upload;
///
/// // On the CPU, they are there already.
/// let read = || vec![Tensor::<1>::ones([2], &Device::flex())];
/// assert!(Upload::begin(vec![(2, DType::F32)], &Device::flex(), read).is_err());
/// ```
pub struct Upload {
    #[cfg(feature = "cube")]
    begun: cube::PendingUpload,
    #[cfg(not(feature = "cube"))]
    never: std::convert::Infallible,
}

impl Upload {
    /// Begins to copy tensors, each with so many elements of a dtype, which `read` returns from host memory, outside
    /// autodiff.
    ///
    /// # Errors
    ///
    /// `read` itself, which was not called, if there are no elements, if some are not in f32, bf16 or f16, if they are more
    /// than the device has in one buffer, if transfers are [off](crate::off), or if `to` is no device of CubeCL's, such as a GPU.
    pub fn begin<F>(tensors: Vec<(usize, DType)>, to: &Device, read: F) -> Result<Self, F>
    where
        F: FnOnce() -> Vec<Tensor<1>> + Send + 'static,
    {
        if Kernel::Transfers.is_off() {
            return Err(read);
        }
        #[cfg(feature = "cube")]
        return Ok(Self { begun: cube::PendingUpload::new(tensors, to, read)? });
        #[cfg(not(feature = "cube"))]
        {
            let _ = (tensors, to);
            Err(read)
        }
    }

    /// Waits until the copy is queued, which takes as long as the host takes to read the tensors, and returns them. What
    /// the device computes from them waits for the copy.
    ///
    /// # Errors
    ///
    /// They could not be read, or the device has failed.
    pub fn wait(self) -> Result<Vec<Tensor<1>>, String> {
        #[cfg(feature = "cube")]
        return self.begun.wait();
        #[cfg(not(feature = "cube"))]
        match self.never {}
    }
}

impl fmt::Debug for Upload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Upload")
    }
}

#[cfg(feature = "cube")]
mod cube {
    use std::ops::Range;
    use std::panic::{AssertUnwindSafe, catch_unwind};
    use std::sync::mpsc::{Receiver, channel};
    use std::sync::{Mutex, OnceLock, PoisonError};
    use std::thread;

    use burn::backend::tensor::FloatTensor;
    use burn::backend::{Cube, DispatchDevice};
    use burn::tensor::{AllocationProperty, Bytes, DType, Device, Shape, Tensor};
    use burn_backend::StreamId;
    use burn_cubecl::tensor::CubeTensor;
    use cubecl::client::Client;
    use cubecl::server::Handle;

    use super::joined::joined;
    use crate::cube::{Spec, into_dispatch, of_cube, run_many, run_now};
    use crate::memory::Inherited;
    use crate::off::Kernel;

    /// The queue of copies beside the computation, on every device.
    static BESIDE: OnceLock<StreamId> = OnceLock::new();

    pub struct PendingUpload {
        tensors: Vec<FloatTensor<Cube>>,
        specs: Vec<Spec>,
        /// Memory of the copies' queue, as soon as the copy is queued.
        queued: Mutex<Receiver<Result<Handle, &'static str>>>,
    }

    impl PendingUpload {
        pub fn new<F>(tensors: Vec<(usize, DType)>, to: &Device, read: F) -> Result<Self, F>
        where
            F: FnOnce() -> Vec<Tensor<1>> + Send + 'static,
        {
            let is_float =
                |(_, dtype): &(usize, DType)| matches!(dtype, DType::F32 | DType::F16 | DType::BF16);
            let device = to.clone().inner();
            if !tensors.iter().all(is_float) {
                return Err(read);
            }
            let DispatchDevice::Cube(cube) = device.as_dispatch() else { return Err(read) };
            let memory = cube.client().properties().memory.clone();
            let (places, bytes) = places(&tensors, memory.alignment as usize);
            if bytes == 0 || bytes as u64 > memory.max_page_size {
                return Err(read);
            }
            let like = vec![Tensor::<1>::empty([1], &device).into_dispatch()];
            let specs: Vec<_> =
                tensors.iter().map(|(elements, dtype)| Spec::new([*elements], *dtype)).collect();
            let (sender, queued) = channel();
            let work = Mutex::new(Some((read, sender, Inherited::of_this_thread())));
            let tensors = run_now(of_cube(like), specs.clone(), move |inputs: Vec<CubeTensor>| {
                let CubeTensor { client, device, .. } = &inputs[0];
                // Memory of the queue that computes: what is queued there later may take it once the tensors are dropped.
                let whole = client.empty(bytes);
                let beside = *BESIDE.get_or_init(StreamId::allocate);
                beside.executes(|| wait_for(client, &whole));
                let part = |((elements, dtype), place): (&(usize, DType), &Range<usize>)| {
                    let handle = whole.clone().offset_start(place.start as u64);
                    let handle = handle.offset_end((bytes - place.end) as u64);
                    let shape = Shape::from([*elements]);
                    CubeTensor::new_contiguous(client.clone(), device.clone(), shape, handle, *dtype)
                };
                let parts = tensors.iter().zip(&places).map(part).collect();
                let work = work.lock().unwrap_or_else(PoisonError::into_inner).take();
                if let Some((read, queued, account)) = work {
                    let client = client.clone();
                    let (whole, places) = (whole.clone(), places.clone());
                    thread::spawn(move || {
                        let _on_it = account.enter();
                        let copy = || beside.executes(|| copy(&client, &whole, read(), places));
                        // A panic has been printed. Nothing receives the memory if the upload was dropped.
                        let copied = catch_unwind(AssertUnwindSafe(copy));
                        let panicked = "the thread that reads its tensors has panicked";
                        let _ = queued.send(copied.map_err(|_| panicked));
                    });
                }
                parts
            });
            Ok(Self { tensors, specs, queued: Mutex::new(queued) })
        }

        pub fn wait(self) -> Result<Vec<Tensor<1>>, String> {
            let queued = self.queued.into_inner().unwrap_or_else(PoisonError::into_inner);
            let after = queued.recv().map_err(|_| "the device has dropped an upload")??;
            let there = run_many(self.tensors, self.specs, move |inputs: Vec<CubeTensor>| {
                wait_for(&inputs[0].client, &after);
                inputs
            });
            Ok(into_dispatch(there).into_iter().map(Tensor::from_dispatch).collect())
        }
    }

    /// The fewest bytes that are staged here: fewer are copied sooner than the thread that feeds the device answers.
    const STAGED: usize = if cfg!(test) { 4 } else { 1 << 20 };

    /// See [`staged`](super::staged).
    pub fn staged(mut data: Bytes, to: &Device) -> Bytes {
        let device = to.clone().inner();
        if let DispatchDevice::Cube(cube) = device.as_dispatch()
            && data.len() >= STAGED
            && !Kernel::Transfers.is_off()
        {
            cube.client().staging(std::iter::once(&mut data), false);
        }
        data
    }

    /// Queues the copy of tensors to their places in memory of the device. Returns memory of the current queue.
    fn copy(client: &Client, to: &Handle, tensors: Vec<Tensor<1>>, places: Vec<Range<usize>>) -> Handle {
        let mut data = joined(tensors, places, to.size_in_used() as usize);
        client.staging(std::iter::once(&mut data), false);
        if data.property() == AllocationProperty::Other {
            // The device has no staging memory: they are joined here, and not in the thread that feeds the device.
            data = Bytes::from_bytes_vec(data.to_vec());
        }
        client.write(to, data);
        client.empty(1)
    }

    /// Makes the current queue wait for what is queued where this memory was allocated, by a write of nothing.
    fn wait_for(client: &Client, memory: &Handle) {
        let nothing = memory.clone().offset_end(memory.size_in_used());
        client.write(&nothing, Bytes::from_bytes_vec(Vec::new()));
    }

    /// Returns the bytes of each tensor in a buffer, and those of the buffer.
    fn places(tensors: &[(usize, DType)], alignment: usize) -> (Vec<Range<usize>>, usize) {
        let mut end = 0;
        let places = tensors.iter().map(|(elements, dtype)| {
            let start = end;
            let bytes = elements * dtype.size();
            end = (start + bytes).next_multiple_of(alignment.max(size_of::<f32>()));
            start..start + bytes
        });
        let places = places.collect();
        (places, end)
    }
}
