//! The result of a run.

use std::path::{Path, PathBuf};

use burn::module::{Module, ParamId};
use burn::tensor::{FloatDType, Tensor};
use firebrick_datasets::Cursor;
use firebrick_strategies::{ParamMap, map_params};

use crate::observe::numbers::StepNumbers;
use crate::observe::report::Report;
use crate::{Adapters, TrainError, saving};

/// The result of [`Trainer::fit`](crate::Trainer::fit).
#[derive(Debug)]
pub struct Trained<M> {
    /// The whole master, outside autodiff, in the structure of the input model: in f32, or in bf16 under
    /// `Amp::pure_bf16()`, and with the factors of [`Lora`](crate::Lora) merged into their matrices. If every rank
    /// held only a part of its replica, as in stage 3 of [`Zero`](crate::Zero), the model is in host memory.
    pub model: M,
    /// The average of the weights over the updates, in f32, under [`Ema`](crate::Ema). Evaluations use this model.
    pub averaged: Option<M>,
    /// The adapters alone, under [`Lora`](crate::Lora).
    pub adapters: Option<Adapters>,
    /// The run's statistics.
    pub report: Report,
    /// The path of the weights of the best evaluation, if the run has an output folder and was evaluated.
    pub best: Option<PathBuf>,
    /// The position in the stream of samples. A later run that starts here continues with samples that this run has
    /// not seen.
    pub cursor: Cursor,
    /// The numbers of the last step.
    pub last_step: StepNumbers,
    /// Whether `fit` made an update or an evaluation; false if it resumed a run that was already complete.
    pub has_gone_on: bool,
}

impl<M: Module> Trained<M> {
    /// Writes the weights as safetensors by module path, all in `dtype`, rounded to nearest, ties to even. An
    /// existing file is replaced once the new one is complete. To make such a file from a checkpoint, even while the
    /// run is in progress, use [`consolidate`](firebrick_checkpoints::consolidate).
    ///
    /// # Errors
    ///
    /// [`TrainError::File`] if the file cannot be written.
    ///
    /// ```
    /// # use burn::tensor::{Device, FloatDType};
    /// # use firebrick::*;
    /// # use firebrick::datasets::Windows;
    /// # use firebrick::optim::AdamW;
    /// # use firebrick_models::GptConfig;
    /// # let folder = tempfile::tempdir().unwrap();
    /// # let data = Data::new(Windows::new((0..99).map(|i| i % 7).collect::<Vec<u32>>(), 8)?);
    /// # let config = GptConfig { layers: 1, heads: 1, width: 8, dropout: 0.0, bias: true, tied: true };
    /// # let model = config.init(7, 8, &Device::flex().autodiff());
    /// # let trainer = Trainer::new().steps(1);
    /// let trained = trainer.fit(model, AdamW::new().init()?, Schedule::constant(1e-3), data)?;
    /// trained.save_weights(folder.path().join("model.safetensors"), FloatDType::BF16)?;
    /// # assert!(folder.path().join("model.safetensors").metadata().unwrap().len() > 2000);
    /// # Ok::<(), TrainError>(())
    /// ```
    pub fn save_weights(&self, path: impl AsRef<Path>, dtype: FloatDType) -> Result<(), TrainError> {
        struct Round(FloatDType);
        impl ParamMap for Round {
            fn map<const D: usize>(&mut self, _: ParamId, value: Tensor<D>) -> Tensor<D> {
                value.cast(self.0)
            }
        }
        saving::save_model(&map_params(self.model.clone(), &mut Round(dtype)), path.as_ref())
    }
}
