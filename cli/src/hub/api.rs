//! The Hub's API, as a push talks to it.

use std::time::Duration;

use serde_json::{Value, json};
use ureq::http::Response;
use ureq::{Agent, ResponseExt};

use super::HubError;
use super::cache::Environment;

/// How long to wait for a connection, and for the next bytes to be taken.
const SILENCE: Duration = Duration::from_secs(60);
/// How long an answer may take, once the request is sent: a commit takes the Hub a while.
const ANSWER: Duration = Duration::from_secs(120);
/// The most characters of an answer that an error has.
const LONGEST_REASON: usize = 300;

/// An answer, or why there is none.
type Answered = Result<Response<ureq::Body>, ureq::Error>;

/// The Hub, and the token that may write.
pub(super) struct Hub {
    agent: Agent,
    endpoint: String,
    token: String,
}

impl Hub {
    /// Opens the Hub of the environment.
    ///
    /// # Errors
    ///
    /// There is no token, or the network must not be used.
    pub fn open() -> Result<Self, HubError> {
        let Environment { endpoint, token, is_offline, .. } = Environment::read()?;
        if is_offline {
            let doing = "pushing".into();
            return Err(HubError::Other { doing, reason: "HF_HUB_OFFLINE is set; unset it".into() });
        }
        Ok(Self { agent: agent(SILENCE, ANSWER), endpoint, token: token.ok_or(HubError::NoToken)? })
    }

    pub fn agent(&self) -> &Agent {
        &self.agent
    }

    pub fn authorization(&self) -> String {
        format!("Bearer {}", self.token)
    }

    pub fn endpoint(&self) -> &str {
        &self.endpoint
    }

    /// Creates the repository of a model, unless it exists.
    pub fn create(&self, repository: &str, is_private: bool) -> Result<(), HubError> {
        let (organization, name) = repository.split_once('/').unwrap_or(("", repository));
        let body =
            json!({ "type": "model", "organization": organization, "name": name, "private": is_private });
        match self.accept(&format!("creating {repository}"), self.send("/api/repos/create", &body)) {
            // It exists.
            Err(HubError::Answer { status: 409, .. }) => Ok(()),
            // A token may write to a repository that it may not create.
            Err(HubError::Answer { status: 403, .. }) if self.shows(&format!("/api/models/{repository}")) => {
                Ok(())
            }
            answer => answer,
        }
    }

    /// Whether the Hub shows what is at a path.
    fn shows(&self, path: &str) -> bool {
        let request = self.agent.get(format!("{}{path}", self.endpoint));
        let answer = request.header("Authorization", self.authorization()).call();
        answer.is_ok_and(|answer| answer.status().is_success())
    }

    /// Creates a branch of a model's repository, unless it exists.
    pub fn create_branch(&self, repository: &str, branch: &str) -> Result<(), HubError> {
        let path = format!("/api/models/{repository}/branch/{branch}");
        let existing = format!("/api/models/{repository}/revision/{branch}");
        match self.accept(&format!("creating the branch {branch}"), self.send(&path, &json!({}))) {
            // It exists.
            Err(HubError::Answer { status: 409, .. }) => Ok(()),
            // A token may write to a branch that it may not create.
            Err(HubError::Answer { status: 403, .. }) if self.shows(&existing) => Ok(()),
            answer => answer,
        }
    }

    /// Posts JSON to a path, and returns the answer, which is JSON too.
    pub fn post(&self, doing: &str, path: &str, body: &Value) -> Result<Value, HubError> {
        self.read(doing, self.send(path, body))
    }

    fn send(&self, path: &str, body: &Value) -> Answered {
        let request = self.agent.post(format!("{}{path}", self.endpoint));
        let request = request.header("Content-Type", "application/json");
        let request = request.header("Authorization", self.authorization());
        request.send(body.to_string())
    }

    /// Returns an answer as JSON.
    ///
    /// # Errors
    ///
    /// The status is not a success, or the body is not JSON.
    pub fn read(&self, doing: &str, answer: Answered) -> Result<Value, HubError> {
        let text = self.text(doing, answer)?.map_err(|error| error.to_string());
        let value =
            text.and_then(|text| serde_json::from_str::<Value>(&text).map_err(|error| error.to_string()));
        value.map_err(|reason| HubError::Other {
            doing: doing.into(),
            reason: format!(
                "the answer of {} is not JSON ({reason}): check HF_ENDPOINT, and whether a proxy answers instead",
                self.endpoint
            ),
        })
    }

    /// Checks the status of an answer. Its body may be empty.
    ///
    /// # Errors
    ///
    /// The status is not a success.
    pub fn accept(&self, doing: &str, answer: Answered) -> Result<(), HubError> {
        self.text(doing, answer).map(drop)
    }

    /// Returns the body of an answer whose status is a success, or why the body cannot be read.
    fn text(&self, doing: &str, answer: Answered) -> Result<Result<String, ureq::Error>, HubError> {
        let mut answer = answer.map_err(|error| HubError::Unreachable {
            endpoint: self.endpoint.clone(),
            reason: error.to_string(),
            instead: "try again when it answers, or push the folder with `hf upload` from elsewhere".into(),
        })?;
        let status = answer.status();
        let text = answer.body_mut().read_to_string();
        if status.is_success() {
            return Ok(text);
        }
        let text = text.unwrap_or_default();
        let said: Value = serde_json::from_str(&text).unwrap_or_default();
        let reason = said["error"].as_str().unwrap_or(&text).chars().take(LONGEST_REASON).collect();
        let url = answer.get_uri().to_string();
        Err(HubError::Answer { doing: doing.into(), url, status: status.as_u16(), reason })
    }
}

/// Returns a client that is silent or waits for a silent server no longer than this.
fn agent(silence: Duration, answer: Duration) -> Agent {
    Agent::config_builder()
        // The text of an answer says why the Hub refuses.
        .http_status_as_error(false)
        .timeout_resolve(Some(silence))
        .timeout_connect(Some(silence))
        .timeout_per_write(Some(silence))
        .timeout_recv_response(Some(answer))
        .timeout_recv_body(Some(silence))
        .build()
        .into()
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::{TcpListener, TcpStream};
    use std::thread;
    use std::time::Instant;

    use super::*;

    /// A Hub that answers each request by `answer`, and keeps the connection open.
    fn hub(answer: fn(&mut TcpStream)) -> Hub {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let endpoint = format!("http://{}", listener.local_addr().unwrap());
        thread::spawn(move || {
            let mut open = Vec::new();
            for mut stream in listener.incoming().flatten() {
                let mut request = [0; 4096];
                let _ = stream.read(&mut request);
                answer(&mut stream);
                open.push(stream);
            }
        });
        let limit = Duration::from_millis(300);
        Hub { agent: agent(limit, limit), endpoint, token: "hf_1".into() }
    }

    /// Each would otherwise be waited for as long as it likes.
    #[test]
    fn a_hub_that_stops_in_its_answer_is_not_waited_for() {
        let answers: [fn(&mut TcpStream); 3] = [
            |_| (),
            |stream| stream.write_all(b"HTTP/1.1 200 OK\r\nContent-").unwrap(),
            |stream| stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 20\r\n\r\n{").unwrap(),
        ];
        for answer in answers {
            let (hub, began) = (hub(answer), Instant::now());
            let error = hub.post("asking", "/api", &json!({})).unwrap_err().to_string();
            assert!(error.contains(&hub.endpoint), "{error}");
            assert!(began.elapsed() < Duration::from_secs(20), "{:?}", began.elapsed());
        }
    }

    #[test]
    fn a_refusal_names_the_address_and_is_cut() {
        let hub = hub(|stream| {
            let head = "HTTP/1.1 418 -\r\nConnection: close\r\nContent-Length: 100000\r\n\r\n";
            stream.write_all((head.to_string() + &"no".repeat(50_000)).as_bytes()).unwrap();
        });
        let error = hub.post("asking", "/api", &json!({})).unwrap_err().to_string();
        assert!(
            error.contains("418: no") && error.contains(&format!("(at {}/api)", hub.endpoint)),
            "{error}"
        );
        assert!(error.len() < 500, "{}", error.len());
    }
}
