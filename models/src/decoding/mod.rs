//! Generating texts from a model's logits: greedy decoding, sampling and beam search, like `generate` of
//! Transformers.
//!
//! ```text
//! mod.rs             the settings, the inputs and the outputs, and what both kinds of search do
//! ├── check.rs          checks of settings, alone and in combination
//! └── error.rs          errors
//! next_token.rs      the trait of a model for decoding, and a model without a cache, which rereads everything
//! write.rs           the loop: one model call per token, with all unfinished rows
//! ├── samples.rs        greedy decoding and sampling: each text grows by itself
//! └── beam_search.rs    beam search: keeps the best of all possible continuations
//! logits.rs          a checked row of logits, and how it becomes a distribution: repetition penalty, n-grams, minimum
//!                    length and forced tokens; temperature, top-k, top-p and min-p
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
mod error;
mod logits;
mod next_token;
mod samples;
mod write;

use serde::{Deserialize, Serialize};

pub use error::DecodingError;
pub use next_token::{NextToken, Rereading, Row};

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

/// When beam search ends, once the number of ended texts equals the number of beams. It always ends at the maximum
/// length.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum EarlyStopping {
    /// At once. `True` in Transformers.
    Full,
    /// When the best beam would not beat the worst ended text if it ended now. With a length penalty above 0, it
    /// could still improve by growing. `False` in Transformers, and the default there too.
    #[default]
    Unlikely,
    /// When no beam can beat the worst ended text at any length. `"never"` in Transformers.
    Impossible,
}

/// The search for the texts of one prompt.
trait Search {
    /// Advances by one token. `rows` holds the logits after each of the last steps, or after the prompt at first.
    /// Returns the steps to continue with; empty if all texts have ended.
    fn advance(&mut self, rows: &[&[f32]]) -> Result<Vec<Step>, DecodingError>;

    /// The texts found, best first.
    fn texts(self: Box<Self>) -> Vec<Text>;
}

/// A row's next token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Step {
    /// The index of the row that it continues, among the prompt's rows of the last call.
    pub from: usize,
    /// The token to append.
    pub token: u32,
}

/// The text generated after a prompt.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Text {
    /// The tokens after the prompt, including the end token if one ended the text.
    pub tokens: Vec<u32>,
    /// The natural logarithm of the text's probability given the prompt, according to the model alone: before
    /// penalties, temperature and filters.
    pub log_probability: f64,
    /// The score by which beam search ranks texts: the sum of the log probabilities after the penalties, divided by
    /// the length to the power of the length penalty. Without beam search, equal to `log_probability`.
    pub score: f64,
    /// Why the text ended.
    pub end: End,
}

impl Text {
    /// The tokens without the end token.
    ///
    /// ```
    /// use firebrick_models::decoding::{End, Text};
    ///
    /// let text = Text { tokens: vec![5, 6, 2], log_probability: -1.0, score: -1.0, end: End::Token };
    /// assert_eq!(text.without_end(), [5, 6]);
    /// assert_eq!(Text { end: End::Length, ..text }.without_end(), [5, 6, 2]);
    /// ```
    pub fn without_end(&self) -> &[u32] {
        match (self.end, self.tokens.split_last()) {
            (End::Token, Some((_, tokens))) => tokens,
            _ => &self.tokens,
        }
    }
}

/// Why a text ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum End {
    /// Its last token is one of the end tokens.
    Token,
    /// It has reached the maximum length.
    Length,
}

/// The beginning of a text, which decoding continues.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Prompt {
    /// The prompt's number among all prompts, independent of its batch. Draws depend on it.
    pub row: u64,
    /// The tokens that the decoder reads; some settings penalize or ban their repetition. For an encoder-decoder
    /// model, usually just the decoder's start token.
    pub tokens: Vec<u32>,
}

impl Prompt {
    /// Creates the prompt with number `row`.
    pub fn new(row: u64, tokens: impl Into<Vec<u32>>) -> Self {
        Self { row, tokens: tokens.into() }
    }
}

#[cfg(test)]
mod golden_tests;
#[cfg(test)]
mod properties;
#[cfg(test)]
mod table_model;
