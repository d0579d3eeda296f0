//! Checks of settings, alone and in combination.

use super::{Decoding, DecodingError, EarlyStopping};

impl Decoding {
    /// Checks the settings. [`write`](Self::write) also does so before it calls the model.
    ///
    /// # Errors
    ///
    /// A setting is out of range, or contradicts another.
    ///
    /// ```
    /// use firebrick_models::decoding::Decoding;
    ///
    /// let decoding = Decoding { beams: 4, temperature: 0.7, ..Decoding::default() };
    /// assert_eq!(
    ///     decoding.check().unwrap_err().to_string(),
    ///     "the decoding's `temperature` is 0.7 and its `beams` 4: beam search does not sample; set `temperature` to 0, or `beams` to 1"
    /// );
    /// ```
    pub fn check(&self) -> Result<(), DecodingError> {
        self.check_ranges()?;
        self.check_together()
    }

    fn check_ranges(&self) -> Result<(), DecodingError> {
        for (field, found) in
            [("max_new_tokens", self.max_new_tokens), ("beams", self.beams), ("returned", self.returned)]
        {
            if found == 0 {
                return Err(DecodingError::Setting { field, expected: "at least 1", found: "0".into() });
            }
        }
        let temperature = self.temperature >= 0.0 && self.temperature.is_finite();
        // Within these bounds, no score leaves the range of f64 for any finite logits.
        let penalty = (0.01..=100.0).contains(&self.repetition_penalty);
        let length = (-10.0..=10.0).contains(&self.length_penalty);
        let share = |share: f64| (0.0..=1.0).contains(&share);
        for (is_right, field, expected, found) in [
            (temperature, "temperature", "finite and at least 0", self.temperature),
            (share(self.top_p), "top_p", "at least 0 and at most 1", self.top_p),
            (share(self.min_p), "min_p", "at least 0 and at most 1", self.min_p),
            (penalty, "repetition_penalty", "at least 0.01 and at most 100", self.repetition_penalty),
            (length, "length_penalty", "at least -10 and at most 10", self.length_penalty),
        ] {
            if !is_right {
                return Err(DecodingError::Setting { field, expected, found: found.to_string() });
            }
        }
        Ok(())
    }

    fn check_together(&self) -> Result<(), DecodingError> {
        let (searches, draws) = (self.beams > 1, self.temperature > 0.0);
        let contradiction = |field, found: String, other, other_found: String, instead| {
            Err(DecodingError::Contradiction { field, found, other, other_found, instead })
        };
        let (beams, temperature) = (self.beams.to_string(), self.temperature.to_string());
        let returned = self.returned.to_string();
        if self.min_new_tokens > self.max_new_tokens {
            let (least, most) = (self.min_new_tokens.to_string(), self.max_new_tokens.to_string());
            let instead = "no text satisfies both; lower the first or raise the second";
            return contradiction("min_new_tokens", least, "max_new_tokens", most, instead);
        }
        if searches && draws {
            let instead = "beam search does not sample; set `temperature` to 0, or `beams` to 1";
            return contradiction("temperature", temperature, "beams", beams, instead);
        }
        for (filters, field, found) in [
            (self.top_k > 0, "top_k", self.top_k.to_string()),
            (self.top_p < 1.0, "top_p", self.top_p.to_string()),
            (self.min_p > 0.0, "min_p", self.min_p.to_string()),
        ] {
            if filters && searches {
                let instead = "beam search does not sample; remove the first, or set `beams` to 1 and `temperature` above 0";
                return contradiction(field, found, "beams", beams, instead);
            }
            if filters && !draws {
                let instead = "decoding does not sample at temperature 0; remove the first, or raise the second above 0";
                return contradiction(field, found, "temperature", temperature, instead);
            }
        }
        if searches && self.returned > self.beams {
            let instead =
                "beam search returns at most one text per beam; lower the first or raise the second";
            return contradiction("returned", returned, "beams", beams, instead);
        }
        if !searches && !draws && self.returned > 1 {
            let instead =
                "greedy decoding generates one text; set `returned` to 1, or raise `temperature` or `beams`";
            return contradiction("returned", returned, "temperature", temperature, instead);
        }
        let default = Self::default();
        for (is_set, field, found) in [
            (
                self.length_penalty != default.length_penalty,
                "length_penalty",
                self.length_penalty.to_string(),
            ),
            (
                self.early_stopping != EarlyStopping::default(),
                "early_stopping",
                format!("{:?}", self.early_stopping),
            ),
        ] {
            if is_set && !searches {
                let instead = "only beam search uses the first; remove it, or raise `beams`";
                return contradiction(field, found, "beams", beams, instead);
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(json: &str) -> Result<Decoding, serde_json::Error> {
        serde_json::from_str(json)
    }

    #[test]
    fn invalid_or_contradictory_settings_are_named() {
        for (json, expected) in [
            (r#"{"max_new_tokens": 0}"#, "`max_new_tokens` must be at least 1, found 0"),
            (r#"{"beams": 0}"#, "`beams` must be at least 1, found 0"),
            (r#"{"returned": 0}"#, "`returned` must be at least 1, found 0"),
            (r#"{"temperature": -0.5}"#, "`temperature` must be finite and at least 0, found -0.5"),
            (r#"{"temperature": 1, "top_p": 1.5}"#, "`top_p` must be at least 0 and at most 1, found 1.5"),
            (r#"{"temperature": 1, "min_p": -1}"#, "`min_p` must be at least 0 and at most 1, found -1"),
            (
                r#"{"repetition_penalty": 0}"#,
                "`repetition_penalty` must be at least 0.01 and at most 100, found 0",
            ),
            (
                r#"{"num_beams": 2, "length_penalty": 11}"#,
                "`length_penalty` must be at least -10 and at most 10",
            ),
            (r#"{"min_new_tokens": 21}"#, "`min_new_tokens` is 21 and its `max_new_tokens` 20: "),
            (r#"{"beams": 4, "temperature": 0.7}"#, "`temperature` is 0.7 and its `beams` 4: "),
            (r#"{"beams": 4, "top_k": 50}"#, "`top_k` is 50 and its `beams` 4: "),
            (r#"{"top_k": 50}"#, "`top_k` is 50 and its `temperature` 0: "),
            (r#"{"top_p": 0.9}"#, "`top_p` is 0.9 and its `temperature` 0: "),
            (r#"{"min_p": 0.1}"#, "`min_p` is 0.1 and its `temperature` 0: "),
            (r#"{"beams": 2, "returned": 3}"#, "`returned` is 3 and its `beams` 2: "),
            (r#"{"returned": 3}"#, "`returned` is 3 and its `temperature` 0: "),
            (r#"{"length_penalty": 2}"#, "`length_penalty` is 2 and its `beams` 1: "),
            (r#"{"early_stopping": "Full"}"#, "`early_stopping` is Full and its `beams` 1: "),
        ] {
            let error = of(json).unwrap().check().unwrap_err().to_string();
            assert!(error.contains(expected), "{json}: {error}");
        }
        for temperature in [f64::NAN, f64::INFINITY] {
            assert!(Decoding { temperature, ..Decoding::default() }.check().is_err());
            assert!(
                Decoding { length_penalty: temperature, beams: 2, ..Decoding::default() }.check().is_err()
            );
        }
    }

    #[test]
    fn valid_settings_pass() {
        for json in [
            "{}",
            r#"{"temperature": 0.7, "top_k": 50, "top_p": 0.9, "min_p": 0.05, "returned": 3}"#,
            r#"{"num_beams": 4, "length_penalty": 2, "early_stopping": "Impossible", "num_return_sequences": 4}"#,
            r#"{"min_new_tokens": 20, "repetition_penalty": 1.2, "no_repeat_ngram_size": 3, "eos_token_id": [1]}"#,
        ] {
            assert_eq!(of(json).unwrap().check(), Ok(()), "{json}");
        }
    }

    #[test]
    fn unknown_settings_are_errors_and_known_ones_round_trip() {
        assert!(of(r#"{"top_q": 1}"#).unwrap_err().to_string().contains("unknown field `top_q`"));
        let decoding = of(r#"{"beams": 3, "end_tokens": [2, 5]}"#).unwrap();
        assert_eq!(of(&serde_json::to_string(&decoding).unwrap()).unwrap(), decoding);
    }
}
