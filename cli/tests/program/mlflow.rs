//! `mlflow` of a run file, against a server that speaks MLflow's API.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicUsize, Ordering};

use predicates::prelude::*;
use predicates::str::contains;
use serde_json::json;

use crate::http_server::{Answer, Request, Server};
use crate::small_run::{folder, report, train};

/// A server without experiments, whose first `refused` requests fail.
fn server(refused: usize) -> Server {
    let asked = AtomicUsize::new(0);
    Server::start(move |request| {
        if asked.fetch_add(1, Ordering::SeqCst) < refused {
            return Answer::of(503, "busy");
        }
        let method = request.path.strip_prefix("/api/2.0/mlflow/").unwrap();
        match method.split('?').next().unwrap() {
            "experiments/get-by-name" => Answer::of(
                404,
                json!({ "error_code": "RESOURCE_DOES_NOT_EXIST", "message": "none" }).to_string(),
            ),
            "experiments/create" => Answer::of(200, json!({ "experiment_id": "7" }).to_string()),
            "runs/create" => Answer::of(200, json!({ "run": { "info": { "run_id": "r1" } } }).to_string()),
            "runs/log-batch" | "runs/update" => Answer::of(200, "{}"),
            _ => Answer::of(404, json!({ "message": "unknown" }).to_string()),
        }
    })
}

fn of<'r>(requests: &'r [Request], method: &str) -> Vec<&'r Request> {
    requests.iter().filter(|request| request.path.contains(method)).collect()
}

/// The metrics that were logged: their names and steps.
fn logged(requests: &[Request]) -> BTreeSet<(String, u64)> {
    let batches = of(requests, "runs/log-batch").into_iter().map(Request::json);
    let metrics = batches.flat_map(|batch| batch["metrics"].as_array().cloned().unwrap_or_default());
    metrics.map(|one| (one["key"].as_str().unwrap().into(), one["step"].as_u64().unwrap())).collect()
}

#[test]
fn a_run_is_logged_in_batches_and_goes_on_in_the_same_run() {
    let server = server(1);
    let folder = folder();
    let set = format!("mlflow=(uri: \"{}/\", experiment: \"Tests\", run_name: \"first\")", server.address);
    let mut first = train(folder.path(), &["--set", &set]);
    report(first.env("MLFLOW_TRACKING_TOKEN", "secret"));
    let requests = server.requests();
    assert!(requests.iter().all(|request| request.headers["authorization"] == "Bearer secret"));
    assert_eq!(of(&requests, "experiments/create")[0].json(), json!({ "name": "Tests" }));
    let created = of(&requests, "runs/create")[0].json();
    assert_eq!((&created["experiment_id"], &created["run_name"]), (&json!("7"), &json!("first")));
    let params = of(&requests, "runs/log-batch").into_iter().map(Request::json);
    let params: Vec<_> =
        params.flat_map(|batch| batch["params"].as_array().cloned().unwrap_or_default()).collect();
    assert!(params.contains(&json!({ "key": "model.Gpt.layers", "value": "2" })), "{params:?}");
    let found = logged(&requests);
    for (name, step) in
        [("train/loss", 1), ("train/loss", 40), ("train/learning_rate", 7), ("valid/loss", 16)]
    {
        assert!(found.contains(&(name.into(), step)), "{name} {step}");
    }
    // A batch has the numbers of several steps: a run does not wait for each.
    let batches = of(&requests, "runs/log-batch").len();
    assert!(batches < 40, "{batches}");
    let ended = of(&requests, "runs/update").last().unwrap().json();
    assert_eq!((&ended["run_id"], &ended["status"]), (&json!("r1"), &json!("FINISHED")));
    assert!(ended["end_time"].is_u64());

    report(&mut train(folder.path(), &["--set", &set, "--resume", "--steps", "44"]));
    let requests = server.requests();
    assert_eq!(of(&requests, "runs/create").len(), 1);
    assert!(logged(&requests).contains(&("train/loss".into(), 44)));
}

#[test]
fn a_server_that_fails_ends_no_run() {
    let folder = folder();
    // Nothing listens there: the warnings say so, and the run is as it would be.
    let set = ["--set", "mlflow=(uri: \"http://127.0.0.1:1\")", "--plain"];
    let mut run = train(folder.path(), &set);
    let said = contains("MLflow at http://127.0.0.1:1 does not answer").and(contains("not logged there: "));
    run.assert().success().stderr(said);
    // A server of something else.
    let other = Server::start(|_| Answer::of(404, "no such page"));
    let set = format!("mlflow=(uri: \"{}\")", other.address);
    train(folder.path(), &["--set", &set]).assert().success().stderr(contains("not logged there: the run"));
    // A proxy that answers for a server that is away.
    let proxy = Server::start(|request| match request.path.ends_with("log-batch") {
        true => Answer::of(200, "<html>back soon</html>"),
        false => Answer::of(
            200,
            json!({ "experiment_id": "7", "run": { "info": { "run_id": "r1" } } }).to_string(),
        ),
    });
    let set = format!("mlflow=(uri: \"{}\")", proxy.address);
    let said = contains("found `<html>back soon</html>`").and(contains("not logged there: "));
    train(folder.path(), &["--set", &set]).assert().success().stderr(said);
    let mut unnamed = train(folder.path(), &["--set", "mlflow=()"]);
    unnamed
        .env_remove("MLFLOW_TRACKING_URI")
        .assert()
        .code(1)
        .stderr(contains("MLFLOW_TRACKING_URI is not set"));
    let mut folder_named = train(folder.path(), &["--set", "mlflow=()"]);
    let refused = folder_named.env("MLFLOW_TRACKING_URI", "./mlruns").assert().code(1);
    refused.stderr(contains("MLFLOW_TRACKING_URI is `./mlruns`").and(contains("`mlflow server`")));
    let mut database_named = train(folder.path(), &["--set", "mlflow=(uri: \"sqlite:///mlflow.db\")"]);
    database_named.assert().code(1).stderr(contains("`mlflow.uri` is `sqlite:///mlflow.db`"));
}
