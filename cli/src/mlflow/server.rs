//! The REST API of an MLflow server, version 2.0.

use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};
use ureq::Agent;

/// How long a request may take.
const LIMIT: Duration = Duration::from_secs(20);
/// The most metrics of a request.
pub(super) const MOST_METRICS: usize = 1000;
/// The most parameters of a request.
const MOST_PARAMS: usize = 100;
/// The longest value of a parameter.
const LONGEST_PARAM: usize = 500;

/// A number of a run.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Metric {
    pub key: String,
    pub value: f64,
    /// Milliseconds since 1970.
    pub timestamp: u64,
    pub step: u64,
}

/// A server.
pub(super) struct Server {
    agent: Agent,
    address: String,
    authorization: Option<String>,
}

/// Why a request failed.
#[derive(Debug)]
pub(super) struct Failure {
    pub reason: String,
    /// Whether the server may take the same request later: it did not answer, or could not.
    pub may_pass: bool,
}

impl Server {
    pub fn new(address: String) -> Self {
        let given = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
        let basic = || {
            let pair = (given("MLFLOW_TRACKING_USERNAME")?, given("MLFLOW_TRACKING_PASSWORD")?);
            Some(format!("Basic {}", STANDARD.encode(format!("{}:{}", pair.0, pair.1))))
        };
        let token = given("MLFLOW_TRACKING_TOKEN").map(|token| format!("Bearer {token}"));
        let config = Agent::config_builder().http_status_as_error(false).timeout_global(Some(LIMIT));
        Self { agent: config.build().into(), address, authorization: token.or_else(basic) }
    }

    pub fn address(&self) -> &str {
        &self.address
    }

    /// Returns the id of an experiment, which is created if it does not exist.
    pub fn experiment(&self, name: &str) -> Result<String, Failure> {
        let id = |answer: &Value| answer["experiment_id"].as_str().map(String::from);
        let query = [("experiment_name", name)];
        let found = match self.get("experiments/get-by-name", &query) {
            Ok(answer) => id(&answer["experiment"]),
            Err(failure) if failure.may_pass => return Err(failure),
            Err(_) => None,
        };
        match found {
            Some(id) => Ok(id),
            None => {
                let answer = self.post("experiments/create", &json!({ "name": name }))?;
                id(&answer).ok_or_else(|| unexpected(&answer))
            }
        }
    }

    /// Creates a run, and returns its id.
    pub fn create_run(&self, experiment: &str, name: &str, time: u64) -> Result<String, Failure> {
        let source = [("mlflow.source.name", "firebrick"), ("mlflow.source.type", "LOCAL")];
        let tags: Vec<_> = source.iter().map(|(key, value)| json!({ "key": key, "value": value })).collect();
        let run = json!({ "experiment_id": experiment, "run_name": name, "start_time": time, "tags": tags });
        let answer = self.post("runs/create", &run)?;
        let id = answer["run"]["info"]["run_id"].as_str().map(String::from);
        id.ok_or_else(|| unexpected(&answer))
    }

    /// Logs the settings of a run. One that is logged already keeps its value.
    pub fn log_params<'s>(
        &self,
        run: &str,
        settings: impl Iterator<Item = (&'s String, &'s String)>,
    ) -> Result<(), Failure> {
        let param = |(key, value): (&String, &String)| {
            let value: String = value.trim_matches('"').chars().take(LONGEST_PARAM).collect();
            json!({ "key": key, "value": value })
        };
        let params: Vec<Value> = settings.map(param).collect();
        for some in params.chunks(MOST_PARAMS) {
            self.post("runs/log-batch", &json!({ "run_id": run, "params": some }))?;
        }
        Ok(())
    }

    /// Logs at most [`MOST_METRICS`] numbers.
    pub fn log_metrics(&self, run: &str, metrics: &[Metric]) -> Result<(), Failure> {
        let metric = |Metric { key, value, timestamp, step }: &Metric| json!({ "key": key, "value": value, "timestamp": timestamp, "step": step });
        let metrics: Vec<Value> = metrics.iter().map(metric).collect();
        self.post("runs/log-batch", &json!({ "run_id": run, "metrics": metrics })).map(drop)
    }

    /// Sets the status of a run: `RUNNING`, or with the time of its end `FINISHED`, `FAILED` or `KILLED`.
    pub fn update(&self, run: &str, status: &str, ended: Option<u64>) -> Result<(), Failure> {
        let mut body = json!({ "run_id": run, "status": status });
        if let Some(time) = ended {
            body["end_time"] = time.into();
        }
        self.post("runs/update", &body).map(drop)
    }

    fn get(&self, method: &str, query: &[(&str, &str)]) -> Result<Value, Failure> {
        let mut request = self.agent.get(self.url(method)).query_pairs(query.iter().copied());
        if let Some(authorization) = &self.authorization {
            request = request.header("Authorization", authorization);
        }
        read(request.call())
    }

    fn post(&self, method: &str, body: &Value) -> Result<Value, Failure> {
        let mut request = self.agent.post(self.url(method)).header("Content-Type", "application/json");
        if let Some(authorization) = &self.authorization {
            request = request.header("Authorization", authorization);
        }
        read(request.send(body.to_string()))
    }

    fn url(&self, method: &str) -> String {
        format!("{}/api/2.0/mlflow/{method}", self.address)
    }
}

fn read(answer: Result<ureq::http::Response<ureq::Body>, ureq::Error>) -> Result<Value, Failure> {
    let mut answer = answer.map_err(|error| Failure { reason: error.to_string(), may_pass: true })?;
    let status = answer.status();
    let text = answer.body_mut().read_to_string().unwrap_or_default();
    let value: Value = serde_json::from_str(&text).unwrap_or_default();
    if status.is_success() {
        return Ok(value);
    }
    let said = value["message"].as_str().unwrap_or(&text);
    let said: String = said.chars().take(300).collect();
    let may_pass = status.is_server_error() || status.as_u16() == 429;
    Err(Failure { reason: format!("{status}: {said}"), may_pass })
}

fn unexpected(answer: &Value) -> Failure {
    Failure { reason: format!("an unexpected answer: {answer}"), may_pass: false }
}
