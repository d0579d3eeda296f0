//! Host functions in the order of Burn's queue.

use burn::backend::Cube;
use burn::backend::tensor::FloatTensor;
use burn::tensor::{DType, Shape};
use burn_cubecl::tensor::CubeTensor;

/// The shape and dtype of an output.
#[derive(Clone, Debug)]
pub(crate) struct Spec {
    pub shape: Shape,
    pub dtype: DType,
}

impl Spec {
    pub fn new(shape: impl Into<Shape>, dtype: DType) -> Self {
        Self { shape: shape.into(), dtype }
    }
}

/// Calls `host` with the tensors of the device, and, where Burn fuses operations, after those that are queued before. It
/// returns one tensor for each of the `outputs`, of that shape and dtype. An input that nothing else holds comes alone,
/// so `host` may write into it.
///
/// # Panics
///
/// If there are no inputs, since they say which device computes.
pub(crate) fn run<const N: usize, F>(
    inputs: Vec<FloatTensor<Cube>>,
    outputs: [Spec; N],
    host: F,
) -> [FloatTensor<Cube>; N]
where
    F: Fn(Vec<CubeTensor>) -> [CubeTensor; N] + Send + Sync + 'static,
{
    let found = run_many(inputs, outputs.into(), move |inputs| host(inputs).into());
    found.try_into().unwrap_or_else(|_| unreachable!("there are as many results as outputs"))
}

/// Like [`run`], for any number of outputs.
///
/// # Panics
///
/// Like [`run`].
#[cfg(not(feature = "fusion"))]
pub(crate) fn run_many<F>(
    inputs: Vec<FloatTensor<Cube>>,
    outputs: Vec<Spec>,
    host: F,
) -> Vec<FloatTensor<Cube>>
where
    F: Fn(Vec<CubeTensor>) -> Vec<CubeTensor> + Send + Sync + 'static,
{
    let found = host(inputs);
    let is = |(x, spec): (&CubeTensor, &Spec)| (x.meta.shape(), x.dtype) == (&spec.shape, spec.dtype);
    assert!(found.iter().zip(&outputs).all(is), "expected {outputs:?}, found {found:?}");
    found
}

/// Like [`run`], for any number of outputs.
///
/// # Panics
///
/// Like [`run`].
#[cfg(feature = "fusion")]
pub(crate) fn run_many<F>(
    inputs: Vec<FloatTensor<Cube>>,
    outputs: Vec<Spec>,
    host: F,
) -> Vec<FloatTensor<Cube>>
where
    F: Fn(Vec<CubeTensor>) -> Vec<CubeTensor> + Send + Sync + 'static,
{
    use burn::backend::fusion::custom::{
        CustomOpIr, HandleContainer, OperationFn, OperationIr, StreamId, TensorIr,
    };
    use burn_cubecl::CubeBackend;
    use burn_cubecl::fusion::CubeFusionHandle;

    let client = inputs.first().expect("an operation has inputs").client.clone();
    let inputs: Vec<TensorIr> = inputs.into_iter().map(|input| input.into_ir()).collect();
    let output = |spec: Spec| TensorIr::uninit(client.create_empty_handle(), spec.shape, spec.dtype);
    let outputs: Vec<TensorIr> = outputs.into_iter().map(output).collect();
    let places: Vec<_> = outputs.iter().map(|output| output.id).collect();
    let id = std::any::type_name::<F>().into();
    let described = CustomOpIr { id, inputs: inputs.clone(), outputs, scalars: Vec::new() };
    let operation = OperationFn(move |handles: &mut HandleContainer<CubeFusionHandle>| {
        let inputs = inputs.iter().map(|input| handles.get_float_tensor::<CubeBackend>(input)).collect();
        for (place, output) in places.iter().zip(host(inputs)) {
            handles.register_float_tensor::<CubeBackend>(place, output);
        }
        Ok(())
    });
    client.register(StreamId::current(), OperationIr::Custom(described), operation)
}

/// Like [`run_many`], and has called `host` when it returns, unless something before it failed: what is queued before is
/// handed to the device.
///
/// # Panics
///
/// Like [`run`].
pub(crate) fn run_now<F>(
    inputs: Vec<FloatTensor<Cube>>,
    outputs: Vec<Spec>,
    host: F,
) -> Vec<FloatTensor<Cube>>
where
    F: Fn(Vec<CubeTensor>) -> Vec<CubeTensor> + Send + Sync + 'static,
{
    #[cfg(feature = "fusion")]
    let client = inputs.first().expect("an operation has inputs").client.clone();
    let outputs = run_many(inputs, outputs, host);
    // What failed is an error of whoever reads it.
    #[cfg(feature = "fusion")]
    let _ = client.try_sync(|| ());
    outputs
}
