//! What a run is made of, before it trains.

use std::path::PathBuf;
use std::sync::Arc;

use burn::optim::ModuleOptimizer;
use burn::tensor::Device;
use burn::train::Interrupter;
use firebrick_datasets::{DataError, Labels, SpecialTokens, Tokenizer};
use firebrick_strategies::{Adaptation, Setup, Strategy, World, host_device};

use super::family::{Family, Sizes};
use super::inference::end_tokens;
use super::trainable::Trainable;
use super::{DataRun, Loaded, Run, RunError, Settled, TaskConfig};
use crate::decoding::Decoding;
use crate::models::pretrained::{CLASSIFIER, Folder, HubConfig};
use crate::models::{WrittenScores, drawn_now};
use crate::score::BestBy;
use crate::{ByteSize, Data, Trainer, device};

/// What a run is made of, before it trains.
pub(crate) struct Parts<M: Trainable> {
    /// Where it trains, with autodiff.
    pub device: Device,
    /// Where its weights are made: there too, or on the host where strategies take them from there, one after
    /// the other.
    pub origin: Device,
    /// Whether they do, so that each may be read when it is taken.
    pub later: bool,
    /// What it is called, as in `cuda:0`.
    pub device_name: String,
    /// The ranks.
    pub world: World,
    /// The data, cut.
    pub data: Data<M::Batch>,
    /// What made its tokens.
    pub tokenizer: Arc<Tokenizer>,
    /// What the model is made by.
    pub config: M::Config,
    /// Where its weights come from, where they are not fresh.
    pub folder: Option<Folder>,
    /// The paths of the parameters that the folder lacks, which start anew.
    pub fresh: Vec<String>,
}

/// What is known of a fresh model before the data is.
const UNKNOWN: Sizes<'static> = Sizes { vocabulary: 1, positions: 1, special: &NO_TOKENS };
static NO_TOKENS: SpecialTokens = SpecialTokens {
    pad: None,
    unk: None,
    bos: None,
    eos: None,
    cls: None,
    sep: None,
    mask: None,
    all: std::collections::BTreeSet::new(),
};

impl Run {
    /// Finds the device, checks the strategies on it, and reads and tokenizes the text, saying what
    /// it does.
    ///
    /// # Errors
    ///
    /// A device that is not there, strategies that do not fit, data that cannot be read, or a model that does not
    /// fit the data.
    pub(crate) fn prepare<M: Trainable>(
        &self,
        folder: Option<Folder>,
        interrupter: &Interrupter,
        say: impl Fn(&str),
    ) -> Result<Parts<M>, RunError> {
        self.prepare_resumed(folder, None, interrupter, say)
    }

    /// The same of a run that goes on, whose tokenizer is this one where it was made of the text.
    ///
    /// # Errors
    ///
    /// Those of [`prepare`](Self::prepare), and a tokenizer that cannot be read.
    pub(crate) fn prepare_resumed<M: Trainable>(
        &self,
        folder: Option<Folder>,
        tokenizer: Option<PathBuf>,
        interrupter: &Interrupter,
        say: impl Fn(&str),
    ) -> Result<Parts<M>, RunError> {
        let parts = self.parts::<M>(folder, tokenizer, interrupter, say)?;
        // A size that no machine has is refused as that, and not as one that no configuration may have.
        self.require_room(&parts)?;
        self.require_possible(&parts)?;
        Ok(parts)
    }

    /// The same of a model that this machine may be too small for: one that is not made here.
    ///
    /// # Errors
    ///
    /// Those of [`prepare`](Self::prepare) but for the model's size.
    pub(crate) fn prepare_unbounded<M: Trainable>(
        &self,
        folder: Option<Folder>,
        say: impl Fn(&str),
    ) -> Result<Parts<M>, RunError> {
        let parts = self.parts::<M>(folder, None, &Interrupter::new(), say)?;
        self.require_possible(&parts)?;
        Ok(parts)
    }

    fn parts<M: Trainable>(
        &self,
        folder: Option<Folder>,
        own_tokenizer: Option<PathBuf>,
        interrupter: &Interrupter,
        say: impl Fn(&str),
    ) -> Result<Parts<M>, RunError> {
        let (device, device_name) = device::find(&self.device)?;
        let world = self.world(device::alike(&self.device, &device_name))?;
        let device = device.autodiff();
        // Strategies and groups first, on a model of the same parts but hardly a number: an order that
        // cannot be is found before anything is read or allocated.
        let config = self.config::<M>(folder.as_ref(), UNKNOWN)?;
        let folder = match folder {
            Some(folder) if self.task.has_new_head() => Some(folder.without_head::<M>(&config, CLASSIFIER)),
            folder => folder,
        };
        let fresh = folder.as_ref().map_or_else(Vec::new, |folder| folder.fresh_paths::<M>(&config));
        let skeleton: M = skeleton(config.clone(), &device);
        self.optimizer.build(&skeleton, &self.groups())?;
        let strategies = self.starting_anew(&fresh).composed();
        let adapted = strategies.adapt(skeleton, &mut Adaptation::default())?;
        let mut setup = Setup::new(&adapted, &device);
        strategies.start(&mut setup)?;
        let later = setup.places_master();
        let origin = match host_device() {
            Some(host) if later => host.autodiff(),
            _ => device.clone(),
        };
        let mut asked = DataRun::from(self);
        if let Some(folder) = &folder {
            asked.settled = Settled::to_train::<M>(folder, &config, &self.task)?;
        }
        asked.settled.tokenizer = own_tokenizer;
        let own = asked.settled.tokenizer.clone();
        let loaded = asked.load_until(interrupter, &say).map_err(|error| match own {
            Some(tokenizer) if error.is_of_vocabulary() => {
                RunError::OwnTokenizer { tokenizer, error: Box::new(error) }
            }
            _ => error,
        });
        let Loaded { tokenizer, data, longest_row, .. } = loaded?;
        let (data, labels) = M::batches(data).ok_or_else(|| self.other_task())?;
        let data = data.tokenizer(&tokenizer)?;
        if self.early_stopping.is_some() && data.valid.is_none() {
            let place = "the validation part, which `early_stopping` needs,".to_string();
            return Err(DataError::EmptyText { place }.into());
        }
        let config = self.fitted::<M>(folder.as_ref(), &tokenizer, longest_row, labels.as_ref())?;
        // That the sample's beginning has tokens is known before the run.
        if let Some(Err(error)) = self.sample.as_ref().map(|sample| tokenizer.encode(&sample.prompt)) {
            return Err(RunError::Prompt { reason: error.to_string() });
        }
        Ok(Parts { device, origin, later, device_name, world, data, tokenizer, config, folder, fresh })
    }

    /// What the model is made by: as its folder says, or as the run file does.
    fn config<M: Trainable>(&self, folder: Option<&Folder>, sizes: Sizes<'_>) -> Result<M::Config, RunError> {
        match folder {
            Some(folder) => M::config_of(folder),
            None => M::Config::fresh(&self.model, sizes).ok_or_else(|| self.other_task()),
        }
    }

    /// The same for this data: with its labels, and refused where its tokens or rows are none of the model's.
    fn fitted<M: Trainable>(
        &self,
        folder: Option<&Folder>,
        tokenizer: &Tokenizer,
        longest_row: Option<usize>,
        labels: Option<&Labels>,
    ) -> Result<M::Config, RunError> {
        let longest = longest_row.map(|tokens| self.task.read_of(tokens));
        let vocabulary = tokenizer.vocab_size();
        let fresh = Sizes { vocabulary, positions: longest.unwrap_or(0), special: tokenizer.special() };
        let config = self.config::<M>(folder, fresh)?.labelled(&self.task, labels);
        // Who generates from the folder that the run leaves starts as it was trained.
        let config = match self.task.start_id(config.start(), tokenizer)? {
            Some(start) => config.starting_from(start),
            None => config,
        };
        self.task.require_fit(&config, tokenizer, Some(longest_row))?;
        Ok(config)
    }

    /// The data is not of the model's task.
    pub(crate) fn other_task(&self) -> RunError {
        RunError::Task { task: self.task.name(), models: "another model", found: self.model.name().into() }
    }

    /// The model, with weights of its folder or drawn from the seed, and an optimizer without state. What starts
    /// anew in a pretrained model is told.
    ///
    /// # Errors
    ///
    /// The folder's tensors are not those of the model, or groups of parameters do not fit it.
    pub(crate) fn fresh<M: Trainable>(
        &self,
        parts: &Parts<M>,
        say: impl Fn(&str),
    ) -> Result<(M, ModuleOptimizer), RunError> {
        parts.device.seed(self.seed);
        parts.origin.seed(self.seed);
        let model = match &parts.folder {
            None => drawn_now(M::init(&parts.config, &parts.origin)),
            Some(folder) => {
                say(&format!("loading {}", folder.path().display()));
                let loaded = match parts.later {
                    true => folder.load_later::<M>(&parts.config, &parts.origin)?,
                    false => folder.load::<M>(&parts.config, &parts.origin)?,
                };
                if !loaded.fresh.is_empty() {
                    say(&format!("not in the folder, so they start anew: {}", loaded.fresh.join(", ")));
                }
                loaded.model
            }
        };
        let optimizer = self.optimizer.build(&model, &self.groups())?;
        Ok((self.scoring(model, parts.folder.as_ref(), &parts.tokenizer)?, optimizer))
    }

    /// The trainer that the run describes, without output and without display.
    pub(crate) fn trainer<M: Trainable>(&self, parts: &Parts<M>) -> Trainer<impl Strategy<M> + use<M>> {
        let strategies = self.starting_anew(&parts.fresh).composed();
        let trainer = Trainer::new().with(strategies).over(parts.world.clone()).seed(self.seed);
        let trainer = trainer.label_smoothing(self.label_smoothing);
        let trainer = match (self.steps, self.epochs) {
            (Some(steps), _) => trainer.steps(steps),
            (None, epochs) => trainer.epochs(epochs.unwrap_or(1)),
        };
        let trainer = match self.evaluate_every {
            Some(updates) => trainer.evaluate_every(updates),
            None => trainer,
        };
        let trainer = match &self.best_by {
            Some(score) => trainer.best_by(score),
            None => trainer,
        };
        let trainer = match self.early_stopping {
            Some(evaluations) => trainer.early_stopping(evaluations),
            None => trainer,
        };
        let trainer = trainer.optimizer_states(self.optimizer.states());
        match self.device_budget {
            Some(ByteSize(bytes)) => trainer.device_budget(bytes),
            None => trainer,
        }
    }

    /// Refuses a model that cannot be made, and a `best_by` that is none of its scores.
    fn require_possible<M: Trainable>(&self, parts: &Parts<M>) -> Result<(), RunError> {
        parts.config.check()?;
        let model = M::init(&parts.config, &Device::flex());
        let model = self.scoring(model, parts.folder.as_ref(), &parts.tokenizer)?;
        BestBy::of(self.best_by.as_ref(), &model.scores(&[]))?;
        Ok(())
    }

    /// The model, which writes texts in evaluation where the task says so.
    ///
    /// # Errors
    ///
    /// The folder's end tokens cannot be read.
    pub(crate) fn scoring<M: Trainable>(
        &self,
        model: M,
        folder: Option<&Folder>,
        tokenizer: &Arc<Tokenizer>,
    ) -> Result<M, RunError> {
        let TaskConfig::Seq2Seq { generate: Some(tokens), .. } = self.task else { return Ok(model) };
        let end_tokens = end_tokens(folder, tokenizer)?;
        let decoding = Decoding { max_new_tokens: tokens, end_tokens, ..Decoding::default() };
        Ok(model.scoring(WrittenScores::new(tokenizer.clone(), decoding)))
    }
}

/// A run with more blocks than this is refused for its size.
pub(super) const MOST_LAYERS: usize = 2000;

/// The model with the same parts under the same names, and hardly any numbers.
pub(crate) fn skeleton<M: Trainable>(config: M::Config, device: &Device) -> M {
    let layers = config.layers().min(MOST_LAYERS);
    drawn_now(M::init(&config.smallest().with_layers(layers), device))
}
