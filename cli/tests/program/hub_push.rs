//! Models pushed to the Hugging Face Hub, against a server that takes them.

use std::fs;
use std::path::Path;
use std::sync::{Arc, Mutex};

use predicates::str::contains;
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::http_server::{Answer, Server};
use crate::hub::{GOLDEN, command, sha256};

/// Takes a push like the Hub: files with `safetensors` in their name go to a storage of large files, in parts of `part`
/// bytes if that is not 0.
fn taking(part: usize) -> Server {
    let own: Arc<Mutex<String>> = Arc::default();
    let address = own.clone();
    let server = Server::start(move |request| {
        let base = address.lock().unwrap().clone();
        let path = request.path.as_str();
        let body = request.json();
        if !request.headers.contains_key("authorization") && !path.starts_with("/storage") {
            return Answer::of(401, json!({ "error": "Invalid username or password." }).to_string());
        }
        let answer = match path {
            "/api/repos/create" => {
                return Answer::of(409, json!({ "error": "You already created this" }).to_string());
            }
            "/api/models/org/out/branch/trial" => json!({}),
            "/api/models/org/out/preupload/trial" => {
                let files = body["files"].as_array().unwrap().iter().map(|file| {
                    let is_large = file["path"].as_str().unwrap().contains("safetensors");
                    json!({ "path": file["path"], "uploadMode": if is_large { "lfs" } else { "regular" } })
                });
                json!({ "files": files.collect::<Vec<_>>() })
            }
            "/org/out.git/info/lfs/objects/batch" => {
                let size = body["objects"][0]["size"].as_u64().unwrap() as usize;
                let upload = match part {
                    0 => json!({ "href": format!("{base}/storage/whole") }),
                    _ => {
                        let mut header = json!({ "chunk_size": part.to_string() });
                        for number in 1..=size.div_ceil(part) {
                            header[format!("{number:05}")] = format!("{base}/storage/{number}").into();
                        }
                        json!({ "href": format!("{base}/storage/complete"), "header": header })
                    }
                };
                let verify = json!({ "href": format!("{base}/org/out/verify") });
                json!({ "objects": [{ "oid": body["objects"][0]["oid"], "actions": { "upload": upload, "verify": verify } }] })
            }
            "/api/models/org/out/commit/trial" => json!({ "commitUrl": format!("{base}/org/out/commit/1") }),
            path if path.starts_with("/storage") || path.ends_with("/verify") => {
                return Answer::of(200, "").header("ETag", format!("\"{}\"", request.body.len()));
            }
            _ => return Answer::of(404, ""),
        };
        Answer::of(200, answer.to_string())
    });
    *own.lock().unwrap() = server.address.clone();
    server
}

/// A folder with a model.
fn model_folder() -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    for name in ["config.json", "model.safetensors", "tokenizer.json"] {
        fs::copy(Path::new(GOLDEN).join("model").join(name), folder.path().join(name)).unwrap();
    }
    folder
}

#[test]
fn answers_that_do_not_say_how_to_push_are_errors() {
    let folder = model_folder();
    let modes = |mode: &str| {
        let files = ["config.json", "model.safetensors", "tokenizer.json"];
        let files = files.map(|name| json!({ "path": name, "uploadMode": mode }));
        json!({ "files": files }).to_string()
    };
    let other = json!({ "objects": [{ "oid": "0".repeat(64) }] }).to_string();
    for (preupload, batch, said) in [
        ("<html>".to_string(), "", "asking how files are pushed: the answer of http"),
        (String::new(), "", "is not JSON"),
        ("{}".to_string(), "", "the Hub does not say how to push config.json"),
        (modes("new"), "", "the Hub does not say how to push config.json"),
        (modes("lfs"), "{}", "the Hub does not say where to store the file of SHA-256"),
        (modes("lfs"), other.as_str(), "the Hub does not say where to store the file of SHA-256"),
    ] {
        let batch = batch.to_string();
        let hub = Server::start(move |request| match request.path.as_str() {
            "/api/repos/create" => Answer::of(200, ""),
            "/api/models/org/out/preupload/main" => Answer::of(200, preupload.clone()),
            "/org/out.git/info/lfs/objects/batch" => Answer::of(200, batch.clone()),
            _ => Answer::of(404, "not asked for"),
        });
        let mut push = command(folder.path(), &hub.address);
        let push = push.args(["push", ".", "org/out"]).env("HF_TOKEN", "hf_1");
        push.assert().code(1).stderr(contains(said));
        assert!(!hub.requests().iter().any(|request| request.path.contains("/commit/")), "{said}");
    }
}

#[test]
fn a_token_that_may_not_create_pushes_to_a_repository_and_a_branch_that_exist() {
    let folder = model_folder();
    let hub = Server::start(|request| match request.path.as_str() {
        "/api/repos/create" => Answer::of(403, json!({ "error": "may not create" }).to_string()),
        "/api/models/org/out" => Answer::of(200, "{}"),
        "/api/models/org/out/preupload/main" | "/api/models/org/out/preupload/kept" => {
            Answer::of(418, "asked")
        }
        "/api/models/org/out/branch/kept" | "/api/models/org/out/branch/new" => {
            Answer::of(403, json!({ "error": "may not branch" }).to_string())
        }
        "/api/models/org/out/revision/kept" => Answer::of(200, "{}"),
        _ => Answer::of(404, ""),
    });
    for (name, said) in [
        ("org/out", "the Hub answers 418"),
        ("org/none", "403: may not create"),
        ("org/out@kept", "the Hub answers 418"),
        ("org/out@new", "403: may not branch"),
    ] {
        let mut push = command(folder.path(), &hub.address);
        push.args(["push", ".", name]).env("HF_TOKEN", "hf_1").assert().code(1).stderr(contains(said));
    }
}

#[test]
fn a_folder_is_pushed_as_a_commit() {
    let folder = model_folder();
    let weights = fs::read(Path::new(GOLDEN).join("model/model.safetensors")).unwrap();
    for part in [0, 20_000] {
        let hub = taking(part);
        let mut push = command(folder.path(), &hub.address);
        let push = push.args(["push", ".", "org/out@trial", "--private", "--message", "A trial"]);
        push.env("HF_TOKEN", "hf_1").assert().success().stdout(contains("/org/out/commit/1"));
        let requests = hub.requests();
        let one = |path: &str| requests.iter().find(|request| request.path.ends_with(path)).unwrap();
        let created = json!({ "type": "model", "organization": "org", "name": "out", "private": true });
        assert_eq!(one("/repos/create").json(), created);
        assert_eq!(one("/branch/trial").method, "POST");
        let stored = requests.iter().filter(|request| request.method == "PUT");
        let stored: Vec<u8> = stored.flat_map(|request| request.body.clone()).collect();
        assert!(stored == weights, "{part}");
        let puts = requests.iter().filter(|request| request.method == "PUT");
        assert!(puts.clone().all(|put| !put.headers.contains_key("authorization")));
        assert!(puts.clone().all(|put| !put.headers.contains_key("transfer-encoding")));
        if part > 0 {
            let parts = one("/storage/complete").json()["parts"].clone();
            let expected = [(1, 20_000), (2, 20_000), (3, weights.len() - 40_000)]
                .map(|(number, size)| json!({ "partNumber": number, "etag": format!("\"{size}\"") }));
            assert_eq!(parts, json!(expected));
        }
        let oid = sha256(&weights);
        assert_eq!(one("/verify").json(), json!({ "oid": oid, "size": weights.len() }));
        let commit = one("/commit/trial");
        assert_eq!(commit.headers["content-type"], "application/x-ndjson");
        let lines = String::from_utf8(commit.body.clone()).unwrap();
        let lines: Vec<Value> = lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        assert_eq!(lines[0]["value"]["summary"], "A trial");
        let keys: Vec<_> = lines.iter().map(|line| (&line["key"], &line["value"]["path"])).collect();
        let expected = [
            (&json!("header"), &Value::Null),
            (&json!("file"), &json!("config.json")),
            (&json!("lfsFile"), &json!("model.safetensors")),
            (&json!("file"), &json!("tokenizer.json")),
        ];
        assert_eq!(keys, expected);
        assert_eq!(lines[2]["value"]["oid"], oid);
    }
    let hub = taking(0);
    let push = |name: &str| {
        let mut push = command(folder.path(), &hub.address);
        push.args(["push", ".", name]);
        push
    };
    push("org/out").assert().code(1).stderr(contains("pushing needs a token"));
    push("out").env("HF_TOKEN", "hf_1").assert().code(1).stderr(contains("expected `hub:org/name`"));
    let refused = push("org/other").env("HF_TOKEN", "hf_1").assert().code(1);
    refused.stderr(contains("asking how files are pushed: the Hub answers 404"));
}
