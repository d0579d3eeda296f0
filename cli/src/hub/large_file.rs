//! The storage of large files, which takes them before a commit names them: git-lfs's batch API, with the Hub's uploads
//! in parts.

use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::path::Path;

use firebrick_datasets::counted;
use serde_json::{Value, json};
use ureq::SendBody;

use super::HubError;
use super::api::Hub;

/// A file that is stored by its sum.
pub(super) struct LargeFile<'a> {
    pub path: &'a Path,
    /// The SHA-256, in hexadecimal digits.
    pub oid: String,
    pub size: u64,
}

impl LargeFile<'_> {
    /// Uploads the file, unless the storage has it.
    pub fn upload(&self, hub: &Hub, repository: &str, revision: &str) -> Result<(), HubError> {
        let doing = format!("pushing {}", self.path.display());
        let body = json!({
            "operation": "upload",
            "transfers": ["basic", "multipart"],
            "objects": [{ "oid": self.oid, "size": self.size }],
            "hash_algo": "sha256",
            "ref": { "name": revision },
        });
        let url = format!("{}/{repository}.git/info/lfs/objects/batch", hub.endpoint());
        let asked = hub.agent().post(&url).header("Accept", "application/vnd.git-lfs+json");
        let asked = asked.header("Content-Type", "application/vnd.git-lfs+json");
        let asked = asked.header("Authorization", hub.authorization());
        let answer = hub.read(&doing, asked.send(body.to_string()))?;
        let object = &answer["objects"][0];
        if let Some(reason) = object["error"]["message"].as_str() {
            let status = object["error"]["code"].as_u64().unwrap_or(500) as u16;
            return Err(HubError::Answer { doing, url, status, reason: reason.into() });
        }
        if object["oid"] != self.oid {
            let reason = format!("the Hub does not say where to store the file of SHA-256 {}", self.oid);
            return Err(HubError::Other { doing, reason });
        }
        let upload = &object["actions"]["upload"];
        let Some(place) = upload["href"].as_str() else { return Ok(()) };
        match upload["header"]["chunk_size"].as_str().and_then(|size| size.parse::<u64>().ok()) {
            Some(size) if size > 0 => self.upload_parts(hub, &doing, place, &upload["header"], size)?,
            _ => {
                self.put(hub, &doing, place, 0, self.size)?;
            }
        }
        let verify = &object["actions"]["verify"];
        if let Some(place) = verify["href"].as_str() {
            let body = json!({ "oid": self.oid, "size": self.size });
            let request = hub.agent().post(place).header("Content-Type", "application/json");
            let request = request.header("Authorization", hub.authorization());
            hub.accept(&doing, request.send(body.to_string()))?;
        }
        Ok(())
    }

    /// Uploads the file in parts, each to an address that the header names by its number.
    fn upload_parts(
        &self,
        hub: &Hub,
        doing: &str,
        place: &str,
        header: &Value,
        size: u64,
    ) -> Result<(), HubError> {
        let addresses = header.as_object().into_iter().flatten();
        let mut addresses: Vec<(u64, &str)> =
            addresses.filter_map(|(name, value)| Some((name.parse().ok()?, value.as_str()?))).collect();
        addresses.sort();
        let (found, expected) = (addresses.len() as u64, self.size.div_ceil(size));
        if found != expected {
            let reason =
                format!("the Hub names {} for {}", counted(found, "address"), counted(expected, "part"));
            return Err(HubError::Other { doing: doing.into(), reason });
        }
        let mut parts = Vec::new();
        for (index, (number, address)) in (0..).zip(&addresses) {
            let begin = index * size;
            let etag = self.put(hub, doing, address, begin, size.min(self.size.saturating_sub(begin)))?;
            parts.push(json!({ "partNumber": number, "etag": etag }));
        }
        let body = json!({ "oid": self.oid, "parts": parts });
        let request = hub.agent().post(place).header("Content-Type", "application/vnd.git-lfs+json");
        let request = request.header("Accept", "application/vnd.git-lfs+json");
        hub.accept(doing, request.send(body.to_string()))
    }

    /// Sends a part of the file to an address, which needs no token, and returns the part's tag.
    fn put(&self, hub: &Hub, doing: &str, address: &str, begin: u64, size: u64) -> Result<String, HubError> {
        let failed =
            |error: std::io::Error| HubError::Other { doing: doing.into(), reason: error.to_string() };
        let mut file = File::open(self.path).map_err(failed)?;
        file.seek(SeekFrom::Start(begin)).map_err(failed)?;
        let mut part = file.take(size);
        // Storages take no body of unknown length.
        let request = hub.agent().put(address).header("Content-Length", size.to_string());
        let answer = request.send(SendBody::from_reader(&mut part));
        let tag = |answer: &ureq::http::Response<ureq::Body>| {
            let tag = answer.headers().get("etag").and_then(|tag| tag.to_str().ok());
            tag.unwrap_or_default().to_string()
        };
        let etag = answer.as_ref().map(tag).unwrap_or_default();
        hub.accept(doing, answer)?;
        Ok(etag)
    }
}
