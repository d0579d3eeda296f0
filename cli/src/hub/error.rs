//! What can go wrong with the Hub.

use std::path::PathBuf;

use thiserror::Error;

/// A file of the Hub that cannot be downloaded, or a folder that cannot be pushed.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum HubError {
    /// A path begins with `hub:` and names nothing.
    #[error(
        "`{found}`: expected `hub:org/name`, `hub:org/name@revision`, or a file of it, as in `hub:org/name@revision/data/train.jsonl`"
    )]
    Malformed {
        /// The path.
        found: String,
    },
    /// A model is a repository, not a file of one.
    #[error("`{file}` is a file of {repository}, and a whole repository is expected here: leave it out")]
    File {
        /// The repository.
        repository: String,
        /// The file.
        file: String,
    },
    /// The program has no network code.
    #[error("this program was built without the Hub: build it with `--features hub`, or {instead}")]
    NotBuilt {
        /// How to do without.
        instead: String,
    },
    /// Data is a file of a repository.
    #[error("name the files of {repository} to read, as in `hub:{repository}/FILE`; it has {files}")]
    NoFile {
        /// The repository.
        repository: String,
        /// The first of its files.
        files: String,
    },
    /// The repository lacks what is wanted of it.
    #[error("{repository} at {revision} has no {wanted}; it has {files}")]
    Lacks {
        /// The repository.
        repository: String,
        /// The revision.
        revision: String,
        /// What is wanted.
        wanted: String,
        /// The first of its files.
        files: String,
    },
    /// There is no such repository or revision, as far as the Hub tells.
    #[error(
        "the Hub at {endpoint} has no {repository} at `{revision}`, or does not show it: check the name{}", token(*has_token)
    )]
    NotFound {
        /// The repository.
        repository: String,
        /// The revision.
        revision: String,
        /// The address of the Hub.
        endpoint: String,
        /// Whether a token was sent.
        has_token: bool,
    },
    /// The Hub refuses.
    #[error(
        "the Hub at {endpoint} refuses {repository}: it is private or gated; accept its terms on its page{}", token(*has_token)
    )]
    Denied {
        /// The repository.
        repository: String,
        /// The address of the Hub.
        endpoint: String,
        /// Whether a token was sent.
        has_token: bool,
    },
    /// The network must not be used, and the files are not on this machine.
    #[error("HF_HUB_OFFLINE is set, and {missing} is not in {cache}: {instead}", cache = cache.display())]
    Offline {
        /// The repository or the file.
        missing: String,
        /// The cache.
        cache: PathBuf,
        /// How to get it.
        instead: String,
    },
    /// The Hub does not answer.
    #[error("the Hub at {endpoint} cannot be reached ({reason}): {instead}")]
    Unreachable {
        /// The address of the Hub.
        endpoint: String,
        /// The reason.
        reason: String,
        /// How to do without.
        instead: String,
    },
    /// An answer is not that of a Hub.
    #[error(
        "{url} answers with {found}: expected {expected}; check HF_ENDPOINT, and whether a proxy answers instead"
    )]
    Unexpected {
        /// The address.
        url: String,
        /// What was expected.
        expected: String,
        /// What was found.
        found: String,
    },
    /// A download no longer gets on.
    #[error(
        "{url} stopped after {done} of {size} bytes ({reason}): try again, and the download goes on there; HF_HUB_DOWNLOAD_TIMEOUT sets how many seconds to wait for the next bytes"
    )]
    Stalled {
        /// The address.
        url: String,
        /// How many bytes are there.
        done: u64,
        /// How many bytes the file has.
        size: u64,
        /// Why the last attempt ended.
        reason: String,
    },
    /// Nothing says where the Hub's cache is.
    #[error("the Hub's cache has no place, since there is no home folder: set HF_HOME to a folder")]
    NoCache,
    /// A setting of the environment is not a number of seconds.
    #[error(
        "HF_HUB_DOWNLOAD_TIMEOUT is `{found}`: expected the seconds to wait for the Hub, from 1 to 86400"
    )]
    Silence {
        /// Its value.
        found: String,
    },
    /// A downloaded file is not the one that the Hub has.
    #[error("{url} was damaged on its way: its SHA-256 is {found}, and the Hub says {expected}; try again")]
    Damaged {
        /// The address of the file.
        url: String,
        /// The SHA-256 of the Hub.
        expected: String,
        /// The SHA-256 of the download.
        found: String,
    },
    /// A push needs a token.
    #[error("pushing needs a token that may write: set HF_TOKEN, or run `hf auth login`")]
    NoToken,
    /// The folder to push has no model.
    #[error("{} has no config.json and weights: name the output folder of a run, or a Hugging Face folder", folder.display())]
    NoModel {
        /// The folder.
        folder: PathBuf,
    },
    /// The Hub refuses a request of a push.
    #[error("{doing}: the Hub answers {status}: {reason} (at {url})")]
    Answer {
        /// What was done.
        doing: String,
        /// The address.
        url: String,
        /// The status of the answer.
        status: u16,
        /// Its text.
        reason: String,
    },
    /// Anything else.
    #[error("{doing}: {reason}")]
    Other {
        /// What was done.
        doing: String,
        /// The reason.
        reason: String,
    },
}

/// What to do about a repository that is not shown.
fn token(is_sent: bool) -> &'static str {
    match is_sent {
        true => ", and whether the token in HF_TOKEN may read it",
        false => ", and set HF_TOKEN to a token that may read it",
    }
}
