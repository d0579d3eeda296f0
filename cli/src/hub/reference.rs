//! The name of a repository on the Hub, or of files in it: `hub:org/name@revision/file`.

use std::path::Path;

use super::HubError;

/// How paths begin that name something on the Hub.
const SCHEME: &str = "hub:";

/// The branch of a repository without a revision.
pub(super) const MAIN: &str = "main";

/// A repository, its revision, and perhaps files in it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Reference {
    /// The repository, as in `org/name`. Some old models have no organization.
    pub repository: String,
    /// A branch, a tag or a commit.
    pub revision: String,
    /// A file, or a pattern of files.
    pub file: Option<String>,
}

impl Reference {
    /// Parses a path; `None` if it names nothing on the Hub.
    ///
    /// # Errors
    ///
    /// The path begins with `hub:` and is malformed.
    pub fn of(path: &Path) -> Result<Option<Self>, HubError> {
        let Some(name) = path.to_str().and_then(|path| path.strip_prefix(SCHEME)) else { return Ok(None) };
        let malformed = || HubError::Malformed { found: format!("{SCHEME}{name}") };
        let (before, after) = name.split_once('@').map_or((name, None), |(name, rest)| (name, Some(rest)));
        let mut parts: Vec<&str> = before.split('/').collect();
        let (revision, file) = match after {
            // Without a revision, what follows the name is the file.
            None if parts.len() > 2 => (MAIN, Some(parts.split_off(2).join("/"))),
            None => (MAIN, None),
            Some(after) => match after.split_once('/') {
                None => (after, None),
                Some((revision, file)) => (revision, Some(file.to_string())),
            },
        };
        let is_name = |part: &&str| {
            let is_allowed = |letter: char| letter.is_ascii_alphanumeric() || "-_.".contains(letter);
            !part.is_empty() && part.chars().all(is_allowed) && !part.starts_with('.')
        };
        let is_file = |file: &String| file.split('/').all(|part| !["", ".", ".."].contains(&part));
        let is_whole = parts.len() <= 2 && parts.iter().all(is_name) && is_name(&revision);
        if !is_whole || !file.iter().all(is_file) {
            return Err(malformed());
        }
        Ok(Some(Self { repository: parts.join("/"), revision: revision.into(), file }))
    }

    /// Parses the name of a repository to push to, without `hub:` or with it.
    ///
    /// # Errors
    ///
    /// It is not `org/name`.
    #[cfg_attr(not(feature = "hub"), allow(dead_code, reason = "only a push takes a name"))]
    pub fn named(name: &str) -> Result<Self, HubError> {
        let path = if name.starts_with(SCHEME) { name.to_string() } else { format!("{SCHEME}{name}") };
        match Self::of(Path::new(&path))? {
            Some(reference) if reference.file.is_none() && reference.repository.contains('/') => {
                Ok(reference)
            }
            _ => Err(HubError::Malformed { found: name.into() }),
        }
    }

    /// Returns the reference if it names a repository as a whole.
    ///
    /// # Errors
    ///
    /// It names a file.
    pub fn whole(self) -> Result<Self, HubError> {
        match self.file {
            None => Ok(self),
            Some(file) => Err(HubError::File { repository: self.repository, file }),
        }
    }

    /// Returns the command that gets the files by hand, and what to name then.
    pub fn by_hand(&self, is_data: bool) -> String {
        let Self { repository, revision, file } = self;
        let folder = repository.rsplit('/').next().unwrap_or(repository);
        let kind = if is_data { " --repo-type dataset" } else { "" };
        let revision = if revision == MAIN { String::new() } else { format!(" --revision {revision}") };
        let only = file.as_ref().map(|file| format!(" --include \"{file}\"")).unwrap_or_default();
        let named = file.as_ref().map_or(folder.to_string(), |file| format!("{folder}/{file}"));
        format!(
            "get it with `hf download {repository}{kind}{revision}{only} --local-dir {folder}`, here or on a machine \
             with network, and name `{named}` instead"
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(path: &str) -> Option<Reference> {
        Reference::of(Path::new(path)).unwrap()
    }

    #[test]
    fn a_reference_has_a_repository_a_revision_and_perhaps_a_file() {
        let reference = |repository: &str, revision: &str, file: Option<&str>| {
            Some(Reference {
                repository: repository.into(),
                revision: revision.into(),
                file: file.map(String::from),
            })
        };
        for (path, expected) in [
            ("models/gpt2", None),
            ("hub:gpt2", reference("gpt2", "main", None)),
            ("hub:org/name", reference("org/name", "main", None)),
            ("hub:org/name@v1.0", reference("org/name", "v1.0", None)),
            ("hub:org/name/data/a.jsonl", reference("org/name", "main", Some("data/a.jsonl"))),
            ("hub:org/name@ab12/data/*.parquet", reference("org/name", "ab12", Some("data/*.parquet"))),
        ] {
            assert_eq!(of(path), expected, "{path}");
        }
        for wrong in
            ["hub:", "hub:/name", "hub:org/", "hub:org/name@", "hub:org/na me", "hub:a/b/../c", "hub:a/b@c/"]
        {
            let error = Reference::of(Path::new(wrong)).unwrap_err().to_string();
            assert!(error.contains("hub:org/name@revision"), "{error}");
        }
        assert!(Reference::named("name").is_err() && Reference::named("org/name/file").is_err());
        assert_eq!(Reference::named("org/name").unwrap(), of("hub:org/name").unwrap());
        assert!(of("hub:org/name/file").unwrap().whole().is_err());
    }

    #[test]
    fn without_the_hub_a_command_gets_the_files() {
        let command = of("hub:org/name@v1/a/*.jsonl").unwrap().by_hand(true);
        let expected = "`hf download org/name --repo-type dataset --revision v1 --include \"a/*.jsonl\" --local-dir name`";
        assert!(
            command.contains(expected) && command.ends_with("name `name/a/*.jsonl` instead"),
            "{command}"
        );
        assert!(
            of("hub:org/name").unwrap().by_hand(false).contains("hf download org/name --local-dir name`")
        );
    }
}
