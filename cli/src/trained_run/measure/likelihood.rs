//! The likelihood of tokens under a trained causal language model.

use std::any::TypeId;
use std::sync::Arc;

use burn::tensor::FloatDType;
use firebrick_datasets::{Batch, IGNORE, TokenBatch, Tokenizer};
use firebrick_strategies::Pass;

use crate::{Run, RunError};
use firebrick::engine::session::checked;
use firebrick::{AnyModel, Objective, TrainError};
use firebrick_models::pretrained::Folder;

/// A trained model that tells how likely tokens are after those before them. It computes in f32.
pub(super) struct Likelihood {
    model: AnyModel,
    pass: Pass,
    pub tokenizer: Arc<Tokenizer>,
    /// The most tokens that the model reads, if there is a limit.
    pub positions: Option<usize>,
}

/// A row of tokens, of which the last ones are predicted.
pub(super) struct Row {
    pub ids: Vec<u32>,
    /// How many tokens at the end count. The first token of a row is never predicted.
    pub counted: usize,
}

impl Likelihood {
    /// Loads the model.
    pub fn open(run: &Run, folder: Folder, say: &dyn Fn(&str)) -> Result<Self, RunError> {
        let model = run.writer_in(&folder)?;
        let (device, _) = run.find_device(say)?;
        let config = model.config_in(&folder)?;
        if config.batch_type() != TypeId::of::<TokenBatch>() {
            return Err(run.other_task());
        }
        let tokenizer = Tokenizer::from_file(folder.path())?.with_special(run.data.special.clone())?;
        let tokenizer = run.task.prepare(tokenizer)?;
        run.task.require_fit(&config, &tokenizer, None)?;
        say(&format!("loading {}", folder.path().display()));
        let model = config.load(&folder, &device)?.model;
        let pass = Pass::evaluate(&device).computing_in(FloatDType::F32);
        Ok(Self { model, pass, tokenizer: Arc::new(tokenizer), positions: config.positions() })
    }

    /// Returns the negative log-likelihood of the tokens that count, in nats, summed over the rows, and their number.
    pub fn of(&self, rows: Vec<Row>) -> Result<(f64, usize), RunError> {
        let labels = rows.iter().map(|Row { ids, counted }| {
            let first = ids.len() - counted;
            let label = |(at, id): (usize, &u32)| if at < first { IGNORE } else { *id as i32 };
            ids.iter().enumerate().map(label).collect()
        });
        let labels = labels.collect();
        let ids = rows.into_iter().map(|row| row.ids).collect();
        let pad = self.tokenizer.special().pad.unwrap_or(0);
        let batch = TokenBatch::with_labels(ids, labels, pad)?;
        let items = batch.items();
        if items == 0 {
            return Ok((0.0, 0));
        }
        let loss = self.model.loss(batch, &self.pass);
        let sum = checked(loss.sum, loss.items, items)?;
        Ok((sum.try_into_scalar::<f64>().map_err(TrainError::from)?, items))
    }
}
