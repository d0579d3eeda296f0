//! A Hub, or something else at its address, that answers wrongly, or no longer: an error that names the address, and
//! nothing written outside the cache.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use predicates::prelude::*;
use predicates::str::contains;
use serde_json::json;
use tempfile::TempDir;

use crate::http_server::{Answer, Request, Server};
use crate::hub::{answers, files, run, train};

/// A Hub that answers requests that `differs` picks as it says, and all others rightly.
fn hub(differs: impl Fn(&Request, Answer) -> Answer + Send + Sync + 'static) -> Server {
    let rightly = answers(files(), 0);
    Server::start(move |request| differs(request, rightly(request)))
}

/// A run three folders deep, so that a path that leads up stays in the temporary folder.
fn deep() -> (TempDir, TempDir) {
    let above = tempfile::tempdir().unwrap();
    let run = run("hub:org/model", "hub:org/data/text/train.txt");
    let folder = tempfile::tempdir_in(&above).unwrap();
    fs::copy(run.path().join("run.ron"), folder.path().join("run.ron")).unwrap();
    (above, folder)
}

fn below(folder: &Path, files: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        match path.is_dir() && !path.is_symlink() {
            true => below(&path, files),
            false => files.push(path),
        }
    }
}

fn is_description(request: &Request) -> bool {
    request.headers.get("range").is_some_and(|range| range == "bytes=0-0")
}

fn with(mut answer: Answer, name: &'static str, value: &str) -> Answer {
    answer.headers.retain(|(other, _)| *other != name);
    answer.header(name, value)
}

#[test]
fn no_name_of_a_server_leads_out_of_the_cache() {
    let list = |sha: &str, name: &str| {
        let names = ["config.json", "model.safetensors", "tokenizer.json", name];
        let files: Vec<_> = names.map(|name| json!({ "rfilename": name })).into();
        json!({ "sha": sha, "siblings": files }).to_string()
    };
    let up = "../../../../../evil";
    let lists =
        [list(up, "a.json"), list("/evil", "a.json"), list("ab12", up), list("ab12", "vocab/../../evil")];
    for list in lists {
        let server = hub(move |request, answer| match request.path.starts_with("/api/") {
            true => Answer::of(200, list.clone()),
            false => answer,
        });
        refuses(&server);
    }
    for etag in [up, "/evil", "", ".."] {
        let server = hub(move |request, answer| match is_description(request) {
            true => with(answer, "ETag", &format!("\"{etag}\"")),
            false => answer,
        });
        refuses(&server);
    }
}

/// Checks that a run ends with an error that names the address, and has written into the cache alone.
fn refuses(server: &Server) {
    let (above, folder) = deep();
    let error = train(&folder, &server.address).assert().code(1);
    error.stderr(contains(format!("{}/", server.address)).and(contains("answers with")));
    let mut found = Vec::new();
    below(above.path(), &mut found);
    found.retain(|path| !path.starts_with(folder.path().join("home/hub")));
    assert_eq!(found, [folder.path().join("run.ron")]);
}

#[test]
fn redirects_in_a_circle_and_to_nowhere_end() {
    for location in [None, Some("/org/model/resolve/main/config.json"), Some("config.json")] {
        let server = hub(move |request, answer| match (is_description(request), location) {
            (false, _) => answer,
            (true, None) => Answer::of(302, ""),
            (true, Some(location)) => Answer::of(302, "").header("Location", location),
        });
        refuses(&server);
    }
}

#[test]
fn an_answer_longer_than_the_file_is_cut_at_its_end() {
    let server = hub(|request, mut answer| {
        if request.path.contains("/resolve/") && !is_description(request) {
            answer.body.extend(vec![0; 1 << 20]);
        }
        answer
    });
    let (_above, folder) = deep();
    train(&folder, &server.address).assert().success();
    let config = folder.path().join("home/hub/models--org--model/snapshots");
    let mut found = Vec::new();
    below(&config, &mut found);
    for path in found {
        let name = format!("org/model/{}", path.file_name().unwrap().to_str().unwrap());
        assert_eq!(fs::read(&path).unwrap(), files()[&name], "{name}");
    }
}

/// One that lists files and then no longer answers would otherwise be waited for for ever.
#[test]
fn a_download_that_stops_is_told_and_goes_on_with_the_next_run() {
    let stops = |request: &Request| request.path.ends_with("model.safetensors") && !is_description(request);
    let silent = hub(move |request, mut answer| {
        if stops(request) {
            // Each answer brings less than it has to.
            (answer.breaks_after, answer.is_silent) = (Some(100), true);
        }
        answer
    });
    let (_above, folder) = deep();
    let began = Instant::now();
    let mut stopped = train(&folder, &silent.address);
    let size = files()["org/model/model.safetensors"].len();
    let said = format!("model.safetensors stopped after 600 of {size} bytes");
    stopped.env("HF_HUB_DOWNLOAD_TIMEOUT", "1").assert().code(1).stderr(contains(said));
    assert!(began.elapsed() < Duration::from_secs(50), "{:?}", began.elapsed());
    let whole = hub(|_, answer| answer);
    train(&folder, &whole.address).assert().success();
    assert!(
        whole
            .requests()
            .iter()
            .any(|request| request.headers.get("range").is_some_and(|range| range == "bytes=600-"))
    );
    let mut wrong = train(&folder, &whole.address);
    wrong
        .env("HF_HUB_DOWNLOAD_TIMEOUT", "soon")
        .assert()
        .code(1)
        .stderr(contains("HF_HUB_DOWNLOAD_TIMEOUT is `soon`"));
}

/// A shared cache may be one that a user cannot write to.
#[test]
fn a_cache_that_cannot_be_written_serves_what_it_has() {
    let server = hub(|_, answer| answer);
    let (_above, folder) = deep();
    train(&folder, &server.address).assert().success();
    for repository in ["models--org--model", "datasets--org--data"] {
        // A file instead of a folder stops the superuser too.
        let refs = folder.path().join("home/hub").join(repository).join("refs");
        fs::remove_dir_all(&refs).unwrap();
        fs::write(&refs, "").unwrap();
    }
    train(&folder, &server.address).assert().success();
    let model = folder.path().join("home/hub/models--org--model");
    for name in ["blobs", "snapshots"] {
        fs::remove_dir_all(model.join(name)).unwrap();
        fs::write(model.join(name), "").unwrap();
    }
    let refused = train(&folder, &server.address).assert().code(1);
    refused.stderr(contains("models--org--model/blobs").and(contains("HF_HUB_CACHE")));
}
