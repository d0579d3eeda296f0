//! Heads: the dtypes of their gradients, their likeliest classes, and labels that they refuse.

use burn::tensor::{DType, Device, FloatDType, Tensor};

use super::{labels, waves};
use crate::loss::{Head, HeadWeight, head_loss};
use crate::testing;

#[test]
fn a_head_in_half_precision_has_gradients_in_it() {
    let device = testing::device().autodiff();
    if !device.supports_dtype(FloatDType::BF16) {
        return;
    }
    let hidden = waves([6, 4], 1, FloatDType::F32, &device).require_grad();
    let weight = waves([9, 4], 2, FloatDType::BF16, &device).require_grad();
    let head = Head { weight: HeadWeight::Embedding(weight.clone()), bias: None, cap: None };
    let loss = head_loss(hidden.clone(), &head, &labels(6, 9, 0), 0.0);
    assert_eq!(loss.dtype(), DType::F32);
    let grads = loss.backward();
    assert_eq!(hidden.grad(&grads).unwrap().dtype(), DType::F32);
    assert_eq!(weight.grad(&grads).unwrap().dtype(), DType::BF16);
}

#[test]
fn the_likeliest_class_is_that_of_all_logits() {
    let device = testing::device();
    let hidden = waves([600, 3], 1, FloatDType::F32, &device);
    let weight = waves([3, 17_000], 2, FloatDType::F32, &device);
    let head = Head { weight: HeadWeight::Linear(weight), bias: None, cap: None };
    let expected = head.logits(hidden.clone()).argmax(1).into_data();
    assert!(head.likeliest(hidden).into_data().iter::<i64>().eq(expected.iter::<i64>()));
}

#[test]
#[should_panic(expected = "found -1")]
fn a_negative_label_is_refused() {
    let device = Device::flex();
    let head = Head { weight: HeadWeight::Linear(Tensor::ones([2, 3], &device)), bias: None, cap: None };
    head_loss(Tensor::ones([1, 2], &device), &head, &[-1], 0.0);
}
