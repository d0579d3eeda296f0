//! The buffers that products keep for the life of a thread.

use std::sync::{Mutex, PoisonError};

use burn::tensor::{Device, Tensor};

use super::matmul;
use crate::device::is_flex;
use crate::memory::apart;

/// Allocates the buffers that this thread's matrix products keep for the life of the thread: on the CPU, as large as a
/// core's second-level cache. Otherwise the first measured pass on the thread would include them.
///
/// Threads that call it at the same time wait for one another, so that the operands, which have 2 MiB together, exist
/// once in the process and not once per rank.
pub fn settle_products(device: &Device) {
    static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());
    if is_flex(device) {
        let _alone = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
        // The buffers outlive the work of the thread's account.
        let _apart = apart();
        let x = Tensor::<2>::ones([128, 128], &device.clone().inner());
        // The operands' layout determines which one goes through that buffer.
        x.clone().transpose().matmul(x.clone().matmul(x.clone().transpose()));
        // Our products keep a buffer of their own.
        let x = Tensor::<2>::ones([512, 512], &device.clone().inner());
        matmul(x.clone().transpose(), x);
    }
}
