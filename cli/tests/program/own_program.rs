//! A program that adds techniques of its own to `firebrick`, for the tests of each.

use std::fs;
use std::process::ExitCode;

use firebrick_cli::Program;

use crate::own_model::Bigram;
use crate::own_recipes::{SignSgd, SkipAbove};
use crate::own_schedule::Halved;
use crate::own_task::Backwards;
use crate::read_weights::SkipMapped;
use crate::small_run::{RUN, folder_of};

/// Returns the program.
pub fn program() -> Program {
    Program::new()
        .optimizer::<SignSgd>("SignSgd")
        .strategy::<SkipAbove>("SkipAbove")
        .strategy::<SkipMapped>("SkipMapped")
        .schedule::<Halved>("Halved")
        .model::<Bigram>("Bigram")
        .task::<Backwards>("Backwards")
}

/// Runs the program in this process and returns whether it succeeded.
pub fn run(arguments: &[&str], sets: &[&str]) -> bool {
    let sets = sets.iter().flat_map(|set| ["--set", set]);
    let arguments = ["firebrick"].into_iter().chain(arguments.iter().copied()).chain(sets);
    let code = program().run_from(arguments.map(String::from).collect::<Vec<_>>());
    format!("{code:?}") == format!("{:?}", ExitCode::SUCCESS)
}

#[test]
fn programs_of_one_process_know_their_own_techniques() {
    let rows = "data=(path: \"text.jsonl\", tokenizer: Characters, max_length: 16)";
    for sets in [
        &["optimizer=SignSgd(weight_decay: 0.1)"][..],
        &["strategies=[SkipAbove(bound: 1.0)]"],
        &["schedule=Halved(lr: 0.5, updates: 2)"],
        &["model=Bigram(temperature: 2.0)"],
        &[rows, "task=Backwards(field: \"title\")"],
    ] {
        let parse = |program: &Program, text: &str, sets: &[&str]| {
            program.parse("run.ron", text, sets).map_err(|error| error.to_string())
        };
        let run = parse(&program(), RUN, sets).unwrap();
        assert_eq!(parse(&program(), &run.to_ron(), &[]), Ok(run));
        let said = parse(&Program::new(), RUN, sets).unwrap_err();
        assert!(said.contains("unknown name `"), "{said}");
    }
}

#[test]
fn what_follows_the_training_knows_them_too() {
    let folder = folder_of("", 0);
    let text = fs::read_to_string("../examples/token_classification.ron").unwrap();
    let output = folder.path().join("out");
    let file = folder.path().join("run.ron");
    fs::write(&file, text.replace("examples/data/", "../examples/data/")).unwrap();
    let output_set = format!("output={:?}", output.display().to_string());
    let sets = ["optimizer=SignSgd(weight_decay: 0.1)", "steps=2", "epochs=None", &output_set];
    assert!(run(&["train", &file.display().to_string(), "--plain"], &sets));
    assert!(output.join("predictions.jsonl").is_file());
}
