//! Quantize: keeps frozen matrices in 4 or 8 bits.
//!
//! Dettmers et al., *QLoRA: Efficient Finetuning of Quantized LLMs*, 2023 (arXiv:2305.14314).
//!
//! ```text
//! mod.rs     Quantize: the recipe
//! attach.rs  packs the matrices
//! ```

mod attach;

use std::collections::{HashMap, HashSet};

use burn::module::{Module, ParamId};
use firebrick_kernels::packed::Packing;
use serde::{Deserialize, Serialize};

use crate::effects::OnResult;
use crate::{
    Adaptation, Effects, Paths, SettingError, Setup, Stage, StageState, Stages, Strategy, StrategyError,
    StrategyRecipe, each_param,
};
use attach::Attach;

const NAME: &str = "Quantize";

/// Keeps the frozen matrices of linear layers in 4 or 8 bits: with [`Lora`](crate::Lora), QLoRA.
///
/// It packs each matrix once, before training. Whenever a layer reads its weight, the matrix is unpacked in the dtype
/// that the layer computes in, and dropped afterwards. The result equals that of training with the unpacked matrices as
/// weights, bit for bit.
///
/// | | a matrix `[in, out]` is kept as | bits per element |
/// |---|---|---|
/// | [`nf4`](Self::nf4) | 4-bit NormalFloat, the quantiles of a normal distribution | 4.5 |
/// | [`int8`](Self::int8) | integers from -127 to 127 | 8.5 |
///
/// Both divide blocks of 64 elements by the largest magnitude in each, which is kept in f32. The numbers of `nf4` are those
/// of `load_in_4bit` with `bnb_4bit_quant_type: nf4` in transformers, without double quantization.
///
/// # Which matrices
///
/// Those of linear layers in the model's blocks, the elements of its lists (`Vec` fields), that earlier strategies or the
/// model itself have frozen. Embeddings, norms, biases and the head stay as they are, and so do matrices that are trained
/// whole. A linear layer is a module whose type is called `Linear`, as in Burn and in Firebrick's models.
///
/// Write it after `Lora`, or after [`Freeze`](crate::Freeze), which selects what is frozen:
///
/// ```
/// use burn::{nn::LinearConfig, tensor::Device};
/// use firebrick_strategies::{Adaptation, Composed, Composition, Lora, Quantize};
///
/// let device = Device::flex().autodiff();
/// let model = vec![LinearConfig::new(64, 64).init(&device); 1];
/// let given = model[0].weight.val();
///
/// let qlora = Composed::new().with(Lora::rank(4).on(["*.weight"])).with(Quantize::nf4());
/// let mut adaptation = Adaptation::seeded(1);
/// let adapted = qlora.adapt(model, &mut adaptation)?;
/// assert_eq!(adaptation.quantized_bytes(), 64 * 64 / 2 + 64 * 4);
/// // A layer reads the unpacked matrix and the factors.
/// assert_eq!(adapted[0].weight.val().dims(), [64, 64]);
/// let error = (adapted[0].weight.val() - given.clone()).abs().max() / given.abs().max();
/// assert!(error.into_scalar::<f32>() < 0.16);
/// # Ok::<(), firebrick_strategies::StrategyError>(())
/// ```
///
/// # Memory
///
/// For Ψ packed parameters and ψ parameters of factors, with AdamW and `Amp::bf16()`, in bytes between two steps:
///
/// | `Lora` | with `Quantize::int8()` | with `Quantize::nf4()` |
/// |---|---|---|
/// | 6Ψ + 16ψ | 1.0625Ψ + 16ψ | 0.5625Ψ + 16ψ |
///
/// A step unpacks the matrices of one block at a time: blocks always run again in the backward pass, like those of
/// [`Recompute`](crate::Recompute), because Burn's graph would otherwise keep the unpacked matrices of all blocks.
///
/// At the start, matrices are packed one after the other, in host memory. A run from a run file also reads a pretrained
/// folder matrix by matrix; another one starts from a model in memory. Where the whole model is saved or returned, host
/// memory must have room for it.
///
/// # With others
///
/// [`Amp`](crate::Amp) decides the dtype that matrices are unpacked in. Under [`Zero`](crate::Zero), every rank keeps all
/// packed matrices, and shares the factors and their state; the ranks must be given the same model.
/// [`Offload::parameters`](crate::Offload::parameters) keeps the packed matrices in host memory, and
/// [`Offload::optimizer`](crate::Offload::optimizer) on the device. The magnitudes of [DoRA](crate::Lora::dora) start as
/// the norms of the matrices before they are packed.
///
/// A checkpoint contains the packed matrices, and a run resumes from it bit for bit. The model that a run returns, and
/// `model.safetensors`, have the unpacked matrices with the factors merged in.
///
/// A layer of your own must read its weight as `weight.val()`, or call [`adapted_linear`](crate::adapted_linear). The
/// parameter itself is a placeholder of shape `[1, 1]`, so use `weight.val().dims()` for its shape.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Quantize {
    format: Format,
}

/// What matrices are packed as.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Format {
    Nf4,
    Int8,
}

impl Quantize {
    /// Packs matrices as 4-bit NormalFloat: 4.5 bits for each element.
    pub fn nf4() -> Self {
        Self { format: Format::Nf4 }
    }

    /// Packs matrices as 8-bit integers: 8.5 bits for each element.
    pub fn int8() -> Self {
        Self { format: Format::Int8 }
    }

    fn packing(self) -> Packing {
        match self.format {
            Format::Nf4 => Packing::Nf4,
            Format::Int8 => Packing::Int8,
        }
    }
}

impl StrategyRecipe for Quantize {
    fn effects(&self) -> Effects {
        let quantizes = Some(self.packing());
        Effects { adapts: true, quantizes, result: OnResult::Parameters, ..Effects::none(NAME) }
    }
}

impl<M: Module> Strategy<M> for Quantize {
    fn adapted(&self, model: M, adaptation: &mut Adaptation) -> Result<M, StrategyError> {
        if adaptation.quantized().next().is_some() {
            return Err(StrategyError::Twice(NAME));
        }
        let matrices = frozen_matrices(&model, |_| true);
        if matrices.is_empty() {
            return Err(StrategyError::NothingQuantized);
        }
        let (packing, done, mut not_finite) = (self.packing(), HashMap::new(), None);
        let attach = Attach { packing, matrices, adaptation, not_finite: &mut not_finite, done };
        let model = model.apply_reparameterization(attach);
        match not_finite {
            None => Ok(model),
            Some(parameter) => Err(StrategyError::NotFinite { strategy: NAME, parameter }),
        }
    }

    fn stages(&self, setup: &mut Setup<M>) -> Result<Stages<M>, StrategyError> {
        // A placeholder has one element.
        if !frozen_matrices(setup.model(), |shape| shape.iter().product::<usize>() > 1).is_empty() {
            return Err(StrategyError::NotAdapted(NAME));
        }
        setup.segments_mut().recompute_unpacked();
        Ok(Stages::of(Quantized(self.packing())))
    }
}

/// Returns the frozen matrices of linear layers in blocks, of wanted shapes.
fn frozen_matrices<M: Module>(model: &M, wanted: impl Fn(&[usize]) -> bool) -> HashSet<ParamId> {
    let paths = Paths::of(model);
    let mut frozen = HashSet::new();
    each_param(model, |param| {
        let shape = param.shape();
        if shape.len() == 2 && wanted(&shape) && !param.learns() {
            frozen.insert(param.id());
        }
    });
    for place in paths.places().iter().filter(|place| place.block().is_none()) {
        frozen.remove(&place.id);
    }
    paths.matrices_of_linear_layers(&frozen)
}

/// The live state of [`Quantize`]: the format of the packed matrices.
#[derive(Clone, Copy, Debug)]
struct Quantized(Packing);

impl<M> Stage<M> for Quantized {
    fn name(&self) -> &'static str {
        NAME
    }

    fn save(&self, state: StageState) -> StageState {
        state.with("bits", self.0.bits() as f64)
    }

    /// Checks the format: factors are only valid for the matrices that they were trained beside.
    fn restore(&mut self, saved: &StageState) -> Result<(), StrategyError> {
        let (bits, found) = (saved.get("bits")?, self.0.bits());
        let expected = format!("in {bits} bits, as in the saved run");
        let same = SettingError::require(bits == found as f64, "", expected, format!("{found} bits"));
        same.map_err(|error| StrategyError::setting(NAME, error))
    }
}

#[cfg(test)]
mod tests;
