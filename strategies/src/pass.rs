//! One forward pass.

use burn::module::Module;
use burn::tensor::Device;

/// What a model needs to know of the forward pass that it is in.
///
/// A model passes it down to whatever asks for it, and calls [`segment`](Self::segment) around each
/// of its blocks.
#[derive(Clone, Debug)]
pub struct Pass {
    training: bool,
    device: Device,
}

impl Pass {
    /// A pass whose gradients are wanted. `device` is where the batch belongs.
    pub fn train(device: &Device) -> Self {
        Self { training: true, device: device.clone() }
    }

    /// A pass that only measures.
    pub fn evaluate(device: &Device) -> Self {
        Self { training: false, device: device.clone() }
    }

    /// Whether gradients are wanted.
    pub fn is_training(&self) -> bool {
        self.training
    }

    /// Where the batch's tensors belong: the device of the model's replica.
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// Runs one block of the model on `input`.
    ///
    /// The segment is the unit that strategies act on: what drops and re-runs activations, gathers
    /// or fetches parameters, does so for one segment at a time. `run` may therefore be called more
    /// than once and on a copy of `block`, so it reads parameters from its argument only, and every
    /// tensor that carries a gradient (an encoder's output, say) is part of `input`.
    ///
    /// ```
    /// use burn::{nn::LinearConfig, tensor::{Device, Tensor}};
    /// use firebrick_strategies::Pass;
    ///
    /// let device = Device::flex();
    /// let blocks = vec![LinearConfig::new(8, 8).init(&device); 3];
    /// let pass = Pass::evaluate(&device);
    /// let x = Tensor::<2>::ones([4, 8], &device);
    /// let y = blocks.iter().fold(x, |x, block| pass.segment(block, x, |block, x| block.forward(x)));
    /// assert_eq!(y.dims(), [4, 8]);
    /// ```
    pub fn segment<B, X, Y, F>(&self, block: &B, input: X, run: F) -> Y
    where
        B: Module,
        X: Clone + Send + 'static,
        F: Fn(&B, X) -> Y + Send + Sync + 'static,
    {
        run(block, input)
    }
}
