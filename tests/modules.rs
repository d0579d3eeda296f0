//! Imports run one way: crates depend on the layers below, and no crate has files or folders that import each other in a
//! circle.
//!
//! A file may use its own submodules, and these may use it: together they are one module. Everything else counts, `use`
//! declarations and paths in expressions, with re-exports followed to the file that defines the name. Tests don't count.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use regex::Regex;

/// A module's path in its crate; the crate's root is empty.
type Module = Vec<String>;

/// The files of a crate without comments, literals and tests.
struct Crate(BTreeMap<Module, String>);

impl Crate {
    fn read(folder: &Path) -> Self {
        let mut files = BTreeMap::new();
        read_into(&mut files, folder, &[]);
        Self(files)
    }

    /// Returns the paths that a module uses, each from the crate's root, and the name that it re-exports them under.
    fn used(&self, module: &Module) -> Vec<(Module, Option<String>)> {
        let declared = Regex::new(r"(?s)\b(pub(?:\([^)]*\))?\s+)?use\s+([^;]+);").unwrap();
        let written = Regex::new(r"\b(?:crate|super|self)(?:::\w+)+").unwrap();
        let text = &self.0[module];
        let mut used = Vec::new();
        for found in declared.captures_iter(text) {
            for path in flat(&found[2].split_whitespace().collect::<Vec<_>>().join(" ")) {
                let (path, alias) =
                    path.split_once(" as ").map_or((&*path, None), |(path, name)| (path, Some(name)));
                let Some(path) = self.absolute(module, path) else { continue };
                let name = found.get(1).and(alias.or(path.last().map(String::as_str))).map(str::to_string);
                used.push((path, name));
            }
        }
        let rest = declared.replace_all(text, "");
        used.extend(
            written.find_iter(&rest).filter_map(|path| Some((self.absolute(module, path.as_str())?, None))),
        );
        used
    }

    /// Returns a path from the crate's root, if it leads into the crate.
    fn absolute(&self, module: &Module, path: &str) -> Option<Module> {
        let mut parts = path.split("::").map(|part| part.trim().to_string()).peekable();
        let mut from = match parts.peek()?.as_str() {
            "crate" => Vec::new(),
            "self" | "super" => module.clone(),
            name => {
                let child = [module.as_slice(), &[name.to_string()]].concat();
                return self.0.contains_key(&child).then(|| [module.clone(), parts.collect()].concat());
            }
        };
        while parts.peek().is_some_and(|part| ["crate", "self", "super"].contains(&part.as_str())) {
            if parts.next()? == "super" {
                from.pop();
            }
        }
        from.extend(parts.filter(|part| part != "self"));
        Some(from)
    }

    /// Returns the modules that each module imports from.
    fn imports(&self) -> BTreeMap<Module, BTreeSet<Module>> {
        let all: Vec<_> = self.0.keys().map(|module| (module, self.used(module))).collect();
        let reexports: BTreeMap<Module, Module> = all
            .iter()
            .flat_map(|(module, used)| used.iter().map(move |used| (module, used)))
            .filter_map(|(module, (path, name))| {
                Some(([module.as_slice(), &[name.clone()?]].concat(), path.clone()))
            })
            .collect();
        let of = |module: &Module, used: &[(Module, Option<String>)]| {
            let defined = used.iter().map(|(path, _)| self.file(path, &reexports, 0));
            defined.filter(|file| !file.is_empty() && !file.starts_with(module)).collect()
        };
        all.iter().map(|(module, used)| ((*module).clone(), of(module, used))).collect()
    }

    /// Returns the file that defines what a path names.
    fn file(&self, path: &[String], reexports: &BTreeMap<Module, Module>, depth: usize) -> Module {
        let known = (1..=path.len())
            .find(|end| !self.0.contains_key(&path[..*end]) && reexports.contains_key(&path[..*end]));
        match known {
            Some(end) if depth < 9 => {
                let further = [&reexports[&path[..end]], &path[end..]].concat();
                self.file(&further, reexports, depth + 1)
            }
            _ => (0..=path.len())
                .rev()
                .find(|end| self.0.contains_key(&path[..*end]))
                .map_or(Vec::new(), |end| path[..end].into()),
        }
    }
}

fn read_into(files: &mut BTreeMap<Module, String>, folder: &Path, module: &[String]) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_stem().unwrap().to_str().unwrap().to_string();
        if name.contains("test") || name == "main" {
            continue;
        }
        if path.is_dir() {
            read_into(files, &path, &[module, &[name]].concat());
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            let module =
                if name == "mod" || name == "lib" { module.into() } else { [module, &[name]].concat() };
            files.insert(module, code_of(&fs::read_to_string(&path).unwrap()));
        }
    }
}

/// Returns a file without comments, literals, and what is compiled for tests only.
fn code_of(text: &str) -> String {
    let literals = [
        (r"//[^\n]*", ""),
        (r##"(?s)r#".*?"#"##, "\"\""),
        (r#"(?s)"(?:\\.|[^"\\])*""#, "\"\""),
        (r"'(?:\\.|[^'\\])'", "' '"),
    ];
    let code = literals.iter().fold(text.to_string(), |text, (pattern, with)| {
        Regex::new(pattern).unwrap().replace_all(&text, *with).into_owned()
    });
    let of_tests = Regex::new(r"#\[cfg\((?:all\()?test\b[^\]]*\]").unwrap();
    let mut kept = String::new();
    let mut rest = code.as_str();
    while let Some(found) = of_tests.find(rest) {
        kept += &rest[..found.start()];
        let item = &rest[found.end()..];
        rest = &item[end_of(item)..];
    }
    kept + rest
}

/// Returns where an item ends: at its semicolon, or where its first block closes.
fn end_of(item: &str) -> usize {
    let mut depth = 0;
    for (place, character) in item.char_indices() {
        match character {
            ';' if depth == 0 => return place + 1,
            '{' => depth += 1,
            '}' if depth == 1 => return place + 1,
            '}' => depth -= 1,
            _ => {}
        }
    }
    item.len()
}

/// Returns the single paths of a tree of `use`.
fn flat(tree: &str) -> Vec<String> {
    let Some((before, list)) = tree.split_once('{') else { return vec![tree.trim().into()] };
    let list = list.rsplit_once('}').map_or(list, |(list, _)| list);
    let (mut depth, mut begin, mut parts) = (0, 0, Vec::new());
    for (place, character) in list.char_indices() {
        match character {
            '{' => depth += 1,
            '}' => depth -= 1,
            ',' if depth == 0 => {
                parts.push(&list[begin..place]);
                begin = place + 1;
            }
            _ => {}
        }
    }
    parts.push(&list[begin..]);
    let parts = parts.into_iter().map(str::trim).filter(|part| !part.is_empty());
    parts.flat_map(flat).map(|path| format!("{}{path}", before.trim())).collect()
}

/// Returns a circle of modules, if there is one.
fn circle(imports: &BTreeMap<Module, BTreeSet<Module>>) -> Option<Vec<String>> {
    let mut left: BTreeSet<&Module> = imports.keys().collect();
    // What imports nothing that is left is in no circle.
    while let Some(free) =
        left.iter().copied().find(|module| imports[*module].iter().all(|used| !left.contains(used)))
    {
        left.remove(free);
    }
    let mut path: Vec<&Module> = vec![left.first()?];
    loop {
        let next = imports[path[path.len() - 1]].iter().find(|used| left.contains(used)).unwrap();
        if let Some(begin) = path.iter().position(|module| *module == next) {
            let names = path[begin..].iter().chain([&path[begin]]).map(|module| module.join("::"));
            return Some(names.collect());
        }
        path.push(next);
    }
}

/// Returns the folders that each folder imports from, of those directly in the crate. A file beside them is one too.
fn folders(imports: &BTreeMap<Module, BTreeSet<Module>>) -> BTreeMap<Module, BTreeSet<Module>> {
    let folder = |file: &Module| file[..1].to_vec();
    let mut folders = BTreeMap::<_, BTreeSet<_>>::new();
    for (file, used) in imports.iter().filter(|(file, _)| !file.is_empty()) {
        let others = used.iter().map(folder).filter(|other| *other != folder(file));
        folders.entry(folder(file)).or_default().extend(others);
    }
    folders
}

#[test]
fn no_crate_has_a_circle_of_imports() {
    for (name, _) in LAYERS {
        let files = Crate::read(&Path::new(name).join("src"));
        assert!(files.0.len() > 5, "{name} has files");
        let found = circle(&files.imports());
        assert!(found.is_none(), "{name}: {}", found.unwrap().join(" -> "));
    }
}

#[test]
fn no_crate_has_a_circle_of_folders() {
    for (name, _) in LAYERS {
        let found = circle(&folders(&Crate::read(&Path::new(name).join("src")).imports()));
        assert!(found.is_none(), "{name}: {}", found.unwrap().join(" -> "));
    }
}

/// The crates that each crate may depend on. A leaf knows nothing of the others.
const LAYERS: [(&str, &[&str]); 10] = [
    ("cli", &["", "checkpoints", "datasets", "kernels", "models", "strategies", "tasks", "world"]),
    ("tasks", &["", "datasets", "models", "strategies"]),
    ("models", &["", "datasets", "kernels", "metrics", "strategies", "world"]),
    (".", &["checkpoints", "datasets", "kernels", "strategies", "world"]),
    ("strategies", &["kernels", "world"]),
    ("kernels", &[]),
    ("world", &["kernels"]),
    ("datasets", &[]),
    ("checkpoints", &[]),
    ("metrics", &[]),
];

#[test]
fn crates_depend_on_the_layers_below() {
    for (name, below) in LAYERS {
        let manifest = fs::read_to_string(Path::new(name).join("Cargo.toml")).unwrap();
        let of_crate = manifest.split("\n[").filter(|table| table.starts_with("dependencies]"));
        let lines = of_crate.flat_map(str::lines).filter_map(|line| line.strip_prefix("firebrick"));
        let ends = |line: &str| line.find(['.', ' ', '=']).unwrap();
        let found: Vec<_> =
            lines.map(|line| line[..ends(line)].trim_start_matches('-').to_string()).collect();
        for used in found {
            assert!(below.contains(&used.as_str()), "{name} is not above firebrick-{used}");
        }
    }
}

/// Returns a crate of files with these paths and texts.
fn of(files: &[(&str, &str)]) -> Crate {
    let module = |path: &str| path.split("::").filter(|part| !part.is_empty()).map(str::to_string).collect();
    Crate(files.iter().map(|(path, text)| (module(path), code_of(text))).collect())
}

#[test]
fn a_circle_is_found_through_re_exports_and_lists() {
    let root = "mod a; mod b; pub use b::{inner::Deep, B as Other};";
    for (a, b, expected) in [
        ("use crate::b::B;", "fn f() { crate::a::g() }", Some("a -> b -> a")),
        ("use crate::{Other, x::Y};", "use super::a::{self, A};", Some("a -> b -> a")),
        ("use crate::Deep;", "use super::a::A; mod inner;", Some("a -> b::inner -> b -> a")),
        ("use crate::b::B;", "mod inner; #[cfg(test)] mod tests { use crate::a::A; }", None),
        ("use crate::b::B;", "#[cfg(all(test, unix))] mod tests { use crate::a::A; } mod inner;", None),
        ("use crate::b::B; // a", "// use crate::a::A;\nconst TEXT: &str = \"crate::a::A\";", None),
    ] {
        let files = of(&[("", root), ("a", a), ("b", b), ("b::inner", "use super::B;")]);
        assert_eq!(
            circle(&files.imports()).map(|names| names.join(" -> ")).as_deref(),
            expected,
            "{a} | {b}"
        );
    }
}

#[test]
fn a_circle_of_folders_is_found_where_files_have_none() {
    let one_way = [
        ("", "mod a; mod b; pub use b::Low;"),
        ("a", "mod high;"),
        ("a::high", "use super::A; use crate::Low;"),
        ("b", "mod low; mod other; pub use low::Low;"),
        ("b::low", ""),
        ("b::other", ""),
    ];
    let mut circular = one_way;
    circular[5].1 = "fn f() { crate::a::g() }";
    assert_eq!([one_way, circular].map(|files| circle(&of(&files).imports())), [None, None]);
    let [none, found] = [one_way, circular].map(|files| circle(&folders(&of(&files).imports())));
    assert_eq!((none, found.unwrap().join(" -> ")), (None, "a -> b -> a".into()));
}
