//! Computes batches ahead, from a position that can be saved.

mod cut;
mod prefetch;
mod requests;

pub use cut::{Amount, Cut};
pub use prefetch::Prefetch;
pub use requests::{Cursor, Request, Requests};
