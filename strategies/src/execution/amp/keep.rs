//! The parameters that mixed precision keeps in f32.

use std::collections::HashSet;

use burn::module::ParamId;

use serde::{Deserialize, Serialize};

use crate::{ParamPlace, Paths, StrategyError};

use super::NAME;

/// Parameters that stay in f32, by kind or by path.
///
/// | | selects |
/// |---|---|
/// | [`norms`](Self::norms) | the fields of a type whose name contains `Norm`: Burn's `LayerNorm`, `RmsNorm`, `BatchNorm` and so on |
/// | [`embeddings`](Self::embeddings) | the fields of a type whose name contains `Embedding` |
/// | [`head`](Self::head) | the parameters of a module called `head` or `.._head`, or, if it is a field of the model itself, `output`, `output_projection` or `classifier`; not inside lists. If there is none, the first embedding, which is the head of a model that ties the two |
/// | [`path`](Self::path) | the parameters that a [pattern](Paths) matches, such as `blocks.0.*` |
///
/// A selection without any parameter of the model is an error.
///
/// ```
/// use firebrick_strategies::{Amp, Keep};
///
/// let amp = Amp::bf16().keep_f32(Keep::norms().and(Keep::path("blocks.0.*")));
/// assert_eq!(amp, Amp::bf16().keep_f32(Keep::norms()).keep_f32(Keep::path("blocks.0.*")));
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Keep(Vec<Selector>);

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Selector {
    Norms,
    Embeddings,
    Head,
    Path(String),
}

impl Keep {
    /// Keeps the scales and biases of norms.
    pub fn norms() -> Self {
        Self(vec![Selector::Norms])
    }

    /// Keeps embedding tables.
    pub fn embeddings() -> Self {
        Self(vec![Selector::Embeddings])
    }

    /// Keeps the model's output layer.
    pub fn head() -> Self {
        Self(vec![Selector::Head])
    }

    /// Keeps the parameters that a pattern matches: see [`Paths`].
    pub fn path(pattern: impl Into<String>) -> Self {
        Self(vec![Selector::Path(pattern.into())])
    }

    /// Keeps these parameters and those of `other`.
    pub fn and(mut self, other: Self) -> Self {
        self.0.extend(other.0);
        self
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns the patterns that this selects parameters by.
    pub(super) fn paths(&self) -> Vec<String> {
        let pattern =
            |kind: &Selector| if let Selector::Path(pattern) = kind { Some(pattern.clone()) } else { None };
        self.0.iter().filter_map(pattern).collect()
    }

    /// Returns the parameters of a model that this selects.
    ///
    /// # Errors
    ///
    /// [`StrategyError::Path`] and [`StrategyError::NothingKept`], if a part selects no parameter.
    pub(super) fn resolve(&self, paths: &Paths) -> Result<HashSet<ParamId>, StrategyError> {
        let mut kept = HashSet::new();
        for kind in &self.0 {
            kept.extend(kind.resolve(paths)?);
        }
        Ok(kept)
    }
}

impl Selector {
    fn resolve(&self, paths: &Paths) -> Result<Vec<ParamId>, StrategyError> {
        let of = |which: &dyn Fn(&ParamPlace) -> bool| -> Vec<ParamId> {
            paths.places().iter().filter(|place| which(place)).map(|place| place.id).collect()
        };
        let (kind, found) = match self {
            Self::Path(pattern) => {
                let found = paths.params_matching(pattern);
                return found.map_err(|error| StrategyError::Path { strategy: NAME, error });
            }
            Self::Norms => ("norms", of(&|place| place.holder.contains("Norm"))),
            Self::Embeddings => ("embeddings", of(&ParamPlace::is_of_embedding)),
            Self::Head => {
                let found = of(&ParamPlace::is_of_head);
                if found.is_empty() { ("head", first_embedding(paths)) } else { ("head", found) }
            }
        };
        match found.is_empty() {
            false => Ok(found),
            true => Err(StrategyError::NothingKept { kind, found: types(paths) }),
        }
    }
}

/// Returns the first embedding, with the factors through which it is read, if any.
fn first_embedding(paths: &Paths) -> Vec<ParamId> {
    let Some(first) = paths.places().iter().find(|place| place.is_of_embedding()) else { return Vec::new() };
    let belongs =
        |place: &&ParamPlace| place.id == first.id || place.reparameterizes.as_ref() == Some(&first.path);
    paths.places().iter().filter(belongs).map(|place| place.id).collect()
}

/// Returns the types that hold the model's parameters, each with the path of its first parameter.
fn types(paths: &Paths) -> String {
    let mut seen = HashSet::new();
    let first = paths.places().iter().filter(|place| seen.insert(&place.holder));
    let shown: Vec<_> = first.map(|place| format!("`{}` of {}", place.path, place.holder)).collect();
    shown.join(", ")
}

#[cfg(test)]
mod tests {
    use burn::module::Module;
    use burn::nn::{Embedding, EmbeddingConfig, LayerNorm, LayerNormConfig, Linear, LinearConfig};

    use super::*;
    use crate::testing;

    #[derive(Module, Debug)]
    struct Block {
        norm: LayerNorm,
        head: Linear,
        output: Linear,
    }

    #[derive(Module, Debug)]
    struct Model {
        embedding: Embedding,
        blocks: Vec<Block>,
        lm_head: Option<Linear>,
    }

    fn model(head: bool) -> Model {
        let device = testing::device();
        let linear = || LinearConfig::new(2, 2).init(&device);
        let block =
            || Block { norm: LayerNormConfig::new(2).init(&device), head: linear(), output: linear() };
        Model {
            embedding: EmbeddingConfig::new(2, 2).init(&device),
            blocks: vec![block(), block()],
            lm_head: head.then(linear),
        }
    }

    fn kept(keep: Keep, model: &Model) -> Vec<String> {
        let paths = Paths::of(model);
        let kept = keep.resolve(&paths).unwrap();
        let places = paths.places().iter().filter(|place| kept.contains(&place.id));
        places.map(|place| place.path.clone()).collect()
    }

    #[test]
    fn each_kind_means_what_its_documentation_says() {
        let model = model(true);
        let norms =
            ["blocks.0.norm.gamma", "blocks.0.norm.beta", "blocks.1.norm.gamma", "blocks.1.norm.beta"];
        assert_eq!(kept(Keep::norms(), &model), norms);
        assert_eq!(kept(Keep::embeddings(), &model), ["embedding.weight"]);
        assert_eq!(kept(Keep::head(), &model), ["lm_head.weight", "lm_head.bias"]);
        let outputs = kept(Keep::path("blocks.*.output.weight"), &model);
        assert_eq!(outputs, ["blocks.0.output.weight", "blocks.1.output.weight"]);
        let both = kept(Keep::head().and(Keep::embeddings()), &model);
        assert_eq!(both, ["embedding.weight", "lm_head.weight", "lm_head.bias"]);
    }

    #[test]
    fn the_head_of_a_model_without_one_is_its_first_embedding() {
        assert_eq!(kept(Keep::head(), &model(false)), ["embedding.weight"]);
    }

    #[test]
    fn what_means_nothing_is_told_with_what_there_is() {
        let paths = Paths::of(&vec![LinearConfig::new(2, 2).init(&testing::device())]);
        let message = |keep: Keep| keep.resolve(&paths).unwrap_err().to_string();
        let norms = message(Keep::norms());
        assert!(norms.contains("no norms") && norms.contains("`0.weight` of Linear"), "{norms}");
        assert!(message(Keep::head()).contains("no head"));
        let path = message(Keep::path("0.wieght"));
        assert!(path.contains("`0.wieght`") && path.contains("`0.weight`"), "{path}");
    }
}
