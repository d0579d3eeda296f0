//! The REST API of an MLflow server, version 2.0.

use std::cell::Cell;
use std::time::{Duration, Instant};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};
use ureq::Agent;

/// How long the requests of one round may take together.
pub(super) const LIMIT: Duration = Duration::from_secs(20);
/// The most bytes of an answer.
const LONGEST_ANSWER: u64 = 1 << 20;
/// The most characters of an answer that a warning has.
const LONGEST_REASON: usize = 300;
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
    /// When the requests of this round must have been answered.
    deadline: Cell<Instant>,
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
        let agent = Agent::config_builder().http_status_as_error(false).build().into();
        let deadline = Cell::new(Instant::now() + LIMIT);
        Self { agent, address, authorization: token.or_else(basic), deadline }
    }

    /// Sets when the next requests must have been answered: a slow server would otherwise take the limit for each.
    pub fn answer_until(&self, deadline: Instant) {
        self.deadline.set(deadline);
    }

    fn left(&self) -> Option<Duration> {
        Some(self.deadline.get().saturating_duration_since(Instant::now()))
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
        request = request.config().timeout_global(self.left()).build();
        if let Some(authorization) = &self.authorization {
            request = request.header("Authorization", authorization);
        }
        read(request.call())
    }

    fn post(&self, method: &str, body: &Value) -> Result<Value, Failure> {
        let mut request = self.agent.post(self.url(method)).header("Content-Type", "application/json");
        request = request.config().timeout_global(self.left()).build();
        if let Some(authorization) = &self.authorization {
            request = request.header("Authorization", authorization);
        }
        read(request.send(body.to_string()))
    }

    fn url(&self, method: &str) -> String {
        format!("{}/api/2.0/mlflow/{method}", self.address)
    }
}

/// Returns an answer, which is a JSON object. Anything else, as a proxy's page, is not from MLflow, and the server may be
/// there again later.
fn read(answer: Result<ureq::http::Response<ureq::Body>, ureq::Error>) -> Result<Value, Failure> {
    let failed = |error: ureq::Error| Failure { reason: error.to_string(), may_pass: true };
    let mut answer = answer.map_err(failed)?;
    let status = answer.status();
    let text = answer.body_mut().with_config().limit(LONGEST_ANSWER).lossy_utf8(true).read_to_string();
    if status.is_success() {
        let text = text.map_err(failed)?;
        return match serde_json::from_str(&text) {
            Ok(value @ Value::Object(_)) => Ok(value),
            _ => Err(Failure { may_pass: true, ..unexpected(&text) }),
        };
    }
    let text = text.unwrap_or_default();
    let value: Value = serde_json::from_str(&text).unwrap_or_default();
    let said = value["message"].as_str().unwrap_or(&text);
    let may_pass = status.is_server_error() || status.as_u16() == 429;
    Err(Failure { reason: format!("{status}: {}", cut(said)), may_pass })
}

fn unexpected(answer: impl ToString) -> Failure {
    let reason = format!("expected a JSON object of MLflow's API, found `{}`", cut(&answer.to_string()));
    Failure { reason, may_pass: false }
}

fn cut(text: &str) -> String {
    text.chars().take(LONGEST_REASON).collect()
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::TcpListener;
    use std::thread;

    use super::*;

    /// Answers each request with these bytes, and keeps the connection open.
    fn server(answer: impl AsRef<[u8]> + Send + 'static) -> Server {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = format!("http://{}", listener.local_addr().unwrap());
        thread::spawn(move || {
            let mut open = Vec::new();
            for mut stream in listener.incoming().flatten() {
                let mut request = [0; 4096];
                let _ = stream.read(&mut request);
                let _ = stream.write_all(answer.as_ref());
                open.push(stream);
            }
        });
        Server::new(address)
    }

    fn answer(status: u16, body: &str) -> String {
        format!("HTTP/1.1 {status} -\r\nContent-Length: {}\r\n\r\n{body}", body.len())
    }

    /// Numbers that a server did not take must wait, and not be counted as logged.
    #[test]
    fn an_answer_that_is_not_from_mlflow_logs_nothing() {
        for body in ["", "null", "[]", "<html>maintenance</html>", "{\"a\":", "\u{fffd}"] {
            let failure = server(answer(200, body)).log_metrics("r1", &[]).unwrap_err();
            assert!(failure.may_pass && failure.reason.contains("expected a JSON object"), "{failure:?}");
        }
        server(answer(200, "{}")).log_metrics("r1", &[]).unwrap();
        // JSON, but not of this request.
        let failure = server(answer(200, "{\"run\": 1}")).create_run("0", "a", 0).unwrap_err();
        assert!(!failure.may_pass && failure.reason.contains("`{\"run\":1}`"), "{failure:?}");
    }

    #[test]
    fn an_answer_is_read_within_bounds() {
        for status in [200, 500] {
            let long = server(answer(status, &"no".repeat(1 << 20))).log_metrics("r1", &[]).unwrap_err();
            assert!(long.may_pass && long.reason.len() < 500, "{}", long.reason.len());
        }
    }

    #[test]
    fn a_server_that_is_silent_or_stops_is_not_waited_for_beyond_the_deadline() {
        for bytes in ["", "HTTP/1.1 200 OK\r\nConte", "HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n{"] {
            let (server, began) = (server(bytes), Instant::now());
            server.answer_until(began + Duration::from_millis(300));
            for _ in 0..20 {
                assert!(server.log_metrics("r1", &[]).unwrap_err().may_pass);
            }
            assert!(began.elapsed() < Duration::from_secs(5), "{:?}", began.elapsed());
        }
    }
}
