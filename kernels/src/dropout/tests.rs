use burn::tensor::{Device, FloatDType, Tensor, TensorData};

use super::*;
use crate::{Draws, cast};

const DTYPES: [FloatDType; 3] = [FloatDType::F32, FloatDType::BF16, FloatDType::F16];

fn site(samples: &Samples) -> Site<'_> {
    Site { draws: Draws { seed: 3, epoch: 1, first: 5 }, number: 2, samples, from: 0 }
}

fn waves<const D: usize>(shape: [usize; D], dtype: FloatDType, device: &Device) -> Tensor<D> {
    let values: Vec<f32> = (0..shape.iter().product()).map(|i: usize| 1.0 + (i as f32).sin() / 2.0).collect();
    cast(Tensor::from_data(TensorData::new(values, shape), device), dtype)
}

fn values<const D: usize>(x: Tensor<D>) -> Vec<f32> {
    x.into_data().iter().collect()
}

/// Values and gradients are those of the composed operations with the same mask, for lines shorter and longer than a
/// block, positions from a start, and views.
#[test]
fn one_pass_drops_as_the_mask_says() {
    let device = Device::flex().autodiff();
    let samples = Samples::Starting([0, 3, 1].into());
    for dtype in DTYPES {
        for (shape, positions) in [([3, 7, 5], &[1usize][..]), ([3, 4, 700], &[1, 2]), ([3, 90, 1], &[1])] {
            let x = waves(shape, dtype, &device).require_grad();
            let y = dropout(x.clone(), 0.3, positions, site(&samples));
            let grads = cast(y.clone(), FloatDType::F32).sum().backward();

            let positions = super::counted(positions, &site(&samples));
            let (places, threshold) = places(shape, 0.3, &positions, site(&samples)).unwrap();
            let dropped = DropMask::new(&places, threshold, 1.0).dropped();
            assert!(dropped.iter().any(|x| *x) && !dropped.iter().all(|x| *x));
            let factor = |dropped: &bool| if *dropped { 0.0 } else { 1.0 / 0.7f32 };
            let round = |x: Vec<f32>| {
                values(cast(Tensor::<1>::from_data(TensorData::from(&x[..]), &Device::flex()), dtype))
            };
            let expected = values(x.clone()).iter().zip(&dropped).map(|(x, at)| x * factor(at)).collect();
            assert_eq!(values(y), round(expected));
            let expected = round(dropped.iter().map(factor).collect());
            assert_eq!(values(x.grad(&grads).unwrap()), expected);
        }
        let x = waves([4, 6, 40], dtype, &device);
        let turned = x.clone().swap_dims(1, 2);
        let copied = Tensor::<3>::from_data(turned.clone().into_data(), &device);
        let [of_view, of_copy] =
            [turned, copied].map(|x| values(dropout(x, 0.5, &[], site(&Samples::Columns))));
        assert_eq!(of_view, of_copy);
    }
}

#[test]
fn infinities_are_dropped_and_nan_kept_on() {
    let x = Tensor::<2>::full([2, 100], f32::INFINITY, &Device::flex());
    let y = values(dropout(x, 0.5, &[], site(&Samples::Columns)));
    assert!(y.contains(&0.0) && y.contains(&f32::INFINITY) && !y.iter().any(|x| x.is_nan()));
    let y = values(dropout(
        Tensor::<2>::full([2, 100], f32::NAN, &Device::flex()),
        0.5,
        &[],
        site(&Samples::Columns),
    ));
    assert!(y.contains(&0.0) && y.iter().any(|x| x.is_nan()));
}

#[test]
fn nothing_is_dropped_from_no_elements_or_without_a_probability() {
    let device = Device::flex();
    assert_eq!(
        dropout(Tensor::<2>::zeros([0, 3], &device), 0.5, &[], site(&Samples::Columns)).dims(),
        [0, 3]
    );
    let x = waves([2, 3], FloatDType::F32, &device);
    assert_eq!(values(dropout(x.clone(), 0.0, &[], site(&Samples::Columns))), values(x));
}
