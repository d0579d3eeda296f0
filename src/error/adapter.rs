//! The errors of reading adapters.

use std::path::PathBuf;

use thiserror::Error;

/// A folder of adapters cannot be read.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum AdapterError {
    /// A file is missing or damaged.
    #[error("{path}: {reason}; name a folder with adapter_config.json and adapter_model.safetensors")]
    File {
        /// The file.
        path: PathBuf,
        /// The problem.
        reason: String,
    },
    /// The configuration has a setting that Firebrick does not support.
    #[error(
        "{path}: `{setting}` must be {expected}, found {found}: merge the adapter into its model with PEFT, and open that folder"
    )]
    Setting {
        /// The configuration.
        path: PathBuf,
        /// The field of `LoraConfig`.
        setting: &'static str,
        /// The supported values.
        expected: &'static str,
        /// The value found.
        found: String,
    },
    /// A tensor has another shape.
    #[error("{path}: `{tensor}` must be {expected}, found {found}; save the adapter again")]
    Tensor {
        /// The file of tensors.
        path: PathBuf,
        /// The tensor's name.
        tensor: String,
        /// The supported shape or dtype.
        expected: String,
        /// The one found.
        found: String,
    },
    /// A matrix lacks a factor, or its magnitudes.
    #[error("{path}: `{tensor}` is missing beside another factor of its matrix; save the adapter again")]
    Alone {
        /// The file of tensors.
        path: PathBuf,
        /// The missing tensor.
        tensor: String,
    },
    /// A tied parameter is not changed alike at all of its places.
    #[error(
        "{path}: `{tensor}` changes `{parameter}` at one of the places where the model reads it, but the model ties them: train the adapter without it, with `ensure_weight_tying=True` of PEFT, or on a copy of the model with an untied head"
    )]
    Tied {
        /// The file of tensors.
        path: PathBuf,
        /// The tensor's name.
        tensor: String,
        /// The parameter's path.
        parameter: String,
    },
    /// The model has no parameter of a tensor.
    #[error(
        "{path}: `{tensor}` belongs to no parameter of the model: load the model that the adapter was trained on"
    )]
    NoParameter {
        /// The file of tensors.
        path: PathBuf,
        /// The tensor's name.
        tensor: String,
    },
}
