//! Checks the settings of a task and of its data, before anything is read.

use firebrick_models::pretrained::MOST_SIZE;
use firebrick_strategies::SettingError;

use crate::problem::{Problem, positive, require};
use crate::{DataConfig, Paths, TaskConfig, TokenizerConfig};

impl DataConfig {
    /// The most tokens that a row may be padded to.
    pub const LONGEST_ROW: usize = 1_000_000;
}

impl TaskConfig {
    /// Returns the first invalid or contradictory setting of the data or of the task.
    pub fn first_problem(&self, of: &DataConfig) -> Option<Problem> {
        source(of).or_else(|| task(self, of)).or_else(|| sizes(of)).or_else(|| data(of))
    }
}

/// Checks where the samples come from.
fn source(data: &DataConfig) -> Option<Problem> {
    let one = data.path.is_some() == data.mix.is_empty();
    let found = if data.path.is_some() { "both" } else { "neither" };
    let empty = |paths: &Paths| paths.as_slice().is_empty();
    require(one, "data.path", "given, or else `data.mix`, and not both", found)
        .or_else(|| require(!data.path.as_ref().is_some_and(empty), "data.path", "at least one path", "[]"))
        .or_else(|| {
            let both = data.stream.is_some() && !data.mix.is_empty();
            require(!both, "data.stream", "left out where `data.mix` is given", "both")
        })
        .or_else(|| positive("data.stream", data.stream.unwrap_or(1)))
        .or_else(|| {
            let mut weights = data.mix.iter().enumerate();
            let wrong = weights.find(|(_, corpus)| !(corpus.weight > 0.0 && corpus.weight.is_finite()))?;
            require(false, &format!("data.mix.{}.weight", wrong.0), "above 0", wrong.1.weight)
        })
}

fn task(task: &TaskConfig, data: &DataConfig) -> Option<Problem> {
    let of = |place, checked: Result<(), SettingError>| {
        checked.err().map(|error| Problem::of_setting(place, "task", &error))
    };
    of("data", task.check_data(data)).or_else(|| of("task", task.check(data)))
}

/// Checks the lengths of samples.
fn sizes(data: &DataConfig) -> Option<Problem> {
    let block = data.block.unwrap_or(1);
    let possible = (1..=DataConfig::LONGEST_ROW).contains(&block);
    require(possible, "data.block", "at least 1 and at most a million tokens", block)
        .or_else(|| positive("data.max_length", data.max_length.unwrap_or(1)))
        .or_else(|| {
            let both = data.block.is_some() && data.max_length.is_some();
            let expected = "left out where `data.max_length` is given, which bounds the samples";
            require(!both, "data.block", expected, block)
        })
        .or_else(|| {
            let padded = data.padding.map_or(1, |padding| padding.length(1));
            require(padded <= DataConfig::LONGEST_ROW, "data.padding", "of at most a million tokens", padded)
        })
        .or_else(|| {
            let most = data.max_length.unwrap_or(usize::MAX);
            let stride = data.stride.unwrap_or(0);
            require(stride < most, "data.stride", "below `data.max_length`", stride)
        })
}

fn data(data: &DataConfig) -> Option<Problem> {
    let fraction = data.valid_fraction;
    let within = (0.0..1.0).contains(&fraction);
    require(within, "data.valid_fraction", "at least 0 and below 1", fraction)
        .or_else(|| require(data.workers <= 256, "data.workers", "at most 256 threads", data.workers))
        .or_else(|| {
            let is_file = matches!(data.tokenizer, TokenizerConfig::File(_));
            let expected = "left out unless `data.tokenizer` is a file: a vocabulary that is made from the text has \
                            further tokens by `data.special`";
            require(is_file || data.new_tokens.is_empty(), "data.new_tokens", expected, "given")
        })
        .or_else(|| {
            let expected = "left out where `data.format` is given: records are read one at a time, and never held as a whole";
            require(data.format.is_none() || data.max_unpacked.is_none(), "data.max_unpacked", expected, "given")
        })
        .or_else(|| match data.tokenizer {
            TokenizerConfig::Bpe { vocabulary } => {
                let possible = (257..=MOST_SIZE).contains(&vocabulary);
                let expected = format!("at least 257 (256 bytes and a merge) and at most {MOST_SIZE}");
                require(possible, "data.tokenizer.vocabulary", &expected, vocabulary)
            }
            TokenizerConfig::Characters | TokenizerConfig::File(_) => None,
        })
}
