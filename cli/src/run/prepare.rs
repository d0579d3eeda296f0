//! The parts of a run, before training.

use std::path::PathBuf;
use std::sync::Arc;

use burn::tensor::Device;
use burn::train::Interrupter;
use firebrick_datasets::collators::Labels;
use firebrick_datasets::{DataError, Reference, SpecialTokens, Tokenizer, counted};
use firebrick_strategies::optim::ModelOptimizer;
use firebrick_strategies::{Adaptation, Communicator, Composition, OnDisk, Paths, Setup, StrategyError};
use firebrick_tasks::{Loaded, Settled};
use firebrick_world::{World, host_device};

use super::many_ranks::ParameterKind;
use super::shapes::{parameters, skeleton};
use super::{DataRun, Run, first_effect, recipes};
use crate::RunError;
use crate::hub::{FileSet, local_folder};
use firebrick::BestBy;
use firebrick::observe::report::TruncatedTexts;
use firebrick::{Adapters, AnyBatch, AnyModel, Data, TrainError, Trainer, device, require_scratch};
use firebrick_models::decoding::Decoding;
use firebrick_models::family::Sizes;
use firebrick_models::inference::LabelKind;
use firebrick_models::pretrained::{CLASSIFIER, Folder};
use firebrick_models::{AnyConfig, ModelType, WrittenScores, drawn_now};

/// The parts of a run, before training.
pub(crate) struct Parts {
    /// The training device, with autodiff.
    pub device: Device,
    /// Whether strategies take the weights from the host, one after another, so that each can be read when it is taken.
    pub later: bool,
    /// The name of the training device, as in `cuda:0`.
    pub device_name: String,
    /// The ranks.
    pub world: World,
    /// The data, cut into batches.
    pub data: Data<AnyBatch>,
    /// The texts of the data that were cut.
    pub truncated: Vec<TruncatedTexts>,
    /// The tokenizer that made the tokens.
    pub tokenizer: Arc<Tokenizer>,
    /// The model's configuration.
    pub config: AnyConfig,
    /// The folder with the weights, unless they are fresh.
    pub folder: Option<Folder>,
    /// The paths of the parameters that the folder lacks, which are initialized instead.
    pub fresh: Vec<String>,
    /// The factors to start from, if the run names a folder of them.
    pub adapters: Option<Adapters>,
}

/// The sizes of a fresh model before the data is known.
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
    /// Finds the device, checks the strategies on it, and reads and tokenizes the text. Reports progress through `say`.
    ///
    /// # Errors
    ///
    /// The device is not available, the strategies do not fit, the data cannot be read, or the model does not fit the
    /// data.
    pub(crate) fn prepare(
        &self,
        model: ModelType,
        folder: Option<Folder>,
        interrupter: &Interrupter,
        say: impl Fn(&str),
    ) -> Result<Parts, RunError> {
        self.prepare_resumed(model, folder, None, interrupter, say)
    }

    /// Like [`prepare`](Self::prepare), but for a resumed run, which keeps the given tokenizer if it was built from the
    /// text.
    ///
    /// # Errors
    ///
    /// Those of [`prepare`](Self::prepare), and a tokenizer that cannot be read.
    pub(crate) fn prepare_resumed(
        &self,
        model: ModelType,
        folder: Option<Folder>,
        tokenizer: Option<PathBuf>,
        interrupter: &Interrupter,
        say: impl Fn(&str),
    ) -> Result<Parts, RunError> {
        if let Some(OnDisk { folder, .. }) = first_effect(&self.strategies, |effects| effects.on_disk) {
            require_scratch(&folder).map_err(TrainError::from)?;
        }
        let parts = self.parts(model, folder, tokenizer, interrupter, say)?;
        // A size that no machine can hold is reported as such, rather than as an invalid configuration.
        self.require_room(&parts)?;
        self.require_possible(&parts)?;
        Ok(parts)
    }

    /// Like [`prepare`](Self::prepare), but accepts a model that is too large for this machine, because the model is
    /// not created here.
    ///
    /// # Errors
    ///
    /// Those of [`prepare`](Self::prepare), except for the size of the model.
    pub(crate) fn prepare_unbounded(
        &self,
        model: ModelType,
        folder: Option<Folder>,
        say: impl Fn(&str),
    ) -> Result<Parts, RunError> {
        let parts = self.parts(model, folder, None, &Interrupter::new(), say)?;
        self.require_possible(&parts)?;
        Ok(parts)
    }

    fn parts(
        &self,
        model: ModelType,
        folder: Option<Folder>,
        own_tokenizer: Option<PathBuf>,
        interrupter: &Interrupter,
        say: impl Fn(&str),
    ) -> Result<Parts, RunError> {
        let (device, device_name) = self.find_device(&say)?;
        let config = self.config(model, folder.as_ref(), UNKNOWN)?;
        let held = |processes| {
            let bytes = self.bytes_per_parameter(&self.counted_order(), processes, ParameterKind::TRAINED);
            parameters(&config) * bytes
        };
        let world = self.world(device::alike(&self.device, &device_name), held)?;
        let device = device.autodiff();
        // Try strategies and groups first, on a model of the same parts with the smallest parameters: an invalid order
        // is found before anything is read or allocated.
        let folder = match folder {
            Some(folder) if self.task.labels().is_some_and(|labels| labels.new_head) => {
                Some(config.without_head(folder, CLASSIFIER))
            }
            folder => folder,
        };
        let fresh = folder.as_ref().map_or_else(Vec::new, |folder| config.fresh_paths(folder));
        let skeleton = skeleton(&config, &device);
        self.groups().build(&skeleton, &*self.optimizer)?;
        let strategies = recipes(&self.composed());
        let mut adaptation = Adaptation::default().with_fresh(fresh.clone());
        let adapted = strategies.adapt(skeleton, &mut adaptation)?;
        let adapters = self.adapters(&config, &fresh, &say)?;
        if let Some(adapters) = &adapters {
            adapters.require(adaptation.low_rank()).map_err(TrainError::from)?;
            if adapters.dropout != adaptation.dropout() {
                say(&format!(
                    "the adapter was trained with a dropout of {}; this run has {}",
                    adapters.dropout,
                    adaptation.dropout()
                ));
            }
        }
        self.require_early_score(&config)?;
        let shares = first_effect(&self.strategies, |effects| effects.context).is_some_and(|ranks| ranks > 1);
        if shares && !config.divides_tokens() {
            return Err(TrainError::TokensNotDivided.into());
        }
        if let Some(ranks) =
            first_effect(&self.strategies, |effects| effects.tensor).filter(|ranks| *ranks > 1)
        {
            adaptation.require_divisible(true).map_err(TrainError::from)?;
            // Its parameters are not drawn.
            let plan = config.init(&device).tensor_plan();
            plan.check_ranks(ranks).map_err(TrainError::from)?;
            adaptation.require_factors_in_blocks(&adapted, &plan).map_err(TrainError::from)?;
        }
        if let Some(pipelined) =
            first_effect(&self.strategies, |effects| effects.pipeline).filter(|pipelined| pipelined.ranks > 1)
        {
            adaptation.require_divisible(false).map_err(TrainError::from)?;
            if config.attention().iter().any(|attention| attention.of_source != attention.over_source) {
                return Err(TrainError::from(StrategyError::StatesReadElsewhere).into());
            }
            if self.task.reference().is_some() {
                return Err(TrainError::from(StrategyError::NotCompared).into());
            }
            let blocks = Paths::of(&adapted).blocks().count();
            pipelined.blocks_of_stages(&vec![1; blocks]).map_err(TrainError::from)?;
        }
        if self.task.reference() == Some(Reference::AdapterOff) && adaptation.low_rank().is_none() {
            return Err(TrainError::NoAdapter.into());
        }
        let mut setup = Setup::new(&adapted, &device).among(Communicator::rehearsal(self.number_of_ranks()));
        strategies.start(&mut setup)?;
        // Packed matrices are read one after the other, so that the model is never held whole.
        let later = setup.order().places_master() || setup.order().quantizes();
        let mut asked = DataRun::from(self);
        if let Some(folder) = &folder {
            let labels = self.task.labels();
            let is_number = labels.is_some_and(|labels| labels.kind == Some(LabelKind::Number));
            asked.settled = Settled::to_train(folder, &config, is_number)?;
        }
        asked.settled.tokenizer = own_tokenizer;
        let own = asked.settled.tokenizer.clone();
        let loaded = asked.load_until(interrupter, &say).map_err(|error| match own {
            Some(tokenizer) if error.is_of_vocabulary() => {
                RunError::OwnTokenizer { tokenizer, error: Box::new(error) }
            }
            _ => error,
        });
        let Loaded { tokenizer, data, labels, longest_row, truncated, .. } = loaded?;
        let data = data.batches_for(&config).ok_or_else(|| self.other_task())?;
        let data = data.tokenizer(&tokenizer)?;
        if self.early_stopping.is_some() && data.valid.as_ref().is_none_or(|valid| valid.samples(0) == 0) {
            let place = "the validation part, which `early_stopping` needs,".to_string();
            return Err(DataError::EmptyText { place }.into());
        }
        let known = config.vocabulary();
        let config = self.fitted(model, folder.as_ref(), &tokenizer, longest_row, labels.as_ref())?;
        let folder = folder.map(|folder| match config.vocabulary() {
            tokens if tokens > known => {
                let more = counted(tokens - known, "row");
                say(&format!(
                    "the tokenizer has {tokens} tokens, and the model of the folder {known}: {more} are added to its \
                     embeddings, each the mean of the others"
                ));
                folder.growing(known, tokens)
            }
            _ => folder,
        });
        // Check before the run that the prompt of the sample can be tokenized.
        if let Some(Err(error)) = self.sample.as_ref().map(|sample| tokenizer.encode(&sample.prompt)) {
            return Err(RunError::Prompt { reason: error.to_string() });
        }
        Ok(Parts {
            device,
            later,
            device_name,
            world,
            data,
            truncated,
            tokenizer,
            config,
            folder,
            fresh,
            adapters,
        })
    }

    /// Reads the factors that the run starts from. A head that is to start anew does not take the values of theirs.
    fn adapters(
        &self,
        config: &AnyConfig,
        fresh: &[String],
        say: &dyn Fn(&str),
    ) -> Result<Option<Adapters>, RunError> {
        let Some(folder) = &self.adapter else { return Ok(None) };
        let folder = local_folder(folder, FileSet::Adapter, say)?;
        let mut adapters = config.load_adapters(&folder)?;
        if self.task.labels().is_some_and(|labels| labels.new_head) {
            adapters.whole.retain(|(path, _)| !fresh.contains(path));
        }
        Ok(Some(adapters))
    }

    /// Returns the model's configuration: from its folder, or from the run file.
    fn config(
        &self,
        model: ModelType,
        folder: Option<&Folder>,
        sizes: Sizes<'_>,
    ) -> Result<AnyConfig, RunError> {
        match folder {
            Some(folder) => Ok(model.config_in(folder)?),
            None => self.model.config(model, sizes).ok_or_else(|| self.other_task()),
        }
    }

    /// Returns the configuration for this data, with its labels. Rejects tokens and rows that the model cannot read.
    fn fitted(
        &self,
        model: ModelType,
        folder: Option<&Folder>,
        tokenizer: &Tokenizer,
        longest_row: Option<usize>,
        labels: Option<&Labels>,
    ) -> Result<AnyConfig, RunError> {
        let longest = longest_row.map(|tokens| self.task.read_of(tokens));
        let vocabulary = tokenizer.vocab_size();
        let fresh = Sizes { vocabulary, positions: longest.unwrap_or(0), special: tokenizer.special() };
        let config = self.config(model, folder, fresh)?;
        let config = match config.vocabulary() < vocabulary {
            true => config.with_vocabulary(vocabulary),
            false => config,
        };
        let config = config.labelled(self.task.labels().and_then(|labels| labels.kind), labels);
        // Text generated from the exported folder starts with the token that training used.
        let config = match self.task.start_id(config.start(), tokenizer)? {
            Some(start) => config.starting_from(start),
            None => config,
        };
        self.task.require_fit(&config, tokenizer, Some(longest_row))?;
        Ok(config)
    }

    /// Returns the error for data that does not fit the task of the model.
    pub(crate) fn other_task(&self) -> RunError {
        RunError::Task {
            task: self.task.name(),
            models: "another model".into(),
            found: self.model.name().into(),
        }
    }

    /// Returns the model in host memory, with weights from its folder or drawn from the seed, and an optimizer without
    /// state. Reports the parameters that a folder lacks, which are initialized instead.
    ///
    /// # Errors
    ///
    /// The folder's tensors are not those of the model, or parameter groups do not fit the model.
    pub(crate) fn fresh(
        &self,
        parts: &Parts,
        say: impl Fn(&str),
    ) -> Result<(AnyModel, ModelOptimizer), RunError> {
        // Weights are drawn on the host: each backend has another generator, and they must depend neither on the device
        // nor on where strategies keep the master. The trainer moves them.
        let host = host_device().autodiff();
        parts.device.seed(self.seed);
        host.seed(self.seed);
        let model = match &parts.folder {
            None => drawn_now(parts.config.init(&host)),
            Some(folder) => {
                say(&format!("loading {}", folder.path().display()));
                let loaded = match parts.later {
                    true => parts.config.load_later(folder, &host)?,
                    false => parts.config.load(folder, &host)?,
                };
                if !loaded.fresh.is_empty() {
                    say(&format!("not in the folder, so they start anew: {}", loaded.fresh.join(", ")));
                }
                loaded.model
            }
        };
        let optimizer = self.groups().build(&model, &*self.optimizer)?;
        Ok((self.scoring(&parts.config, model, parts.folder.as_ref(), &parts.tokenizer)?, optimizer))
    }

    /// Returns the trainer that the run describes, without output and display.
    pub(crate) fn trainer(&self, parts: &Parts) -> Trainer<AnyModel> {
        let strategies = recipes(&self.composed());
        let trainer = Trainer::new().with(strategies).over(parts.world.clone()).settings(self.training());
        let trainer = trainer.fresh(parts.fresh.clone());
        let trainer = match &parts.adapters {
            Some(adapters) => trainer.starting_from(adapters),
            None => trainer,
        };
        trainer.optimizer_states(self.optimizer.least_state_bytes() as f64 / 4.0)
    }

    /// Rejects a model that cannot be created, and a `best_by` that is not one of the model's metrics.
    fn require_possible(&self, parts: &Parts) -> Result<(), RunError> {
        parts.config.check()?;
        let model = parts.config.init(&Device::flex());
        let model = self.scoring(&parts.config, model, parts.folder.as_ref(), &parts.tokenizer)?;
        BestBy::of(self.best_by.as_ref(), &model.scores(&[]))?;
        Ok(())
    }

    /// Rejects a `best_by` that is not one of the model's metrics before the data is read, unless the metrics depend on
    /// the labels that the data has, as those of words do.
    fn require_early_score(&self, config: &AnyConfig) -> Result<(), RunError> {
        let kind = match self.task.labels().map(|labels| labels.kind) {
            _ if self.best_by.is_none() => return Ok(()),
            Some(None) => return Ok(()),
            kind => kind.flatten(),
        };
        let config = config.labelled(kind, None);
        let model = skeleton(&config, &Device::flex());
        let scores = match self.task.evaluated_tokens() {
            None => model.scores(&[]),
            Some(_) => {
                // The names of the scores do not depend on the tokenizer.
                let tokenizer = Tokenizer::characters("?")?;
                let scores = WrittenScores::new(Arc::new(tokenizer), Decoding::default());
                config.scoring(model, scores).scores(&[])
            }
        };
        BestBy::of(self.best_by.as_ref(), &scores)?;
        Ok(())
    }

    /// Returns the model, which generates texts in evaluation if the task says so.
    ///
    /// # Errors
    ///
    /// The folder's tokens for texts cannot be read.
    pub(crate) fn scoring(
        &self,
        config: &AnyConfig,
        model: AnyModel,
        folder: Option<&Folder>,
        tokenizer: &Arc<Tokenizer>,
    ) -> Result<AnyModel, RunError> {
        let Some(tokens) = self.task.evaluated_tokens() else { return Ok(model) };
        let decoding = Decoding { max_new_tokens: tokens, ..Decoding::default() };
        let decoding = self.bounded(decoding, folder, tokenizer)?;
        Ok(config.scoring(model, WrittenScores::new(tokenizer.clone(), decoding)))
    }
}
