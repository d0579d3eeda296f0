//! When beam search ends.

use serde::{Deserialize, Serialize};

/// When beam search ends, once as many texts have ended as there are beams. Where a text is as long as it may be, it
/// ends in any case.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum EarlyStopping {
    /// At once. `True` in Transformers.
    Full,
    /// When the best beam would not be better than the worst of them if it ended now. It may become better as it grows
    /// where the length penalty is above 0. `False` in Transformers, and the default there too.
    #[default]
    Unlikely,
    /// When no beam can become better than the worst of them, at any length. `"never"` in Transformers.
    Impossible,
}
