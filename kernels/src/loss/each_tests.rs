//! The losses of rows, against the equation.

use burn::tensor::activation::log_softmax;
use burn::tensor::{FloatDType, Int, Tensor, TensorData};

use super::tests::{labels, near, values, waves};
use super::{Head, HeadWeight, head_loss, head_losses};
use crate::testing;

/// The losses as the equation says, in f64.
fn composed(logits: Tensor<2>, labels: &[i32]) -> Tensor<1> {
    let labels = Tensor::<1, Int>::from_data(TensorData::from(labels), &logits.device());
    let ignored = labels.clone().lower_elem(0);
    let picked = labels.mask_fill(ignored.clone(), 0).unsqueeze_dim(1);
    log_softmax(logits, 1).gather(1, picked).squeeze_dim::<1>(1).neg().mask_fill(ignored, 0.0)
}

#[test]
fn each_loss_and_its_gradients_equal_the_equation() {
    let device = testing::device().autodiff();
    let (width, classes) = (5, 301);
    for (rows, ignored, [transposed, biased], cap) in [
        (7, 0, [true, false], None),
        (600, 3, [false, true], Some(0.8)),
        (1, 0, [true, true], None),
        (3, 1, [false, false], Some(2.0)),
    ] {
        let given = labels(rows, classes, ignored);
        let of_device =
            testing::computed([(FloatDType::F32, 1e-5), (FloatDType::BF16, 2e-2), (FloatDType::F16, 3e-3)]);
        for (dtype, share) in of_device {
            let hidden = waves([rows, width], 1, dtype, &device).require_grad();
            let shape = if transposed { [classes, width] } else { [width, classes] };
            let weight = waves(shape, 2, dtype, &device).require_grad();
            let bias = waves([classes], 3, dtype, &device).require_grad();
            // Gradients of all sizes, and some of 0: large ones would overflow in f16.
            let by = waves([rows], 4, FloatDType::F32, &device).powi_scalar(3) * 1e3;
            let run = |wide: bool| {
                let cast = |x: FloatDType| if wide { FloatDType::F32 } else { x };
                let own = weight.clone().cast(cast(dtype));
                let head = Head {
                    weight: match transposed {
                        true => HeadWeight::Embedding(own),
                        false => HeadWeight::Linear(own),
                    },
                    bias: biased.then(|| bias.clone().cast(cast(dtype))),
                    cap,
                };
                let hidden = hidden.clone().cast(cast(dtype));
                match wide {
                    true => composed(head.logits(hidden), &given),
                    false => head_losses(hidden, &head, &given),
                }
            };
            let about = format!("{rows} {dtype:?} {transposed} {biased}");
            let mut results = Vec::new();
            for wide in [false, true] {
                let losses = run(wide);
                let grads = (losses.clone() * by.clone()).sum().backward();
                let grad = |x: Option<Tensor<2>>| x.map(values).unwrap_or_default();
                let of_bias = if biased { bias.grad(&grads).map(values).unwrap_or_default() } else { vec![] };
                results.push([values(losses), grad(hidden.grad(&grads)), grad(weight.grad(&grads)), of_bias]);
            }
            for (at, (found, expected)) in results[0].iter().zip(&results[1]).enumerate() {
                near(found, expected, share, &format!("{about}: {at}"));
            }
            assert_eq!(results[0][3].is_empty(), !biased, "{about}");
        }
    }
}

/// Losses of rows have the sum of a head's loss, in one chunk and in several.
#[test]
fn the_losses_add_up_to_the_sum() {
    let device = testing::device();
    let weight: Tensor<2> = waves([20_000, 3], 2, FloatDType::F32, &device);
    let head = Head { weight: HeadWeight::Embedding(weight), bias: None, cap: None };
    let given = labels(700, 20_000, 5);
    let hidden = waves([700, 3], 1, FloatDType::F32, &device);
    let sum = values(head_loss(hidden.clone(), &head, &given, 0.0));
    let losses = values(head_losses(hidden, &head, &given));
    assert!(losses.iter().zip(&given).all(|(loss, label)| (*loss == 0.0) == (*label < 0)));
    near(&[losses.iter().sum()], &sum, 1e-6, "the sum");
}
