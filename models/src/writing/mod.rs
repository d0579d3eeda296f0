//! Text generation with trained models.
//!
//! ```text
//! mod.rs       continuing prompts, and generating texts from sources
//! caching.rs   a decoder that continues from its cache of keys and values
//! ```

mod caching;
#[cfg(test)]
mod tests;

use burn::tensor::Tensor;
use firebrick::TrainError;
use firebrick_datasets::collators::Inputs;
use firebrick_strategies::Pass;
use firebrick_world::Communicator;

use crate::decoding::{Decoding, Prompt, Text};

pub(super) use caching::Caching;
pub(crate) use caching::ReadsOn;

/// A model that continues texts: [`Gpt`](crate::Gpt) and [`Llama`](crate::Llama).
///
/// Each token is read once, because keys and values are cached. Once a text is longer than the model's positions, its
/// end is read again for each token. A model with `longrope` reads a text again when the text outgrows the context of the
/// original training.
///
/// ```
/// use burn::tensor::Device;
/// use firebrick_models::decoding::{Decoding, Prompt};
/// use firebrick_models::{Continues, GptConfig};
///
/// let config = GptConfig { layers: 1, heads: 1, width: 8, dropout: 0.0, bias: true, tied: true };
/// let gpt = config.init(5, 16, &Device::flex());
/// let decoding = Decoding { max_new_tokens: 6, temperature: 0.8, seed: 7, ..Decoding::default() };
/// let texts = gpt.continued(&[Prompt::new(0, [1, 2]), Prompt::new(1, [3])], &decoding)?;
/// assert_eq!(texts[0][0].tokens.len(), 6);
/// # Ok::<(), firebrick::TrainError>(())
/// ```
#[allow(private_bounds, reason = "how a model is read is its own matter")]
pub trait Continues: ReadsOn {
    /// Generates the texts that follow each prompt; the prompt is not included. An empty prompt starts from token 0.
    /// If a prompt is longer than the model's positions, the model reads only its end.
    ///
    /// # Errors
    ///
    /// A decoding setting is invalid, or the device failed.
    fn continued(&self, prompts: &[Prompt], decoding: &Decoding) -> Result<Vec<Vec<Text>>, TrainError> {
        let model = self.valid();
        let device = model.devices().first().cloned().unwrap_or_default();
        let pass = Pass::evaluate(&device).computing_in(model.dtype());
        decoding.write(&mut Caching::new(&model, pass, prompts, None)?, prompts)
    }

    /// Like [`continued`](Self::continued), on ranks that share the model. Each rank has its own prompts, possibly
    /// none, and takes part until all ranks are done.
    ///
    /// The model and `pass` are those of evaluation, as prepared by the strategies. With [`Zero`](firebrick::Zero) in
    /// stage 3 the model is a shard, and its blocks are gathered one at a time for each token.
    ///
    /// # Errors
    ///
    /// The errors of [`continued`](Self::continued), or a rank is lost.
    fn continued_among(
        &self,
        world: &Communicator,
        pass: &Pass,
        prompts: &[Prompt],
        decoding: &Decoding,
    ) -> Result<Vec<Vec<Text>>, TrainError> {
        let mut model = Caching::new(self, pass.clone(), prompts, None)?.among(world);
        decoding.write(&mut model, prompts)
    }
}

/// A model that writes texts from sources: [`T5`](crate::T5) and [`Bart`](crate::Bart).
///
/// Each source is encoded once, and each token is read once, because keys and values are cached. Once a text is longer than
/// the model's positions, its end is read again for each token.
///
/// ```
/// use burn::tensor::Device;
/// use firebrick::datasets::collators::{Inputs, Tokens};
/// use firebrick::datasets::Padding;
/// use firebrick_models::decoding::Decoding;
/// use firebrick_models::{T5, T5Config, Writes};
/// use firebrick_models::pretrained::Pretrained;
///
/// let config = T5Config { vocab_size: 30, d_model: 16, d_kv: 4, d_ff: 32, num_layers: 1, num_heads: 4, ..Default::default() };
/// let model = T5::init(&config, &Device::flex());
/// let source = Tokens { ids: vec![5, 6, 1], type_ids: vec![0; 3] };
/// let sources = Inputs::new(&[&source], &Padding::default(), 0)?;
/// let decoding = Decoding { max_new_tokens: 4, beams: 2, end_tokens: vec![1], ..Decoding::default() };
/// let texts = model.written(&sources, 0, &decoding)?;
/// assert!(texts[0][0].tokens.len() <= 4);
/// # Ok::<(), firebrick::TrainError>(())
/// ```
#[allow(private_bounds, reason = "how a model is read is its own matter")]
pub trait Writes: ReadsOn {
    /// Generates texts from each source. Generation begins with the `start` token, which is not returned: in T5 it is
    /// the padding token, in BART the end token.
    ///
    /// # Errors
    ///
    /// The errors of [`Continues::continued`].
    fn written(
        &self,
        sources: &Inputs,
        start: u32,
        decoding: &Decoding,
    ) -> Result<Vec<Vec<Text>>, TrainError> {
        let prompts: Vec<_> = (0..sources.shape()[0] as u64).map(|row| Prompt::new(row, [start])).collect();
        self.written_from(sources, &prompts, decoding)
    }

    /// Like [`written`](Self::written), but each text continues its own prompt.
    ///
    /// # Errors
    ///
    /// The errors of [`Continues::continued`].
    fn written_from(
        &self,
        sources: &Inputs,
        prompts: &[Prompt],
        decoding: &Decoding,
    ) -> Result<Vec<Vec<Text>>, TrainError> {
        let model = self.valid();
        let device = model.devices().first().cloned().unwrap_or_default();
        let pass = Pass::evaluate(&device).computing_in(model.dtype());
        decoding.write(&mut Caching::new(&model, pass, prompts, Some(sources))?, prompts)
    }

    /// Like [`written_from`](Self::written_from), on ranks that share the model, each with its own sources. See
    /// [`Continues::continued_among`].
    ///
    /// # Errors
    ///
    /// The errors of [`Continues::continued_among`].
    fn written_among(
        &self,
        world: &Communicator,
        pass: &Pass,
        sources: &Inputs,
        prompts: &[Prompt],
        decoding: &Decoding,
    ) -> Result<Vec<Vec<Text>>, TrainError> {
        let model = Caching::new(self, pass.clone(), prompts, Some(sources))?;
        decoding.write(&mut model.among(world), prompts)
    }
}

/// Selects the last column: `[batch, length, width]` to `[batch, 1, width]`.
pub(crate) fn last_column(x: Tensor<3>) -> Tensor<3> {
    let length = x.dims()[1];
    x.narrow(1, length - 1, 1)
}
