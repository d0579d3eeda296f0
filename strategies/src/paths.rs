//! The paths of a model's parameters and modules, as in `blocks.3.attention.output.weight`.

use std::collections::{BTreeSet, HashMap};

use burn::module::{Module, ModuleVisitor, Param, ParamId};
use burn::tensor::Tensor;
use glob::Pattern;

use crate::StrategyError;

/// Where each parameter of a model stands. A tied one stands at its first place.
///
/// ```
/// use burn::{nn::LinearConfig, tensor::Device};
/// use firebrick_strategies::Paths;
///
/// let model = vec![LinearConfig::new(2, 2).init(&Device::flex()); 2];
/// let other = vec![LinearConfig::new(2, 2).init(&Device::flex()), model[0].clone()];
/// let paths = Paths::of(&other);
/// assert_eq!(paths.of_parameter(other[1].weight.id), Some("1.weight"));
/// assert_eq!(paths.of_module(&other[1]).as_deref(), Some("1"));
/// ```
#[derive(Clone, Debug, Default)]
pub struct Paths {
    parameters: HashMap<ParamId, String>,
    modules: BTreeSet<String>,
}

impl Paths {
    /// The paths of this model.
    pub fn of<M: Module>(model: &M) -> Self {
        let mut walk = Walk::default();
        model.visit(&mut walk);
        walk.paths
    }

    /// Of a parameter of the model.
    pub fn of_parameter(&self, id: ParamId) -> Option<&str> {
        self.parameters.get(&id).map(String::as_str)
    }

    /// Of a part of the model: what the paths of its parameters have in common. `None` where it has
    /// no parameter of the model, or nothing in common.
    pub fn of_module<M: Module>(&self, module: &M) -> Option<String> {
        let mut ids = Ids::default();
        module.visit(&mut ids);
        let mut paths = ids.0.iter().filter_map(|id| self.of_parameter(*id));
        let (module, _) = paths.next()?.rsplit_once('.')?;
        let common = paths.fold(module, |common, path| {
            let ends = common.char_indices().filter(|(_, c)| *c == '.').map(|(end, _)| end);
            let ends = ends.chain([common.len()]).rev();
            let is_in =
                |end: &usize| path.strip_prefix(&common[..*end]).is_some_and(|rest| rest.starts_with('.'));
            ends.into_iter().find(is_in).map_or("", |end| &common[..end])
        });
        (!common.is_empty()).then(|| common.to_string())
    }

    /// The pattern, in which `*` and `?` stand for any characters, once it is seen to match the path
    /// of some module.
    ///
    /// # Errors
    ///
    /// It is no pattern, or it matches none; the error tells which paths there are.
    pub fn module_pattern(&self, strategy: &'static str, pattern: &str) -> Result<Pattern, StrategyError> {
        matching(strategy, pattern, self.modules.iter().map(String::as_str))
    }

    /// The pattern, once it is seen to match the path of some parameter.
    ///
    /// # Errors
    ///
    /// It is no pattern, or it matches none; the error tells which paths there are.
    pub fn parameter_pattern(&self, strategy: &'static str, pattern: &str) -> Result<Pattern, StrategyError> {
        let paths: BTreeSet<_> = self.parameters.values().map(String::as_str).collect();
        matching(strategy, pattern, paths.iter().copied())
    }
}

fn matching<'a>(
    strategy: &'static str,
    pattern: &str,
    mut paths: impl Iterator<Item = &'a str> + Clone,
) -> Result<Pattern, StrategyError> {
    let wrong = |paths: Vec<&str>| StrategyError::NoSuchPath {
        strategy,
        pattern: pattern.into(),
        paths: paths.join(", "),
    };
    let shown: Vec<_> = paths.clone().take(SHOWN).collect();
    let compiled = Pattern::new(pattern).map_err(|_| wrong(shown.clone()))?;
    match paths.any(|path| compiled.matches(path)) {
        true => Ok(compiled),
        false => Err(wrong(shown)),
    }
}

/// Paths that an error names.
const SHOWN: usize = 12;

#[derive(Default)]
struct Walk {
    names: Vec<String>,
    paths: Paths,
}

impl ModuleVisitor for Walk {
    fn enter_module(&mut self, name: &str, _: &str) {
        self.names.push(name.into());
    }

    fn exit_module(&mut self, _: &str, _: &str) {
        self.names.pop();
    }

    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        let path = self.names.join(".");
        for (end, _) in path.match_indices('.') {
            self.paths.modules.insert(path[..end].into());
        }
        self.paths.parameters.entry(param.id).or_insert(path);
    }
}

#[derive(Default)]
struct Ids(Vec<ParamId>);

impl ModuleVisitor for Ids {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        self.0.push(param.id);
    }
}

#[cfg(test)]
mod tests {
    use burn::nn::{Linear, LinearConfig};
    use burn::tensor::Device;

    use super::*;

    #[derive(Module, Debug)]
    struct Model {
        blocks: Vec<Block>,
        head: Linear,
    }

    #[derive(Module, Debug)]
    struct Block {
        wide: Linear,
        narrow: Linear,
    }

    fn model() -> Model {
        let linear = || LinearConfig::new(2, 2).init(&Device::flex());
        let block = || Block { wide: linear(), narrow: linear() };
        Model { blocks: (0..12).map(|_| block()).collect(), head: linear() }
    }

    #[test]
    fn a_module_is_found_by_its_parameters() {
        let model = model();
        let paths = Paths::of(&model);
        assert_eq!(paths.of_parameter(model.blocks[11].wide.weight.id), Some("blocks.11.wide.weight"));
        assert_eq!(paths.of_module(&model.blocks[1]).as_deref(), Some("blocks.1"));
        assert_eq!(paths.of_module(&model.blocks[11].narrow).as_deref(), Some("blocks.11.narrow"));
        assert_eq!(paths.of_module(&model.blocks).as_deref(), Some("blocks"));
        assert_eq!(paths.of_module(&model), None);
        let stranger: Linear = LinearConfig::new(2, 2).init(&Device::flex());
        assert_eq!(paths.of_module(&stranger), None);
    }

    #[test]
    fn a_pattern_that_matches_nothing_is_told_what_there_is() {
        let paths = Paths::of(&model());
        assert!(paths.module_pattern("Recompute", "blocks.*").unwrap().matches("blocks.3"));
        assert!(paths.parameter_pattern("Amp", "head.*").unwrap().matches("head.weight"));
        for wrong in ["layers.*", "blocks[", "head.weight"] {
            let error = paths.module_pattern("Recompute", wrong).unwrap_err().to_string();
            assert!(error.contains(wrong) && error.contains("blocks.0"), "{error}");
        }
    }
}
