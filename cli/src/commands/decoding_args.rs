//! Decoding options on the command line.

use clap::{Args, ValueEnum};

use firebrick_models::decoding::{Decoding, EarlyStopping};

/// The settings of [`Decoding`], with its defaults except for the length.
#[derive(Debug, Args)]
#[command(next_help_heading = "How texts are written")]
pub(crate) struct DecodingArgs {
    /// The most tokens of a text. Default: those of the run's evaluations, from `Seq2Seq(generate: N)`, or 128.
    #[arg(long, value_name = "N")]
    max_new_tokens: Option<usize>,
    /// The fewest tokens of a text.
    #[arg(long, value_name = "N", default_value_t = 0)]
    min_new_tokens: usize,
    /// Values below 1 make the text more certain, values above 1 more varied; 0 takes the most likely token.
    #[arg(long, value_name = "T", default_value_t = 0.0)]
    temperature: f64,
    /// Samples from this many of the most likely tokens; 0 for all.
    #[arg(long, value_name = "N", default_value_t = 0)]
    top_k: usize,
    /// Samples from the smallest set of the most likely tokens whose probabilities sum to at least this.
    #[arg(long, value_name = "P", default_value_t = 1.0)]
    top_p: f64,
    /// Samples from the tokens with at least this share of the most likely token's probability.
    #[arg(long, value_name = "P", default_value_t = 0.0)]
    min_p: f64,
    /// Values above 1 make tokens less likely that are already in the text.
    #[arg(long, value_name = "R", default_value_t = 1.0)]
    repetition_penalty: f64,
    /// Repeats no sequence of this many tokens; 0 allows all.
    #[arg(long, value_name = "N", default_value_t = 0)]
    no_repeat_ngram: usize,
    /// Beams of a beam search, which returns the most probable text; at most the tokens of the vocabulary.
    #[arg(long, value_name = "N", default_value_t = 1)]
    beams: usize,
    /// Values above 0 favour long texts in beam search.
    #[arg(long, value_name = "A", default_value_t = 1.0)]
    length_penalty: f64,
    /// When beam search ends: when as many texts are complete as there are beams; when a better text is unlikely; or
    /// when it is impossible.
    #[arg(long, value_enum, default_value_t = Early::Unlikely)]
    early_stopping: Early,
    /// Texts per prompt.
    #[arg(long, value_name = "N", default_value_t = 1)]
    returned: usize,
    /// Seed of the sampling: equal seeds give equal texts.
    #[arg(long, value_name = "N", default_value_t = 0)]
    sampling_seed: u64,
}

/// [`EarlyStopping`].
#[derive(Clone, Copy, Debug, ValueEnum)]
enum Early {
    Full,
    Unlikely,
    Impossible,
}

impl DecodingArgs {
    /// Returns the settings. `of_run` is the length of the run's texts, if it sets one.
    pub fn decoding(&self, of_run: Option<usize>) -> Decoding {
        Decoding {
            max_new_tokens: self.max_new_tokens.or(of_run).unwrap_or(128),
            min_new_tokens: self.min_new_tokens,
            // The run and its model say which tokens end and begin texts.
            end_tokens: Vec::new(),
            forced_first: None,
            forced_last: Vec::new(),
            temperature: self.temperature,
            top_k: self.top_k,
            top_p: self.top_p,
            min_p: self.min_p,
            repetition_penalty: self.repetition_penalty,
            no_repeat_ngram: self.no_repeat_ngram,
            beams: self.beams,
            length_penalty: self.length_penalty,
            early_stopping: match self.early_stopping {
                Early::Full => EarlyStopping::Full,
                Early::Unlikely => EarlyStopping::Unlikely,
                Early::Impossible => EarlyStopping::Impossible,
            },
            returned: self.returned,
            seed: self.sampling_seed,
        }
    }
}
