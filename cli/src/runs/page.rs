//! Two runs on one page.

use std::path::Path;

use super::compared::Compared;
use super::listed::Listed;
use crate::report_page::chart::{Chart, Look};
use crate::report_page::curve::Curve;
use crate::report_page::escape::escape;
use crate::report_page::number::Unit;
use crate::report_page::record::Record;
use crate::report_page::{ReportPageError, page, save, tables};

impl Compared {
    /// Writes the page: the numbers of both runs, the settings that differ, and their curves over each other. The file is
    /// self-contained, as the report page of a run is. An existing file is replaced once the page is complete.
    ///
    /// # Errors
    ///
    /// The file cannot be written.
    pub fn write_page(&self, path: &Path) -> Result<(), ReportPageError> {
        save(path, &self.html())
    }

    fn html(&self) -> String {
        let names = self.names();
        let title = escape(&format!("{} and {}", names[0], names[1]));
        let mut body = format!("<header><h1>{title}</h1></header>\n{}", self.notes());
        let rows = |rows: Vec<(String, [String; 2])>| -> Vec<Vec<String>> {
            rows.into_iter().map(|(name, [one, other])| vec![name, one, other]).collect()
        };
        let heads = ["", names[0].as_str(), names[1].as_str()];
        body += &tables::section("Numbers", &tables::table("versions", &heads, &rows(self.numbers())));
        let settings = match self.settings_alike() {
            Some(words) => format!("<p>{}</p>\n", escape(words)),
            None => tables::table("versions", &heads, &rows(self.different_settings())),
        };
        body += &tables::section("Settings that differ", &settings);
        body += &self.all_curves(&names);
        page::document(&title, &body)
    }

    /// The runs as legends name them.
    fn names(&self) -> [String; 2] {
        let name = |letter: &str, run: &Listed| {
            let folder = run.folder.canonicalize().unwrap_or_else(|_| run.folder.clone());
            format!("{letter}: {}", folder.file_name().unwrap_or(folder.as_os_str()).to_string_lossy())
        };
        [name("A", &self.runs[0]), name("B", &self.runs[1])]
    }

    /// What the page lacks of a run.
    fn notes(&self) -> String {
        let notes = self.names().into_iter().zip(&self.runs).filter_map(|(name, run)| {
            let record = &run.record;
            match (record.steps, record.passed_over) {
                (None, 0) => Some(format!("{name} has made no step yet.")),
                (_, 0) => None,
                _ => Some(format!(
                    "Lines of the metrics.jsonl of {name} were passed over: damaged, or unknown."
                )),
            }
        });
        let items: String = notes.map(|note| format!("<li>{}</li>\n", escape(&note))).collect();
        if items.is_empty() { items } else { format!("<ul class=\"notes\">\n{items}</ul>\n") }
    }

    fn all_curves(&self, names: &[String; 2]) -> String {
        let ranges = || self.runs.iter().filter_map(|run| run.record.steps);
        let (Some(first), Some(last)) =
            (ranges().map(|range| range.0).min(), ranges().map(|range| range.1).max())
        else {
            return String::new();
        };
        let steps = (first as f64, last as f64);
        let both = |id: &str, title: &str, unit: Unit, curve: &dyn Fn(&Record) -> Option<&Curve>| {
            let chart = Chart::new(id, title, unit, steps);
            let looks = [Look::First, Look::Second];
            let lines = names.iter().zip(&self.runs).zip(looks);
            let chart = lines.fold(chart, |chart, ((name, run), look)| match curve(&run.record) {
                Some(curve) => chart.smooth(name, curve, look),
                None => chart,
            });
            chart.html()
        };
        let one = |id: &str, title: &str, unit: Unit, curve: fn(&Record) -> &Curve| {
            both(id, title, unit, &|record| Some(curve(record)))
        };
        let loss = one("loss", "Training loss, smoothed", Unit::Plain, |record| &record.loss);
        let mut small = one("valid-loss", "Validation loss", Unit::Plain, |record| &record.valid_loss);
        for (number, name) in self.scores().into_iter().enumerate() {
            let id = format!("score-{number}");
            small += &both(&id, name, Unit::Plain, &|record| record.scores.get(name));
        }
        small += &one("learning-rate", "Learning rate", Unit::Plain, |record| &record.learning_rate);
        small +=
            &one("gradient-norm", "Gradient norm, smoothed", Unit::Plain, |record| &record.gradient_norm);
        small +=
            &one("throughput", "Throughput, smoothed", Unit::PerSecond, |record| &record.tokens_per_second);
        small += &one("memory", "Memory, most so far", Unit::Bytes, |record| &record.peak);
        tables::section("Curves", &format!("{loss}<div class=\"charts\">\n{small}</div>"))
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::run::Registries;

    fn run(log: &str) -> tempfile::TempDir {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("metrics.jsonl"), log).unwrap();
        folder
    }

    fn html(first: &str, second: &str) -> String {
        let (first, second) = (run(first), run(second));
        Compared::read(Registries::built_in(), first.path(), second.path()).html()
    }

    const LOG: &str = concat!(
        r#"{"kind":"train","step":1,"loss":4.0,"learning_rate":0.1,"tokens":9,"seconds":0.5}"#,
        "\n",
        r#"{"kind":"train","step":2,"loss":3.5,"learning_rate":0.1,"tokens":9,"seconds":0.5}"#,
        "\n",
        r#"{"kind":"valid","step":2,"loss":3.0,"scores":{"<f1>":0.5}}"#,
        "\n"
    );

    #[test]
    fn curves_lie_over_each_other_on_the_steps_of_both() {
        let html = html(LOG, &LOG.replace("\"step\":2", "\"step\":9"));
        assert!(html.contains("Training loss, smoothed over steps 1 to 9."), "{html}");
        for (class, letter) in [("first", "A"), ("second", "B")] {
            assert!(html.contains(&format!("<li class=\"{class}\"><i></i>{letter}: ")), "{letter}: {html}");
        }
        assert!(html.contains("<figcaption>&lt;f1&gt;</figcaption>") && !html.contains("<f1>"), "{html}");
        assert!(html.contains("default-src 'none'") && !html.contains("src=\"http"), "{html}");
    }

    #[test]
    fn a_run_without_steps_or_with_a_damaged_log_is_noted() {
        let html = html("", &format!("nothing\n{LOG}"));
        assert!(html.contains("has made no step yet") && html.contains("were passed over"), "{html}");
        assert!(html.contains("Training loss, smoothed over steps 1 to 2."), "{html}");
    }
}
