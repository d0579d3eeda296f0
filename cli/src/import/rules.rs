//! Rules for fields whose name, or name and value, determines the outcome: they have no effect or are not supported.

use super::Outcome;
use super::source::{Field, Source, is_below};

/// Tables of rules.
pub(super) type Rules = &'static [&'static [Rule]];

/// The outcome of a field.
pub(super) struct Rule {
    /// The path of the field; with `.*` at the end, all fields below it.
    pub path: &'static str,
    pub becomes: Becomes,
}

/// The outcome of fields, by their values.
pub(super) enum Becomes {
    /// Other code reads the field if it matters, and records its outcome. Otherwise, this is the reason.
    Read(&'static str),
    /// The field has no effect, for this reason.
    NoEffect(&'static str),
    /// The field is not supported, unless it has one of these values, as JSON, which need no support.
    Refused(&'static [&'static str], &'static str),
    /// Like `Refused`, but the trained model is the same without the field.
    Omitted(&'static [&'static str], &'static str),
}

/// Sets the outcome of all fields of a file that have none yet.
pub(super) fn apply(source: &mut Source, rules: Rules) {
    let absent = |field: &Field| source.get(&field.path).is_none();
    let said: Vec<_> = source
        .fields
        .iter()
        .filter(|field| field.outcome.is_none())
        .map(|field| match rules.iter().copied().flatten().find(|rule| rule.is_of(&field.path)) {
            _ if absent(field) => Outcome::no_effect("null is as if it were not there"),
            Some(rule) => rule.becomes.outcome(&field.value.to_string()),
            None if field.value.to_string() == "{}" && first_below(&field.path, rules).is_some() => {
                Outcome::no_effect("there is nothing in it")
            }
            None => Outcome::Unknown(nearest(&field.path, rules)),
        })
        .collect();
    let open = source.fields.iter_mut().filter(|field| field.outcome.is_none());
    open.zip(said).for_each(|(field, outcome)| field.outcome = Some(outcome));
}

/// Creates a rule of a table.
pub(super) const fn rule(path: &'static str, becomes: Becomes) -> Rule {
    Rule { path, becomes }
}

impl Rule {
    fn is_of(&self, path: &str) -> bool {
        match self.path.strip_suffix(".*") {
            Some(parent) => path == parent || is_below(path, parent),
            None => path == self.path,
        }
    }
}

impl Becomes {
    fn outcome(&self, value: &str) -> Outcome {
        let nothing = "as it is without it";
        match self {
            Self::Read(why) | Self::NoEffect(why) => Outcome::no_effect(*why),
            Self::Refused(harmless, _) | Self::Omitted(harmless, _) if harmless.contains(&value) => {
                Outcome::no_effect(nothing)
            }
            Self::Refused(_, instead) => Outcome::refused(*instead),
            Self::Omitted(_, instead) => Outcome::omitted(*instead),
        }
    }
}

fn first_below(path: &str, rules: Rules) -> Option<&'static str> {
    rules
        .iter()
        .copied()
        .flatten()
        .map(|rule| rule.path.trim_end_matches(".*"))
        .find(|known| is_below(known, path))
}

/// Returns the known field that may be meant: one below this path, one of the same name elsewhere, or one with a
/// similar name.
fn nearest(path: &str, rules: Rules) -> Option<String> {
    if let Some(part) = first_below(path, rules) {
        return Some(part.into());
    }
    let last = |path: &str| path.rsplit_once('.').map_or(path.to_string(), |(_, name)| name.to_string());
    let parent = |path: &str| path.rsplit_once('.').map_or("", |(parent, _)| parent).to_string();
    let known = || rules.iter().copied().flatten().map(|rule| rule.path.trim_end_matches(".*"));
    let name = last(path);
    if let Some(elsewhere) = known().find(|known| last(known) == name) {
        return Some(elsewhere.into());
    }
    let alike = |known: &str| match parent(known) == parent(path) {
        true => strsim::jaro_winkler(&last(known), &name),
        // The typo may be in the parent, but then the rest must match closely.
        false => strsim::normalized_damerau_levenshtein(known, path) - 0.05,
    };
    let alike = known().map(|known| (alike(known), known)).max_by(|(a, _), (b, _)| a.total_cmp(b));
    alike.filter(|(alike, _)| *alike > 0.8).map(|(_, known)| known.into())
}

#[cfg(test)]
mod tests {
    use super::super::rule_tables::{OF_DEEPSPEED, OF_TRAINING_ARGUMENTS};
    use super::*;

    #[test]
    fn a_name_that_is_not_known_is_told_with_the_nearest() {
        let near = |path: &str| nearest(path, OF_DEEPSPEED);
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
        let near = |path: &str| nearest(path, OF_TRAINING_ARGUMENTS);
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
    fn no_rule_hides_another() {
        for rules in [OF_DEEPSPEED, OF_TRAINING_ARGUMENTS] {
            let rules: Vec<_> = rules.iter().copied().flatten().collect();
            for (index, rule) in rules.iter().enumerate() {
                let path = rule.path.trim_end_matches(".*");
                let first = rules.iter().position(|rule| rule.is_of(path));
                assert_eq!(first, Some(index), "{}", rule.path);
            }
        }
    }
}
