//! The Hub's API, as a push talks to it.

use serde_json::{Value, json};
use ureq::Agent;
use ureq::http::Response;

use super::HubError;
use super::cache::Environment;

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
        let Environment { endpoint, token, is_offline, .. } = Environment::read();
        if is_offline {
            let doing = "pushing".into();
            return Err(HubError::Other { doing, reason: "HF_HUB_OFFLINE is set; unset it".into() });
        }
        // The text of an answer says why the Hub refuses.
        let agent = Agent::config_builder().http_status_as_error(false).build().into();
        Ok(Self { agent, endpoint, token: token.ok_or(HubError::NoToken)? })
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
        let reason = said["error"].as_str().map_or(text, String::from);
        Err(HubError::Answer { doing: doing.into(), status: status.as_u16(), reason })
    }
}
