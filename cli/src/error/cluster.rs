//! Why the description of a cluster cannot be read.

use thiserror::Error;

const EXAMPLE: &str = "an example is `nodes=16,gpus=8,intra=450GB/s,inter=50GB/s`";
const KEYS: &str = "nodes, gpus, intra, inter, latency, mfu, peak and collectives";

/// The description of a cluster cannot be read.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[non_exhaustive]
pub enum ClusterError {
    /// A part without a value.
    #[error("--cluster: expected `key=value` parts with commas between them, found `{found}`; {EXAMPLE}")]
    Form {
        /// The part.
        found: String,
    },
    /// No such key.
    #[error("--cluster: unknown key `{key}`, expected one of {KEYS}")]
    Key {
        /// The key.
        key: String,
    },
    /// A key occurs twice.
    #[error("--cluster: `{key}` is there twice: remove one of them")]
    Twice {
        /// The key.
        key: &'static str,
    },
    /// A key is needed.
    #[error("--cluster: `{key}` is missing; {EXAMPLE}")]
    Missing {
        /// The key.
        key: &'static str,
    },
    /// A value cannot be read, or is out of its range.
    #[error("--cluster: `{key}` must be {expected}, found `{found}`")]
    Value {
        /// The key.
        key: &'static str,
        /// What it may be.
        expected: &'static str,
        /// What it is.
        found: String,
    },
    /// The peak of the device is not known.
    #[error(
        "--cluster: the peak of {device} in {dtype} is not known: add it, as in `peak=312TFLOP/s`, or the name of the \
         cluster's devices, as in `peak=A100`"
    )]
    NoPeak {
        /// The device.
        device: String,
        /// The dtype that passes compute in.
        dtype: String,
    },
}
