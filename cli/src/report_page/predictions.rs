//! The model's predictions with errors marked: `predictions.jsonl` as part of a page.

use std::io::{self, BufRead};

use firebrick_datasets::counted;
use serde::Deserialize;
use serde_json::Value;

use super::escape::escape_start;
use super::number::count;
use super::tables::section;
use firebrick::observe::log::for_each_line;

/// The number of predictions to show.
const SHOWN: usize = 50;
/// The maximum number of characters of a text to show.
const TEXT: usize = 1500;
/// The maximum number of tokens of a text to show.
const TOKENS: usize = 300;
/// The label of a token outside of all entities.
const OUTSIDE: &str = "O";

/// One text, with a label for each token or one answer for all of it.
#[derive(Debug, Deserialize)]
struct Prediction {
    #[serde(default)]
    text: String,
    tokens: Option<Vec<Value>>,
    predicted: Value,
    expected: Value,
}

/// The first predictions, and the counts over all of them.
#[derive(Debug, Default)]
pub(crate) struct Predictions {
    /// List items: texts with a label for each token.
    labelled: Vec<String>,
    /// Table rows: texts with one answer.
    answered: Vec<String>,
    texts: u64,
    wrong_texts: u64,
    passed_over: u64,
}

impl Predictions {
    /// Reads all predictions, and keeps the first.
    pub fn read(file: impl BufRead) -> io::Result<Self> {
        let mut predictions = Self::default();
        for_each_line(file, |line, _| {
            match line.map(|line| (line.is_empty(), serde_json::from_slice(line))) {
                Some((_, Ok(prediction))) => predictions.add(&prediction),
                Some((true, Err(_))) => {}
                Some((false, Err(_))) | None => predictions.passed_over += 1,
            }
        })?;
        Ok(predictions)
    }

    fn add(&mut self, prediction: &Prediction) {
        self.texts += 1;
        let is_wrong = prediction.predicted != prediction.expected;
        self.wrong_texts += u64::from(is_wrong);
        if self.labelled.len() + self.answered.len() < SHOWN {
            match prediction.labels() {
                Some(labels) => self.labelled.push(item_of_tokens(&labels, is_wrong)),
                None => self.answered.push(row_of_text(prediction, is_wrong)),
            }
        }
    }

    /// The predictions as HTML; empty if there are none.
    pub fn html(&self) -> String {
        if self.texts == 0 {
            return String::new();
        }
        let passed = match self.passed_over {
            0 => String::new(),
            lines => format!(" Passed over: {} without a prediction.", counted(lines, "line")),
        };
        let shown = match self.texts > SHOWN as u64 {
            true => format!(" The first {SHOWN} are shown."),
            false => String::new(),
        };
        let (texts, right) = (count(self.texts as f64), count((self.texts - self.wrong_texts) as f64));
        let noun = if self.texts == 1 { "text" } else { "texts" };
        let (framed, list) = match self.labelled.is_empty() {
            true => ("", String::new()),
            false => (
                " in every part. A wrong token is framed, with what was expected",
                format!("<ol class=\"texts\">{}</ol>\n", self.labelled.concat()),
            ),
        };
        let words = format!("{right} of {texts} {noun} right{framed}.{shown}{passed}");
        section("Predictions", &format!("<p>{words}</p>\n{list}{}", self.table()))
    }

    /// The texts with one answer; empty if there are none.
    fn table(&self) -> String {
        match self.answered.is_empty() {
            true => String::new(),
            false => format!(
                "<div class=\"wide\"><table class=\"answers\"><thead><tr><th scope=\"col\">text</th>\
                 <th scope=\"col\">predicted</th><th scope=\"col\">expected</th><th scope=\"col\">is</th></tr></thead>\
                 <tbody>{}</tbody></table></div>\n",
                self.answered.concat()
            ),
        }
    }
}

/// A token with its predicted and its expected label.
struct Labelled {
    token: String,
    predicted: String,
    expected: String,
}

impl Prediction {
    /// The labels of its tokens, if the lists have equal lengths.
    fn labels(&self) -> Option<Vec<Labelled>> {
        let (tokens, Value::Array(predicted), Value::Array(expected)) =
            (self.tokens.as_ref()?, &self.predicted, &self.expected)
        else {
            return None;
        };
        if predicted.len() != tokens.len() || expected.len() != tokens.len() {
            return None;
        }
        let labels = tokens.iter().zip(predicted).zip(expected);
        let labelled = labels.map(|((token, predicted), expected)| Labelled {
            token: words(token),
            predicted: words(predicted),
            expected: words(expected),
        });
        Some(labelled.collect())
    }
}

/// A value as text: strings without quotes, lists with commas.
fn words(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        Value::Array(values) => values.iter().map(words).collect::<Vec<_>>().join(", "),
        other => other.to_string(),
    }
}

fn item_of_tokens(labels: &[Labelled], is_wrong: bool) -> String {
    let tokens = labels.iter().take(TOKENS).map(|Labelled { token, predicted, expected }| {
        let token = escape_start(token, 100);
        let (predicted_text, expected_text) = (escape_start(predicted, 60), escape_start(expected, 60));
        if predicted != expected {
            format!(
                "<span class=\"token wrong\">{token}<small>\u{2717} {predicted_text}, expected {expected_text}</small></span> "
            )
        } else if expected != OUTSIDE {
            format!("<span class=\"token right\">{token}<small>\u{2713} {predicted_text}</small></span> ")
        } else {
            format!("{token} ")
        }
    });
    let tokens: String = tokens.collect();
    let more = match labels.len().saturating_sub(TOKENS) {
        0 => String::new(),
        more => format!("<em>and {}</em>", counted(more, "more token")),
    };
    let class = if is_wrong { " class=\"has-wrong\"" } else { "" };
    format!("<li{class}>{tokens}{more}</li>\n")
}

fn row_of_text(prediction: &Prediction, is_wrong: bool) -> String {
    let text = match (&prediction.tokens, prediction.text.is_empty()) {
        (Some(tokens), true) => tokens.iter().map(words).collect::<Vec<_>>().join(" "),
        _ => prediction.text.clone(),
    };
    let (class, verdict) = if is_wrong { ("wrong", "\u{2717} wrong") } else { ("right", "\u{2713} right") };
    format!(
        "<tr class=\"{class}\"><td>{}</td><td data-name=\"predicted\">{}</td><td data-name=\"expected\">{}</td><td>{verdict}</td></tr>\n",
        escape_start(&text, TEXT),
        escape_start(&words(&prediction.predicted), TEXT),
        escape_start(&words(&prediction.expected), TEXT)
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wrong_tokens_say_what_was_expected() {
        let line = r#"{"text":"Ada in Rome","tokens":["Ada","in","Rome"],"predicted":["B-PER","O","O"],"expected":["B-PER","O","B-LOC"]}"#;
        let html = Predictions::read(line.as_bytes()).unwrap().html();
        assert!(
            html.contains("<span class=\"token right\">Ada<small>\u{2713} B-PER</small></span> in "),
            "{html}"
        );
        assert!(
            html.contains("<span class=\"token wrong\">Rome<small>\u{2717} O, expected B-LOC</small></span>"),
            "{html}"
        );
        assert!(html.contains("0 of 1 text right"), "{html}");
    }

    #[test]
    fn other_predictions_are_a_table() {
        let lines = "{\"text\":\"good\",\"predicted\":\"pos\",\"expected\":\"pos\"}\n\
                     {\"text\":\"bad\",\"predicted\":1,\"expected\":0}\nnothing\n";
        let html = Predictions::read(lines.as_bytes()).unwrap().html();
        assert!(
            html.contains("<tr class=\"wrong\"><td>bad</td><td data-name=\"predicted\">1</td><td data-name=\"expected\">0</td><td>\u{2717} wrong</td></tr>"),
            "{html}"
        );
        assert!(
            html.contains("1 of 2 texts right") && html.contains("Passed over: 1 line without"),
            "{html}"
        );
    }

    #[test]
    fn markup_in_predictions_is_text() {
        let evil = "<img src=x onerror=alert(1)></script>";
        let lines = format!(
            "{{\"text\":\"{evil}\",\"predicted\":\"{evil}\",\"expected\":[\"{evil}\"]}}\n\
             {{\"text\":\"\",\"tokens\":[\"{evil}\"],\"predicted\":[\"{evil}\"],\"expected\":[\"{evil}!\"]}}"
        );
        let html = Predictions::read(lines.as_bytes()).unwrap().html();
        assert!(html.contains("&lt;img") && !html.contains("<img") && !html.contains("</script"), "{html}");
        // Predictions of both kinds, each in its own place.
        assert!(html.contains("</li>\n</ol>") && html.contains("<tbody><tr"), "{html}");
    }

    #[test]
    fn many_predictions_are_counted_and_the_first_shown() {
        let lines = "{\"text\":\"a\",\"predicted\":1,\"expected\":1}\n".repeat(200);
        let html = Predictions::read(lines.as_bytes()).unwrap().html();
        assert_eq!(html.matches("<tr class").count(), SHOWN);
        assert!(html.contains("200 of 200 texts right") && html.contains("The first 50 are shown"), "{html}");
    }
}
