//! Model parallelism: the parts of a model that its ranks hold, by the axes of parameters and by blocks.
//!
//! ```text
//! mod.rs       TensorPlan: the layers of a model that are divided, by path
//! parts.rs     ModelParts: the parts that each rank holds, how a model is cut into them, and made whole again
//! pipeline.rs  Pipeline: the stages of a model's blocks, and how they reach one another
//! schedule.rs  PipelineSchedule: the order in which a stage runs micro-batches
//! ```
//!
//! What the layers exchange in a pass is in [`Pass`](crate::Pass): before column-parallel layers, after row-parallel ones, and where
//! positions are divided between them.

mod parts;
mod pipeline;
mod schedule;

use std::collections::HashMap;

use burn::module::{Module, ParamId};

use crate::{Paths, SettingError, StrategyError, each_param};

use parts::Cut;
pub(crate) use parts::share;
pub use parts::{ModelPart, ModelParts, OwnTokens};
pub(crate) use pipeline::Neighbour;
pub use pipeline::{Pipeline, Pipelined, StageBalance};
pub use schedule::{PipelineSchedule, PipelineStep};

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
/// [`Pass::share_of`](crate::Pass::share_of) to learn its own number of heads. Between
/// [`Pass::divide_sequence`](crate::Pass::divide_sequence) and [`Pass::join_sequence`](crate::Pass::join_sequence), each rank has some
/// positions of a batch, outside the layers of the plan; a layer outside blocks is read there by
/// [`Pass::at_own_positions`](crate::Pass::at_own_positions).
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
pub struct TensorPlan {
    layers: Vec<Layers>,
    /// The path of the matrix that computes the logits.
    logits: Option<String>,
    /// The paths of layers outside blocks that are read at a rank's own positions.
    at_own_positions: Vec<String>,
}

/// The factors that are attached to matrices, and the axis that each shares with its matrix.
pub(crate) type Factors = HashMap<ParamId, SharedAxis>;

/// The axis that a factor shares with the matrix that is read through it: where ranks divide that axis of the matrix, they
/// divide the factor too.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SharedAxis {
    /// The matrix.
    pub matrix: ParamId,
    /// The axis of the matrix.
    pub of_matrix: usize,
    /// The axis of the factor.
    pub axis: usize,
}

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
        self.layers.push(Layers { path: path.into(), axis: Axis::Columns, units: units.into() });
        self
    }

    /// Divides the inputs of these layers, which consist of so many `units`. Their biases are whole.
    pub fn rows(mut self, path: impl Into<String>, units: usize) -> Self {
        self.layers.push(Layers { path: path.into(), axis: Axis::Rows, units: vec![units] });
        self
    }

    /// Divides the vocabulary, of so many `tokens`: the rows of these tables of embeddings, and the outputs of these layers. Ranks
    /// have up to one token more than others. The model looks tokens up by [`Pass::embedding`](crate::Pass::embedding), and
    /// computes its loss by [`Pass::head_loss`](crate::Pass::head_loss).
    pub fn vocabulary(mut self, path: impl Into<String>, tokens: usize) -> Self {
        self.layers.push(Layers { path: path.into(), axis: Axis::Tokens, units: vec![tokens] });
        self
    }

    /// Says which matrix computes the logits behind the last block: the table of a tied vocabulary, or an output layer. The last
    /// stage of a pipeline has fewer blocks for it.
    pub fn logits(self, path: impl Into<String>) -> Self {
        Self { logits: Some(path.into()), ..self }
    }

    /// Returns the parameters that [compute the logits](Self::logits).
    ///
    /// # Errors
    ///
    /// The path matches nothing.
    pub fn of_logits(&self, paths: &Paths) -> Result<Vec<ParamId>, StrategyError> {
        self.logits.as_deref().map_or(Ok(Vec::new()), |path| self.params(path, paths))
    }

    /// Says which layers outside blocks the model reads by [`Pass::at_own_positions`](crate::Pass::at_own_positions), such as its
    /// last norm: ranks send the gradients of their parameters. Blocks that the path matches change nothing.
    pub fn at_own_positions(mut self, path: impl Into<String>) -> Self {
        self.at_own_positions.push(path.into());
        self
    }

    /// Returns the parameters that are read [at own positions](Self::at_own_positions).
    ///
    /// # Errors
    ///
    /// A path matches nothing.
    pub fn read_at_own_positions(&self, paths: &Paths) -> Result<Vec<ParamId>, StrategyError> {
        let found = self.at_own_positions.iter().map(|path| self.params(path, paths));
        Ok(found.collect::<Result<Vec<_>, _>>()?.concat())
    }

    /// Returns the number of tokens of the vocabulary, if the plan divides it.
    fn tokens(&self) -> Option<usize> {
        self.layers.iter().find(|layers| layers.axis == Axis::Tokens)?.units.first().copied()
    }

    /// Adds the layers of another plan.
    pub fn and(mut self, other: Self) -> Self {
        self.layers.extend(other.layers);
        self.at_own_positions.extend(other.at_own_positions);
        self.logits = self.logits.or(other.logits);
        self
    }

    /// Returns whether the plan divides nothing.
    pub fn is_empty(&self) -> bool {
        self.layers.is_empty()
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
        for Layers { path, units, .. } in self.layers.iter().filter(|layers| layers.axis != Axis::Tokens) {
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
    /// A path matches nothing, its units do not divide the axis, or a parameter has more than two axes.
    pub fn axes<M: Module>(&self, model: &M) -> Result<HashMap<ParamId, usize>, StrategyError> {
        Ok(self.cuts(model, &Factors::new())?.into_iter().map(|(id, cut)| (id, cut.axis)).collect())
    }

    /// Returns how each divided parameter of a model is cut. A factor is cut as the axis that it shares with its matrix.
    ///
    /// # Errors
    ///
    /// The same as [`axes`](Self::axes).
    fn cuts<M: Module>(&self, model: &M, factors: &Factors) -> Result<HashMap<ParamId, Cut>, StrategyError> {
        let (mut cuts, mut shapes, paths) = (HashMap::new(), HashMap::new(), Paths::of(model));
        each_param(model, |param| drop(shapes.insert(param.id(), param.shape())));
        for Layers { path, axis, units } in &self.layers {
            for id in self.params(path, &paths)?.into_iter().filter(|id| !factors.contains_key(id)) {
                let shape = shapes.get(&id).map_or(&[][..], Vec::as_slice);
                let is_table =
                    || paths.places().iter().any(|place| place.id == id && place.is_of_embedding());
                let at = match (axis, shape.len()) {
                    (Axis::Rows, 1) => continue,
                    (Axis::Rows, _) => 0,
                    (Axis::Tokens, _) if is_table() => 0,
                    (Axis::Columns | Axis::Tokens, axes) => axes.saturating_sub(1),
                };
                let require = |fits, expected: String, found: String| {
                    SettingError::require(fits, "tensor", expected, found)
                        .map_err(|error| StrategyError::setting(NAME, error))
                };
                // A checkpoint has columns of matrices and vectors.
                let has_axes = matches!(shape.len(), 1 | 2);
                require(has_axes, format!("a plan of `{path}` for one or two axes"), format!("{shape:?}"))?;
                let (length, all) = (shape[at], units.iter().sum::<usize>());
                let (fits, of) = match axis {
                    // A model has one vocabulary.
                    Axis::Tokens => (length == all && Some(all) == self.tokens(), "are all tokens of"),
                    Axis::Columns | Axis::Rows => (all > 0 && length.is_multiple_of(all), "divide"),
                };
                let expected = format!("a plan of `{path}` whose units {of} its axis of {length}");
                require(fits, expected, format!("{units:?}"))?;
                cuts.insert(id, Cut { axis: at, length, units: units.clone() });
            }
        }
        let of_factor = |(id, shared): (&ParamId, &SharedAxis)| {
            let cut = cuts.get(&shared.matrix).filter(|cut| cut.axis == shared.of_matrix)?;
            Some((*id, Cut { axis: shared.axis, ..cut.clone() }))
        };
        let of_factors: Vec<_> = factors.iter().filter_map(of_factor).collect();
        cuts.extend(of_factors);
        Ok(cuts)
    }

    /// Returns the parameters at a path of the plan.
    fn params(&self, path: &str, paths: &Paths) -> Result<Vec<ParamId>, StrategyError> {
        paths.params_matching(path).map_err(|error| StrategyError::Path { strategy: NAME, error })
    }

    /// Checks whether the factors of divided matrices are in blocks, where the gradients are summed of those factors that each rank
    /// has whole.
    ///
    /// # Errors
    ///
    /// [`StrategyError::FactorsOutsideBlocks`], or a path matches nothing.
    pub(crate) fn require_factors_in_blocks(
        &self,
        paths: &Paths,
        factors: &Factors,
    ) -> Result<(), StrategyError> {
        for Layers { path, .. } in &self.layers {
            let divided = self.params(path, paths)?;
            let outside = paths.places().iter().filter(|place| place.block().is_none());
            let mut adapted = outside.filter_map(|place| Some((place, factors.get(&place.id)?)));
            if let Some((place, _)) = adapted.find(|(_, shared)| divided.contains(&shared.matrix)) {
                let parameter = place.reparameterizes.clone().unwrap_or_default();
                return Err(StrategyError::FactorsOutsideBlocks { parameter });
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use burn::nn::conv::{Conv2d, Conv2dConfig};
    use burn::nn::{Embedding, EmbeddingConfig, Linear, LinearConfig};

    use super::*;
    use crate::testing;

    #[derive(Module, Debug)]
    struct Model {
        tokens: Embedding,
        inner: Linear,
        image: Conv2d,
    }

    fn model() -> Model {
        let device = testing::device();
        Model {
            tokens: EmbeddingConfig::new(10, 4).init(&device),
            inner: LinearConfig::new(4, 12).init(&device),
            image: Conv2dConfig::new([2, 4], [3, 3]).init(&device),
        }
    }

    #[test]
    fn a_plan_says_which_axis_of_each_parameter_is_cut() {
        let model = model();
        let bias = model.inner.bias.as_ref().unwrap().id;
        let axes = |plan: TensorPlan| plan.axes(&model).unwrap();
        let columns = axes(TensorPlan::new().columns("inner", [2, 1]));
        assert_eq!(columns, HashMap::from([(model.inner.weight.id, 1), (bias, 0)]));
        // The bias of a row-parallel layer is whole.
        assert_eq!(axes(TensorPlan::new().rows("inner", 4)), HashMap::from([(model.inner.weight.id, 0)]));
        let tokens = axes(TensorPlan::new().vocabulary("tokens", 10));
        assert_eq!(tokens, HashMap::from([(model.tokens.weight.id, 0)]));
    }

    #[test]
    fn a_plan_that_does_not_fit_the_model_is_refused() {
        let model = model();
        for (plan, said) in [
            (TensorPlan::new().columns("outer", [2]), "no parameter of the model matches `outer`"),
            (TensorPlan::new().columns("inner", [5]), "whose units divide its axis of 12, found [5]"),
            (TensorPlan::new().columns("inner", []), "whose units divide its axis of 12, found []"),
            // Half of the tokens would be another vocabulary.
            (
                TensorPlan::new().vocabulary("tokens", 5),
                "whose units are all tokens of its axis of 10, found [5]",
            ),
            (
                TensorPlan::new().vocabulary("tokens", 10).vocabulary("inner", 12),
                "a plan of `inner` whose units are all tokens of its axis of 12",
            ),
            (TensorPlan::new().rows("image", 4), "a plan of `image` for one or two axes, found [4, 2, 3, 3]"),
        ] {
            let error = plan.axes(&model).unwrap_err().to_string();
            assert!(error.contains(said), "{error}");
        }
        assert_eq!(TensorPlan::new().check_ranks(2), Err(StrategyError::NoTensorPlan));
    }
}
