//! When beam search ends.

use serde::{Deserialize, Serialize};

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
