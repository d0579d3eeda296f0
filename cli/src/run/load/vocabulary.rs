//! A vocabulary that is learned from the data's text.

use std::io;

use firebrick_datasets::{Fingerprint, SpecialNames, Tokenizer};

use super::Loading;
use super::kept::Place;
use crate::run::RunError;
use crate::token_cache::Entry;

impl Loading<'_> {
    /// Learns a vocabulary from a text, or reads the one that an earlier run learned from it.
    pub(super) fn learned(
        &self,
        text: &str,
        size: usize,
        special: SpecialNames,
    ) -> Result<Tokenizer, RunError> {
        let place = self.cache.as_ref().and_then(|_| {
            let settings = ("vocabulary", size, &special, Fingerprint::of(text));
            Place::of(format!("the vocabulary of {size} tokens that an earlier run learned"), &settings)
        });
        let read = |entry: &mut Entry| {
            let json = entry.frame()?.unwrap_or_default();
            let read = |json: &str| Tokenizer::from_json(json, special.clone()).map_err(io::Error::other);
            read(&String::from_utf8_lossy(&json))
        };
        if let Some(tokenizer) = place.as_ref().and_then(|place| self.found(place, read)) {
            return Ok(tokenizer);
        }
        let megabytes = text.len() as f64 / 1e6;
        self.say(&format!("learning a vocabulary of {size} tokens from {megabytes:.1} MB of text"));
        let tokenizer = Tokenizer::train_bpe_with(text, size, special.clone())?;
        if let (Some(place), Ok(json)) = (place, tokenizer.to_json()) {
            self.keep(&place, |writer| writer.frame(json.as_bytes()));
        }
        Ok(tokenizer)
    }
}
