//! Tensors in buffers that are longer than they are, for tests.
//!
//! On CUDA, Burn pads the rows of products to whole lines of memory, and a row that becomes a tensor of its own stays in that
//! buffer. A kernel must not read or write what lies behind the elements of a tensor. On the CPU there is nothing behind.

#[cfg(feature = "cube")]
use burn::backend::Cube;
use burn::backend::autodiff::checkpoint::base::Checkpointer;
use burn::backend::autodiff::checkpoint::strategy::CheckpointStrategy;
use burn::backend::autodiff::grads::Gradients;
use burn::backend::autodiff::ops::{Backward, Ops, OpsKind, unary};
use burn::backend::tensor::FloatTensor;
use burn::backend::{Autodiff, Backend, Dispatch, Flex, backend_extension};
use burn::tensor::{Device, Int, Tensor, TensorData};

#[cfg(feature = "cube")]
use crate::device::is_cube;

/// What lies behind the elements. It is a number of f16 that shows in every sum.
pub const REST: f32 = 3e4;

/// Tensors and their gradients in longer buffers.
#[backend_extension(
    Flex,
    Cube: cfg(feature = "cube"),
    Autodiff,
)]
pub trait Lengthening: Backend {
    /// Returns `x` in a longer buffer. Under autodiff, its gradient goes on in one too.
    fn lengthened(x: FloatTensor<Self>) -> FloatTensor<Self>;
}

impl Lengthening for Flex {
    fn lengthened(x: FloatTensor<Self>) -> FloatTensor<Self> {
        x
    }
}

#[derive(Debug)]
struct Longer;

impl<B: Lengthening> Backward<B, 1> for Longer {
    type State = ();

    fn backward(self, ops: Ops<(), 1>, grads: &mut Gradients, _: &mut Checkpointer) {
        unary::<B, _>(ops.parents, ops.node, grads, B::lengthened);
    }
}

impl<B: Lengthening, C: CheckpointStrategy> Lengthening for Autodiff<B, C> {
    fn lengthened(x: FloatTensor<Self>) -> FloatTensor<Self> {
        let prepared = Longer.prepare::<C>([x.node()]).compute_bound();
        let x = B::lengthened(x.into_primitive());
        match prepared.stateful() {
            OpsKind::Tracked(prep) => prep.finish((), x),
            OpsKind::UnTracked(prep) => prep.finish(x),
        }
    }
}

/// Returns `x` in a longer buffer. Under autodiff, its gradient goes on in one too.
pub fn longer<const D: usize>(x: Tensor<D>) -> Tensor<D> {
    Tensor::from_dispatch(<Dispatch as Lengthening>::lengthened(x.into_dispatch()))
}

/// Returns ids in a longer buffer, outside autodiff.
pub fn longer_ids<const D: usize>(ids: Vec<i32>, shape: [usize; D], device: &Device) -> Tensor<D, Int> {
    #[cfg(feature = "cube")]
    if is_cube(device) {
        return Tensor::from_primitive::<Cube>(cube::ids(ids, shape.into(), device));
    }
    Tensor::from_data(TensorData::new(ids, shape), device)
}

/// Returns a matrix, outside autodiff, whose rows are as far apart as if they were longer.
pub fn in_padded_rows(x: Tensor<2>) -> Tensor<2> {
    #[cfg(feature = "cube")]
    if is_cube(&x.device()) {
        let x = x.try_into_primitive::<Cube>().expect("it is the device's");
        return Tensor::from_primitive::<Cube>(cube::in_padded_rows(x));
    }
    x
}

/// Returns what lies behind the elements of a tensor that was computed in the place of a [longer] one: each is [`REST`]. There
/// are none on the CPU.
///
/// # Panics
///
/// If it was not computed in that place.
pub fn behind<const D: usize>(x: &Tensor<D>) -> Vec<f32> {
    #[cfg(feature = "cube")]
    if is_cube(&x.device()) {
        let count = x.shape().num_elements();
        let place = x.clone().try_into_primitive::<Cube>().expect("it is the device's");
        let whole = Tensor::<1>::from_primitive::<Cube>(cube::whole(place));
        return whole.into_data().iter().skip(count).collect();
    }
    let _ = x;
    Vec::new()
}

#[cfg(feature = "cube")]
mod cube {
    use burn::backend::ops::FloatTensorOps;
    use burn::backend::tensor::{FloatTensor, IntTensor};
    use burn::backend::{Cube, TensorMetadata};
    use burn::tensor::{Device, Int, Shape, Tensor, TensorData};
    use burn_cubecl::tensor::CubeTensor;

    use super::{Lengthening, REST};
    use crate::cube::{Spec, run};

    /// The elements behind those of a tensor.
    const BEHIND: usize = 32;

    impl Lengthening for Cube {
        fn lengthened(x: FloatTensor<Self>) -> FloatTensor<Self> {
            let (shape, dtype, device) = (x.shape(), x.dtype(), x.device());
            let flat = Self::float_reshape(x, Shape::new([shape.num_elements()]));
            let rest = Self::float_full(Shape::new([BEHIND]), REST.into(), &device, dtype.into());
            first_of(Self::float_cat(vec![flat, rest], 0), shape)
        }
    }

    /// Returns ids in a longer buffer.
    pub fn ids(mut ids: Vec<i32>, shape: Shape, device: &Device) -> IntTensor<Cube> {
        ids.resize(ids.len() + BEHIND, 0);
        let count = ids.len();
        let whole = Tensor::<1, Int>::from_data(TensorData::new(ids, [count]), device);
        first_of(whole.try_into_primitive::<Cube>().expect("it is the device's"), shape)
    }

    /// Returns a matrix whose rows are as far apart as if they were longer.
    pub fn in_padded_rows(x: FloatTensor<Cube>) -> FloatTensor<Cube> {
        let [rows, columns] = x.shape().dims();
        let (dtype, device) = (x.dtype(), x.device());
        let rest = Cube::float_full(Shape::new([rows, BEHIND]), REST.into(), &device, dtype.into());
        let whole = Cube::float_cat(vec![x, rest], 1);
        let [padded] = run(vec![whole], [Spec::new([rows, columns], dtype)], move |inputs| {
            let [mut x]: [CubeTensor; 1] = inputs.try_into().expect("one input");
            x.meta.shape[1] = columns;
            [x]
        });
        padded
    }

    /// Returns all elements of the buffer of a longer tensor.
    pub fn whole(x: FloatTensor<Cube>) -> FloatTensor<Cube> {
        let count = x.shape().num_elements();
        first_of(x, Shape::new([count + BEHIND]))
    }

    /// Returns the first elements of a buffer.
    fn first_of(x: FloatTensor<Cube>, shape: Shape) -> FloatTensor<Cube> {
        let output = Spec::new(shape.clone(), x.dtype());
        let [first] = run(vec![x], [output], move |inputs| {
            let [x]: [CubeTensor; 1] = inputs.try_into().expect("one input");
            let CubeTensor { client, handle, device, dtype, .. } = x;
            let bytes = (shape.num_elements() * dtype.size()) as u64;
            assert!(handle.size_in_used() >= bytes, "the tensor lies in a buffer of its own");
            [CubeTensor::new_contiguous(client, device, shape.clone(), handle, dtype)]
        });
        first
    }
}
