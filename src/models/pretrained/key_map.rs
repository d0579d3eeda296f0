//! Which tensor of a file is which parameter of a model.

use std::collections::HashMap;

/// The head that has a row for each label, in all families.
pub(crate) const CLASSIFIER: &str = "classifier";

/// How the numbers of a tensor are laid out in a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::models) enum Layout {
    /// As in the model.
    Same,
    /// torch's `Linear` keeps `[out, in]`, ours `[in, out]`.
    Transposed,
}

/// A row of a family's table: the name in a file, without the family's prefix; the path in the model; the
/// layout. In both `#` stands for the number of a layer.
pub(in crate::models) type Row = (&'static str, &'static str, Layout);

/// One parameter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Key {
    /// The name that it is saved under.
    pub name: String,
    /// Its path in the model.
    pub path: String,
    pub layout: Layout,
    /// Whether the name has the family's prefix.
    prefixed: bool,
    /// The head that it belongs to, if a file may lack that.
    pub head: Option<&'static str>,
}

/// Which tensor of a file is which parameter of a model.
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
    /// An empty one. Names of the body stand with or without this prefix in files, and are saved with it.
    pub(in crate::models) fn new(prefix: &'static str) -> Self {
        Self { prefix, ..Self::default() }
    }

    /// Parameters whose names have the prefix.
    pub(in crate::models) fn body(self, rows: &[Row]) -> Self {
        self.add(rows, None, true, None)
    }

    /// The same for each of so many layers.
    pub(in crate::models) fn layers(self, count: usize, rows: &[Row]) -> Self {
        (0..count).fold(self, |map, layer| map.add(rows, Some(layer), true, None))
    }

    /// Parameters whose names have no prefix.
    pub(in crate::models) fn head(self, rows: &[Row]) -> Self {
        self.add(rows, None, false, None)
    }

    /// A head that starts anew where a file has nothing of it.
    pub(in crate::models) fn new_head(self, head: &'static str, rows: &[Row]) -> Self {
        self.add(rows, None, false, Some(head))
    }

    /// The same for names with the prefix.
    pub(in crate::models) fn new_head_of_body(self, head: &'static str, rows: &[Row]) -> Self {
        self.add(rows, None, true, Some(head))
    }

    /// A name under which a file may hold a tied parameter once more, and the name of the parameter.
    pub(in crate::models) fn alias(mut self, name: &'static str, of: &'static str) -> Self {
        self.aliases.push((name, of));
        self
    }

    /// Names, without the prefix, that mean nothing here: `#` stands for a number, `*` at the end for any rest.
    pub(in crate::models) fn ignored(mut self, names: &[&'static str]) -> Self {
        self.ignored.extend(names);
        self
    }

    /// Of a model none of whose parameters is a bias.
    pub(in crate::models) fn without_biases(mut self) -> Self {
        self.keys.retain(|key| !key.path.ends_with(".bias"));
        self
    }

    fn add(mut self, rows: &[Row], layer: Option<usize>, prefixed: bool, head: Option<&'static str>) -> Self {
        let numbered = |text: &str| match layer {
            Some(layer) => text.replace('#', &layer.to_string()),
            None => text.to_owned(),
        };
        let prefix = if prefixed { self.prefix } else { "" };
        self.keys.extend(rows.iter().map(|&(name, path, layout)| Key {
            name: format!("{prefix}{}", numbered(name)),
            path: numbered(path),
            layout,
            prefixed,
            head,
        }));
        self
    }

    /// Of each parameter its path in the model, and the name that it is saved under.
    pub fn names(&self) -> impl Iterator<Item = (&str, &str)> {
        self.keys.iter().map(|key| (key.path.as_str(), key.name.as_str()))
    }

    /// The name that the parameter of this path is saved under, and whether its axes are swapped there.
    pub(crate) fn saved_as(&self, path: &str) -> Option<(&str, bool)> {
        let key = self.keys.iter().find(|key| key.path == path)?;
        Some((&key.name, key.layout == Layout::Transposed))
    }

    pub(super) fn keys(&self) -> &[Key] {
        &self.keys
    }

    /// By path.
    pub(super) fn by_path(&self) -> HashMap<&str, &Key> {
        self.keys.iter().map(|key| (key.path.as_str(), key)).collect()
    }

    /// The names under which a file may hold it, the first of which is used.
    pub(super) fn names_of(&self, key: &Key) -> Vec<String> {
        let mut names = vec![key.name.clone()];
        if key.prefixed && !self.prefix.is_empty() {
            names.push(key.name[self.prefix.len()..].to_owned());
        }
        // As TensorFlow named them, and the first files with them.
        let old = |name: &String| {
            let (norm, part) = name.rsplit_once("LayerNorm.")?;
            let part = if part == "weight" { "gamma" } else { "beta" };
            Some(format!("{norm}LayerNorm.{part}"))
        };
        let olds: Vec<_> = names.iter().filter_map(old).collect();
        names.extend(olds);
        // Of tied parameters a file may keep any.
        let aliases = self.aliases.iter().filter(|(_, of)| *of == key.name);
        names.extend(aliases.map(|(alias, _)| (*alias).to_owned()));
        names
    }

    /// The parameter of which this is a further name.
    pub(super) fn alias_of(&self, name: &str) -> Option<&Key> {
        let (_, of) = self.aliases.iter().find(|(alias, _)| *alias == name)?;
        self.keys.iter().find(|key| key.name == *of)
    }

    /// Whether a name means nothing here.
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
            .body(&[("embeddings.LayerNorm.weight", "bert.norm.scale", Layout::Same)])
            .layers(2, &[("layer.#.dense.weight", "bert.blocks.#.dense.weight", Layout::Transposed)])
            .new_head("classifier", &[("classifier.bias", "classifier.bias", Layout::Same)])
            .alias("decoder.bias", "classifier.bias")
            .ignored(&["embeddings.position_ids", "cls.*", "h.#.attn.bias"])
    }

    #[test]
    fn names_with_and_without_prefix_old_and_new() {
        let map = map();
        assert_eq!(map.keys().len(), 4);
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
        assert_eq!(map.names_of(&map.keys()[3]), ["classifier.bias", "decoder.bias"]);
        assert_eq!(map.alias_of("decoder.bias").unwrap().path, "classifier.bias");
    }

    #[test]
    fn what_is_ignored() {
        for name in ["bert.embeddings.position_ids", "cls.predictions.bias", "h.11.attn.bias"] {
            assert!(map().ignores(name), "{name}");
        }
        for name in ["embeddings.position_ids.x", "cls", "h.x.attn.bias", "h.1.attn.c_attn.bias"] {
            assert!(!map().ignores(name), "{name}");
        }
    }
}
