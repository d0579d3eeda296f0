//! Requests for the files of a repository, and their download into the cache.
//!
//! A server is not waited for for ever: one that is silent, or sends next to nothing, for as long as
//! `HF_HUB_DOWNLOAD_TIMEOUT` says is asked again where the download ended, [`RETRIES`] times. What it answers decides
//! neither where a file is written nor how much of it is kept.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::thread::sleep;
use std::time::{Duration, Instant};

use serde::Deserialize;
use ureq::config::RedirectAuthHeaders;
use ureq::http::Uri;
use ureq::{Agent, Body};

use super::HubError;
use super::cache::{Environment, is_plain_name, sha256};
use super::progress::DownloadProgress;
use super::reference::Reference;

/// How often a download that brings next to nothing is tried again.
const RETRIES: u32 = 5;
/// The fewest bytes that a download brings in the time that the Hub may be silent.
const LEAST: u64 = 1024;
/// How much longer than a silence a whole answer in JSON may take.
const ANSWERS: u32 = 6;
/// The most bytes of the list of a repository's files.
const LONGEST_LIST: u64 = 64 << 20;
/// The most redirects from the address of a file to the storage that has it.
const MOST_REDIRECTS: usize = 10;
/// How long to wait for a file that another process downloads.
const PATIENCE: Duration = Duration::from_secs(24 * 3600);

type Response = ureq::http::Response<Body>;

/// What the Hub says of a revision.
#[derive(Debug, Deserialize)]
pub(super) struct Info {
    /// The commit.
    pub sha: String,
    /// The files.
    siblings: Vec<Sibling>,
}

#[derive(Debug, Deserialize)]
struct Sibling {
    rfilename: String,
}

/// A file, as the Hub describes it.
struct Described {
    /// The name of its contents in the cache: of a large file, its SHA-256.
    etag: String,
    /// Bytes.
    size: u64,
}

/// Why an attempt to go on with a download ended.
enum Broken {
    /// The next attempt may bring more.
    MayPass(String),
    /// It may not.
    Failed(HubError),
}

impl From<HubError> for Broken {
    fn from(error: HubError) -> Self {
        Self::Failed(error)
    }
}

/// A repository on the Hub.
pub(super) struct Source<'a> {
    environment: &'a Environment,
    reference: &'a Reference,
    is_data: bool,
    agent: Agent,
}

impl<'a> Source<'a> {
    pub fn new(environment: &'a Environment, reference: &'a Reference, is_data: bool) -> Self {
        let silence = Some(environment.silence);
        let agent = Agent::config_builder()
            .http_status_as_error(false)
            .redirect_auth_headers(RedirectAuthHeaders::SameHost)
            .user_agent(concat!("firebrick/", env!("CARGO_PKG_VERSION")))
            .timeout_resolve(silence)
            .timeout_connect(silence)
            .timeout_recv_response(silence)
            .timeout_per_read(silence)
            .timeout_per_write(silence)
            .build()
            .into();
        Self { environment, reference, is_data, agent }
    }

    /// Asks for the commit and the files of the revision.
    pub fn info(&self) -> Result<(String, Vec<String>), HubError> {
        let Reference { repository, revision, .. } = self.reference;
        let kind = if self.is_data { "datasets" } else { "models" };
        let url = format!("{}/api/{kind}/{repository}/revision/{revision}", self.environment.endpoint);
        let request = self.agent.get(&url).config();
        let request = request.timeout_recv_body(Some(self.environment.silence * ANSWERS)).build();
        let answer = self.authorized(request, &url).call().map_err(|error| self.unreachable(error))?;
        let mut answer = self.accepted(&url, answer)?;
        let text = answer.body_mut().with_config().limit(LONGEST_LIST).read_to_vec();
        let text = text.map_err(|error| self.unreachable(error))?;
        let unexpected = |found: String| HubError::Unexpected {
            url: url.clone(),
            expected: "JSON with `sha` and the names of the files".into(),
            found,
        };
        let Info { sha, siblings } =
            serde_json::from_slice(&text).map_err(|error| unexpected(error.to_string()))?;
        if !is_plain_name(&sha) {
            return Err(unexpected(format!("the commit `{sha}`")));
        }
        let files: Vec<String> = siblings.into_iter().map(|file| file.rfilename).collect();
        // A name is a path in the cache.
        match files.iter().find(|file| !file.split('/').all(is_path_part)) {
            Some(file) => Err(unexpected(format!("the file name `{file}`"))),
            None => Ok((sha, files)),
        }
    }

    /// Downloads a file of a commit, and returns its path in the cache. A download that another process has begun, or that
    /// broke off, goes on where it ended.
    pub fn download(&self, commit: &str, file: &str, say: &dyn Fn(&str)) -> Result<PathBuf, HubError> {
        let Environment { endpoint, .. } = self.environment;
        let Reference { repository, .. } = self.reference;
        let kind = if self.is_data { "datasets/" } else { "" };
        let url = format!("{endpoint}/{kind}{repository}/resolve/{commit}/{}", escaped(file));
        let Described { etag, size } = self.describe(&url)?;
        let folder = self.environment.folder(repository, self.is_data);
        let (blob, link) =
            (folder.join("blobs").join(&etag), folder.join("snapshots").join(commit).join(file));
        create_folder_of(&blob)?;
        create_folder_of(&link)?;
        let lock = locked(&blob.with_file_name(format!("{etag}.lock")), file, say)?;
        // Another revision, or another process, may have brought it.
        if blob.metadata().ok().is_none_or(|blob| blob.len() != size) {
            let part = blob.with_file_name(format!("{etag}.part"));
            self.download_part(&url, &part, size, DownloadProgress::of(file, size, say))?;
            require_whole(&url, &part, &etag)?;
            fs::rename(&part, &blob).map_err(|error| written(&blob, error))?;
        }
        drop(lock);
        // From the folder of the link, over those of the commit and of all snapshots.
        let above = "../".repeat(file.split('/').count() + 1);
        put_link(Path::new(&format!("{above}blobs/{etag}")), &blob, &link)?;
        Ok(link)
    }

    /// Asks for the contents' name and size. The Hub redirects to the storage of a large file, which knows another name.
    fn describe(&self, url: &str) -> Result<Described, HubError> {
        let (mut at, mut etag) = (url.to_string(), None);
        for _ in 0..=MOST_REDIRECTS {
            let request = self.agent.get(&at).config().max_redirects(0).build();
            let request = self.authorized(request, &at).header("Range", "bytes=0-0");
            // A range of a compressed answer would be one of other bytes.
            let request = request.header("Accept-Encoding", "identity");
            let answer = request.call().map_err(|error| self.unreachable(error))?;
            let header = |name: &str| answer.headers().get(name).and_then(|value| value.to_str().ok());
            let unexpected = |expected: &str, found: &str| HubError::Unexpected {
                url: at.clone(),
                expected: expected.into(),
                found: found.into(),
            };
            let location = header("location").filter(|_| answer.status().is_redirection());
            // A repository that was renamed redirects on the same server, and says nothing of the file.
            let is_of_file = !location.is_some_and(|location| location.starts_with('/'));
            etag = etag.or_else(|| {
                let named = header("x-linked-etag").or(header("etag").filter(|_| is_of_file));
                named.map(|etag| etag.trim_start_matches("W/").replace('"', ""))
            });
            if let Some(location) = location {
                at = redirected(&at, location)
                    .ok_or_else(|| unexpected("the address of the file", &format!("`{location}`")))?;
                continue;
            }
            let range = header("content-range").map(String::from);
            self.accepted(&at, answer)?;
            let found = range.as_deref().unwrap_or("no such header");
            let size = found.rsplit_once('/').and_then(|(_, size)| size.parse().ok());
            let size = size.ok_or_else(|| unexpected("the size of the file in Content-Range", found))?;
            let etag = etag.unwrap_or_default();
            return match is_plain_name(&etag) {
                true => Ok(Described { etag, size }),
                false => Err(unexpected("the name of the file's contents in ETag", &format!("`{etag}`"))),
            };
        }
        Err(HubError::Unexpected {
            url: url.into(),
            expected: format!("at most {MOST_REDIRECTS} redirects"),
            found: "more of them".into(),
        })
    }

    /// Downloads what a partial file lacks.
    fn download_part(
        &self,
        url: &str,
        part: &Path,
        size: u64,
        mut progress: DownloadProgress,
    ) -> Result<(), HubError> {
        let failed = |error| written(part, error);
        let mut file = OpenOptions::new().create(true).append(true).open(part).map_err(failed)?;
        if file.metadata().map_err(failed)?.len() > size {
            file.set_len(0).map_err(failed)?;
        }
        let mut done = file.metadata().map_err(failed)?.len();
        progress.at(done);
        let mut failures = 0;
        while done < size {
            let before = done;
            let reason = match self.go_on(url, &mut file, part, &mut done, size, &mut progress) {
                Ok(()) => break,
                Err(Broken::Failed(error)) => return Err(error),
                Err(Broken::MayPass(reason)) => reason,
            };
            failures = if done >= before + LEAST { 1 } else { failures + 1 };
            if failures > RETRIES {
                return Err(HubError::Stalled { url: url.into(), done, size, reason });
            }
            sleep(self.environment.pause * 2_u32.pow(failures - 1));
        }
        file.sync_all().map_err(failed)
    }

    /// Asks for the bytes from `done` to the end, and appends them to the file.
    fn go_on(
        &self,
        url: &str,
        file: &mut File,
        path: &Path,
        done: &mut u64,
        size: u64,
        progress: &mut DownloadProgress,
    ) -> Result<(), Broken> {
        let request = self.authorized(self.agent.get(url), url).header("Accept-Encoding", "identity");
        let answer = request.header("Range", format!("bytes={done}-")).call();
        let answer = answer.map_err(|error| Broken::MayPass(error.to_string()))?;
        if may_pass(answer.status().as_u16()) {
            return Err(Broken::MayPass(format!("it answers {}", answer.status())));
        }
        let answer = self.accepted(url, answer)?;
        let range = answer.headers().get("content-range").and_then(|range| range.to_str().ok());
        let expected = format!("bytes {done}-");
        // Without a range, it is the whole file.
        if !range.map_or(*done == 0, |range| range.starts_with(&expected)) {
            let found = format!("`{}`", range.unwrap_or("no such header"));
            let expected = format!("a Content-Range that begins with `{expected}`");
            return Err(HubError::Unexpected { url: url.into(), expected, found }.into());
        }
        let mut reader = answer.into_body().into_reader();
        let mut chunk = vec![0; 1 << 16];
        let (mut since, mut at_that_time) = (Instant::now(), *done);
        while *done < size {
            let left = usize::try_from(size - *done).unwrap_or(usize::MAX).min(chunk.len());
            let count =
                reader.read(&mut chunk[..left]).map_err(|error| Broken::MayPass(error.to_string()))?;
            if count == 0 {
                return Err(Broken::MayPass("the answer ended early".into()));
            }
            file.write_all(&chunk[..count]).map_err(|error| written(path, error))?;
            *done += count as u64;
            progress.at(*done);
            if since.elapsed() >= self.environment.silence {
                let came = *done - at_that_time;
                if came < LEAST {
                    let seconds = since.elapsed().as_secs_f64();
                    return Err(Broken::MayPass(format!("{came} bytes came within {seconds:.1} s")));
                }
                (since, at_that_time) = (Instant::now(), *done);
            }
        }
        Ok(())
    }

    /// Adds the token, which goes to the Hub alone.
    fn authorized<B>(&self, request: ureq::RequestBuilder<B>, url: &str) -> ureq::RequestBuilder<B> {
        let Environment { token, endpoint, .. } = self.environment;
        let is_own = url.strip_prefix(endpoint.as_str()).is_some_and(|path| path.starts_with('/'));
        match token.as_ref().filter(|_| is_own) {
            Some(token) => request.header("Authorization", format!("Bearer {token}")),
            None => request,
        }
    }

    /// Returns an answer whose status is a success.
    fn accepted(&self, url: &str, answer: Response) -> Result<Response, HubError> {
        let status = answer.status();
        if status.is_success() {
            return Ok(answer);
        }
        let Reference { repository, revision, .. } = self.reference.clone();
        let endpoint = self.environment.endpoint.clone();
        let has_token = self.environment.token.is_some();
        Err(match status.as_u16() {
            // To those who may not see a repository, the Hub says that they must log in.
            401 | 404 => HubError::NotFound { repository, revision, endpoint, has_token },
            403 => HubError::Denied { repository, endpoint, has_token },
            code if may_pass(code) => self.unreachable(format!("{url} answers {status}")),
            _ => HubError::Unexpected {
                url: url.into(),
                expected: format!("an answer for {repository}"),
                found: format!("the status {status}"),
            },
        })
    }

    fn unreachable(&self, reason: impl ToString) -> HubError {
        HubError::Unreachable {
            endpoint: self.environment.endpoint.clone(),
            reason: reason.to_string(),
            instead: self.reference.by_hand(self.is_data),
        }
    }
}

/// Whether a server that answers so may answer otherwise later.
fn may_pass(status: u16) -> bool {
    status == 429 || status >= 500
}

/// Whether a part of a file's path leads neither up nor elsewhere.
fn is_path_part(part: &str) -> bool {
    !["", ".", ".."].contains(&part) && !part.contains(['\\', '\0', ':'])
}

/// Writes a file's path as a URL has it.
fn escaped(file: &str) -> String {
    let mut url = String::new();
    for byte in file.bytes() {
        match byte {
            b'/' | b'-' | b'_' | b'.' | b'~' => url.push(byte.into()),
            _ if byte.is_ascii_alphanumeric() => url.push(byte.into()),
            _ => url += &format!("%{byte:02X}"),
        }
    }
    url
}

/// Returns the address to which an answer from `from` redirects.
fn redirected(from: &str, location: &str) -> Option<String> {
    let to: Uri = location.parse().ok()?;
    if ["http", "https"].map(Some).contains(&to.scheme_str()) {
        return Some(location.into());
    }
    let from: Uri = from.parse().ok()?;
    let path = location.starts_with('/').then_some(location)?;
    Some(format!("{}://{}{path}", from.scheme_str()?, from.authority()?))
}

/// Waits for the lock of a file in the cache, which also Hugging Face's own tools take.
fn locked(path: &Path, file: &str, say: &dyn Fn(&str)) -> Result<File, HubError> {
    let lock =
        OpenOptions::new().create(true).append(true).open(path).map_err(|error| written(path, error))?;
    let (began, mut was_told) = (Instant::now(), false);
    loop {
        match lock.try_lock() {
            Ok(()) => return Ok(lock),
            Err(fs::TryLockError::WouldBlock) if began.elapsed() < PATIENCE => {
                if !was_told {
                    say(&format!("another process downloads {file}: waiting for it"));
                    was_told = true;
                }
                sleep(Duration::from_secs(1));
            }
            Err(error) => return Err(written(path, error.into())),
        }
    }
}

/// Checks a large file, whose name in the cache is its SHA-256, and removes it if it is damaged.
fn require_whole(url: &str, part: &Path, etag: &str) -> Result<(), HubError> {
    if etag.len() != 64 || !etag.bytes().all(|letter| letter.is_ascii_hexdigit()) {
        return Ok(());
    }
    let found = sha256(part).map_err(|error| written(part, error))?;
    if found == etag {
        return Ok(());
    }
    let _ = fs::remove_file(part);
    Err(HubError::Damaged { url: url.into(), expected: etag.into(), found })
}

/// Links a file of a commit to its contents, where the file system has links.
fn put_link(target: &Path, blob: &Path, link: &Path) -> Result<(), HubError> {
    // A link to contents that are gone would stay.
    let _ = fs::remove_file(link);
    #[cfg(unix)]
    let linked = std::os::unix::fs::symlink(target, link);
    #[cfg(windows)]
    let linked = std::os::windows::fs::symlink_file(target, link);
    match linked {
        Ok(()) => Ok(()),
        // Another process was faster.
        Err(_) if link.exists() => Ok(()),
        Err(_) => fs::rename(blob, link).map_err(|error| written(link, error)),
    }
}

fn create_folder_of(path: &Path) -> Result<(), HubError> {
    let folder = path.parent().unwrap_or(path);
    fs::create_dir_all(folder).map_err(|error| written(folder, error))
}

fn written(path: &Path, error: io::Error) -> HubError {
    HubError::Other {
        doing: format!("writing {} of the Hub's cache, which HF_HUB_CACHE names", path.display()),
        reason: error.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead, BufReader};
    use std::net::{TcpListener, TcpStream};
    use std::thread;

    use super::*;

    /// How a server stalls.
    #[derive(Clone, Copy, Debug)]
    enum Stall {
        /// It does not answer.
        Unanswered,
        /// It says how much comes, and sends nothing of it.
        Silent,
        /// It sends a byte now and then.
        Slow,
    }

    /// The bytes that a file is said to have.
    const SIZE: usize = 5000;

    impl Stall {
        /// Starts a server, and returns its address.
        fn served(self) -> String {
            let listener = TcpListener::bind("127.0.0.1:0").unwrap();
            let address = format!("http://{}", listener.local_addr().unwrap());
            thread::spawn(move || {
                for stream in listener.incoming().flatten() {
                    thread::spawn(move || self.answer(stream));
                }
            });
            address
        }

        /// Describes a file as it should, and stalls otherwise. Returns when the client is gone.
        fn answer(self, mut stream: TcpStream) -> io::Result<()> {
            let mut reader = BufReader::new(stream.try_clone()?);
            let head: Vec<_> =
                reader.by_ref().lines().map_while(Result::ok).take_while(|line| !line.is_empty()).collect();
            let range = head
                .iter()
                .find_map(|line| Some(line.to_lowercase().strip_prefix("range: bytes=")?.to_owned()));
            let from: usize =
                range.as_deref().and_then(|range| range.split('-').next()?.parse().ok()).unwrap_or(0);
            if range.as_deref() == Some("0-0") {
                let head =
                    format!("ETag: \"ab12\"\r\nContent-Range: bytes 0-0/{SIZE}\r\nContent-Length: 1\r\n\r\n");
                return stream
                    .write_all(format!("HTTP/1.1 206 -\r\nConnection: close\r\n{head}x").as_bytes());
            }
            if !matches!(self, Self::Unanswered) {
                let (last, rest) = (SIZE - 1, SIZE - from);
                let head =
                    format!("Content-Range: bytes {from}-{last}/{SIZE}\r\nContent-Length: {rest}\r\n\r\n");
                stream.write_all(format!("HTTP/1.1 206 -\r\nConnection: close\r\n{head}").as_bytes())?;
            }
            if matches!(self, Self::Slow) {
                loop {
                    stream.write_all(b" ")?;
                    thread::sleep(Duration::from_millis(10));
                }
            }
            reader.read_to_end(&mut Vec::new()).map(drop)
        }
    }

    /// Nothing waits for a server for ever. With the usual limits, this would take minutes.
    #[test]
    fn a_server_that_stalls_is_given_up_within_the_limits() {
        let cache = tempfile::tempdir().unwrap();
        let reference = Reference::of(Path::new("hub:org/name")).unwrap().unwrap();
        for stall in [Stall::Unanswered, Stall::Silent, Stall::Slow] {
            let environment = Environment {
                endpoint: stall.served(),
                cache: cache.path().join(format!("{stall:?}")),
                token: None,
                is_offline: false,
                silence: Duration::from_millis(200),
                pause: Duration::from_millis(5),
            };
            let source = Source::new(&environment, &reference, false);
            let began = Instant::now();
            let listed = source.info().unwrap_err();
            assert!(matches!(listed, HubError::Unreachable { .. }), "{stall:?}: {listed}");
            assert!(began.elapsed() < Duration::from_secs(3), "{stall:?}: {:?}", began.elapsed());
            let began = Instant::now();
            let stalled = source.download("c0ffee", "model.safetensors", &|_| ()).unwrap_err();
            match stalled {
                HubError::Stalled { done, size, .. } => {
                    assert!(done < 1024 && size == SIZE as u64, "{done} {size}")
                }
                error => panic!("{stall:?}: {error}"),
            }
            assert!(began.elapsed() < Duration::from_secs(3), "{stall:?}: {:?}", began.elapsed());
        }
    }

    #[test]
    fn a_name_of_the_hub_stays_in_the_cache() {
        for (name, is_safe) in [("a/b.json", true), ("../a", false), ("a//b", false), ("/etc/passwd", false)]
        {
            assert_eq!(name.split('/').all(is_path_part), is_safe, "{name}");
        }
        for (name, is_safe) in
            [("ab12", true), ("", false), ("..", false), ("../a", false), ("/tmp/a", false)]
        {
            assert_eq!(is_plain_name(name), is_safe, "{name}");
        }
        assert_eq!(escaped("a b/c#1.json"), "a%20b/c%231.json");
    }

    #[test]
    fn a_redirect_leads_to_another_path_or_another_server() {
        let from = "https://hub.example/a/resolve/main/b";
        assert_eq!(redirected(from, "/c?d=1").as_deref(), Some("https://hub.example/c?d=1"));
        assert_eq!(redirected(from, "https://s3.example/e").as_deref(), Some("https://s3.example/e"));
        assert_eq!(redirected(from, "c.json"), None);
        assert_eq!(redirected(from, "file:///etc/passwd"), None);
        assert_eq!(redirected(from, "not an address"), None);
    }
}
