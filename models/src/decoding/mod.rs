//! Generating texts from a model's logits: greedy decoding, sampling and beam search, like `generate` of
//! Transformers.
//!
//! ```text
//! mod.rs             the settings
//! ├── check.rs          checks of settings, alone and in combination
//! ├── error.rs          errors
//! ├── early_stopping.rs when beam search ends
//! next_token.rs      the trait of a model for decoding
//! ├── rereading.rs      a model without a cache, which rereads everything for each token
//! prompt.rs, text.rs the inputs and the outputs
//! write.rs           the loop: one model call per token, with all unfinished rows
//! ├── search.rs         what both kinds of search do
//! ├── samples.rs        greedy decoding and sampling: each text grows by itself
//! ├── beam_search.rs    beam search: keeps the best of all possible continuations
//! logits.rs          a checked row of logits
//! ├── processors.rs     repetition penalty, n-grams, minimum length and forced tokens
//! ├── filters.rs        temperature, top-k, top-p and min-p
//! └── draw.rs           drawing a token, and the random numbers of each row
//! ```
//!
//! | [`Decoding`] | Transformers | chosen |
//! |---|---|---|
//! | `beams: 1, temperature: 0` | `do_sample=False` | the most likely token |
//! | `beams: 1, temperature: t` | `do_sample=True, temperature=t` | a token drawn from those that the filters keep |
//! | `beams: n, temperature: 0` | `num_beams=n, do_sample=False` | the texts with the highest scores |
//!
//! Processors and filters run in the order of Transformers: repetition penalty, n-grams, minimum length, forced tokens,
//! temperature, top-k, top-p, min-p. As there, beam search applies the processors to log probabilities, and the other modes to
//! logits. The output equals that of Transformers for each prompt alone: rows do not affect each other.

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
mod search;
mod text;
mod write;

use serde::{Deserialize, Serialize};

pub use early_stopping::EarlyStopping;
pub use error::DecodingError;
pub use next_token::NextToken;
pub use prompt::Prompt;
pub use rereading::{Rereading, Row};
pub use text::{End, Text};

/// Settings for generating texts from a model's logits. The default is greedy decoding of 20 tokens.
///
/// ```
/// use firebrick_models::decoding::{Decoding, DecodingError, End, Prompt, Rereading};
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
    /// The maximum number of tokens in a text, its end token included. Default: 20.
    pub max_new_tokens: usize,
    /// The minimum number of tokens before the end token: end tokens are banned until then. Default: 0.
    pub min_new_tokens: usize,
    /// The tokens that end a text. Default: none, so each text has `max_new_tokens`.
    #[serde(alias = "eos_token_id")]
    pub end_tokens: Vec<u32>,
    /// The first token of each text whose prompt is one token, that of a decoder's start. Default: the model chooses it.
    #[serde(alias = "forced_bos_token_id")]
    pub forced_first: Option<u32>,
    /// The tokens of which one is the last of a text of `max_new_tokens`. Default: the model chooses it.
    #[serde(alias = "forced_eos_token_id")]
    pub forced_last: Vec<u32>,
    /// Divides the logits before drawing a token: below 1 makes the most likely tokens more likely, above 1 gives
    /// more variety. With 0, nothing is drawn and the most likely token is taken. Default: 0.
    pub temperature: f64,
    /// Draws from this many of the most likely tokens, and those equally likely as the last of them; 0 draws from
    /// all. Default: 0.
    pub top_k: usize,
    /// Draws from the smallest set of the most likely tokens whose total probability is at least this (Holtzman et
    /// al., 2020, arXiv:1904.09751). Default: 1, all tokens.
    pub top_p: f64,
    /// Draws from tokens whose probability is at least this share of the most likely token's (Nguyen et al., 2025,
    /// arXiv:2407.01082). Default: 0, all tokens.
    pub min_p: f64,
    /// Divides the positive logits, and multiplies the negative logits, of tokens in the prompt or the text: above 1,
    /// these tokens become less likely (Keskar et al., 2019, arXiv:1909.05858). Default: 1.
    pub repetition_penalty: f64,
    /// Lets no sequence of this many tokens occur twice in prompt and text together; 0 allows all. Default: 0.
    #[serde(alias = "no_repeat_ngram_size")]
    pub no_repeat_ngram: usize,
    /// The number of beams of beam search, at most the tokens of the vocabulary; 1 disables it. Default: 1.
    #[serde(alias = "num_beams")]
    pub beams: usize,
    /// Beam search ranks texts by the sum of their log probabilities divided by their length to this power: above 0
    /// favours long texts. Default: 1.
    pub length_penalty: f64,
    /// When beam search ends. Default: when a better text is unlikely.
    pub early_stopping: EarlyStopping,
    /// The number of texts per prompt: the best of the beams, or independent draws. Default: 1.
    #[serde(alias = "num_return_sequences")]
    pub returned: usize,
    /// The seed of the draws, which also depend on the [row](Prompt::row). Default: 0.
    pub seed: u64,
}

impl Default for Decoding {
    fn default() -> Self {
        Self {
            max_new_tokens: 20,
            min_new_tokens: 0,
            end_tokens: Vec::new(),
            forced_first: None,
            forced_last: Vec::new(),
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
    /// Why a text of `written` tokens ends with the token `last`, if it does.
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
