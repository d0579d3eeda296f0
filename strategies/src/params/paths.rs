//! The paths of a model's parameters, and the patterns that select them.

use std::collections::{HashMap, HashSet};

use burn::module::{Module, ModuleVisitor, Param, ParamId};
use burn::tensor::Tensor;
use glob::Pattern;
use thiserror::Error;

/// The paths of a model's float parameters: field names and list indices, joined by dots, such as
/// `blocks.0.attention.output.weight`.
///
/// A pattern is a path in which `*` stands for any text, dots included, `?` for one character, and `[0-3]` for one
/// character of a set. It matches the parameter with that path, and all parameters of a module with that path:
/// `blocks.0`, `blocks.0.*` and `blocks.0.*.weight` are all patterns.
///
/// ```
/// use burn::{nn::LinearConfig, tensor::Device};
/// use firebrick_strategies::Paths;
///
/// let device = Device::flex();
/// let layers = vec![LinearConfig::new(2, 2).with_bias(false).init(&device); 1];
/// let other = LinearConfig::new(2, 2).init(&device);
/// let paths = Paths::of(&(layers, other.clone()));
///
/// assert_eq!(paths.path(other.weight.id), Some("1.weight"));
/// assert_eq!(paths.modules().collect::<Vec<_>>(), ["0", "0.0", "1"]);
/// assert_eq!(paths.params_matching("1.*")?.len(), 2);
/// assert_eq!(paths.modules_matching("0.?")?, ["0.0"]);
/// assert_eq!(paths.module_of(&other), Some("1"));
///
/// let error = paths.params_matching("1.weights").unwrap_err();
/// assert!(error.to_string().contains("the nearest are `1.weight`"));
/// # Ok::<(), firebrick_strategies::PathError>(())
/// ```
#[derive(Clone, Debug, Default)]
pub struct Paths {
    places: Vec<ParamPlace>,
    first: HashMap<ParamId, usize>,
}

/// One occurrence of a parameter in the model. A tied parameter has several.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ParamPlace {
    /// The path of the parameter.
    pub path: String,
    /// The parameter.
    pub id: ParamId,
    /// The name of the type that has the parameter as a field, such as `LayerNorm`; empty if no type does. For a
    /// factor, the holder of the parameter that is read through it.
    pub holder: String,
    /// The path of the parameter that is read through this one, if any: a matrix is read through the factors of
    /// [`Lora`](crate::Lora).
    pub reparameterizes: Option<String>,
    /// The length of the path of the list element that contains it, if any.
    block: Option<usize>,
}

/// A pattern that is invalid or matches nothing.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[non_exhaustive]
pub enum PathError {
    /// The pattern is invalid.
    #[error("`{pattern}` is no pattern: {reason}; `*` stands for any text, dots included")]
    Pattern {
        /// The pattern as given.
        pattern: String,
        /// What is wrong with it.
        reason: &'static str,
    },
    /// The pattern matches nothing in this model.
    #[error("no {what} of the model matches `{pattern}`; {}{}", nearest_as_phrase(.nearest), names_as_phrase(.names))]
    NoMatch {
        /// `parameter` or `module`.
        what: &'static str,
        /// The pattern as given.
        pattern: String,
        /// The most similar paths, the best first.
        nearest: Vec<String>,
        /// All paths, with `*` for each list index.
        names: Vec<String>,
    },
}

fn names_as_phrase(names: &[String]) -> String {
    const MOST: usize = 60;
    let quoted: Vec<_> = names.iter().take(MOST).map(|name| format!("`{name}`")).collect();
    let more = names.len() - quoted.len();
    let more = if more > 0 { format!(" and {more} more") } else { String::new() };
    if quoted.is_empty() { String::new() } else { format!("; name one of {}{more}", quoted.join(", ")) }
}

/// Replaces each list index of a path by `*`.
fn without_indices(path: &str) -> String {
    let is_index = |name: &str| name.bytes().all(|byte| byte.is_ascii_digit());
    let names = path.split('.').map(|name| if is_index(name) { "*" } else { name });
    names.collect::<Vec<_>>().join(".")
}

fn nearest_as_phrase(nearest: &[String]) -> String {
    let quoted: Vec<_> = nearest.iter().map(|path| format!("`{path}`")).collect();
    match quoted.is_empty() {
        true => "it has none at all".into(),
        false => format!("the nearest are {}", quoted.join(", ")),
    }
}

impl ParamPlace {
    /// Returns the path of its block: the list element that contains it, the outermost one for nested lists.
    pub fn block(&self) -> Option<&str> {
        Some(&self.path[..self.block?])
    }

    /// Returns whether a table of embeddings holds it.
    pub(crate) fn is_of_embedding(&self) -> bool {
        self.holder.contains("Embedding")
    }

    /// Returns whether it belongs to the model's head, by the names of the modules that contain it.
    pub(crate) fn is_of_head(&self) -> bool {
        let names: Vec<_> = self.path.split('.').collect();
        let Some((_, modules)) = names.split_last() else { return false };
        // A head inside a list, such as one of an attention layer, is not the model's head.
        let in_list = modules.iter().any(|name| name.bytes().all(|byte| byte.is_ascii_digit()));
        let of_model = matches!(modules.first(), Some(&("output" | "output_projection" | "classifier")));
        let called_so = modules.iter().any(|name| *name == "head" || name.ends_with("_head"));
        !in_list && (called_so || of_model)
    }

    /// Returns the paths of the modules that contain it, the outermost first.
    fn modules(&self) -> impl Iterator<Item = &str> {
        self.path.match_indices('.').map(|(end, _)| &self.path[..end])
    }

    /// Returns whether the pattern matches it or a module that contains it.
    fn matches(&self, pattern: &Pattern) -> bool {
        pattern.matches(&self.path) || self.modules().any(|module| pattern.matches(module))
    }
}

impl Paths {
    /// Collects the paths of all float parameters of the model, in the order of its fields.
    pub fn of<M: Module>(model: &M) -> Self {
        let mut collect = Collect::default();
        model.visit(&mut collect);
        collect.paths
    }

    /// Returns a parameter's path; for a tied parameter, its first path.
    pub fn path(&self, id: ParamId) -> Option<&str> {
        self.first.get(&id).map(|&place| self.places[place].path.as_str())
    }

    /// Returns every place, with tied parameters repeated.
    pub fn places(&self) -> &[ParamPlace] {
        &self.places
    }

    /// Returns those of the matrices that linear layers hold, without those that the head or an embedding reads too.
    pub(crate) fn matrices_of_linear_layers(&self, matrices: &HashSet<ParamId>) -> HashSet<ParamId> {
        let of_layer = |place: &&ParamPlace| matrices.contains(&place.id) && place.holder == "Linear";
        let mut found: HashSet<_> = self.places.iter().filter(of_layer).map(|place| place.id).collect();
        for place in self.places.iter().filter(|place| place.is_of_head() || place.is_of_embedding()) {
            found.remove(&place.id);
        }
        found
    }

    /// Returns the modules that hold parameters, each before its submodules.
    pub fn modules(&self) -> impl Iterator<Item = &str> {
        let mut seen = HashSet::new();
        self.places.iter().flat_map(ParamPlace::modules).filter(move |module| seen.insert(*module))
    }

    /// Returns the elements of the model's lists, which are its blocks; for nested lists, those of the outermost list.
    pub fn blocks(&self) -> impl Iterator<Item = &str> {
        let mut seen = HashSet::new();
        let blocks = self.places.iter().filter_map(ParamPlace::block);
        blocks.filter(move |block| seen.insert(*block))
    }

    /// Returns the parameters that a pattern matches, each once.
    ///
    /// # Errors
    ///
    /// The pattern is invalid or matches nothing.
    pub fn params_matching(&self, pattern: &str) -> Result<Vec<ParamId>, PathError> {
        let parsed = parse(pattern)?;
        let mut seen = HashSet::new();
        let found = self.places.iter().filter(|place| place.matches(&parsed)).map(|place| place.id);
        let found: Vec<_> = found.filter(|id| seen.insert(*id)).collect();
        match found.is_empty() {
            false => Ok(found),
            true => Err(self.no_match("parameter", pattern, self.places.iter().map(|at| at.path.as_str()))),
        }
    }

    /// Returns the modules whose path a pattern matches.
    ///
    /// # Errors
    ///
    /// The pattern is invalid or matches nothing.
    pub fn modules_matching(&self, pattern: &str) -> Result<Vec<&str>, PathError> {
        let parsed = parse(pattern)?;
        let found: Vec<_> = self.modules().filter(|module| parsed.matches(module)).collect();
        if found.is_empty() { Err(self.no_match("module", pattern, std::iter::empty())) } else { Ok(found) }
    }

    /// Returns the path of a part of the model, such as one of its blocks. `None` if the part has no parameter of the
    /// model, or only tied parameters that appear elsewhere first.
    pub fn module_of<B: Module>(&self, part: &B) -> Option<&str> {
        let inner = Self::of(part);
        inner.places.iter().find_map(|place| {
            let path = self.path(place.id)?;
            // Removes the path within the part.
            path.strip_suffix(&place.path)?.strip_suffix('.')
        })
    }

    fn no_match<'a>(
        &'a self,
        what: &'static str,
        pattern: &str,
        more: impl Iterator<Item = &'a str>,
    ) -> PathError {
        let mut listed = HashSet::new();
        let all: Vec<_> = more.collect();
        let names: Vec<&str> = if all.is_empty() { self.modules().collect() } else { all.clone() };
        let names = names.into_iter().map(without_indices).filter(|name| listed.insert(name.clone()));
        let names = names.collect();
        let near = |path: &str| strsim::jaro_winkler(path, pattern);
        let mut known: Vec<_> = all.into_iter().chain(self.modules()).collect();
        known.sort_by(|a, b| near(b).total_cmp(&near(a)));
        let mut seen = HashSet::new();
        known.retain(|path| seen.insert(*path));
        let nearest = known.into_iter().take(3).map(str::to_string).collect();
        PathError::NoMatch { what, pattern: pattern.into(), nearest, names }
    }
}

fn parse(pattern: &str) -> Result<Pattern, PathError> {
    Pattern::new(pattern).map_err(|error| PathError::Pattern { pattern: pattern.into(), reason: error.msg })
}

#[derive(Default)]
struct Collect {
    names: Vec<String>,
    /// For each name, the type that it is a field of, or empty for a list element.
    holders: Vec<String>,
    /// For each entered list, the number of names in the path of its current element.
    lists: Vec<usize>,
    /// The number of names of the parameter that is read through the current module, if any.
    through: Option<usize>,
    paths: Paths,
}

/// The container type that Burn reports for the modules through which a parameter is read.
const THROUGH: &str = "Reparameterization";

impl ModuleVisitor for Collect {
    fn enter_module(&mut self, name: &str, container_type: &str) {
        if container_type == THROUGH {
            self.through.get_or_insert(self.names.len());
        }
        self.names.push(name.into());
        if matches!(container_type, "Vec" | "Array") {
            self.lists.push(self.names.len());
        }
        // "Struct:LayerNorm", "Enum:Mixer"; lists, tuples and arrays have no colon.
        self.holders.push(container_type.split_once(':').map_or("", |(_, name)| name).into());
    }

    fn exit_module(&mut self, _: &str, container_type: &str) {
        if matches!(container_type, "Vec" | "Array") {
            self.lists.pop();
        }
        self.names.pop();
        if self.through == Some(self.names.len()) {
            self.through = None;
        }
        self.holders.pop();
    }

    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        let Paths { places, first } = &mut self.paths;
        first.entry(param.id).or_insert(places.len());
        let owner = self.through.unwrap_or(self.names.len());
        let holder = self.holders[..owner].iter().rev().find(|holder| !holder.is_empty());
        places.push(ParamPlace {
            path: self.names.join("."),
            id: param.id,
            holder: holder.cloned().unwrap_or_default(),
            reparameterizes: self.through.map(|names| self.names[..names].join(".")),
            block: self.lists.first().map(|&names| self.names[..names].join(".").len()),
        });
    }
}

#[cfg(test)]
mod tests {
    use burn::nn::{Embedding, EmbeddingConfig, LayerNorm, LayerNormConfig, Linear, LinearConfig};
    use burn::tensor::Device;

    use super::*;

    #[derive(Module, Debug)]
    struct Block {
        norm: LayerNorm,
        linear: Linear,
    }

    #[derive(Module, Debug)]
    struct Model {
        tokens: Embedding,
        blocks: Vec<Block>,
        tied: Linear,
    }

    fn model() -> Model {
        let device = Device::flex();
        let block = || Block {
            norm: LayerNormConfig::new(2).init(&device),
            linear: LinearConfig::new(2, 2).init(&device),
        };
        let blocks: Vec<_> = (0..12).map(|_| block()).collect();
        let tied = blocks[1].linear.clone();
        Model { tokens: EmbeddingConfig::new(3, 2).init(&device), blocks, tied }
    }

    #[test]
    fn every_place_has_its_path_and_its_type() {
        let model = model();
        let paths = Paths::of(&model);
        let place = |index: usize| {
            let place = &paths.places()[index];
            (place.path.as_str(), place.holder.as_str())
        };
        assert_eq!(place(0), ("tokens.weight", "Embedding"));
        assert_eq!(place(1), ("blocks.0.norm.gamma", "LayerNorm"));
        assert_eq!(place(3), ("blocks.0.linear.weight", "Linear"));
        assert_eq!(paths.places().len(), 1 + 12 * 4 + 2);
        let tied = model.tied.weight.id;
        assert_eq!(paths.path(tied), Some("blocks.1.linear.weight"), "the first place");
        assert_eq!(
            paths.modules().take(4).collect::<Vec<_>>(),
            ["tokens", "blocks", "blocks.0", "blocks.0.norm"]
        );
    }

    #[test]
    fn a_pattern_means_parameters_and_what_is_below_modules() {
        let model = model();
        let paths = Paths::of(&model);
        let count = |pattern| paths.params_matching(pattern).unwrap().len();
        assert_eq!(count("tokens.weight"), 1);
        assert_eq!(count("blocks.1"), 4, "not blocks.10 and blocks.11");
        assert_eq!(count("blocks.1.*"), 4);
        assert_eq!(count("blocks.1*"), 12);
        assert_eq!(count("blocks.[2-4].norm"), 6);
        assert_eq!(count("*.gamma"), 12);
        assert_eq!(count("*linear.weight"), 12);
        assert_eq!(count("tied"), 2);
        assert_eq!(count("*"), 1 + 12 * 4, "a tied one counts once");
        assert_eq!(paths.modules_matching("blocks.?").unwrap().len(), 10);
    }

    #[test]
    fn a_part_of_the_model_is_found() {
        let model = model();
        let paths = Paths::of(&model);
        assert_eq!(paths.module_of(&model.blocks[11]), Some("blocks.11"));
        assert_eq!(paths.module_of(&model.blocks[2].norm), Some("blocks.2.norm"));
        assert_eq!(paths.module_of(&LayerNormConfig::new(2).init(&Device::flex())), None);
    }

    #[test]
    fn a_pattern_that_means_nothing_is_answered_with_the_nearest() {
        let model = model();
        let paths = Paths::of(&model);
        let error = paths.params_matching("block.0.norm.gamma").unwrap_err();
        let PathError::NoMatch { nearest, names, .. } = &error else { panic!("{error}") };
        assert!(names.iter().all(|name| error.to_string().contains(&format!("`{name}`"))), "{error}");
        assert!(!names.is_empty() && !names.iter().any(|name| name.contains(|c: char| c.is_ascii_digit())));
        assert_eq!(nearest[0], "blocks.0.norm.gamma");
        assert!(error.to_string().contains("no parameter of the model matches `block.0.norm.gamma`"));
        let error = paths.modules_matching("blocks.12").unwrap_err().to_string();
        assert!(error.contains("`blocks.1"), "{error}");
        let error = paths.params_matching("blocks.[0").unwrap_err();
        assert!(error.to_string().contains("is no pattern"), "{error}");
        let error = Paths::default().params_matching("head").unwrap_err();
        assert!(error.to_string().contains("it has none at all"), "{error}");
    }
}
