//! Models that Firebrick trains from a run file.

mod attention;
mod cross_entropy;
mod generate;
mod gpt;
mod linear;
mod norm;

pub use cross_entropy::cross_entropy;
pub use generate::Sampler;
pub use gpt::{Gpt, GptConfig};
pub use linear::Linear;
pub use norm::Norm;
