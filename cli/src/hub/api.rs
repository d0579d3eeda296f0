//! The Hub's API, as a push talks to it.

use serde_json::{Value, json};
use ureq::Agent;
use ureq::http::Response;

use super::HubError;
use super::cache::Environment;

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
        match self.post(&format!("creating {repository}"), "/api/repos/create", &body) {
            // It exists.
            Err(HubError::Answer { status: 409, .. }) => Ok(()),
            answer => answer.map(drop),
        }
    }

    /// Creates a branch of a model's repository, unless it exists.
    pub fn create_branch(&self, repository: &str, branch: &str) -> Result<(), HubError> {
        let path = format!("/api/models/{repository}/branch/{branch}");
        match self.post(&format!("creating the branch {branch}"), &path, &json!({})) {
            // It exists.
            Err(HubError::Answer { status: 409, .. }) => Ok(()),
            answer => answer.map(drop),
        }
    }

    /// Posts JSON to a path.
    pub fn post(&self, doing: &str, path: &str, body: &Value) -> Result<Value, HubError> {
        let request = self.agent.post(format!("{}{path}", self.endpoint));
        let request = request.header("Content-Type", "application/json");
        let request = request.header("Authorization", self.authorization());
        self.read(doing, request.send(body.to_string()))
    }

    /// Returns an answer as JSON, or `null` if it is none.
    pub fn read(
        &self,
        doing: &str,
        answer: Result<Response<ureq::Body>, ureq::Error>,
    ) -> Result<Value, HubError> {
        let mut answer = answer.map_err(|error| HubError::Unreachable {
            endpoint: self.endpoint.clone(),
            reason: error.to_string(),
            instead: "try again when it answers, or push the folder with `hf upload` from elsewhere".into(),
        })?;
        let status = answer.status();
        let text = answer.body_mut().read_to_string().unwrap_or_default();
        if status.is_success() {
            return Ok(serde_json::from_str(&text).unwrap_or_default());
        }
        let said: Value = serde_json::from_str(&text).unwrap_or_default();
        let reason = said["error"].as_str().map_or(text, String::from);
        Err(HubError::Answer { doing: doing.into(), status: status.as_u16(), reason })
    }
}
