//! Checks of copies to a device and back, of tensors that another thread takes, and of packed matrices.

use std::thread;

use burn::tensor::{Bytes, DType, Device, StreamId, Tensor, TensorData};

use super::{Check, Run, Tolerance};
use crate::off::Kernel;
use crate::packed::{PackedMatrix, Packing};
use crate::{Handover, Reading, Upload, staged};

pub(super) fn checks() -> Vec<Check> {
    vec![
        Check::new("upload, handover, read", &["Upload", "Handover", "Reading"], Tolerance::EXACT, |run| {
            copies(run, [1, 4099, 96]);
        })
        .of(Kernel::Transfers),
        Check::new("data staged for a copy", &["staged"], Tolerance::EXACT, |run| up(run, 1 << 20))
            .of(Kernel::Transfers),
        Check::new("4- and 8-bit matrices", &["PackedMatrix"], Tolerance::ROUNDED, |run| {
            unpacked(run, Packing::Nf4);
            unpacked(run, Packing::Int8);
        }),
    ]
}

/// Copies tensors to the device, lets another thread take them, and reads them beside the queue.
fn copies(run: &mut Run, counts: [usize; 3]) {
    let (dtype, device) = (DType::from(run.dtype()), run.device());
    let host = counts.map(|count| TensorData::new(run.on_host(count), [count]));
    let read = move || Vec::from(host.map(|data| Tensor::<1>::from_data(data, (&Device::flex(), dtype))));
    let specs = counts.map(|count| (count, dtype)).to_vec();
    let there = match Upload::begin(specs, &device, read) {
        Ok(upload) => upload.wait().unwrap_or_else(|reason| panic!("the upload failed: {reason}")),
        Err(read) => read().into_iter().map(|tensor| tensor.to_device(&device)).collect(),
    };
    let (handed_over, stream) = (Handover::of(there), StreamId::current());
    let taken = thread::spawn(move || {
        stream.executes(|| {
            let tensors = handed_over.into_tensors();
            // Held, so that no kernel writes in their place.
            tensors.iter().map(|tensor| tensor.clone() * 2.0).collect::<Vec<_>>()
        })
    });
    let there = taken.join().unwrap_or_else(|_| panic!("the thread that took the tensors has panicked"));
    let there = match Reading::beside(&there) {
        Some(reading) => {
            let read = reading.wait().unwrap_or_else(|reason| panic!("the read failed: {reason}"));
            let tensor = |(bytes, count): (&Bytes, usize)| {
                let data = TensorData::from_bytes_vec(bytes.to_vec(), [count], dtype);
                Tensor::from_data(data, (&Device::flex(), dtype))
            };
            read.iter().zip(counts).map(tensor).collect()
        }
        None => there,
    };
    for tensor in there {
        run.result("a copy", tensor);
    }
}

/// Copies numbers to the device from memory of its own.
fn up(run: &mut Run, count: usize) {
    let (dtype, device) = (DType::from(run.dtype()), run.device());
    let host = TensorData::new(run.on_host(count), [count]).convert_dtype(dtype);
    let (bytes, shape, dtype) = host.into_parts();
    let there = TensorData::from_bytes(staged(bytes, &device), shape, dtype);
    run.result("the copy", Tensor::<1>::from_data(there, (&device, dtype)));
}

fn unpacked(run: &mut Run, packing: Packing) {
    let shape = [65, 7];
    let packed = PackedMatrix::new(packing.pack(&run.on_host(65 * 7), shape));
    let dense = packed.dense(&run.device(), run.dtype());
    run.result("the unpacked matrix", dense);
}

#[cfg(test)]
mod tests {
    use burn::tensor::FloatDType;

    use super::*;

    /// A copy is compared to the bit, so the reference must hold the numbers of each dtype.
    #[test]
    fn numbers_of_half_precision_are_exact_in_every_dtype() {
        let device = Device::flex();
        let numbers = |dtype| Run::new(&device, dtype, true, false).on_host(100);
        assert_eq!(numbers(FloatDType::F64), numbers(FloatDType::BF16));
    }
}
