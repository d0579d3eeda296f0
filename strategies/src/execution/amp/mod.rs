//! Mixed precision: a half-precision replica over an f32 master.
//!
//! Micikevicius et al., *Mixed Precision Training*, 2018 (arXiv:1710.03740). bfloat16 has the exponent range of f32 and
//! needs no loss scale (Kalamkar et al., 2019, arXiv:1905.12322).

mod keep;
mod loss_scale;
mod mixing;
mod written;

use burn::module::Module;
use burn::tensor::FloatDType;
use serde::{Deserialize, Serialize};

use crate::dtypes::require_dtype;
use crate::effects::Casts;
use crate::{Effects, SettingError, Setup, Stages, Strategy, StrategyError, StrategyRecipe};

pub use keep::Keep;
pub use loss_scale::LossScale;
use mixing::Mixing;

/// The strategy's name as users write it.
const NAME: &str = "Amp";

/// Computes in a smaller dtype than the optimizer.
///
/// | | bits of exponent, mantissa | | replica | master | gradients | AdamW's moments | sum |
/// |---|---|---|---|---|---|---|---|
/// | [`bf16`](Self::bf16) | 8, 7 | the choice if the device supports it | 2 | 4 | 2 | 8 | 16 |
/// | [`fp8`](Self::fp8) | 4, 3 and 5, 2 | bf16, and products in 8 bits | 2 | 4 | 2 | 8 | 16 |
/// | [`f16`](Self::f16) | 5, 10 | with a [loss scale](LossScale) | 2 | 4 | 2 | 8 | 16 |
/// | [`pure_bf16`](Self::pure_bf16) | 8, 7 | no f32 at all, at a price | - | 2 | 2 | 4 | 8 |
/// | [`f32`](Self::f32) | 8, 23 | changes nothing | - | 4 | 4 | 8 | 16 |
///
/// The numbers are bytes per parameter. The gradients column counts them as the backward pass returns them, in the
/// replica's dtype. The norm of all gradients, and from the second update on an optimizer that computes its update in one
/// pass, read them so, without a loss scale. Where they are summed, scaled or [clipped](crate::Clip), and for other
/// optimizers, they are cast to the master's dtype: during an update, and throughout a step that
/// [`Accumulate`](crate::Accumulate) sums, they then take 4 bytes in the first three rows too, 18 in total. A parameter
/// that is [kept in f32](Self::keep_f32) takes 16 bytes in each row.
///
/// So weights and gradients take at least as much memory as in f32, and at the peak 2 bytes per parameter more. Mixed
/// precision saves half of most activations, and time in matrix products if the hardware supports the dtype. A large
/// model on a small batch needs more memory than without it. The peak on the CPU, relative to f32:
///
/// | model | batch | f32 | `bf16` | `f16` | `pure_bf16` |
/// |---|---|---|---|---|---|
/// | 6 layers of width 512 (19M parameters) | 1 x 64 tokens | 316 MB | 1.13 | 1.12 | 0.54 |
/// | 4 layers of width 64 (0.2M parameters) | 64 x 128 tokens | 384 MB | 0.79 | 0.74 | 0.78 |
///
/// measured as `peak_bytes` of the report of
///
/// ```text
/// firebrick bench examples/tinyshakespeare.ron --set 'data.path="input.txt"' --report json \
///     --set 'strategies=[Amp(bf16), Clip(norm: 1.0)]' \
///     --set model.width=512 --set model.layers=6 --set batch.micro=1 --set data.block=64
/// ```
///
/// As in f32, a step with a gradient that is not finite is skipped: parameters, moments, schedule and step counter
/// stay as they are. A step whose gradient norm is above about 1.8e19 is skipped too, because f32 cannot hold its
/// square; nor could an optimizer's second moment.
///
/// # Requirements on the model
///
/// The forward pass reads weights in the smaller dtype, and Burn's operations take operands of one dtype only: a model
/// must cast its float inputs to the dtype of its weights, and its logits to f32 for the loss. With
/// [`keep_f32`](Self::keep_f32) the weights have different dtypes, so each layer must return the dtype of its input
/// ([`Pass::dtype`](crate::Pass::dtype) at the start). The layers of Firebrick's models do this; Burn's own layers do
/// not. The trainer tries the first batch before the run, and its error names the parameter that does not fit.
///
/// # Evaluation
///
/// Evaluation reads the replica too, unless you set [`evaluate_in`](Self::evaluate_in): it reports the loss of the
/// rounded weights, which differs by a few parts in a thousand from the loss of the f32 master, which is the model that
/// is saved.
///
/// # tf32
///
/// On NVIDIA GPUs since Ampere, Burn computes f32 matrix products in tf32 (8 bits of exponent, 10 bits of mantissa) if
/// the selected kernel runs on tensor cores, and accumulates in f32. Burn 0.22 has no switch for it, neither a setting
/// nor an environment variable. f32 on such a GPU is therefore exact to about 1e-3 per product; [`bf16`](Self::bf16) is
/// one more step of the same kind.
///
/// ```
/// use firebrick_strategies::{Amp, Composition, Setup};
/// use burn::{nn::LinearConfig, tensor::{DType, Device}};
///
/// let device = Device::flex().autodiff();
/// let model = LinearConfig::new(2, 2).init(&device);
/// let mut amp = Amp::bf16().start(&mut Setup::new(&model, &device))?;
/// let master = amp.init_master(model)?;
/// let replica = amp.publish(master.clone())?;
/// assert_eq!(master.weight.val().dtype(), DType::F32);
/// assert_eq!(replica.weight.val().dtype(), DType::BF16);
/// # Ok::<(), firebrick_strategies::StrategyError>(())
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct Amp {
    precision: Precision,
    keep: Keep,
    evaluation: Option<FloatDType>,
    scale: Option<LossScale>,
}

/// The dtypes of replica and master.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Precision {
    Bf16,
    Fp8,
    F16,
    PureBf16,
    F32,
}

impl Amp {
    fn of(precision: Precision) -> Self {
        Self { precision, keep: Keep::default(), evaluation: None, scale: None }
    }

    /// The dtype of the replica.
    fn replica(&self) -> FloatDType {
        match self.precision {
            Precision::Bf16 | Precision::Fp8 | Precision::PureBf16 => FloatDType::BF16,
            Precision::F16 => FloatDType::F16,
            Precision::F32 => FloatDType::F32,
        }
    }

    /// The dtype of the master, except for parameters kept in f32.
    fn master(&self) -> FloatDType {
        if self.precision == Precision::PureBf16 { FloatDType::BF16 } else { FloatDType::F32 }
    }

    /// The scale of the loss, if it has one.
    fn loss_scale(&self) -> Option<LossScale> {
        self.scale.or((self.precision == Precision::F16).then(LossScale::default))
    }

    /// Computes in bfloat16, which has the range of f32 and two to three significant decimal digits.
    pub fn bf16() -> Self {
        Self::of(Precision::Bf16)
    }

    /// Computes in bfloat16 as [`bf16`](Self::bf16) does, and the products of linear layers in blocks in 8 bits (Micikevicius et
    /// al., 2022, *FP8 Formats for Deep Learning*, arXiv:2209.05433).
    ///
    /// Inputs and weights are rounded to E4M3, and the gradients of results to E5M2, each tensor with one scale that is found
    /// from its largest magnitude at that moment: Transformer Engine's `Float8CurrentScaling` in the format `HYBRID`, with
    /// scales that are powers of two. Sums and biases are not rounded to 8 bits. Norms, attention, embeddings, the head and the
    /// master are those of `bf16`; so are linear layers whose weight has an axis that is no multiple of 16, which the log
    /// names. A layer is in a block if it runs in a [segment](crate::Pass::segment), and it is linear if it calls
    /// [`adapted_linear`](crate::adapted_linear), as Firebrick's layers do. Evaluation is that of `bf16`, nearer to the model that is
    /// saved.
    ///
    /// Training takes the memory of `bf16`: the backward pass keeps operands in bf16 and rounds them again. It can be faster only
    /// on NVIDIA's GPUs of compute capability 8.9 and above (Ada, Hopper, Blackwell), where cuBLASLt multiplies 8-bit numbers at
    /// twice the rate. There rounding moves 124 bytes for each token and unit of width, which by the rates of an H100 is what the
    /// products of layers 700 wide save; no GPU has measured it yet. On other devices the same numbers are computed by products
    /// of rounded operands, which is slower than bf16; use it there to see what a run on such a GPU will learn.
    ///
    /// After 600 steps of a GPT of 5M parameters on 8 x 256 characters of Shakespeare, the validation loss was 2.2530 and that of
    /// `bf16` 2.2466, as
    ///
    /// ```text
    /// firebrick train examples/tinyshakespeare.ron --set 'data.path="input.txt"' --set data.block=256 \
    ///     --set 'model=Gpt(layers: 6, heads: 8, width: 256, dropout: 0.0, bias: true, tied: true)' \
    ///     --set batch.micro=8 --set steps=600 --set 'strategies=[Amp(fp8), Clip(norm: 1.0)]'
    /// ```
    pub fn fp8() -> Self {
        Self::of(Precision::Fp8)
    }

    /// Computes in f16, which has three to four significant decimal digits and a small range. The loss is scaled by
    /// [`LossScale::default`], or by the scale that you pass to [`scaled_by`](Self::scaled_by).
    pub fn f16() -> Self {
        Self::of(Precision::F16)
    }

    /// Keeps everything in bfloat16: parameters, gradients and the optimizer's state.
    ///
    /// bf16 has 8 significant bits, so an update below 2^-9 of a weight is rounded away. At usual learning rates this
    /// affects most updates of large weights: training slows down and ends at a higher loss. AdamW's second moment
    /// decays by 1 - 0.999 per update, which is also below 2^-9, so it never decreases. Use it if [`bf16`](Self::bf16)
    /// does not fit, with a larger learning rate and a smaller `beta_2`.
    pub fn pure_bf16() -> Self {
        Self::of(Precision::PureBf16)
    }

    /// Computes in f32, as without `Amp`: for run files that switch the dtype, and for
    /// `Amp::f32().evaluate_in(FloatDType::BF16)`.
    pub fn f32() -> Self {
        Self::of(Precision::F32)
    }

    /// Sets the dtype of evaluation. Default: the training dtype.
    ///
    /// `Amp::bf16().evaluate_in(FloatDType::F32)` evaluates the master itself.
    /// `Amp::f32().evaluate_in(FloatDType::BF16)`, also known as full bf16 evaluation, needs a bf16 copy of the weights
    /// during evaluation, and half of the memory for activations.
    pub fn evaluate_in(self, dtype: FloatDType) -> Self {
        Self { evaluation: Some(dtype), ..self }
    }

    /// Scales the loss before the backward pass. Default: only [`f16`](Self::f16) does.
    pub fn scaled_by(self, scale: LossScale) -> Self {
        Self { scale: Some(scale), ..self }
    }

    /// Keeps these parameters in f32 (master, replica and gradients), in addition to earlier ones.
    pub fn keep_f32(mut self, keep: Keep) -> Self {
        self.keep = self.keep.and(keep);
        self
    }
}

impl StrategyRecipe for Amp {
    fn effects(&self) -> Effects {
        let replica = self.replica();
        let in_fp8 = self.precision == Precision::Fp8;
        let casts = Some(Casts { replica, evaluation: self.evaluation.unwrap_or(replica), in_fp8 });
        Effects { casts, paths: self.keep.paths(), ..Effects::none(NAME) }
    }

    fn check(&self) -> Result<(), SettingError> {
        self.scale.as_ref().map_or(Ok(()), LossScale::check)
    }
}

impl<M: Module> Strategy<M> for Amp {
    fn stages(&self, setup: &mut Setup<M>) -> Result<Stages<M>, StrategyError> {
        let (dtype, evaluation) = (self.replica(), self.evaluation.unwrap_or(self.replica()));
        for dtype in [dtype, evaluation] {
            require_dtype(NAME, setup.device(), dtype)?;
        }
        let kept = self.keep.resolve(setup.segments().paths())?;
        if self.precision == Precision::Fp8 {
            setup.segments_mut().multiply_in_fp8();
        }
        let scaler = self.loss_scale().map(LossScale::start);
        let to_disk = setup.order().offloads_parameters_to_disk();
        Ok(Stages::of(Mixing { dtype, master: self.master(), evaluation, kept, scaler, to_disk }))
    }
}

#[cfg(test)]
mod tests {
    use burn::nn::{Linear, LinearConfig};

    use super::*;
    use crate::{Clip, Composed, Composition, testing};

    fn start(strategy: impl Composition<Linear>) -> Result<String, StrategyError> {
        let device = testing::device().autodiff();
        let model = LinearConfig::new(3, 2).init(&device);
        strategy.start(&mut Setup::new(&model, &device)).map(|stages| format!("{stages:?}"))
    }

    #[test]
    fn clipping_comes_after_the_cast_wherever_it_is_written() {
        if !testing::has_bf16() {
            return;
        }
        for amp in [Amp::bf16(), Amp::f16(), Amp::pure_bf16()] {
            let stages = start(Composed::new().with(Clip::norm(1.0)).with(amp)).unwrap();
            assert_eq!(stages, r#"["Amp", "Clip"]"#);
        }
    }

    #[test]
    fn two_of_them_are_refused() {
        if !testing::has_bf16() {
            return;
        }
        let error = start(Composed::new().with(Amp::bf16()).with(Amp::f16()));
        assert_eq!(error, Err(StrategyError::Twice("Amp")));
    }

    #[test]
    fn a_dtype_that_no_device_computes_in_is_refused() {
        if !testing::has_bf16() {
            return;
        }
        let error = start(Amp::f32().evaluate_in(FloatDType::Flex32)).unwrap_err();
        assert!(error.to_string().contains("it can in f64, f32, bf16, f16"), "{error}");
    }

    #[test]
    fn what_is_kept_must_be_there() {
        if !testing::has_bf16() {
            return;
        }
        let device = testing::device().autodiff();
        let model = LinearConfig::new(3, 2).init(&device);
        let amp = Amp::bf16().keep_f32(Keep::norms());
        assert!(amp.start(&mut Setup::new(&model, &device)).is_err());
    }

    #[test]
    fn setup_learns_what_forward_passes_compute_in() {
        if !testing::has_bf16() {
            return;
        }
        let device = testing::device().autodiff();
        let model = LinearConfig::new(3, 2).init(&device);
        let dtypes = |amp: Amp| {
            let mut setup = Setup::new(&model, &device);
            amp.start(&mut setup).unwrap();
            (setup.order().training_dtype(), setup.order().evaluation_dtype())
        };
        let [f32, bf16, f16] = [FloatDType::F32, FloatDType::BF16, FloatDType::F16];
        assert_eq!(dtypes(Amp::bf16()), (bf16, bf16));
        assert_eq!(dtypes(Amp::f16().evaluate_in(f32)), (f16, f32));
        assert_eq!(dtypes(Amp::f32().evaluate_in(bf16)), (f32, bf16));
        let none = Setup::new(&model, &device);
        assert_eq!((none.order().training_dtype(), none.order().evaluation_dtype()), (f32, f32));
    }
}
