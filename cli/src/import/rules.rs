//! Rules for fields whose name, or name and value, determines the outcome: they have no effect or are not supported.
//!
//! The tables are in `rules/`; each says how it is written.

use super::Outcome;
use super::json::Field;
use super::source::{Source, is_below};

/// The tables for the fields of a ds_config.
pub(super) const OF_DEEPSPEED: &[&str] =
    &[include_str!("rules/deepspeed.txt"), include_str!("rules/zero.txt")];

/// The tables for the fields of training arguments.
pub(super) const OF_TRAINING_ARGUMENTS: &[&str] = &[include_str!("rules/training_arguments.txt")];

/// The same without a ds_config. The first rule of a field applies.
pub(super) const OF_ARGUMENTS_ALONE: &[&str] =
    &[include_str!("rules/arguments_alone.txt"), include_str!("rules/training_arguments.txt")];

/// The outcome of a field.
#[derive(Debug)]
struct Rule {
    /// The field.
    path: String,
    /// Whether the rule also applies to all fields below it.
    with_all_below: bool,
    /// `no effect`, `refused` or `omitted`.
    outcome: &'static str,
    /// Values with which the field has no effect.
    harmless: Vec<&'static str>,
    /// The reason, or what to write instead.
    text: &'static str,
}

/// Reads tables of rules.
fn read(tables: &[&'static str]) -> Vec<Rule> {
    let mut rules = Vec::new();
    for table in tables {
        let mut section = String::new();
        for line in table.lines().filter(|line| !line.is_empty() && !line.starts_with('#')) {
            if let Some(name) = line.strip_prefix('[').and_then(|line| line.strip_suffix(']')) {
                section = format!("{name}.");
                continue;
            }
            let mut cells = line.splitn(3, " | ");
            let (Some(names), Some(outcome), Some(text)) = (cells.next(), cells.next(), cells.next()) else {
                continue;
            };
            let (outcome, harmless) = outcome.split_once(" unless ").unwrap_or((outcome, ""));
            rules.extend(names.split(' ').map(|name| Rule {
                path: section.clone() + name.trim_end_matches(".*"),
                with_all_below: name.ends_with(".*"),
                outcome,
                harmless: harmless.split_whitespace().collect(),
                text,
            }));
        }
    }
    rules
}

/// Sets the outcome of every open field of a file.
pub(super) fn apply(source: &mut Source, tables: &[&'static str]) {
    let rules = read(tables);
    let absent = |field: &Field| source.get(&field.path).is_none();
    let said: Vec<_> = source
        .fields
        .iter()
        .filter(|field| field.outcome.is_none())
        .map(|field| match rule_of(&field.path, &rules) {
            _ if absent(field) => Outcome::no_effect("null counts as a missing field"),
            Some(rule) => rule.outcome_of(&field.value.to_string()),
            None if field.value == serde_json::json!({}) && first_below(&field.path, &rules).is_some() => {
                Outcome::no_effect("it is empty")
            }
            None => Outcome::Unknown(nearest(&field.path, &rules)),
        })
        .collect();
    let open = source.fields.iter_mut().filter(|field| field.outcome.is_none());
    open.zip(said).for_each(|(field, outcome)| field.outcome = Some(outcome));
}

/// Returns the rule of a field: its own, or that of a field above it.
fn rule_of<'a>(path: &str, rules: &'a [Rule]) -> Option<&'a Rule> {
    let above = |rule: &&Rule| rule.with_all_below && is_below(path, &rule.path);
    rules.iter().find(|rule| rule.path == path).or_else(|| rules.iter().find(above))
}

impl Rule {
    fn outcome_of(&self, value: &str) -> Outcome {
        match self.outcome {
            "no effect" => Outcome::no_effect(self.text),
            _ if self.harmless.contains(&value) => Outcome::no_effect("this value changes nothing"),
            "omitted" => Outcome::omitted(self.text),
            _ => Outcome::refused(self.text),
        }
    }
}

/// Returns the first known field below a path.
fn first_below<'a>(path: &str, rules: &'a [Rule]) -> Option<&'a str> {
    rules.iter().map(|rule| rule.path.as_str()).find(|known| is_below(known, path))
}

/// Returns the known field that resembles an unknown one.
fn nearest(path: &str, rules: &[Rule]) -> Option<String> {
    if let Some(part) = first_below(path, rules) {
        return Some(part.into());
    }
    let split = |path: &str| {
        let (parent, name) = path.rsplit_once('.').unwrap_or(("", path));
        (parent.to_string(), name.to_string())
    };
    let (parent, name) = split(path);
    let known = || rules.iter().map(|rule| rule.path.as_str());
    if let Some(elsewhere) = known().find(|known| split(known).1 == name) {
        return Some(elsewhere.into());
    }
    let alike = |known: &str| match split(known) {
        (same, known) if same == parent => strsim::jaro_winkler(&known, &name),
        // The typo may be in the parent, but then the rest must match closely.
        _ => strsim::normalized_damerau_levenshtein(known, path) - 0.05,
    };
    let alike = known().map(|known| (alike(known), known)).max_by(|(a, _), (b, _)| a.total_cmp(b));
    alike.filter(|(alike, _)| *alike > 0.8).map(|(_, known)| known.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_nearest_name_of_an_unknown_one() {
        let rules = read(OF_DEEPSPEED);
        let near = |path: &str| nearest(path, &rules);
        assert_eq!(near("gradient_acumulation_steps").as_deref(), Some("gradient_accumulation_steps"));
        assert_eq!(
            near("offload_optimizer.device").as_deref(),
            Some("zero_optimization.offload_optimizer.device")
        );
        assert_eq!(near("zero_optimisation.stage").as_deref(), Some("zero_optimization.stage"));
        assert_eq!(near("zero_optimization.overlap_com").as_deref(), Some("zero_optimization.overlap_comm"));
        assert_eq!(near("fp16.enable").as_deref(), Some("fp16.enabled"));
        assert_eq!(near("fp16").as_deref(), Some("fp16.enabled"));
        assert_eq!([near("qwertz"), near("optimizer.params.qwertz")], [None, None]);
        let rules = read(OF_TRAINING_ARGUMENTS);
        let near = |path: &str| nearest(path, &rules);
        assert_eq!(near("lr").as_deref(), None);
        assert_eq!(near("learning_rates").as_deref(), Some("learning_rate"));
    }

    #[test]
    fn the_value_decides_where_it_matters() {
        let mut source = Source::parse(
            "ds.json",
            "{\"gradient_allreduce_op\": \"mean\", \"elasticity\": {\"enabled\": true, \"version\": 0.1}, \"x\": null, \"scheduler\": {}}",
        )
        .unwrap();
        apply(&mut source, OF_DEEPSPEED);
        let said: Vec<_> = source.fields.iter().map(|field| field.outcome.as_ref().unwrap().name()).collect();
        assert_eq!(said, ["no effect", "not supported", "no effect", "no effect", "no effect"]);
    }

    #[test]
    fn each_line_of_a_table_is_a_rule_and_no_field_has_two() {
        for tables in [OF_DEEPSPEED, OF_TRAINING_ARGUMENTS, &OF_ARGUMENTS_ALONE[..1]] {
            for line in tables.iter().flat_map(|table| table.lines()) {
                let is_rule = line.split(" | ").count() == 3;
                assert!(is_rule || line.is_empty() || line.starts_with(['#', '[']), "{line}");
            }
            let rules = read(tables);
            for (index, rule) in rules.iter().enumerate() {
                assert!(["no effect", "refused", "omitted"].contains(&rule.outcome), "{rule:?}");
                let first = rules.iter().position(|other| {
                    (&other.path, other.with_all_below) == (&rule.path, rule.with_all_below)
                });
                assert_eq!(first, Some(index), "{}", rule.path);
            }
        }
    }
}
