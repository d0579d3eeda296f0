//! Parameter groups in a run file.

use firebrick_strategies::optim::Groups;
use firebrick_tasks::problem::{Problem, require};

use super::Run;

impl Run {
    /// Returns the run's parameter groups.
    pub fn groups(&self) -> Groups {
        let groups = self.param_groups.iter().cloned().fold(Groups::new(), Groups::with);
        groups.layer_decay(self.layer_decay)
    }
}

/// Returns the first invalid setting of a group.
pub(super) fn param_groups(run: &Run) -> Option<Problem> {
    let mut problems = run.param_groups.iter().enumerate().map(|(index, group)| {
        let field = |name: &str| format!("param_groups.{index}.{name}");
        let possible = |value: f64| value >= 0.0 && value.is_finite();
        let decay = group.weight_decay.unwrap_or(0.0);
        require(!group.paths.is_empty(), &field("paths"), "at least one path", "[]")
            .or_else(|| require(possible(group.lr_scale), &field("lr_scale"), "at least 0", group.lr_scale))
            .or_else(|| require(possible(decay.into()), &field("weight_decay"), "at least 0", decay))
    });
    problems.find_map(|problem| problem).or_else(|| {
        let decay = run.layer_decay.unwrap_or(1.0);
        require(decay > 0.0 && decay <= 1.0, "layer_decay", "above 0 and at most 1", decay)
    })
}

#[cfg(test)]
mod tests {
    use firebrick_strategies::optim::Group;

    use super::*;

    fn run(sets: &[&str]) -> Result<Run, String> {
        let text = include_str!("../../../examples/tinyshakespeare.ron");
        Run::parse("file", text, sets).map_err(|error| error.to_string())
    }

    #[test]
    fn groups_are_read_and_written() {
        let given = r#"param_groups=[(paths: ["tokens", "positions"], lr_scale: 0.1, weight_decay: 0.0), (paths: ["*.norm"])]"#;
        let run = run(&[given, "layer_decay=0.9"]).unwrap();
        let expected = Groups::new()
            .with(Group::of(["tokens", "positions"]).lr_scale(0.1).weight_decay(0.0))
            .with(Group::of(["*.norm"]))
            .layer_decay(0.9);
        assert_eq!(run.groups(), expected);
        assert_eq!(Run::parse("saved", &run.to_ron(), &[] as &[&str]).unwrap(), run);
        assert_eq!(self::run(&[]).unwrap().groups(), Groups::new());
    }

    #[test]
    fn what_cannot_be_is_refused_by_name() {
        for (set, expected) in [
            (r#"param_groups=[(paths: [])]"#, "`param_groups.0.paths` must be at least one path"),
            (
                r#"param_groups=[(paths: ["a"]), (paths: ["b"], lr_scale: -1)]"#,
                "`param_groups.1.lr_scale` must be at least 0",
            ),
            (
                r#"param_groups=[(paths: ["a"], weight_decay: inf)]"#,
                "`param_groups.0.weight_decay` must be at least 0",
            ),
            (r#"param_groups=[(paths: ["a"], lr: 1)]"#, "unknown name `lr`"),
            ("layer_decay=0", "`layer_decay` must be above 0 and at most 1"),
            ("layer_decay=1.1", "`layer_decay` must be above 0 and at most 1"),
            ("layer_decays=1", "did you mean `layer_decay`?"),
        ] {
            let said = run(&[set]).unwrap_err();
            assert!(said.contains(expected), "{set}: {said}");
        }
    }
}
