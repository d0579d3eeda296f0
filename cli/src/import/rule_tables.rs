//! The rules of each file, from the tables of its fields.

use super::deepspeed_fields::DEEPSPEED;
use super::rules::Rules;
use super::training_argument_fields::TRAINING_ARGUMENTS;
use super::zero_fields::ZERO;

/// The rules for DeepSpeed; the tables are searched in this order.
pub(super) const OF_DEEPSPEED: Rules = &[DEEPSPEED, ZERO];

/// The rules for Transformers.
pub(super) const OF_TRAINING_ARGUMENTS: Rules = &[TRAINING_ARGUMENTS];
