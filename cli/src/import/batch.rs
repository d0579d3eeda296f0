//! The parts of a global batch: `train_batch_size = micro x accumulate x ranks`.

use super::inputs::{Inputs, Known};
use super::source::Given;
use super::{ImportError, Outcome};

/// The limits of run files: sizes far above any use are typos.
const MOST: u64 = 1_000_000_000;
pub(super) const MOST_RANKS: u64 = 100_000;

const GLOBAL: &str = "train_batch_size";
const MICRO: &str = "train_micro_batch_size_per_gpu";
const ACCUMULATE: &str = "gradient_accumulation_steps";

/// The parts of a global batch.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Batch {
    /// Samples in a micro-batch.
    pub micro: Known<u64>,
    /// Micro-batches of each rank in an update.
    pub accumulate: Known<u64>,
    /// The number of ranks; `None` if the files leave it to the launcher.
    pub ranks: Option<u64>,
    /// Whether one rank is assumed because the files do not determine the number. Then `accumulate` or `micro` also
    /// covers the unknown ranks.
    pub ranks_are_assumed: bool,
}

impl Batch {
    /// Describes the batch, as in `2 ranks x 4 micro-batches of 8 = 64 samples in an update`.
    pub fn summary(&self) -> String {
        let (micro, accumulate) = (self.micro.value, self.accumulate.value);
        let plural =
            |count: u64, one: &str, many: &str| format!("{count} {}", if count == 1 { one } else { many });
        let (each, ranks) = (u128::from(micro) * u128::from(accumulate), self.ranks.unwrap_or(1));
        let parts = format!("{} of {micro}", plural(accumulate, "micro-batch", "micro-batches"));
        match self.ranks {
            None => format!("{parts} = {each} samples in an update of each rank"),
            Some(_) => {
                let all = each * u128::from(ranks);
                format!("{} x {parts} = {all} samples in an update", plural(ranks, "rank", "ranks"))
            }
        }
    }
}

/// Reads the given parts and derives the others.
///
/// # Errors
///
/// A part is invalid, or the parts contradict each other.
pub(super) fn read(inputs: &mut Inputs) -> Result<Batch, ImportError> {
    let micro =
        part(inputs, MICRO, ("per_device_train_batch_size", 8), |micro| format!("batch.micro: {micro}"))?;
    let accumulate = part(inputs, ACCUMULATE, (ACCUMULATE, 1), |count| match count {
        1 => "1 micro-batch makes an update".into(),
        count => format!("strategies: Accumulate({count})"),
    })?;
    let global = match inputs.ds.count(GLOBAL, 1, MOST)? {
        Given::Is(global) => Some(global),
        Given::Auto | Given::Missing => None,
    };
    let batch = Parts { global, micro, accumulate, ranks: inputs.ranks }.solved(inputs)?;
    inputs.ds.settle(GLOBAL, Outcome::Taken(batch.summary()));
    Ok(batch)
}

/// Reads a part from both files. If the ds_config omits it, a training argument that names it applies.
fn part(
    inputs: &mut Inputs,
    path: &str,
    argument: (&'static str, u64),
    to: impl Fn(&u64) -> String,
) -> Result<Option<Known<u64>>, ImportError> {
    let merged = inputs.count(path, argument, (1, MOST), &to)?;
    let (None, Some(args)) = (merged, &inputs.args) else { return Ok(merged) };
    Ok(match args.count(argument.0, 1, MOST)? {
        Given::Is(count) => {
            inputs.settle_argument(argument.0, Outcome::Taken(to(&count)));
            Some(Known::certain(count))
        }
        Given::Missing | Given::Auto => None,
    })
}

/// The given parts.
struct Parts {
    global: Option<u64>,
    micro: Option<Known<u64>>,
    accumulate: Option<Known<u64>>,
    ranks: Option<u64>,
}

impl Parts {
    fn solved(&self, inputs: &Inputs) -> Result<Batch, ImportError> {
        let given = |part: Option<Known<u64>>| part.filter(|part| !part.suggested).map(|part| part.value);
        let default = |part: Option<Known<u64>>, default| part.unwrap_or(Known::certain(default));
        let Some(global) = self.global else {
            // Without any size, suggest Transformers' default.
            let micro = self.micro.unwrap_or(Known::suggested(8));
            let accumulate = default(self.accumulate, 1);
            return Ok(Batch { micro, accumulate, ranks: self.ranks, ranks_are_assumed: false });
        };
        let quotient = |parts: &[u64], words: String| {
            let divisor = parts.iter().map(|part| u128::from(*part)).product::<u128>();
            match u128::from(global) % divisor {
                // The quotient is at most `global`, so the cast is lossless.
                0 => Ok((u128::from(global) / divisor) as u64),
                _ => Err(self.wrong_divisor(inputs, global, divisor, words)),
            }
        };
        let ranks = self.ranks.unwrap_or(1);
        let on =
            |words: String| if self.ranks.is_some() { format!("{words} on {ranks} rank(s)") } else { words };
        let (micro, accumulate, ranks) = match (given(self.micro), given(self.accumulate)) {
            (Some(micro), Some(accumulate)) => {
                let words = format!("samples of {accumulate} micro-batch(es) of {micro}");
                let found = match self.ranks {
                    Some(ranks) => ranks,
                    None => quotient(&[micro, accumulate], words)?,
                };
                if u128::from(micro) * u128::from(accumulate) * u128::from(found) != u128::from(global) {
                    let (file, line) = place(inputs);
                    return Err(ImportError::Product { file, line, global, micro, accumulate, ranks: found });
                }
                if found > MOST_RANKS {
                    return Err(inputs.ds.wrong(GLOBAL, "that of at most 100000 ranks"));
                }
                (Known::certain(micro), Known::certain(accumulate), found)
            }
            (Some(micro), None) => {
                let accumulate =
                    quotient(&[micro, ranks], on(format!("samples of a micro-batch of {micro}")))?;
                (Known::certain(micro), Known::certain(accumulate), ranks)
            }
            (None, Some(accumulate)) => {
                let micro = quotient(&[accumulate, ranks], on(format!("{accumulate} micro-batches")))?;
                (Known::certain(micro), Known::certain(accumulate), ranks)
            }
            (None, None) => {
                let micro = quotient(&[ranks], format!("{ranks} ranks"))?;
                let open = |part: Option<Known<u64>>| part.is_some_and(|part| part.suggested);
                let known = |value, part| Known { value, suggested: open(part) };
                (known(micro, self.micro), known(1, self.accumulate), ranks)
            }
        };
        let all_given = given(self.micro).is_some() && given(self.accumulate).is_some();
        let ranks_are_assumed = self.ranks.is_none() && !all_given;
        Ok(Batch { micro, accumulate, ranks: Some(ranks), ranks_are_assumed })
    }

    fn wrong_divisor(&self, inputs: &Inputs, global: u64, divisor: u128, parts: String) -> ImportError {
        let (file, line) = place(inputs);
        ImportError::Quotient { file, line, global, divisor, parts }
    }
}

fn place(inputs: &Inputs) -> (String, usize) {
    (inputs.ds.file().into(), inputs.ds.get(GLOBAL).map_or(1, |field| field.line))
}

#[cfg(test)]
#[path = "batch_tests.rs"]
mod tests;
