use burn::tensor::{DType, Device, FloatDType, Tensor, TensorData};

use super::Upload;
use crate::testing;

/// Tensors in host memory, of odd lengths and two dtypes, one of them a part of another tensor.
fn on_host(from: f32) -> Vec<Tensor<1>> {
    let host = Device::flex();
    let narrow =
        if testing::device().supports_dtype(DType::BF16) { FloatDType::BF16 } else { FloatDType::F16 };
    let of = |elements: usize| {
        let values: Vec<f32> = (0..elements).map(|at| from + at as f32).collect();
        Tensor::<1>::from_data(TensorData::new(values, [elements]), &host)
    };
    vec![of(3), of(7).cast(narrow), of(1), of(70_001), of(10).narrow(0, 3, 5), of(2).cast(narrow)]
}

fn kinds(tensors: &[Tensor<1>]) -> Vec<(usize, DType)> {
    tensors.iter().map(|tensor| (tensor.dims()[0], tensor.dtype())).collect()
}

fn data(tensors: Vec<Tensor<1>>) -> Vec<TensorData> {
    tensors.into_iter().map(Tensor::into_data).collect()
}

fn begun(tensors: Vec<Tensor<1>>) -> Option<Upload> {
    let begun = Upload::begin(kinds(&tensors), &testing::device(), move || tensors);
    assert_eq!(begun.is_err(), testing::device() == Device::flex(), "the CPU has them already");
    begun.ok()
}

/// Each upload takes the memory that the one before leaves, while the device still computes from it. The sums of two rounds
/// differ by more than what an order of adding changes.
#[test]
fn tensors_arrive_beside_what_the_device_computes() {
    let device = testing::device();
    let mut sums = Vec::new();
    let of_round = |round: usize| on_host(100.0 * round as f32);
    let mut next = begun(of_round(0));
    for round in 1..20 {
        let Some(upload) = next.take() else { return };
        let there = upload.wait().unwrap();
        assert!(there.iter().all(|tensor| tensor.device() == device));
        next = begun(of_round(round));
        let factors = Tensor::<1>::ones([70_001], &device) * 0.5;
        let sum = (there[3].clone() * factors).sum() + there[4].clone().sum();
        sums.push(sum + there[1].clone().cast(FloatDType::F32).sum());
    }
    let sums: Vec<f32> = sums.into_iter().map(Tensor::into_scalar).collect();
    for (round, sum) in sums.into_iter().enumerate() {
        let of = data(of_round(round));
        let add = |data: &TensorData| data.iter::<f64>().sum::<f64>();
        let expected = 0.5 * add(&of[3]) + add(&of[4]) + add(&of[1]);
        assert!((f64::from(sum) / expected - 1.0).abs() < 1e-4, "round {round}: {sum}, {expected}");
    }
    let Some(last) = next else { return };
    assert_eq!(data(last.wait().unwrap()), data(of_round(19)));
}

#[test]
fn an_upload_that_nobody_waits_for_changes_nothing() {
    let mut kept = Vec::new();
    for _ in 0..20 {
        if begun(on_host(1.0)).is_none() {
            return;
        }
        // In memory that may be what the upload has left.
        kept.push(on_host(2.0).remove(3).to_device(&testing::device()));
    }
    for there in kept {
        assert_eq!(there.into_data(), on_host(2.0).remove(3).into_data());
    }
}

#[test]
fn what_cannot_be_read_is_an_error() {
    let of = |elements| vec![(elements, DType::F32)];
    let one = || vec![Tensor::<1>::ones([1], &Device::flex())];
    for elements in [2, 1] {
        let read = move || if elements == 1 { panic!("the disk is gone") } else { one() };
        let Ok(upload) = Upload::begin(of(elements), &testing::device(), read) else { return };
        assert!(upload.wait().unwrap_err().contains("has panicked"));
    }
    assert!(Upload::begin(Vec::new(), &testing::device(), Vec::new).is_err());
    assert!(Upload::begin(vec![(1, DType::F64)], &testing::device(), one).is_err());
    assert!(Upload::begin(vec![(1 << 50, DType::F32)], &testing::device(), one).is_err());
}
