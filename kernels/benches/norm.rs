//! Compares norms of a sum with the same in Burn's operations, forward and with backward, and prints a line of JSON for
//! each.

#[path = "../../benches/beside/mod.rs"]
mod beside;

use beside::{beside, finish};
use burn::tensor::{Device, Distribution, FloatDType, Tensor, module::layer_norm};
use firebrick_kernels::{NormKind, cast, memory, norm_of_sum};
use serde_json::json;

/// The hidden state of a small GPT: 8 rows of 256 tokens, 256 wide.
const SHAPE: [usize; 2] = [8 * 256, 256];

/// Returns the sum and its norm, as models computed them with Burn's operations.
fn composed(
    x: Tensor<2>,
    y: Tensor<2>,
    scale: Tensor<1>,
    bias: Tensor<1>,
    kind: NormKind,
) -> (Tensor<2>, Tensor<2>) {
    let (sum, dtype) = (x + y, FloatDType::F32);
    let wide = cast(sum.clone(), dtype);
    let normed = match kind {
        NormKind::Layer { epsilon } => layer_norm(wide, scale, Some(bias), epsilon),
        NormKind::Rms { epsilon } => {
            let size = (wide.clone().square().mean_dim(1) + epsilon).sqrt();
            wide / size * scale.unsqueeze()
        }
    };
    let normed = cast(normed, FloatDType::from(sum.dtype()));
    (sum, normed)
}

fn compare(kind: NormKind, dtype: FloatDType, backward: bool) {
    let device = Device::flex().autodiff();
    let random = || {
        let x = Tensor::<2>::random(SHAPE, Distribution::Normal(0.0, 1.0), &device);
        x.cast(dtype).require_grad()
    };
    let (x, y) = (random(), random());
    let scale = Tensor::<1>::ones([SHAPE[1]], &device).require_grad();
    let bias = Tensor::<1>::zeros([SHAPE[1]], &device).require_grad();
    // Without a pass that would reduce the results: backward begins with a gradient of ones.
    let both = |(sum, normed): (Tensor<2>, Tensor<2>)| if backward { sum + normed } else { normed };
    let with_bias = matches!(kind, NormKind::Layer { .. }).then(|| bias.clone());
    beside(
        json!({ "kind": format!("{kind:?}"), "dtype": format!("{dtype:?}"), "backward": backward }),
        || finish(both(norm_of_sum(x.clone(), y.clone(), scale.clone(), with_bias.clone(), kind)), backward),
        || finish(both(composed(x.clone(), y.clone(), scale.clone(), bias.clone(), kind)), backward),
    );
}

fn main() {
    // As the program does: otherwise the system clears each page again.
    memory::keep_freed();
    for kind in [NormKind::Layer { epsilon: 1e-5 }, NormKind::Rms { epsilon: 1e-6 }] {
        for dtype in [FloatDType::F32, FloatDType::BF16] {
            compare(kind, dtype, false);
            compare(kind, dtype, true);
        }
    }
}
