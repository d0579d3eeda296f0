//! What a run keeps on the disk: its output folder, its checkpoints, and the one that it resumes from.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::Trainer;
use crate::checkpoint::RunText;
use crate::output::Output;
use crate::{Checkpoints, Resume};

/// The output folder of a run.
#[derive(Clone, Debug)]
pub(super) enum Destination {
    Folder(PathBuf),
    Claimed(Arc<Output>),
    /// The folder of the first rank, which is in another process.
    Elsewhere(PathBuf),
}

impl Destination {
    pub fn folder(&self) -> &Path {
        match self {
            Self::Folder(folder) | Self::Elsewhere(folder) => folder,
            Self::Claimed(output) => output.folder(),
        }
    }
}

impl<M: 'static> Trainer<M> {
    /// Writes into this folder: `model.safetensors` at the end; `ema.safetensors` if the weights are averaged;
    /// `adapter` with the factors of [`Lora`](crate::Lora); `best.safetensors` with the evaluated weights at each
    /// best evaluation; `metrics.jsonl` with a line per step and evaluation; and burn-train's metric files. If the
    /// folder holds an earlier run, that run is kept under another name once this one has made its first update. A
    /// folder that holds anything else is rejected.
    pub fn output(self, folder: impl AsRef<Path>) -> Self {
        Self { output: Some(Destination::Folder(folder.as_ref().into())), ..self }
    }

    /// Writes into a folder that is already claimed.
    pub fn claimed(self, output: Arc<Output>) -> Self {
        Self { output: Some(Destination::Claimed(output)), ..self }
    }

    /// Names the folder that the first rank, in another process, writes into.
    pub fn saved_elsewhere(self, folder: &Path) -> Self {
        Self { output: Some(Destination::Elsewhere(folder.into())), ..self }
    }

    /// Saves checkpoints into `checkpoints` in the output folder, from which you can [resume](Self::resume) the run.
    ///
    /// ```
    /// # use burn::tensor::Device;
    /// # use firebrick::{datasets::Windows, optim::AdamW, *};
    /// # use firebrick_models::GptConfig;
    /// # let folder = tempfile::tempdir().unwrap();
    /// # let output = folder.path().join("run");
    /// # let data = Data::new(Windows::new((0..99).map(|i| i % 7).collect::<Vec<u32>>(), 8)?.shuffled(1));
    /// # let config = GptConfig { layers: 1, heads: 1, width: 8, dropout: 0.1, bias: true, tied: true };
    /// # let model = || config.init(7, 8, &Device::flex().autodiff());
    /// let trainer = Trainer::new().steps(6).output(&output).checkpoints(Checkpoints::every(2));
    /// trainer.clone().fit(model(), AdamW::new().init()?, Schedule::constant(1e-3), data.clone())?;
    ///
    /// // Another process, with other initial weights, continues after the fourth update.
    /// let again = trainer.resume(Resume::Step(4));
    /// let trained = again.fit(model(), AdamW::new().init()?, Schedule::constant(1e-3), data)?;
    /// assert_eq!(trained.report.steps, 6);
    /// # Ok::<(), TrainError>(())
    /// ```
    pub fn checkpoints(self, checkpoints: Checkpoints) -> Self {
        Self { checkpoints: Some(checkpoints), ..self }
    }

    /// Continues from a checkpoint: losses, weights, the order of samples and all random numbers are those of an
    /// uninterrupted run; on the CPU, bit for bit.
    ///
    /// You may change the number of ranks and the strategies as long as an update sees the same number of samples:
    /// the run then continues as it would on those ranks, up to rounding. You may also change the length, which
    /// changes a schedule that is stretched over it. A different seed, schedule, global batch or number of samples is
    /// an error, unless you [allow](Self::allow_changes) it. `None` starts a new run.
    pub fn resume(self, from: impl Into<Option<Resume>>) -> Self {
        Self { resume: from.into(), ..self }
    }

    /// Lets a [resumed](Self::resume) run continue with changes to settings that affect its result.
    pub fn allow_changes(self, allow: bool) -> Self {
        Self { allow_changes: allow, ..self }
    }

    /// Sets the run file, which is saved and compared with a checkpoint's.
    pub fn described(self, run: RunText) -> Self {
        Self { run: Some(run), ..self }
    }
}
