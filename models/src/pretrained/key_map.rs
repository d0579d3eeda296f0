//! The names of a model's parameters in files.

use std::collections::HashMap;

use firebrick::{NamedParameter, SavedParameter};

/// The head with a row for each label, in all families.
pub const CLASSIFIER: &str = "classifier";

/// The layout of a tensor in a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Layout {
    /// The same as in the model.
    Same,
    /// `[out, in]` in the file, as in torch's `Linear`, and `[in, out]` in the model.
    Transposed,
}

/// A row of a family's table: a part of the model, its name in a file without the family's prefix, and its path in the
/// model. In name and path, `#` stands for the number of a layer.
pub type Row = (Part, &'static str, &'static str);

/// The parameters of a part. A model may lack the bias.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// torch's `Linear`, whose weight is `[out, in]` in a file.
    Linear,
    /// transformers' `Conv1D`, whose weight is `[in, out]` in a file.
    Conv1d,
    /// A norm, whose `weight` is the model's `scale`.
    Norm,
    /// An embedding.
    Embedding,
    /// A single parameter.
    Param,
}

impl Part {
    /// The endings of each parameter, in a file and in the model, and its layout.
    fn params(self) -> &'static [(&'static str, &'static str, Layout)] {
        const BIAS: (&str, &str, Layout) = (".bias", ".bias", Layout::Same);
        match self {
            Self::Linear => &[(".weight", ".weight", Layout::Transposed), BIAS],
            Self::Conv1d => &[(".weight", ".weight", Layout::Same), BIAS],
            Self::Norm => &[(".weight", ".scale", Layout::Same), BIAS],
            Self::Embedding => &[(".weight", ".weight", Layout::Same)],
            Self::Param => &[("", "", Layout::Same)],
        }
    }
}

/// One parameter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Key {
    /// The name in saved files.
    pub name: String,
    /// Its path in the model.
    pub path: String,
    pub layout: Layout,
    /// Whether the name has the family's prefix.
    prefixed: bool,
    /// The head that it belongs to, if a file may lack that head.
    pub head: Option<&'static str>,
    /// Whether it keeps its initial value if a file lacks it.
    pub is_optional: bool,
}

/// The names of a model's parameters in files, and their layouts.
///
/// ```text
/// KeyMap::new("bert.").body(EMBEDDINGS).layers(2, LAYER).new_head("classifier", CLASSIFIER)
/// ```
#[derive(Clone, Debug, Default)]
pub struct KeyMap {
    prefix: &'static str,
    keys: Vec<Key>,
    aliases: Vec<(&'static str, &'static str)>,
    ignored: Vec<&'static str>,
}

impl KeyMap {
    /// Creates an empty map. In files, names of the body may have this prefix or not; they are saved with it.
    pub fn new(prefix: &'static str) -> Self {
        Self { prefix, ..Self::default() }
    }

    /// Adds parameters whose names have the prefix.
    pub fn body(self, rows: &[Row]) -> Self {
        self.add(rows, None, true, None)
    }

    /// Adds parameters whose names have the prefix, for each of `count` layers.
    pub fn layers(self, count: usize, rows: &[Row]) -> Self {
        (0..count).fold(self, |map, layer| map.add(rows, Some(layer), true, None))
    }

    /// Adds parameters whose names have no prefix.
    pub fn head(self, rows: &[Row]) -> Self {
        self.add(rows, None, false, None)
    }

    /// Adds a head that is initialized if a file lacks all of it.
    pub fn new_head(self, head: &'static str, rows: &[Row]) -> Self {
        self.add(rows, None, false, Some(head))
    }

    /// Like [`new_head`](Self::new_head), for names with the prefix.
    pub fn new_head_of_body(self, head: &'static str, rows: &[Row]) -> Self {
        self.add(rows, None, true, Some(head))
    }

    /// Adds parameters whose names have no prefix, and which keep their initial values if a file lacks them.
    pub fn optional(mut self, rows: &[Row]) -> Self {
        let first = self.keys.len();
        self = self.head(rows);
        self.keys[first..].iter_mut().for_each(|key| key.is_optional = true);
        self
    }

    /// Adds a further name under which a file may hold the tied parameter named `of`.
    pub fn alias(mut self, name: &'static str, of: &'static str) -> Self {
        self.aliases.push((name, of));
        self
    }

    /// Adds names, without the prefix, to ignore. `#` stands for a number, and `*` at the end for any rest.
    pub fn ignored(mut self, names: &[&'static str]) -> Self {
        self.ignored.extend(names);
        self
    }

    fn add(mut self, rows: &[Row], layer: Option<usize>, prefixed: bool, head: Option<&'static str>) -> Self {
        let numbered = |text: &str| match layer {
            Some(layer) => text.replace('#', &layer.to_string()),
            None => text.to_owned(),
        };
        let prefix = if prefixed { self.prefix } else { "" };
        for &(part, name, path) in rows {
            let (name, path) = (numbered(name), numbered(path));
            self.keys.extend(part.params().iter().map(|(in_file, in_model, layout)| Key {
                name: format!("{prefix}{name}{in_file}"),
                path: format!("{path}{in_model}"),
                layout: *layout,
                prefixed,
                head,
                is_optional: false,
            }));
        }
        self
    }

    /// The path of each parameter in the model, with its name in saved files.
    pub fn names(&self) -> impl Iterator<Item = (&str, &str)> {
        self.keys.iter().map(|key| (key.path.as_str(), key.name.as_str()))
    }

    /// The name in saved files of the parameter with this path, and whether its axes are swapped there.
    pub fn saved_as(&self, path: &str) -> Option<(&str, bool)> {
        let key = self.keys.iter().find(|key| key.path == path)?;
        Some((&key.name, key.layout == Layout::Transposed))
    }

    /// How files of adapters hold the parameter with this path.
    pub(super) fn saved(&self, path: &str) -> Option<SavedParameter> {
        let (name, swapped) = self.saved_as(path)?;
        let tied = self.tied_to(name).into_iter().map(String::from).collect();
        Some(SavedParameter { name: name.to_owned(), tied, swapped })
    }

    /// The name of each parameter at each place where transformers' model reads it, and its path.
    pub(super) fn places(&self) -> Vec<(String, String)> {
        let of = |key: &Key| {
            let names = std::iter::once(key.name.clone())
                .chain(self.tied_to(&key.name).into_iter().map(String::from));
            let path = key.path.clone();
            names.map(move |name| (name, path.clone())).collect::<Vec<_>>()
        };
        self.keys.iter().flat_map(of).collect()
    }

    /// The names of further places where transformers' model reads a parameter. An alias without the family's prefix is
    /// the same place as with it.
    fn tied_to(&self, name: &str) -> Vec<&'static str> {
        let aliases = self.aliases.iter().filter(|(_, of)| *of == name).map(|(alias, _)| *alias);
        let names: Vec<_> = aliases.collect();
        let is_full = |alias: &&str| {
            let full = format!("{}{alias}", self.prefix);
            self.prefix.is_empty() || !names.contains(&full.as_str())
        };
        names.iter().copied().filter(is_full).collect()
    }

    /// The parameter with each name that a file may use for it.
    pub(super) fn named(&self) -> HashMap<String, NamedParameter> {
        let of = |key: &Key| NamedParameter {
            path: key.path.clone(),
            swapped: key.layout == Layout::Transposed,
            places: 1 + self.tied_to(&key.name).len(),
        };
        let all = self.keys.iter().map(|key| (of(key), self.names_of(key)));
        all.flat_map(|(parameter, names)| names.into_iter().map(move |name| (name, parameter.clone())))
            .collect()
    }

    pub(super) fn keys(&self) -> &[Key] {
        &self.keys
    }

    /// The keys by path.
    pub(super) fn by_path(&self) -> HashMap<&str, &Key> {
        self.keys.iter().map(|key| (key.path.as_str(), key)).collect()
    }

    /// The names that a file may use for it; the first one found is used.
    pub(super) fn names_of(&self, key: &Key) -> Vec<String> {
        let mut names = vec![key.name.clone()];
        if key.prefixed && !self.prefix.is_empty() {
            names.push(key.name[self.prefix.len()..].to_owned());
        }
        // TensorFlow's names, which the first files use.
        let old = |name: &String| {
            let (norm, part) = name.rsplit_once("LayerNorm.")?;
            let part = if part == "weight" { "gamma" } else { "beta" };
            Some(format!("{norm}LayerNorm.{part}"))
        };
        let olds: Vec<_> = names.iter().filter_map(old).collect();
        names.extend(olds);
        // A file may keep any one of several tied parameters.
        let aliases = self.aliases.iter().filter(|(_, of)| *of == key.name);
        names.extend(aliases.map(|(alias, _)| (*alias).to_owned()));
        names
    }

    /// The parameter that has this further name.
    pub(super) fn alias_of(&self, name: &str) -> Option<&Key> {
        let (_, of) = self.aliases.iter().find(|(alias, _)| *alias == name)?;
        self.keys.iter().find(|key| key.name == *of)
    }

    /// Whether to ignore this name.
    pub(super) fn ignores(&self, name: &str) -> bool {
        let bare = name.strip_prefix(self.prefix).unwrap_or(name);
        self.ignored.iter().any(|pattern| matches(pattern, bare))
    }
}

fn matches(pattern: &str, name: &str) -> bool {
    let (mut pattern, mut name) = (pattern.split('.'), name.split('.'));
    loop {
        match (pattern.next(), name.next()) {
            (None, None) | (Some("*"), Some(_)) => return true,
            (Some("#"), Some(number)) if number.bytes().all(|digit| digit.is_ascii_digit()) => {}
            (Some(wanted), Some(part)) if wanted == part => {}
            _ => return false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn map() -> KeyMap {
        KeyMap::new("bert.")
            .body(&[(Part::Norm, "embeddings.LayerNorm", "bert.norm")])
            .layers(2, &[(Part::Linear, "layer.#.dense", "bert.blocks.#.dense")])
            .new_head("classifier", &[(Part::Param, "classifier.bias", "classifier.bias")])
            .alias("decoder.bias", "classifier.bias")
            .ignored(&["embeddings.position_ids", "cls.*", "h.#.attn.bias"])
    }

    #[test]
    fn names_with_and_without_prefix_old_and_new() {
        let map = map();
        assert_eq!(map.keys().len(), 7);
        assert_eq!(map.by_path()["bert.norm.scale"].layout, Layout::Same);
        assert_eq!(map.by_path()["bert.blocks.0.dense.bias"].layout, Layout::Same);
        assert_eq!(map.by_path()["bert.blocks.0.dense.weight"].layout, Layout::Transposed);
        assert_eq!(map.by_path()["bert.blocks.1.dense.weight"].name, "bert.layer.1.dense.weight");
        assert_eq!(
            map.names_of(&map.keys()[0]),
            [
                "bert.embeddings.LayerNorm.weight",
                "embeddings.LayerNorm.weight",
                "bert.embeddings.LayerNorm.gamma",
                "embeddings.LayerNorm.gamma"
            ]
        );
        assert_eq!(map.names_of(&map.keys()[6]), ["classifier.bias", "decoder.bias"]);
        assert_eq!(map.alias_of("decoder.bias").unwrap().path, "classifier.bias");
        let map = map.alias("bert.decoder.bias", "classifier.bias");
        let saved = map.saved("classifier.bias").unwrap();
        assert_eq!((&*saved.name, saved.tied), ("classifier.bias", vec!["bert.decoder.bias".to_owned()]));
        assert_eq!(map.named()["decoder.bias"].places, 2);
    }

    #[test]
    fn ignored_names() {
        for name in ["bert.embeddings.position_ids", "cls.predictions.bias", "h.11.attn.bias"] {
            assert!(map().ignores(name), "{name}");
        }
        for name in ["embeddings.position_ids.x", "cls", "h.x.attn.bias", "h.1.attn.c_attn.bias"] {
            assert!(!map().ignores(name), "{name}");
        }
    }
}
