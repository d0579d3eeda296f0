//! Losses of rows on a device: kernels for the rows, and Burn's products.

use burn::backend::tensor::FloatTensor;
use burn::backend::{Cube, TensorMetadata};
use burn::tensor::DType;

use super::cube_rows::{Form, losses_of, slopes_of};
use super::rows::{self, Before, Labels, LossRows, Parts, added, biased};
use crate::cube::{Spec, run, sums_in, total};
use crate::half::wide;
use crate::many::joined_and_scaled;
use crate::off::Kernel;
use crate::product::{ProductOps, cube_add_product, cube_wide_product};

impl LossRows for Cube {
    fn losses(
        before: Before<Self>,
        logits: FloatTensor<Self>,
        bias: Option<FloatTensor<Self>>,
        labels: Labels<Self>,
        smoothing: f64,
    ) -> (FloatTensor<Self>, FloatTensor<Self>) {
        if !computes(&logits) {
            let (sum, logarithms) = rows::losses::<Self>(biased::<Self>(logits, bias), labels, smoothing);
            return (added::<Self>(before.losses, sum), logarithms);
        }
        let logarithms = Spec::new([logits.shape()[0], 1], DType::F32);
        let outputs = [Spec::new([before.rows], DType::F32), logarithms];
        let (inputs, form) = collected(before, logits, bias, labels, smoothing);
        let [losses, logarithms] = run(inputs, outputs, move |inputs| losses_of(inputs, form, false));
        (losses, logarithms)
    }

    /// Adds the losses of all rows, unless there is one row or they have been added with Burn's operations.
    fn total(losses: FloatTensor<Self>) -> FloatTensor<Self> {
        let rows = losses.shape()[0];
        if rows == 1 {
            return losses;
        }
        let [sum] = run(vec![losses], [Spec::new([1], DType::F32)], move |inputs| {
            let [losses] = inputs.try_into().expect("one input");
            [total(losses, rows, false)]
        });
        sum
    }

    fn slopes(
        logits: FloatTensor<Self>,
        logarithms: FloatTensor<Self>,
        labels: Labels<Self>,
        smoothing: f64,
        by: FloatTensor<Self>,
    ) -> FloatTensor<Self> {
        if !computes(&logits) {
            let dtype = logits.dtype();
            return rows::scaled::<Self>(
                rows::slopes::<Self>(logits, logarithms, labels, smoothing),
                by,
                dtype,
            );
        }
        let output = Spec::new(logits.shape(), logits.dtype());
        let [slopes] = run(vec![logits, logarithms, labels.0, by], [output], move |inputs| {
            [slopes_of(inputs, smoothing as f32)]
        });
        slopes
    }

    fn losses_and_slopes(
        before: Before<Self>,
        logits: FloatTensor<Self>,
        bias: Option<FloatTensor<Self>>,
        labels: Labels<Self>,
        smoothing: f64,
    ) -> (FloatTensor<Self>, FloatTensor<Self>) {
        if !computes(&logits) {
            return rows::losses_and_slopes::<Self>(before, logits, bias, labels, smoothing);
        }
        let slopes = Spec::new(logits.shape(), logits.dtype());
        let outputs = [Spec::new([before.rows], DType::F32), slopes];
        let (inputs, form) = collected(before, logits, bias, labels, smoothing);
        let [losses, slopes] = run(inputs, outputs, move |inputs| losses_of(inputs, form, true));
        (losses, slopes)
    }

    fn sum_over_rows(slopes: FloatTensor<Self>) -> FloatTensor<Self> {
        if !computes(&slopes) {
            return Self::column_sums(wide::<Self>(slopes));
        }
        let output = Spec::new([slopes.shape()[1]], DType::F32);
        let [sums] = run(vec![slopes], [output], |inputs| {
            let [slopes] = inputs.try_into().expect("one input");
            [sums_in(slopes, DType::F32)]
        });
        sums
    }

    /// Returns the sums as the device holds them, in f32. In f16 they would overflow, as a slope may be 2¹⁵.
    fn wide_product(lhs: FloatTensor<Self>, rhs: FloatTensor<Self>) -> FloatTensor<Self> {
        match lhs.dtype() {
            DType::F32 | DType::F16 | DType::BF16 => cube_wide_product(lhs, rhs),
            _ => Self::product(lhs, rhs),
        }
    }

    fn add_product(
        total: Option<FloatTensor<Self>>,
        lhs: FloatTensor<Self>,
        rhs: FloatTensor<Self>,
    ) -> FloatTensor<Self> {
        match total {
            Some(total) if total.dtype() == DType::F32 => cube_add_product(total, lhs, rhs),
            total => added::<Self>(total, Self::wide_product(lhs, rhs)),
        }
    }

    fn scaled(all: Vec<(Parts<Self>, DType)>, by: FloatTensor<Self>) -> Vec<FloatTensor<Self>> {
        let narrow = |dtype| matches!(dtype, DType::F32 | DType::F16 | DType::BF16);
        match all.iter().all(|(parts, dtype)| narrow(*dtype) && parts.iter().all(computes)) {
            true => joined_and_scaled(all, by),
            false => {
                let one =
                    |(parts, dtype)| rows::scaled::<Self>(rows::joined::<Self>(parts), by.clone(), dtype);
                all.into_iter().map(one).collect()
            }
        }
    }
}

/// The number of buffers that the kernel of the losses binds, including its scalars. Some devices of wgpu bind at most 8.
const BUFFERS: u32 = 7;

/// Returns whether the kernels compute these rows. An empty grid cannot be launched, and sums of f64 are in f64.
fn computes(x: &FloatTensor<Cube>) -> bool {
    x.shape().num_elements() > 0
        && !Kernel::Losses.is_off()
        && matches!(x.dtype(), DType::F32 | DType::F16 | DType::BF16)
        && x.device().client().properties().hardware.max_bindings >= BUFFERS
}

/// Returns the tensors in the order in which the kernel takes them.
fn collected(
    Before { losses, row, rows }: Before<Cube>,
    logits: FloatTensor<Cube>,
    bias: Option<FloatTensor<Cube>>,
    labels: Labels<Cube>,
    smoothing: f64,
) -> (Vec<FloatTensor<Cube>>, Form) {
    let form =
        Form { biased: bias.is_some(), is_first: losses.is_none(), row, rows, smoothing: smoothing as f32 };
    (vec![logits, labels.0].into_iter().chain(bias).chain(losses).collect(), form)
}
