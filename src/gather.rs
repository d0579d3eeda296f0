//! Gathers a value of each rank.

use firebrick_world::Communicator;
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::TrainError;

/// Gathers the value of each rank, by rank, as JSON. `what` names the values in errors.
///
/// # Errors
///
/// A rank is lost.
pub fn gather<T: Serialize + DeserializeOwned>(
    world: &Communicator,
    what: &str,
    mine: &T,
) -> Result<Vec<T>, TrainError> {
    let failed = |error: serde_json::Error| TrainError::file(what, "gathering from all ranks", error);
    let all = world.all_gather_bytes(what, &serde_json::to_vec(mine).map_err(failed)?)?;
    all.iter().map(|theirs| serde_json::from_slice(theirs).map_err(failed)).collect()
}
