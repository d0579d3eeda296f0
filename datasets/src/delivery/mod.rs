//! Computes batches ahead, from a position that can be saved.

mod cursor;
mod cut;
mod prefetch;
mod requests;
mod workers;

pub use cursor::Cursor;
pub use cut::{Amount, Cut};
pub use prefetch::Prefetch;
pub use requests::{Request, Requests};
