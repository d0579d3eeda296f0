//! From a model's logits to texts: greedy decoding, sampling and beam search, as `generate` of Transformers does them.
//!
//! ```text
//! mod.rs             the settings
//! ├── check.rs          which of them cannot be, alone or together
//! ├── error.rs          why there are no texts
//! ├── early_stopping.rs when beam search ends
//! next_token.rs      what a model must do to be decoded
//! ├── rereading.rs      a model without a cache, which reads all again for each token
//! prompt.rs, text.rs what goes in and what comes out
//! write.rs           the loop: one call of the model for each token, with all rows that still write
//! ├── samples.rs        greedy decoding and sampling: each text grows by itself
//! ├── beam_search.rs    beam search: the best of all that could be written next go on
//! logits.rs          a row of logits, seen to be numbers
//! ├── processors.rs     what changes them for what was written: repetition, n-grams, least length
//! ├── filters.rs        what makes them a distribution to draw from: temperature, top-k, top-p, min-p
//! └── draw.rs           a token out of it, and the random numbers of each row
//! ```
//!
//! | [`Decoding`] | Transformers | what is chosen |
//! |---|---|---|
//! | `beams: 1, temperature: 0` | `do_sample=False` | the most likely token |
//! | `beams: 1, temperature: t` | `do_sample=True, temperature=t` | a token drawn from what the filters leave |
//! | `beams: n, temperature: 0` | `num_beams=n, do_sample=False` | the texts of the highest score |
//!
//! Processors and filters come in the order of Transformers: repetition penalty, n-grams, least length, temperature,
//! top-k, top-p, min-p. Beam search applies the processors to log probabilities, the others to logits, as there. What
//! it writes is what Transformers writes of the prompt alone: no row has an effect on another.

mod beam_search;
mod check;
mod draw;
mod early_stopping;
mod error;
mod filters;
mod logits;
mod next_token;
mod processors;
mod prompt;
mod rereading;
mod samples;
mod text;
mod write;

use serde::{Deserialize, Serialize};

pub use early_stopping::EarlyStopping;
pub use error::DecodingError;
pub use next_token::NextToken;
pub use prompt::Prompt;
pub use rereading::{Rereading, Row};
pub use text::{End, Text};

/// How texts are made of a model's logits. The default is greedy decoding of 20 tokens.
///
/// ```
/// use firebrick::decoding::{Decoding, DecodingError, End, Prompt, Rereading};
///
/// // A model of five tokens, which counts: after token 3 comes token 4.
/// let prompts = [Prompt::new(0, [0, 1]), Prompt::new(1, [3])];
/// let mut model = Rereading::new(&prompts, 5, |rows| {
///     let next = rows.iter().map(|row| row.tokens.last().map_or(0, |last| (last + 1) % 5));
///     let logits = next.flat_map(|next| (0..5).map(move |token| if token == next { 3.0 } else { 0.0 }));
///     Ok::<Vec<f32>, DecodingError>(logits.collect())
/// });
/// let decoding = Decoding { max_new_tokens: 8, end_tokens: vec![4], ..Decoding::default() };
/// let texts = decoding.write(&mut model, &prompts)?;
/// assert_eq!(texts[0][0].tokens, [2, 3, 4]);
/// assert_eq!(texts[1][0].tokens, [4]);
/// assert_eq!(texts[1][0].end, End::Token);
/// # Ok::<(), DecodingError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Decoding {
    /// The most tokens of a text, its end token included. Default: 20.
    pub max_new_tokens: usize,
    /// Tokens before which a text does not end: end tokens are banned until then. Default: 0.
    pub min_new_tokens: usize,
    /// Tokens that end a text. Default: none, so that each text has `max_new_tokens`.
    #[serde(alias = "eos_token_id")]
    pub end_tokens: Vec<u32>,
    /// Divides the logits before a token is drawn: below 1 is more certain, above 1 more varied. 0 draws nothing and
    /// takes the most likely. Default: 0.
    pub temperature: f64,
    /// Draws from so many of the most likely tokens, and those as likely as the last of them; 0 from all. Default: 0.
    pub top_k: usize,
    /// Draws from the fewest of the most likely tokens that together are as probable as this (Holtzman et al., 2020,
    /// arXiv:1904.09751). Default: 1, all.
    pub top_p: f64,
    /// Draws from tokens that are at least so probable, as a share of the most likely one's probability (Nguyen et
    /// al., 2025, arXiv:2407.01082). Default: 0, all.
    pub min_p: f64,
    /// Divides the logits above 0 of tokens that stand in the prompt or the text, and multiplies those below: above 1
    /// they become rarer (Keskar et al., 2019, arXiv:1909.05858). Default: 1.
    pub repetition_penalty: f64,
    /// No sequence of so many tokens stands twice in the prompt and the text together; 0 for any may. Default: 0.
    #[serde(alias = "no_repeat_ngram_size")]
    pub no_repeat_ngram: usize,
    /// Texts that beam search goes on with; 1 is no beam search. Default: 1.
    #[serde(alias = "num_beams")]
    pub beams: usize,
    /// Beam search ranks texts by the sum of their log probabilities, divided by their length to the power of this:
    /// above 0 favours long ones. Default: 1.
    pub length_penalty: f64,
    /// When beam search ends. Default: where a better text is unlikely.
    pub early_stopping: EarlyStopping,
    /// Texts of each prompt: the best of its beams, or so many that are drawn. Default: 1.
    #[serde(alias = "num_return_sequences")]
    pub returned: usize,
    /// What is drawn is a function of it, and of the [row](Prompt::row). Default: 0.
    pub seed: u64,
}

impl Default for Decoding {
    fn default() -> Self {
        Self {
            max_new_tokens: 20,
            min_new_tokens: 0,
            end_tokens: Vec::new(),
            temperature: 0.0,
            top_k: 0,
            top_p: 1.0,
            min_p: 0.0,
            repetition_penalty: 1.0,
            no_repeat_ngram: 0,
            beams: 1,
            length_penalty: 1.0,
            early_stopping: EarlyStopping::default(),
            returned: 1,
            seed: 0,
        }
    }
}

impl Decoding {
    /// Why a text of `written` tokens ends with `last`, if it does.
    fn end(&self, last: u32, written: usize) -> Option<End> {
        if self.end_tokens.contains(&last) {
            Some(End::Token)
        } else {
            (written >= self.max_new_tokens).then_some(End::Length)
        }
    }
}

#[cfg(test)]
mod golden_tests;
#[cfg(test)]
mod properties;
#[cfg(test)]
mod table_model;
