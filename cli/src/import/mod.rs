//! Imports a DeepSpeed configuration, Hugging Face's training arguments, or both, as a run file.
//!
//! ```
//! use firebrick_cli::import::{Import, Outcome};
//!
//! let config = r#"{
//!     "train_batch_size": 64,
//!     "train_micro_batch_size_per_gpu": 4,
//!     "gradient_accumulation_steps": 8,
//!     "bf16": {"enabled": true},
//!     "gradient_clipping": 1.0,
//!     "zero_optimization": {"stage": 2, "overlap_comm": true},
//!     "optimizer": {"type": "AdamW", "params": {"lr": 3e-4}}
//! }"#;
//! let imported = Import::of("ds_config.json", config).run()?;
//! assert!(imported.run_file.contains("Zero(stage: 2),\n        Amp(bf16),\n        Accumulate(8),"));
//! assert!(imported.run_file.contains("ranks: 2,"));
//! let overlap = imported.rows.iter().find(|row| row.path == "zero_optimization.overlap_comm").unwrap();
//! assert!(matches!(overlap.outcome, Outcome::NoEffect(_)));
//! # Ok::<(), firebrick_cli::import::ImportError>(())
//! ```
//!
//! Settings that no file contains (data, model, and "auto" without training arguments) appear in the run file with the
//! mark `// fill in:` and a value to start from. Every field of the files has a [`Row`] that states its outcome.
//!
//! # From DeepSpeed
//!
//! | DeepSpeed | here |
//! |---|---|
//! | `train_micro_batch_size_per_gpu` | `batch: (micro: ..)` |
//! | `gradient_accumulation_steps` | `Accumulate(..)` |
//! | `train_batch_size` | micro x accumulate x `ranks`: missing parts are derived, contradictions are rejected |
//! | `data_types.grad_accum_dtype` | `AccumulateIn(.., bf16)` |
//! | `gradient_clipping` | `Clip(norm: ..)` |
//! | `communication_data_type` | `Zero(sum_in: ..)` |
//! | `bf16.enabled`, `torch_autocast` | `Amp(bf16)` |
//! | `bf16` with master weights and optimizer states in bf16 | `Amp(pure_bf16)` |
//! | `fp8` with the words of Transformer Engine's recipes; `mixed_precision: fp8` with `fp8_config` of Accelerate | `Amp(fp8)` |
//! | `fp16`: `initial_scale_power`, `loss_scale_window`, `hysteresis`, `min_loss_scale` | `Amp(dtype: f16, loss_scale: (initial, interval, hysteresis, minimum))` |
//! | `fp16.loss_scale` that is not 0 | `loss_scale: (constant: ..)` |
//! | `zero_optimization.stage` | `Zero(stage: ..)` |
//! | `tensor_parallel.autotp_size`, `pipeline.stages`, `sequence_parallel_size` | `mesh: (tensor: .., pipeline: .., context: ..)` |
//! | `stage3_param_persistence_threshold` | `Zero(replicate_below: ..)` |
//! | `offload_optimizer.device`: `cpu` | `Offload(optimizer)` |
//! | `offload_optimizer.device`: `nvme`, with `nvme_path` | `Offload(keep: optimizer, on: ..)` |
//! | `offload_param.device`: `cpu` | `Offload(parameters)`, with the optimizer's state |
//! | `offload_param.device`: `nvme`, with `nvme_path` | `Offload(keep: parameters, on: ..)`, with the optimizer's state |
//! | `activation_checkpointing`, if any part of it is on | `Recompute(every: 1)`, `offloaded` with `cpu_checkpointing` |
//! | `optimizer`: `Adam`, `AdamW`, `Lion`, `Lamb`, `SGD` | `AdamW`, `Lion`, `Lamb`, `Sgd`; weight decay applies to matrices, not to vectors |
//! | `scheduler`: `WarmupLR`, `WarmupDecayLR`, `WarmupCosineLR`, `OneCycle`, `LRRangeTest` | the same, see [`schedule`](firebrick::schedule) |
//! | `overlap_comm`, buckets, prefetching, pinning, logs, profilers, monitors | no effect |
//! | 1-bit Adam, `Lamb` with ZeRO, Muon, ZeRO++ quantization, curriculum, elasticity, compression, sparse attention | not supported |
//!
//! # From Hugging Face
//!
//! "auto" means what `Trainer` fills in: the training argument, or its default if it is not given. A value that differs
//! from its argument is rejected, as in `Trainer`. If the ds_config has no `optimizer` or `scheduler`, those of
//! `Trainer` apply. [Training arguments alone](Import::of_training_arguments) mean what `Trainer` makes of them without
//! DeepSpeed: its precision, its accumulation and its clipping.
//!
//! | training argument | here |
//! |---|---|
//! | `learning_rate`, `lr_scheduler_type`, `warmup_steps`, `warmup_ratio` | `schedule`, with `from_zero: true` |
//! | `optim`, `adam_beta1`, `adam_beta2`, `adam_epsilon`, `weight_decay` | `optimizer`: `AdamW`, `AdamW8bit`, `Adafactor`, `Lion` or `Sgd` |
//! | `max_steps`, `num_train_epochs` | `steps`, `epochs` |
//! | `eval_strategy`, `eval_steps` | `evaluate_every`; without evaluation, no data is held out for it |
//! | `save_strategy`, `save_steps`, `save_total_limit`, `load_best_model_at_end` | `checkpoints: (every, keep_last, keep_best)` |
//! | `bf16`, `fp16`, `gradient_accumulation_steps`, `max_grad_norm`, `per_device_train_batch_size` without a ds_config | `Amp`, `Accumulate`, `Clip`, `batch: (micro: ..)` |
//! | `activation_checkpointing`, or `gradient_checkpointing`, its old name | `Recompute(every: 1)`, `every: n` with `every_n_layers`, `offloaded` with `offload` |
//! | `dataloader_num_workers`, `group_by_length` | `data.workers`, `data.group_by_length` |
//! | `seed`, `output_dir`, `ddp_timeout` | `seed`, `output`, `deadline` |
//! | `parallelism_config`: `tp_size`, `cp_size`, `sp_size`; Megatron's `tensor_model_parallel_size` and its like; torchtitan's `parallelism.tensor_parallel_degree` and its like | `mesh: (tensor: .., pipeline: .., context: ..)` |
//! | `label_smoothing_factor` | `label_smoothing`; evaluation reports the plain loss |
//! | `neftune_noise_alpha`, other 8-bit optimizers | not supported |

mod batch;
mod data_and_output;
mod draft;
mod hugging_face_schedule;
mod inputs;
mod json;
mod length;
mod mesh;
mod optimizer;
mod outcome;
mod precision;
mod rules;
mod saving;
mod schedule;
mod source;
mod strategies;
mod table;
mod toml;
mod zero;

use std::fs::File;
use std::io::Read;
use std::path::Path;

use crate::error::MOST_BYTES;

pub use crate::error::ImportError;
pub use outcome::{Outcome, Row};

use draft::{Draft, Item};
use inputs::Inputs;
use mesh::Axes;
use source::Source;

/// What Trainer computes without DeepSpeed, as the ds_config in which it fills in the same values: torch's gradient scaler
/// doubles the loss scale after 2000 updates and halves it at each overflow.
const OF_TRAINER: &str = r#"{
    "train_micro_batch_size_per_gpu": "auto",
    "gradient_accumulation_steps": "auto",
    "gradient_clipping": "auto",
    "bf16": {"enabled": "auto"},
    "fp16": {"enabled": "auto", "initial_scale_power": 16, "loss_scale_window": 2000, "hysteresis": 1}
}"#;

/// An import: a DeepSpeed configuration, training arguments, or both, and an optional number of ranks.
#[derive(Clone, Debug)]
pub struct Import<'a> {
    /// `None` for training arguments alone.
    config: Option<(&'a str, &'a str)>,
    arguments: Option<(&'a str, &'a str)>,
    ranks: Option<u64>,
}

/// A run file, and the outcome of each field of the files that it was made from.
#[derive(Clone, Debug, PartialEq)]
pub struct Imported {
    /// The run file as RON, with places that are marked `// fill in:`.
    pub run_file: String,
    /// One row for each field, in the order of the files.
    pub rows: Vec<Row>,
}

impl<'a> Import<'a> {
    /// Creates an import of a DeepSpeed configuration from the name of its file, for messages, and its text.
    pub fn of(file: &'a str, text: &'a str) -> Self {
        Self { config: Some((file, text)), arguments: None, ranks: None }
    }

    /// Creates an import of Hugging Face's `TrainingArguments` as JSON, for a run without DeepSpeed; or of torchtitan's settings,
    /// in a file whose name ends in `.toml`.
    ///
    /// ```
    /// use firebrick_cli::import::Import;
    ///
    /// let arguments = r#"{"bf16": true, "gradient_accumulation_steps": 4, "max_steps": 1000}"#;
    /// let imported = Import::of_training_arguments("args.json", arguments).run()?;
    /// assert!(imported.run_file.contains("Amp(bf16),\n        Accumulate(4),\n        Clip(norm: 1.0),"));
    /// # Ok::<(), firebrick_cli::import::ImportError>(())
    /// ```
    pub fn of_training_arguments(file: &'a str, text: &'a str) -> Self {
        Self { config: None, arguments: Some((file, text)), ranks: None }
    }

    /// Adds Hugging Face's `TrainingArguments` as JSON, as `to_json_string` writes them, or a part of them.
    pub fn training_arguments(self, file: &'a str, text: &'a str) -> Self {
        Self { arguments: Some((file, text)), ..self }
    }

    /// Sets the number of ranks. Default: the number that follows from `train_batch_size`, otherwise one.
    pub fn ranks(self, ranks: u64) -> Self {
        Self { ranks: Some(ranks), ..self }
    }

    /// Returns the run file.
    ///
    /// # Errors
    ///
    /// A file is neither JSON nor TOML as its name says, a value or the number of ranks is invalid, or values contradict each other. An unsupported
    /// setting is not an error: see [`Imported::may_change_the_result`].
    pub fn run(&self) -> Result<Imported, ImportError> {
        let read = |(file, text): (&str, &str)| match text.len() as u64 {
            0..=MOST_BYTES => Source::parse(file, text),
            _ => Err(ImportError::TooLarge { file: file.into() }),
        };
        if let Some(ranks) = self.ranks
            && !(1..=batch::MOST_RANKS).contains(&ranks)
        {
            return Err(ImportError::Ranks { ranks });
        }
        let args = self.arguments.map(read).transpose()?;
        let alone = self.config.is_none();
        let ds = self.config.map_or_else(|| Source::parse("Trainer", OF_TRAINER), read)?;
        let mut inputs = Inputs { ds, args, ranks: self.ranks, alone };
        let draft = draft(&mut inputs)?;
        let (mut files, mut rows) = (Vec::new(), Vec::new());
        if !alone {
            rules::apply(&mut inputs.ds, rules::OF_DEEPSPEED);
            files.push(inputs.ds.file().to_string());
            rows.extend(inputs.ds.rows());
        }
        if let Some(mut args) = inputs.args {
            rules::apply(
                &mut args,
                if alone { rules::OF_ARGUMENTS_ALONE } else { rules::OF_TRAINING_ARGUMENTS },
            );
            files.push(args.file().to_string());
            rows.extend(args.rows());
        }
        Ok(Imported { run_file: draft.text(&files.join(" and ")), rows })
    }
}

/// Drafts the run file, field by field. Each part records the outcome of the fields that it reads.
fn draft(inputs: &mut Inputs) -> Result<Draft, ImportError> {
    let Axes { mesh, per_batch } = mesh::read(inputs)?;
    let batch = batch::read(inputs)?;
    let length = length::read(inputs)?;
    let saving = saving::read(inputs, &length)?;
    let optimizer = optimizer::read(inputs)?;
    let schedule = schedule::read(inputs, &optimizer, &length)?;
    let amp = precision::read(inputs)?;
    let sharing = zero::read(inputs)?;
    let strategies = strategies::composed(inputs, sharing, amp, &batch)?;

    let mut draft = Draft { strategies, output: Some(data_and_output::output(inputs)?), ..Draft::default() };
    draft.add("seed", data_and_output::seed(inputs)?);
    draft.fields.extend(data_and_output::places(inputs, saving.evaluates)?);
    draft.add("optimizer", optimizer.item);
    draft.add("schedule", schedule);
    draft.add("label_smoothing", data_and_output::label_smoothing(inputs)?);
    let micro = Item::of(batch.micro.map(|micro| format!("(micro: {micro})")));
    draft.add("batch", micro.noted(batch.summary()));
    let assumed =
        if batch.ranks_are_assumed { "assumed: `--ranks N` deals the same batch to more" } else { "" };
    let ranks = batch.ranks.or((per_batch > 1).then_some(1));
    draft.add("ranks", ranks.map(|ranks| Item::certain((ranks * per_batch).to_string()).noted(assumed)));
    draft.add("mesh", mesh);
    draft.add("deadline", data_and_output::deadline(inputs)?);
    draft.add(length.field.0, length.field.1);
    draft.add("evaluate_every", saving.evaluate_every);
    draft.add("checkpoints", saving.checkpoints);
    Ok(draft)
}

impl Imported {
    /// Returns the fields whose absence may change the trained model: unsupported ones, and those with an unknown name.
    pub fn may_change_the_result(&self) -> impl Iterator<Item = &Row> {
        self.rows.iter().filter(|row| row.outcome.may_change_the_result())
    }

    /// Returns the run file with all its placeholders accepted. An error in it is an error of the imported
    /// configuration.
    pub fn filled_in(&self) -> String {
        draft::filled_in(&self.run_file)
    }

    /// Returns the outcome of each field as a table.
    pub fn table(&self) -> String {
        table::table(&self.rows)
    }
}

/// Reads the text of a file to import.
///
/// # Errors
///
/// The file cannot be read, is not UTF-8 text, or is larger than a megabyte.
pub fn read_file(path: &Path) -> Result<String, ImportError> {
    let failed = |reason: String| ImportError::Read { path: path.into(), reason };
    let mut bytes = Vec::new();
    let file = File::open(path).map_err(|error| failed(error.to_string()))?;
    file.take(MOST_BYTES + 1).read_to_end(&mut bytes).map_err(|error| failed(error.to_string()))?;
    match bytes.len() as u64 {
        0..=MOST_BYTES => String::from_utf8(bytes).map_err(|_| failed("it is not UTF-8 text".into())),
        _ => Err(ImportError::TooLarge { file: path.display().to_string() }),
    }
}

#[cfg(test)]
mod family_tests;
#[cfg(test)]
mod optimizer_tests;
#[cfg(test)]
mod testing;
#[cfg(test)]
mod tests;
