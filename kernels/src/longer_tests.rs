//! Every kernel of the devices on tensors whose buffers are longer than they are: results, gradients, and what lies behind.

use burn::backend::{DispatchTensor, TensorMetadata};
use burn::tensor::{Device, FloatDType, Int, Tensor, TensorData};

use crate::check::ADAMW;
use crate::longer::{REST, behind, in_padded_rows, longer, longer_ids};
use crate::optim::{Parts, step};
use crate::{
    Attending, Draws, Gate, Gelu, Head, HeadWeight, NormKind, Reads, Samples, Site, add_all, attention,
    attention_of_joint, cast_all, cross_entropy, embedding, gated, gelu, head_loss, linear, norm,
    norm_of_sum, rotary, scale_all, sum_of_squares, testing,
};

/// How tensors lie in their buffers.
#[derive(Clone, Copy, Debug)]
enum Buffers {
    Exact,
    Longer,
    /// Matrices in rows of a larger one, and the others in longer buffers.
    PaddedRows,
}

/// Makes tensors.
struct Make {
    device: Device,
    buffers: Buffers,
}

impl Make {
    /// Positive numbers.
    fn inner<const D: usize>(&self, shape: [usize; D], seed: usize) -> Tensor<D> {
        let x = Tensor::from_data(waves(shape, seed), &self.device);
        match self.buffers {
            Buffers::Exact => x,
            Buffers::PaddedRows if D == 2 => {
                let x = in_padded_rows(Tensor::from_dispatch(x.into_dispatch()));
                Tensor::from_dispatch(x.into_dispatch())
            }
            Buffers::Longer | Buffers::PaddedRows => longer(x),
        }
    }

    fn leaf<const D: usize>(&self, shape: [usize; D], seed: usize) -> Tensor<D> {
        Tensor::from_inner(self.inner(shape, seed)).require_grad()
    }

    fn ids<const D: usize>(&self, shape: [usize; D], most: usize) -> Tensor<D, Int> {
        let count: usize = shape.iter().product();
        let ids: Vec<_> = (0..count).map(|at| (at * at % most) as i32).collect();
        Tensor::from_inner(match self.buffers {
            Buffers::Exact => Tensor::from_data(TensorData::new(ids, shape), &self.device),
            Buffers::Longer | Buffers::PaddedRows => longer_ids(ids, shape, &self.device),
        })
    }

    /// A sum of the elements, whose gradient also comes in such a buffer.
    fn loss<const D: usize>(&self, x: Tensor<D>) -> Tensor<1> {
        let weights = Tensor::from_inner(Tensor::<D>::from_data(waves(x.dims(), 11), &self.device));
        let x = if matches!(self.buffers, Buffers::Exact) { x } else { longer(x) };
        (x * weights).sum()
    }
}

fn waves<const D: usize>(shape: [usize; D], seed: usize) -> TensorData {
    let count: usize = shape.iter().product();
    let values = (0..count).map(|at| 1.0 + 0.9 * (((at + 1) * (seed + 3)) as f32 * 0.618).sin());
    TensorData::new(values.collect::<Vec<_>>(), shape)
}

fn values<const D: usize>(x: Tensor<D>) -> Vec<f32> {
    x.into_data().iter().collect()
}

/// Returns the values and gradients of these tensors.
fn with_gradients<const D: usize>(make: &Make, y: Tensor<D>, leaves: &[&dyn Leaf]) -> Vec<Vec<f32>> {
    let grads = make.loss(y.clone()).backward();
    std::iter::once(values(y)).chain(leaves.iter().map(|leaf| leaf.gradient(&grads))).collect()
}

/// A leaf of any rank.
trait Leaf {
    fn gradient(&self, grads: &burn::tensor::Gradients) -> Vec<f32>;
}

impl<const D: usize> Leaf for Tensor<D> {
    fn gradient(&self, grads: &burn::tensor::Gradients) -> Vec<f32> {
        values(self.grad(grads).expect("the loss depends on it"))
    }
}

/// Asserts that results do not depend on how the tensors lie in their buffers.
fn same(of: impl Fn(&Make) -> Vec<Vec<f32>>) {
    let device = testing::device();
    let of = |buffers| of(&Make { device: device.clone(), buffers });
    let expected = of(Buffers::Exact);
    for buffers in [Buffers::Longer, Buffers::PaddedRows] {
        let found = of(buffers);
        assert_eq!(found.len(), expected.len());
        for (at, (found, expected)) in found.iter().zip(&expected).enumerate() {
            assert_eq!(found.len(), expected.len());
            let near = |(x, y): (&f32, &f32)| (x - y).abs() <= 1e-3 * (1.0 + y.abs());
            let all = found.iter().zip(expected).all(near);
            assert!(all, "result {at} with {buffers:?}: {found:?}, not {expected:?}");
        }
    }
}

fn numbers(x: DispatchTensor) -> Vec<f32> {
    match x.shape().num_dims() {
        1 => values(Tensor::<1>::from_dispatch(x)),
        _ => values(Tensor::<2>::from_dispatch(x)),
    }
}

#[test]
fn passes_over_many_tensors() {
    same(|make| {
        let tensors = || {
            let vectors = [1, 96, 4096, 4100].map(|count| make.inner([count], count).into_dispatch());
            // The gradient of a bias: the only row of a product.
            let bias: Tensor<1> = make.inner([1, 96], 7).reshape([96]);
            let rest = [bias.into_dispatch(), make.inner([3, 50], 2).into_dispatch()];
            vectors.into_iter().chain(rest).collect::<Vec<_>>()
        };
        let mut found = vec![values(sum_of_squares(tensors()))];
        let mut add = |tensors: Vec<_>| found.extend(tensors.into_iter().map(numbers));
        add(scale_all(tensors(), make.inner([1], 3)));
        let dtypes =
            testing::computed([(FloatDType::F32, ()), (FloatDType::F16, ()), (FloatDType::BF16, ())]);
        for (dtype, ()) in dtypes {
            add(cast_all(tensors(), dtype, 2.0));
            add(add_all(tensors(), tensors(), dtype));
        }
        found
    });
}

#[test]
fn updates() {
    same(|make| {
        let updated = |count: usize| {
            let [param, grad, m, v] = [1, 2, 3, 4].map(|seed| make.inner([count], seed));
            let parts = Parts { param, grad, moments: Some([m, v]) };
            let Ok((param, [m, v])) = step(&ADAMW, parts) else { panic!("one pass updates it") };
            [param, m, v].map(values)
        };
        let fresh = || {
            let parts = Parts { param: make.inner([96], 1), grad: make.inner([96], 2), moments: None };
            let Ok((param, [m, v])) = step(&ADAMW, parts) else { panic!("one pass updates it") };
            [param, m, v].map(values)
        };
        [1, 96, 4100].into_iter().flat_map(updated).chain(fresh()).collect()
    });
}

/// The numbers behind a tensor may be those of another one.
#[test]
fn what_lies_behind_a_tensor_stays_as_it_is() {
    let make = Make { device: testing::device(), buffers: Buffers::Longer };
    let stays = |what: &str, x: &Tensor<1>| {
        let behind = behind(x);
        assert!(behind.iter().all(|number| *number == REST), "behind {what}: {behind:?}");
    };
    let sole = |found: Vec<DispatchTensor>| {
        let [found] = found.try_into().expect("one tensor");
        Tensor::<1>::from_dispatch(found)
    };
    for count in [96, 4100] {
        let x = || make.inner([count], 1);
        let given = || vec![x().into_dispatch()];
        let half = Tensor::<1>::from_data([0.5], &make.device);
        stays("a product", &sole(scale_all(given(), half)));
        stays("a sum", &sole(add_all(given(), given(), FloatDType::F32)));
        let parts = Parts { param: x(), grad: x(), moments: Some([x(), x()]) };
        let Ok((param, [m, v])) = step(&ADAMW, parts) else { panic!("one pass updates it") };
        stays("a parameter", &param);
        stays("a moment", &m);
        stays("a moment", &v);
    }
}

#[test]
fn norms() {
    for kind in [NormKind::Layer { epsilon: 1e-5 }, NormKind::Rms { epsilon: 1e-5 }] {
        same(|make| {
            let [x, y] = [1, 2].map(|seed| make.leaf([7, 96], seed));
            let [scale, bias] = [3, 4].map(|seed| make.leaf([96], seed));
            let (sum, normed) = norm_of_sum(x.clone(), y, scale.clone(), Some(bias.clone()), kind);
            let grads = (make.loss(sum.clone()) + make.loss(normed.clone())).backward();
            let leaves: [&dyn Leaf; 3] = [&x, &scale, &bias];
            let gradients = leaves.map(|leaf| leaf.gradient(&grads));
            [sum, normed].map(values).into_iter().chain(gradients).collect()
        });
        same(|make| {
            let (x, scale) = (make.leaf([7, 96], 1), make.leaf([96], 3));
            with_gradients(make, norm(x.clone(), scale.clone(), None, kind), &[&x, &scale])
        });
    }
}

#[test]
fn activations() {
    for form in [Gelu::Exact, Gelu::Tanh] {
        same(|make| {
            let x = make.leaf([5, 60], 1);
            with_gradients(make, gelu(x.clone(), form), &[&x])
        });
    }
    for form in [Gate::Silu, Gate::Gelu(Gelu::Tanh)] {
        same(|make| {
            let [gate, up] = [1, 2].map(|seed| make.leaf([5, 60], seed));
            with_gradients(make, gated(gate.clone(), up.clone(), form), &[&gate, &up])
        });
    }
}

#[test]
fn rotations() {
    same(|make| {
        let x = make.leaf([2, 3, 5, 8], 1);
        let [cos, sin] = [2, 3].map(|seed| Tensor::from_inner(make.inner([1, 1, 5, 4], seed)));
        with_gradients(make, rotary(x.clone(), cos, sin), &[&x])
    });
}

#[test]
fn rows_of_a_table() {
    same(|make| {
        let table = make.leaf([9, 40], 1);
        with_gradients(make, embedding(table.clone(), make.ids([2, 17], 9)), &[&table])
    });
}

#[test]
fn affine_maps() {
    same(|make| {
        let (x, weight, bias) = (make.leaf([70, 16], 1), make.leaf([16, 20], 2), make.leaf([20], 3));
        let y = linear(x.clone(), weight.clone(), Some(bias.clone()));
        with_gradients(make, y, &[&x, &weight, &bias])
    });
}

#[test]
fn losses() {
    for smoothing in [0.0, 0.1] {
        same(|make| {
            let logits = make.leaf([7, 50], 1);
            let loss = cross_entropy(logits.clone(), make.ids([7], 50), smoothing);
            with_gradients(make, loss, &[&logits])
        });
        same(|make| {
            let (hidden, weight, bias) = (make.leaf([7, 16], 1), make.leaf([16, 50], 2), make.leaf([50], 3));
            let head =
                Head { weight: HeadWeight::Linear(weight.clone()), bias: Some(bias.clone()), cap: None };
            let loss = head_loss(hidden.clone(), &head, &[3, 49, -100, 0, 1, 2, 7], smoothing);
            with_gradients(make, loss, &[&hidden, &weight, &bias])
        });
    }
}

#[test]
fn attentions() {
    let reads = Reads::causal(6);
    let site =
        Site { draws: Draws { seed: 5, epoch: 1, first: 3 }, number: 2, samples: &Samples::Columns, from: 0 };
    for dropout in [None, Some((0.3, site))] {
        let how = Attending { reads: &reads, scale: 0.3, cap: None, dropout };
        same(|make| {
            let query = make.leaf([2, 4, 6, 8], 1);
            let [key, value] = [2, 3].map(|seed| make.leaf([2, 2, 6, 8], seed));
            let bias = make.leaf([1, 4, 6, 6], 4);
            let y = attention(query.clone(), key.clone(), value.clone(), Some(bias.clone()), how);
            with_gradients(make, y, &[&query, &key, &value, &bias])
        });
        same(|make| {
            let joint = make.leaf([2, 6, 48], 1);
            with_gradients(make, attention_of_joint(joint.clone(), 2, how), &[&joint])
        });
    }
}
