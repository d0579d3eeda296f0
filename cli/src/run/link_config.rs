//! The `link` of a run file: a simulated network.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use firebrick::ByteSize;
use firebrick_world::Link;

/// A network that is simulated between ranks that are threads: see [`Link`].
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LinkConfig {
    /// The bytes that a rank's link carries in a second in each direction, as in `"125MB"`.
    pub bytes_per_second: ByteSize,
    /// The seconds that a message takes in addition. Default: 0.
    #[serde(default)]
    pub latency: f64,
}

/// The longest latency, in seconds: a longer one would be a typo.
pub(super) const MOST_LATENCY: f64 = 60.0;

impl From<LinkConfig> for Link {
    fn from(config: LinkConfig) -> Self {
        let LinkConfig { bytes_per_second: ByteSize(bytes), latency } = config;
        // The run file was checked.
        let latency = Duration::try_from_secs_f64(latency).unwrap_or_default();
        Self::new(bytes as f64).latency(latency)
    }
}
