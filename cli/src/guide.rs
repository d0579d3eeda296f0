//! The Firebrick guide, page by page. The files are in `docs/`.

#[doc = include_str!("../../docs/run_file.md")]
pub mod run_file {}
#[doc = include_str!("../../docs/strategies.md")]
pub mod strategies {}
#[doc = include_str!("../../docs/commands.md")]
pub mod commands {}
#[doc = include_str!("../../docs/causal_lm.md")]
pub mod causal_lm {}
#[doc = include_str!("../../docs/masked_lm.md")]
pub mod masked_lm {}
#[doc = include_str!("../../docs/seq2seq.md")]
pub mod seq2seq {}
#[doc = include_str!("../../docs/token_classification.md")]
pub mod token_classification {}
#[doc = include_str!("../../docs/many_ranks.md")]
pub mod many_ranks {}
#[doc = include_str!("../../docs/checkpoints.md")]
pub mod checkpoints {}
#[doc = include_str!("../../docs/coming_over.md")]
pub mod coming_over {}
#[doc = include_str!("../../docs/performance.md")]
pub mod performance {}
#[doc = include_str!("../../docs/architecture.md")]
pub mod architecture {}
