//! The parameters of a model.
//!
//! ```text
//! each.rs      a look at each parameter, whatever its rank
//! maps.rs      maps that keep tied parameters tied, and which parameters are trained
//! paths.rs     the paths of parameters and modules, and the patterns that select them
//! low_rank.rs  the rank and scale of low-rank factors beside a matrix, and how given ones may differ
//! ```

mod each;
mod low_rank;
mod maps;
mod paths;

pub use each::{AnyParam, each_distinct_param, each_param, learns, values_on_host};
pub use low_rank::{LowRank, UnfitFactors};
pub(crate) use maps::{Lifting, map_params_later, wake, without_values};
pub use maps::{
    ParamMap, Trained, apart, map_params, relift, tie, tied, trained, trained_here, untie, with_values,
};
pub use paths::{ParamPlace, PathError, Paths};
