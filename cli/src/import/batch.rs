//! The parts of a global batch: `train_batch_size = micro x accumulate x ranks`.

use firebrick_datasets::counted;

use super::inputs::{Inputs, Known};
use super::source::Setting;
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
        let (each, ranks) = (u128::from(micro) * u128::from(accumulate), self.ranks.unwrap_or(1));
        let parts = format!("{} of {micro}", counted(accumulate, "micro-batch"));
        match self.ranks {
            None => format!("{parts} = {} in an update of each rank", counted(each, "sample")),
            Some(_) => {
                let all = each * u128::from(ranks);
                format!("{} x {parts} = {} in an update", counted(ranks, "rank"), counted(all, "sample"))
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
        Setting::Is(global) => Some(global),
        Setting::Auto | Setting::Missing => None,
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
        Setting::Is(count) => {
            inputs.settle_argument(argument.0, Outcome::Taken(to(&count)));
            Some(Known::certain(count))
        }
        Setting::Missing | Setting::Auto => None,
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
        let Some(global) = self.global else {
            // Without any size, suggest Transformers' default.
            let micro = self.micro.unwrap_or(Known::suggested(8));
            let accumulate = self.accumulate.unwrap_or(Known::certain(1));
            return Ok(Batch { micro, accumulate, ranks: self.ranks, ranks_are_assumed: false });
        };
        let (file, line) = (inputs.ds.file().into(), inputs.ds.get(GLOBAL).map_or(1, |field| field.line));
        let ranks = self.ranks.unwrap_or(1);
        let (micro, accumulate) = (given(self.micro), given(self.accumulate));
        let parts = match (micro, accumulate) {
            (Some(micro), Some(accumulate)) => format!("samples of {accumulate} micro-batch(es) of {micro}"),
            (Some(micro), None) => format!("samples of a micro-batch of {micro}"),
            (None, Some(accumulate)) => format!("{accumulate} micro-batches"),
            (None, None) => counted(ranks, "rank").to_string(),
        };
        let known = [micro, accumulate, self.ranks].map(|part| u128::from(part.unwrap_or(1)));
        let divisor: u128 = known.into_iter().product();
        let whole = u128::from(global);
        if let (Some(micro), Some(accumulate), Some(ranks)) = (micro, accumulate, self.ranks)
            && divisor != whole
        {
            return Err(ImportError::Product { file, line, global, micro, accumulate, ranks });
        }
        if !whole.is_multiple_of(divisor) {
            let has_ranks = self.ranks.is_some() && (micro.is_some() || accumulate.is_some());
            let parts = if has_ranks { format!("{parts} on {}", counted(ranks, "rank")) } else { parts };
            return Err(ImportError::Quotient { file, line, global, divisor, parts });
        }
        // The quotient is at most `global`, so the cast is lossless.
        let missing = (whole / divisor) as u64;
        let open = |part: Option<Known<u64>>, value| Known {
            value,
            suggested: micro.is_none() && accumulate.is_none() && part.is_some_and(|part| part.suggested),
        };
        let ranks = match (micro, accumulate, self.ranks) {
            (Some(_), Some(_), None) if missing > MOST_RANKS => {
                return Err(inputs.ds.wrong(GLOBAL, "that of at most 100000 ranks"));
            }
            (Some(_), Some(_), None) => missing,
            _ => ranks,
        };
        let accumulated = if micro.is_some() { missing } else { 1 };
        Ok(Batch {
            micro: micro.map_or(open(self.micro, missing), Known::certain),
            accumulate: accumulate.map_or(open(self.accumulate, accumulated), Known::certain),
            ranks: Some(ranks),
            ranks_are_assumed: self.ranks.is_none() && (micro.is_none() || accumulate.is_none()),
        })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::import::source::Source;

    fn solved(ds: &str, args: Option<&str>, ranks: Option<u64>) -> Result<Batch, String> {
        let args = args.map(|text| Source::parse("args.json", text).unwrap());
        let mut inputs = Inputs { ds: Source::parse("ds.json", ds).unwrap(), args, ranks, alone: false };
        read(&mut inputs).map_err(|error| error.to_string())
    }

    /// Returns the micro-batch, the number of micro-batches, and the ranks (0 if unknown).
    fn parts(ds: &str, ranks: Option<u64>) -> [u64; 3] {
        let batch = solved(ds, None, ranks).unwrap();
        assert!(!batch.micro.suggested && !batch.accumulate.suggested, "{ds}");
        [batch.micro.value, batch.accumulate.value, batch.ranks.unwrap_or(0)]
    }

    const ALL: &str =
        r#"{"train_batch_size": 64, "train_micro_batch_size_per_gpu": 4, "gradient_accumulation_steps": 2}"#;
    const MICRO_GIVEN: &str = r#"{"train_batch_size": 64, "train_micro_batch_size_per_gpu": 4}"#;
    const COUNT_GIVEN: &str = r#"{"train_batch_size": 64, "gradient_accumulation_steps": 2}"#;

    #[test]
    fn missing_parts_are_derived() {
        assert_eq!(parts(ALL, None), [4, 2, 8]);
        assert_eq!(parts(ALL, Some(8)), [4, 2, 8]);
        assert_eq!(parts(MICRO_GIVEN, Some(4)), [4, 4, 4]);
        assert_eq!(parts(MICRO_GIVEN, None), [4, 16, 1]);
        assert_eq!(parts(COUNT_GIVEN, Some(4)), [8, 2, 4]);
        assert_eq!(parts(r#"{"train_batch_size": 64}"#, Some(4)), [16, 1, 4]);
        assert_eq!(parts(r#"{"train_micro_batch_size_per_gpu": 4}"#, None), [4, 1, 0]);
        assert_eq!(parts(r#"{"train_micro_batch_size_per_gpu": 4}"#, Some(2)), [4, 1, 2]);
    }

    #[test]
    fn a_contradiction_has_its_numbers() {
        let said = |ds, ranks| solved(ds, None, ranks).unwrap_err();
        assert_eq!(
            said(ALL, Some(4)),
            "ds.json:1: `train_batch_size` is 64, but micro-batches of 4 x 2 of them in an update x 4 ranks = 32: \
             change one of the four"
        );
        assert_eq!(
            said(MICRO_GIVEN, Some(3)),
            "ds.json:1: `train_batch_size` is 64, which is no multiple of 12, the samples of a micro-batch of 4 on \
             3 ranks: change one of them"
        );
        let uneven = r#"{"train_batch_size": 10, "train_micro_batch_size_per_gpu": 4, "gradient_accumulation_steps": 1}"#;
        assert!(
            said(uneven, None)
                .contains("10, which is no multiple of 4, the samples of 1 micro-batch(es) of 4")
        );
        assert!(
            said(r#"{"train_batch_size": 0}"#, None).contains("must be a whole number from 1 to 1000000000")
        );
        let many = r#"{"train_batch_size": 1e9, "train_micro_batch_size_per_gpu": 1, "gradient_accumulation_steps": 1}"#;
        assert!(said(many, None).contains("that of at most 100000 ranks, found 1000000000.0"));
    }

    #[test]
    fn training_arguments_fill_in_and_must_agree() {
        let auto = r#"{"train_batch_size": "auto", "train_micro_batch_size_per_gpu": "auto"}"#;
        let args = r#"{"per_device_train_batch_size": 4, "gradient_accumulation_steps": 3}"#;
        let batch = solved(auto, Some(args), Some(2)).unwrap();
        assert_eq!(batch.summary(), "2 ranks x 3 micro-batches of 4 = 24 samples in an update");
        assert_eq!(solved(auto, Some("{}"), None).unwrap().micro, Known::certain(8));
        let said = solved(ALL, Some(args), None).unwrap_err();
        assert!(
            said.contains("`gradient_accumulation_steps` is 2, but `gradient_accumulation_steps`"),
            "{said}"
        );
    }

    #[test]
    fn auto_alone_is_left_open_unless_it_can_be_derived() {
        let auto = r#"{"train_batch_size": 64, "train_micro_batch_size_per_gpu": "auto", "gradient_accumulation_steps": 4}"#;
        assert_eq!(parts(auto, Some(2)), [8, 4, 2]);
        let open = r#"{"train_micro_batch_size_per_gpu": "auto", "gradient_accumulation_steps": "auto"}"#;
        let batch = solved(open, None, None).unwrap();
        assert_eq!((batch.micro, batch.accumulate), (Known::suggested(8), Known::suggested(1)));
        assert_eq!(solved("{}", None, None).unwrap().micro, Known::suggested(8));
        assert_eq!(batch.summary(), "1 micro-batch of 8 = 8 samples in an update of each rank");
    }

    proptest! {
        #[test]
        fn any_two_parts_give_the_third(micro in 1u64..999, accumulate in 1u64..999, ranks in 1u64..999) {
            let global = micro * accumulate * ranks;
            let all = format!(
                r#"{{"train_batch_size": {global}, "train_micro_batch_size_per_gpu": {micro}, "gradient_accumulation_steps": {accumulate}}}"#
            );
            let without_count = format!(
                r#"{{"train_batch_size": {global}, "train_micro_batch_size_per_gpu": {micro}}}"#
            );
            let without_micro = format!(
                r#"{{"train_batch_size": {global}, "gradient_accumulation_steps": {accumulate}}}"#
            );
            let expected = [micro, accumulate, ranks];
            prop_assert_eq!(parts(&all, None), expected);
            prop_assert_eq!(parts(&without_count, Some(ranks)), expected);
            prop_assert_eq!(parts(&without_micro, Some(ranks)), expected);
        }
    }
}
