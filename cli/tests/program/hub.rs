//! Models and data of the Hugging Face Hub, against a server that speaks its API.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::sync::{Arc, Mutex};

use assert_cmd::Command;
use predicates::prelude::*;
use predicates::str::contains;
use serde_json::json;
use tempfile::TempDir;

use crate::http_server::{Answer, Request, Server};
use crate::small_run::firebrick;

pub const GOLDEN: &str = "tests/golden/measures";
/// A commit that the branch `main` and the tag `v1` name.
const COMMIT: &str = "0123456789abcdef0123456789abcdef01234567";

/// The files of the repositories by their paths: `org/model/config.json`, or `datasets/org/data/train.jsonl`.
pub type Files = Arc<BTreeMap<String, Vec<u8>>>;

pub fn files() -> Files {
    let model = |name: &str| fs::read(Path::new(GOLDEN).join("model").join(name)).unwrap();
    let of_model = ["config.json", "model.safetensors", "tokenizer.json"];
    let mut files: BTreeMap<_, _> =
        of_model.iter().map(|name| (format!("org/model/{name}"), model(name))).collect();
    files.insert("org/model/README.md".into(), b"not needed".to_vec());
    let text = fs::read(Path::new(GOLDEN).join("text.txt")).unwrap().repeat(8);
    files.insert("datasets/org/data/text/train.txt".into(), text);
    files.insert("org/pickled/config.json".into(), model("config.json"));
    files.insert("org/pickled/pytorch_model.bin".into(), b"pickled".to_vec());
    Arc::new(files)
}

pub fn sha256(bytes: &[u8]) -> String {
    use sha2::Digest;
    sha2::Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Answers like the Hub. The first download of the weights breaks off after `breaks` bytes, if that is not 0.
fn hub(files: Files, breaks: usize) -> Server {
    Server::start(answers(files, breaks))
}

/// How the Hub answers: see [`hub`].
pub fn answers(files: Files, breaks: usize) -> impl Fn(&Request) -> Answer + Send + Sync + 'static {
    let broken = Mutex::new(breaks > 0);
    move |request| {
        let path = request.path.trim_start_matches('/');
        if path.contains("org/secret") && !request.headers.contains_key("authorization") {
            return Answer::of(401, json!({ "error": "Invalid username or password." }).to_string());
        }
        if path.contains("org/gated") {
            return Answer::of(403, "gated");
        }
        let known = |revision: &str| ["main", "v1", COMMIT].contains(&revision);
        if let Some(asked) = path.strip_prefix("api/") {
            let asked = asked.strip_prefix("models/").unwrap_or(asked);
            let Some((repository, revision)) = asked.split_once("/revision/") else {
                return Answer::of(404, "");
            };
            let begin = format!("{repository}/");
            let names = files.keys().filter_map(|name| name.strip_prefix(&begin));
            let names: Vec<_> = names.map(|name| json!({ "rfilename": name })).collect();
            return match known(revision) && !names.is_empty() {
                true => Answer::of(200, json!({ "sha": COMMIT, "siblings": names }).to_string()),
                false => Answer::of(404, json!({ "error": "Repository not found" }).to_string()),
            };
        }
        let file = path.split_once("/resolve/").and_then(|(repository, rest)| {
            let (revision, file) = rest.split_once('/')?;
            known(revision).then(|| files.get(&format!("{repository}/{file}")))?
        });
        let Some(bytes) = file else { return Answer::of(404, "") };
        let range = request.headers["range"].strip_prefix("bytes=").unwrap().split_once('-').unwrap();
        let begin: usize = range.0.parse().unwrap();
        let end = range.1.parse().map_or(bytes.len(), |end: usize| end + 1);
        let etag = if path.ends_with("safetensors") { sha256(bytes) } else { format!("{:x}", bytes.len()) };
        let mut answer = Answer::of(206, &bytes[begin..end])
            .header("ETag", format!("\"{etag}\""))
            .header("X-Repo-Commit", COMMIT)
            .header("Content-Range", format!("bytes {begin}-{}/{}", end - 1, bytes.len()));
        let is_whole = path.ends_with("safetensors") && begin == 0 && end == bytes.len();
        if is_whole && std::mem::take(&mut *broken.lock().unwrap()) {
            answer.breaks_after = Some(breaks);
        }
        answer
    }
}

/// A run of one step from the Hub's model on the Hub's data.
pub fn run(model: &str, data: &str) -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    let file = format!(
        r#"(
            data: (path: "{data}", tokenizer: File("{model}"), block: 16),
            model: Pretrained("{model}"),
            optimizer: AdamW(),
            schedule: Constant(lr: 1e-3),
            batch: (micro: 2),
            steps: 1,
            output: "out",
        )"#
    );
    fs::write(folder.path().join("run.ron"), file).unwrap();
    folder
}

/// A command with the settings of this environment alone.
pub fn command(folder: &Path, endpoint: &str) -> Command {
    let mut command = firebrick(folder);
    for name in ["HF_TOKEN", "HF_TOKEN_PATH", "HF_HUB_CACHE", "HF_HUB_OFFLINE"] {
        command.env_remove(name);
    }
    command.env("HF_ENDPOINT", endpoint).env("HF_HOME", folder.join("home")).env("BURN_DEVICE", "cpu");
    command
}

pub fn train(folder: &TempDir, endpoint: &str) -> Command {
    let mut command = command(folder.path(), endpoint);
    command.args(["train", "run.ron"]);
    command
}

fn downloads(requests: &[Request], file: &str) -> usize {
    let is_of = |request: &&Request| request.path.ends_with(file) && request.headers["range"] != "bytes=0-0";
    requests.iter().filter(is_of).count()
}

#[test]
fn a_model_and_data_are_downloaded_once_and_are_there_without_network() {
    let hub = hub(files(), 10_000);
    let folder = run("hub:org/model@v1", "hub:datasets-are/elsewhere");
    // The data is a file of a data set.
    let file = fs::read_to_string(folder.path().join("run.ron")).unwrap();
    let file = file.replace("hub:datasets-are/elsewhere", "hub:org/data/text/*.txt");
    fs::write(folder.path().join("run.ron"), file).unwrap();
    train(&folder, &hub.address).assert().success().stderr(contains("downloading model.safetensors, 0.1 MB"));
    let requests = hub.requests();
    // The download that broke off went on where it had ended.
    let ranges = requests.iter().filter(|request| request.path.ends_with("model.safetensors"));
    let ranges: Vec<_> = ranges.map(|request| request.headers["range"].as_str()).collect();
    assert_eq!(ranges, ["bytes=0-0", "bytes=0-", "bytes=10000-"]);
    assert_eq!(downloads(&requests, "README.md"), 0);
    let cache = folder.path().join("home/hub");
    let snapshot = cache.join("models--org--model/snapshots").join(COMMIT);
    for name in ["config.json", "model.safetensors", "tokenizer.json"] {
        assert_eq!(
            fs::read(snapshot.join(name)).unwrap(),
            fs::read(Path::new(GOLDEN).join("model").join(name)).unwrap()
        );
    }
    assert_eq!(fs::read_to_string(cache.join("models--org--model/refs/v1")).unwrap(), COMMIT);
    // The run file keeps the names, and a second run downloads nothing.
    let saved = fs::read_to_string(folder.path().join("out/run.ron")).unwrap();
    assert!(saved.contains("hub:org/model@v1") && saved.contains("hub:org/data/text/*.txt"), "{saved}");
    train(&folder, &hub.address).assert().success();
    assert_eq!(downloads(&hub.requests(), "model.safetensors"), 2);
    let before = hub.requests().len();
    train(&folder, &hub.address).env("HF_HUB_OFFLINE", "1").assert().success();
    assert_eq!(hub.requests().len(), before);
    // Nothing listens there.
    let said = contains("the Hub does not answer: using org/model at v1 as it is in the cache");
    train(&folder, "http://127.0.0.1:1").assert().success().stderr(said);
    // A trained run evaluates on data of the Hub too.
    let mut eval = command(folder.path(), &hub.address);
    eval.args(["eval", "out", "--perplexity", "--data", "hub:org/data/text/train.txt"]).assert().success();
}

#[test]
fn what_the_hub_does_not_have_or_show_is_told_with_what_to_do() {
    let hub = hub(files(), 0);
    let text = "hub:org/data/text/train.txt";
    let by_hand = "hf download org/none --local-dir none";
    for (model, data, said) in [
        (
            "hub:org/none",
            text,
            "has no org/none at `main`, or does not show it: check the name, and set HF_TOKEN",
        ),
        ("hub:org/model@v2", text, "has no org/model at `v2`"),
        ("hub:org/secret", text, "and set HF_TOKEN to a token that may read it"),
        ("hub:org/gated", text, "it is private or gated; accept its terms"),
        ("hub:org/pickled", text, "has no model.safetensors; it has config.json, pytorch_model.bin"),
        ("hub:org/model/config.json", text, "a whole repository is expected here"),
        ("hub:org model", text, "expected `hub:org/name`"),
        (
            "hub:org/model",
            "hub:org/data",
            "name the files of org/data to read, as in `hub:org/data/FILE`; it has text/",
        ),
        ("hub:org/model", "hub:org/data/b.txt", "has no `b.txt`; it has text/train.txt"),
    ] {
        train(&run(model, data), &hub.address).assert().code(1).stderr(contains(said));
    }
    let none = run("hub:org/none", text);
    let unreachable = train(&none, "http://127.0.0.1:1").assert().code(1);
    unreachable.stderr(contains("cannot be reached").and(contains(by_hand)));
    let offline = train(&none, &hub.address).env("HF_HUB_OFFLINE", "1").assert().code(1);
    offline.stderr(contains("HF_HUB_OFFLINE is set").and(contains(by_hand)));
    // The token is sent, from the environment or from where `hf auth login` saves it.
    let secret = run("hub:org/secret", text);
    train(&secret, &hub.address)
        .env("HF_TOKEN", "hf_1")
        .assert()
        .code(1)
        .stderr(contains("whether the token"));
    fs::create_dir_all(secret.path().join("home")).unwrap();
    fs::write(secret.path().join("home/token"), "hf_2\n").unwrap();
    train(&secret, &hub.address).assert().code(1);
    let tokens =
        hub.requests().into_iter().filter_map(|request| request.headers.get("authorization").cloned());
    assert_eq!(tokens.collect::<Vec<_>>(), ["Bearer hf_1", "Bearer hf_2"]);
}

#[test]
fn weights_that_are_damaged_on_their_way_are_refused() {
    let mut damaged = (*files()).clone();
    let whole = files();
    damaged.get_mut("org/model/model.safetensors").unwrap()[30_000] ^= 1;
    let damaged = Arc::new(damaged);
    let behind = hub(damaged, 0);
    // The sum covers the whole file.
    let address = behind.address.clone();
    let front = Server::start(move |request| {
        let etag = sha256(&whole["org/model/model.safetensors"]);
        let url = format!("{address}{}", request.path);
        let mut asked = ureq::get(&url);
        for (name, value) in request.headers.iter().filter(|(name, _)| *name != "host") {
            asked = asked.header(name, value);
        }
        let mut found = asked.call().unwrap();
        let status = found.status().as_u16();
        let body = found.body_mut().read_to_vec().unwrap();
        let header = |name: &str| found.headers().get(name).map(|value| value.to_str().unwrap().to_string());
        let mut answer = Answer::of(status, body);
        for name in ["X-Repo-Commit", "Content-Range"] {
            answer.headers.extend(header(name).map(|value| (name, value)));
        }
        let own = header("ETag");
        let own =
            own.map(|own| if request.path.ends_with("safetensors") { format!("\"{etag}\"") } else { own });
        answer.headers.extend(own.map(|own| ("ETag", own)));
        answer
    });
    let folder = run("hub:org/model", "hub:org/data/text/train.txt");
    let said = contains("model.safetensors was damaged on its way");
    train(&folder, &front.address).assert().code(1).stderr(said);
    let blobs = folder.path().join("home/hub/models--org--model/blobs");
    assert!(!blobs.join(sha256(&files()["org/model/model.safetensors"])).exists());
    train(&folder, &hub(files(), 0).address).assert().success();
}

/// What is suggested is tried on what was downloaded, and a line says how much that is.
#[test]
fn a_run_file_for_the_hub_is_tried_on_the_beginning_of_the_data() {
    let folder = tempfile::tempdir().unwrap();
    let server = hub(files(), 0);
    let asked = ["init", "CausalLm", "--data", "hub:org/data/text/train.txt", "--model", "hub:org/model"];
    let init = command(folder.path(), &server.address).args(asked).assert().success();
    init.stdout(contains("path: \"hub:org/data/text/train.txt\""))
        .stderr(contains("of data on the Hub, only the beginning of its first file was tried"));
    let mut damaged = files().as_ref().clone();
    let weights = damaged.get_mut("org/model/model.safetensors").unwrap();
    let start = 8 + u64::from_le_bytes(weights[..8].try_into().unwrap()) as usize;
    weights[start..start + 16].fill(0xff);
    let server = hub(Arc::new(damaged), 0);
    let mut init = command(folder.path(), &server.address);
    let init = init.env("HF_HOME", folder.path().join("other")).args(asked).assert().code(1).stdout("");
    init.stderr(contains("a run file that trains on this data cannot be suggested"));
}
