//! How texts are written, on the command line.

use clap::{Args, ValueEnum};

use crate::decoding::{Decoding, EarlyStopping};

/// The settings of [`Decoding`], with its defaults but for the length.
#[derive(Debug, Args)]
#[command(next_help_heading = "How texts are written")]
pub(crate) struct DecodingArgs {
    /// The most tokens of a text. Default: what the run's evaluations write, as `Seq2Seq(generate: N)` says, or 128.
    #[arg(long, value_name = "N")]
    max_new_tokens: Option<usize>,
    /// Tokens before which a text does not end.
    #[arg(long, value_name = "N", default_value_t = 0)]
    min_new_tokens: usize,
    /// Below 1 more certain, above 1 more varied; 0 takes the most likely token.
    #[arg(long, value_name = "T", default_value_t = 0.0)]
    temperature: f64,
    /// Draws from so many of the most likely tokens; 0 from all.
    #[arg(long, value_name = "N", default_value_t = 0)]
    top_k: usize,
    /// Draws from the fewest of the most likely tokens that together are as probable as this.
    #[arg(long, value_name = "P", default_value_t = 1.0)]
    top_p: f64,
    /// Draws from tokens that have at least this share of the most likely one's probability.
    #[arg(long, value_name = "P", default_value_t = 0.0)]
    min_p: f64,
    /// Above 1 makes tokens rarer that stand in the text already.
    #[arg(long, value_name = "R", default_value_t = 1.0)]
    repetition_penalty: f64,
    /// No sequence of so many tokens comes twice; 0 for any may.
    #[arg(long, value_name = "N", default_value_t = 0)]
    no_repeat_ngram: usize,
    /// Goes on with so many texts at once, and returns the most probable: beam search.
    #[arg(long, value_name = "N", default_value_t = 1)]
    beams: usize,
    /// Above 0 favours long texts in beam search.
    #[arg(long, value_name = "A", default_value_t = 1.0)]
    length_penalty: f64,
    /// When beam search ends: when as many texts have ended as there are beams; when a better one is unlikely; or when
    /// none can be better.
    #[arg(long, value_enum, default_value_t = Early::Unlikely)]
    early_stopping: Early,
    /// Texts of each prompt.
    #[arg(long, value_name = "N", default_value_t = 1)]
    returned: usize,
    /// Equal seeds draw equal texts.
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
    /// The settings, for a run that names the length of its texts or not.
    pub fn decoding(&self, of_run: Option<usize>) -> Decoding {
        Decoding {
            max_new_tokens: self.max_new_tokens.or(of_run).unwrap_or(128),
            min_new_tokens: self.min_new_tokens,
            end_tokens: Vec::new(),
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
