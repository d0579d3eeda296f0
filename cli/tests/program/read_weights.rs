//! Pretrained weights are closed once they are read: a mapped file counts as memory of the program.

use std::fs;

use burn::module::Module;
use firebrick_strategies::{
    Effects, Grads, Outcome, Setup, SkipReason, Stage, Stages, Strategy, StrategyError, StrategyRecipe,
};
use serde::{Deserialize, Serialize};

use crate::own_program;
use crate::small_run::{RUN, folder_of};

/// Skips an update while the process maps this file.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SkipMapped {
    file: String,
}

impl StrategyRecipe for SkipMapped {
    fn effects(&self) -> Effects {
        Effects::of("SkipMapped")
    }
}

impl<M: Module> Strategy<M> for SkipMapped {
    fn stages(&self, _: &mut Setup<M>) -> Result<Stages<M>, StrategyError> {
        Ok(Stages::of(self.clone()))
    }
}

impl<M: Module> Stage<M> for SkipMapped {
    fn name(&self) -> &'static str {
        "SkipMapped"
    }

    fn collect(&mut self, _: &M, grads: Grads) -> Result<Outcome, StrategyError> {
        let mapped = fs::read_to_string("/proc/self/maps").unwrap();
        match mapped.contains(&self.file) {
            true => Ok(Outcome::Skip(SkipReason::Other(format!("{} is mapped", self.file)))),
            false => Ok(Outcome::Apply(grads)),
        }
    }
}

#[test]
fn a_run_closes_the_files_of_its_pretrained_weights() {
    let folder = folder_of(RUN, 40);
    let path = |name: &str| folder.path().join(name).display().to_string();
    let pretrained = path("first/pretrained");
    let train = |sets: &[&str]| {
        let data = format!("data.path={:?}", path("text.txt"));
        let sets = [&[data.as_str(), "steps=4"], sets].concat();
        assert!(own_program::run(&["train", &path("run.ron"), "--plain"], &sets));
    };
    train(&[&format!("output={:?}", path("first"))]);
    for (output, later) in [("read", ""), ("later", "Offload(optimizer), ")] {
        let file = fs::canonicalize(&pretrained).unwrap().join("model.safetensors");
        train(&[
            &format!("output={:?}", path(output)),
            &format!("model=Pretrained({pretrained:?})"),
            &format!("data.tokenizer=File({pretrained:?})"),
            &format!("strategies=[{later}SkipMapped(file: {file:?})]"),
        ]);
        let report = fs::read_to_string(folder.path().join(output).join("report.json")).unwrap();
        let report: serde_json::Value = serde_json::from_str(&report).unwrap();
        assert_eq!(
            (report["steps"].as_u64(), report["skipped_steps"].as_u64()),
            (Some(4), Some(0)),
            "{output}"
        );
    }
}
