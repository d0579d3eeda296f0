//! Tensor parallelism: which axes of a model's parameters the ranks of a tensor axis divide, and what each of them holds.
//!
//! ```text
//! mod.rs    TensorPlan: the layers of a model that are divided, by path
//! parts.rs  TensorParts: the parts that each rank holds, how a model is cut into them, and made whole again
//! ```
//!
//! What the layers exchange in a pass is in [`Pass`](crate::Pass): before column-parallel layers, and after row-parallel ones.

mod parts;

use std::collections::HashMap;

use burn::module::{Module, ParamId};

use crate::{Paths, SettingError, StrategyError, each_param};

use parts::Cut;
pub(crate) use parts::share;
pub use parts::{OwnTokens, TensorPart, TensorParts};

/// The strategy that divides the ranks, for messages.
const NAME: &str = "Mesh";

/// The layers of a model that the ranks of a tensor axis divide, by path (Shoeybi et al., 2019, arXiv:1909.08053): the `tp_plan`
/// of transformers.
///
/// A *column-parallel* layer computes a share of its outputs on each rank, and the *row-parallel* layer that follows reads such
/// a share: its outputs are summed over the ranks. All other parameters are whole on every rank.
///
/// A path may be that of a layer or of a parameter, with `*` for any text: see [`Paths`]. A layer with a plan calls
/// [`Pass::before_columns`](crate::Pass::before_columns) on what its column-parallel layers read,
/// [`Pass::after_rows`](crate::Pass::after_rows) on what its row-parallel layers return, and
/// [`Pass::share_of`](crate::Pass::share_of) to learn its own number of heads.
///
/// ```
/// use firebrick_strategies::TensorPlan;
///
/// // A block of 12 heads, whose queries, keys and values come from one projection, and whose inner width is 3072.
/// let plan = TensorPlan::new()
///     .columns("blocks.*.attention.query_key_value", [12, 12, 12])
///     .rows("blocks.*.attention.output", 12)
///     .columns("blocks.*.widen", [3072])
///     .rows("blocks.*.narrow", 3072);
/// assert!(!plan.is_empty());
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TensorPlan(Vec<Layers>);

/// Layers that are divided alike.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Layers {
    path: String,
    axis: Axis,
    /// The units of each section of the axis, such as heads, of which each rank has as many.
    units: Vec<usize>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Axis {
    /// The last one, of the weight and of the bias.
    Columns,
    /// The first one of the weight. The bias is whole.
    Rows,
    /// The first one of an embedding, and the last one of another parameter.
    Tokens,
}

impl TensorPlan {
    /// Creates a plan that divides nothing.
    pub fn new() -> Self {
        Self::default()
    }

    /// Divides the outputs of these layers. They consist of sections of so many `units` of one size, such as the heads of
    /// queries, of keys and of values; each rank has an equal share of each section.
    pub fn columns(mut self, path: impl Into<String>, units: impl Into<Vec<usize>>) -> Self {
        self.0.push(Layers { path: path.into(), axis: Axis::Columns, units: units.into() });
        self
    }

    /// Divides the inputs of these layers, which consist of so many `units`. Their biases are whole.
    pub fn rows(mut self, path: impl Into<String>, units: usize) -> Self {
        self.0.push(Layers { path: path.into(), axis: Axis::Rows, units: vec![units] });
        self
    }

    /// Divides the vocabulary, of so many `tokens`: the rows of these tables of embeddings, and the outputs of these layers. Ranks
    /// have up to one token more than others. The model looks tokens up by [`Pass::embedding`](crate::Pass::embedding), and
    /// computes its loss by [`Pass::head_loss`](crate::Pass::head_loss).
    pub fn vocabulary(mut self, path: impl Into<String>, tokens: usize) -> Self {
        self.0.push(Layers { path: path.into(), axis: Axis::Tokens, units: vec![tokens] });
        self
    }

    /// Returns the number of tokens of the vocabulary, if the plan divides it.
    fn tokens(&self) -> Option<usize> {
        self.0.iter().find(|layers| layers.axis == Axis::Tokens)?.units.first().copied()
    }

    /// Adds the layers of another plan.
    pub fn and(mut self, other: Self) -> Self {
        self.0.extend(other.0);
        self
    }

    /// Returns whether the plan divides nothing.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Checks whether so many ranks divide the heads and features of each layer.
    ///
    /// # Errors
    ///
    /// They do not, or the plan divides nothing.
    pub fn check_ranks(&self, ranks: usize) -> Result<(), StrategyError> {
        if self.is_empty() {
            return Err(StrategyError::NoTensorPlan);
        }
        for Layers { path, units, .. } in self.0.iter().filter(|layers| layers.axis != Axis::Tokens) {
            let Some(units) = units.iter().find(|units| !units.is_multiple_of(ranks.max(1))) else {
                continue;
            };
            let expected = format!("a divisor of {units}, the heads or features that `{path}` divides");
            let error = SettingError::require(false, "tensor", expected, ranks);
            return error.map_err(|error| StrategyError::setting(NAME, error));
        }
        Ok(())
    }

    /// Returns the axis along which each divided parameter of a model is cut.
    ///
    /// # Errors
    ///
    /// A path matches nothing, or its units do not divide the axis.
    pub fn axes<M: Module>(&self, model: &M) -> Result<HashMap<ParamId, usize>, StrategyError> {
        Ok(self.cuts(model)?.into_iter().map(|(id, cut)| (id, cut.axis)).collect())
    }

    /// Returns how each divided parameter of a model is cut.
    ///
    /// # Errors
    ///
    /// A path matches nothing, or its units do not divide the axis.
    fn cuts<M: Module>(&self, model: &M) -> Result<HashMap<ParamId, Cut>, StrategyError> {
        let (mut cuts, mut shapes, paths) = (HashMap::new(), HashMap::new(), Paths::of(model));
        each_param(model, |param| drop(shapes.insert(param.id(), param.shape())));
        for Layers { path, axis, units } in &self.0 {
            let found = paths.params_matching(path);
            for id in found.map_err(|error| StrategyError::Path { strategy: NAME, error })? {
                let shape = shapes.get(&id).map_or(&[][..], Vec::as_slice);
                let is_table =
                    || paths.places().iter().any(|place| place.id == id && place.is_of_embedding());
                let axis = match (axis, shape.len()) {
                    (Axis::Tokens, _) if is_table() => 0,
                    (Axis::Columns | Axis::Tokens, axes) => axes.saturating_sub(1),
                    (Axis::Rows, 2) => 0,
                    (Axis::Rows, _) => continue,
                };
                let Some(&length) = shape.get(axis) else { continue };
                let all = units.iter().sum::<usize>();
                let expected = format!("a plan of `{path}` whose units divide its axis of {length}");
                let fits = all > 0 && length.is_multiple_of(all);
                SettingError::require(fits, "tensor", expected, format!("{units:?}"))
                    .map_err(|error| StrategyError::setting(NAME, error))?;
                cuts.insert(id, Cut { axis, length, units: units.clone() });
            }
        }
        Ok(cuts)
    }
}
