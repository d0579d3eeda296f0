//! The command line: what the program prints and writes, and how it answers mistakes.

use std::fs;
use std::path::Path;

use assert_cmd::Command;
use predicates::prelude::*;
use predicates::str::contains;
use tempfile::TempDir;

use crate::small_run::folder_of;

/// A run that takes a second: characters, one layer, four steps.
const RUN: &str = r#"(
    data: (path: "text.txt", tokenizer: Characters, block: 8),
    model: Gpt(layers: 1, heads: 2, width: 8),
    optimizer: AdamW(weight_decay: 0.1),
    schedule: Cosine(lr: 1e-2, warmup: 1),
    batch: (micro: 4),
    steps: 4,
    evaluate_every: 2,
    output: "out",
)
"#;

/// Creates a folder with a run file and its text.
pub fn folder() -> TempDir {
    folder_of(RUN, 20)
}

pub fn firebrick(folder: &Path) -> Command {
    let mut command = Command::cargo_bin("firebrick").unwrap();
    command.current_dir(folder).arg("train").arg("run.ron");
    command
}

/// Returns the error for a run with these overrides.
fn refused(overrides: &[&str]) -> String {
    let folder = folder();
    let mut command = firebrick(folder.path());
    for set in overrides {
        command.arg("--set").arg(set);
    }
    command.env_remove("BURN_DEVICE"); // it would override the run's
    let output = command.assert().code(1).stdout("").get_output().stderr.clone();
    assert!(!folder.path().join("out").exists(), "refused before anything is written");
    let said = String::from_utf8(output).unwrap();
    assert!(!said.contains("panicked"), "{said}");
    said
}

#[test]
fn a_run_prints_its_report_and_leaves_its_files() {
    let folder = folder();
    let assert = firebrick(folder.path()).args(["--report", "json"]).assert().success();
    let stdout = String::from_utf8(assert.get_output().stdout.clone()).unwrap();
    let report: serde_json::Value = serde_json::from_str(stdout.lines().last().unwrap()).unwrap();
    let names = [
        "steps",
        "train_loss",
        "valid_loss",
        "tokens_per_second",
        "step_seconds_median",
        "skipped_steps",
        "gradient_norm",
        "parameters",
        "master_bytes",
        "replica_bytes",
        "gradient_bytes",
        "optimizer_bytes",
        "peak_bytes",
        "wall_seconds",
        "first_step_seconds",
    ];
    for name in names {
        assert!(report[name].is_number(), "{name} in {report}");
    }
    assert_eq!(report["steps"], 4);
    assert!(report["peak_bytes"].as_u64() > Some(0));
    for name in ["model.safetensors", "best.safetensors", "tokenizer.json", "run.ron", "report.json"] {
        assert!(folder.path().join("out").join(name).exists(), "{name}");
    }
    let log = fs::read_to_string(folder.path().join("out/metrics.jsonl")).unwrap();
    let lines: Vec<serde_json::Value> = log.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let kinds: Vec<_> = lines.iter().map(|line| line["kind"].as_str().unwrap()).collect();
    assert_eq!(kinds, ["train", "train", "valid", "train", "train", "valid"]);
    assert_eq!(lines[5]["loss"], report["valid_loss"]);
}

#[test]
fn without_a_terminal_there_are_plain_lines_on_stderr() {
    let folder = folder();
    let lines =
        contains("step      1/4  loss").and(contains("valid     4/4  loss")).and(contains("\u{1b}").not());
    firebrick(folder.path()).assert().success().stderr(lines).stdout(contains("saved in         out"));
}

#[test]
fn a_loss_scale_is_in_the_lines_the_log_and_the_report() {
    let folder = folder();
    let set = "strategies=[Amp(dtype: f16, keep_f32: [norms, head], evaluate_in: f32), Clip(norm: 1.0)]";
    let mut command = firebrick(folder.path());
    let assert = command.args(["--report", "json", "--set", set]).assert().success();
    let said = assert.get_output();
    assert!(String::from_utf8_lossy(&said.stderr).contains("scale 65536"));
    let report: serde_json::Value = serde_json::from_slice(&said.stdout).unwrap();
    assert_eq!(report["loss_scale"], 65536.0);
    let log = fs::read_to_string(folder.path().join("out/metrics.jsonl")).unwrap();
    let first: serde_json::Value = serde_json::from_str(log.lines().next().unwrap()).unwrap();
    assert_eq!(first["loss_scale"], 65536.0);
    // Without loss scaling there is no scale to show.
    let assert = firebrick(folder.path()).args(["--report", "json"]).assert().success();
    assert!(!String::from_utf8_lossy(&assert.get_output().stdout).contains("loss_scale"));
}

#[test]
fn the_saved_run_runs_again_and_the_earlier_one_is_kept() {
    let folder = folder();
    let loss = |command: &mut Command| -> serde_json::Value {
        let output = command.args(["--report", "json"]).assert().success().get_output().stdout.clone();
        let report: serde_json::Value = serde_json::from_slice(&output).unwrap();
        report["valid_loss"].clone()
    };
    let first =
        loss(firebrick(folder.path()).args(["--set", "seed=5", "--set", "strategies=[Clip(norm: 0.5)]"]));
    fs::copy(folder.path().join("out/run.ron"), folder.path().join("run.ron")).unwrap();
    assert_eq!(loss(&mut firebrick(folder.path())), first, "the saved run file is the whole run");
    assert!(folder.path().join("out-1/model.safetensors").exists());
}

#[test]
fn mistakes_in_a_field_name_the_place_and_the_nearest_name() {
    let unknown = refused(&["batch.mirco=4"]);
    assert!(
        unknown.contains("--set batch.mirco=4") && unknown.contains("did you mean `micro`?"),
        "{unknown}"
    );

    let folder = folder();
    fs::write(folder.path().join("run.ron"), RUN.replace("evaluate_every", "evaluate_evry")).unwrap();
    let nearest = contains("run.ron:8:").and(contains("did you mean `evaluate_every`?"));
    firebrick(folder.path()).assert().code(1).stderr(nearest);

    fs::write(folder.path().join("run.ron"), RUN.replace("Cosine", "Cosin")).unwrap();
    let nearest = contains("run.ron:5:").and(contains("did you mean `Cosine`?"));
    firebrick(folder.path()).assert().code(1).stderr(nearest);

    fs::write(folder.path().join("run.ron"), RUN.replace("steps: 4,", "")).unwrap();
    let both = contains("run.ron:1: `steps` must be given, or else `epochs`");
    firebrick(folder.path()).assert().code(1).stderr(both);

    fs::write(folder.path().join("run.ron"), RUN.replace("micro: 4", "micro: 0")).unwrap();
    let line = contains("run.ron:6: `batch.micro` must be at least 1");
    firebrick(folder.path()).assert().code(1).stderr(line);

    fs::write(folder.path().join("run.ron"), RUN.replace("batch: (micro: 4),", "")).unwrap();
    firebrick(folder.path()).assert().code(1).stderr(contains("the field `batch` is missing"));

    fs::write(folder.path().join("run.ron"), RUN.replace("micro: 4", "micro: \"4\"")).unwrap();
    firebrick(folder.path()).assert().code(1).stderr(contains("run.ron:6:"));

    fs::write(folder.path().join("run.ron"), &RUN[..RUN.len() - 3]).unwrap();
    let open = contains("expected `,`, or `)` for the bracket of line 1, found the end");
    firebrick(folder.path()).assert().code(1).stderr(open);
}

#[test]
fn impossible_values_are_refused_with_line_and_field() {
    let cases = [
        ("batch.micro=0", "--set batch.micro=0: `batch.micro` must be at least 1"),
        ("steps=0", "`steps` must be at least 1"),
        ("epochs=2", "not both (`None` takes one away), found both"),
        ("model.heads=3", "a multiple of `model.heads`, which is 3"),
        ("model.dropout=1.0", "`model.dropout` must be at least 0 and below 1"),
        ("data.valid_fraction=1.0", "`data.valid_fraction`"),
        ("data.block=0", "`data.block`"),
        ("data.tokenizer=Bpe(vocabulary: 9)", "at least 257"),
        ("schedule.lr=-1.0", "`schedule.lr` must be finite and above 0"),
        ("schedule.lr=inf", "found inf"),
        ("data.workers=5000", "at most 256 threads"),
        (
            "model.layers=1000000",
            "--set model.layers=1000000: `model.layers` must be at least 1 and at most 2000 (for a larger model, raise `model.width`)",
        ),
        ("model.width=16777218", "`model.width` must be at least 1 and at most 16777216, found"),
        (
            "model.width=4194306",
            "small enough that the default feed-forward width, 16777224, is at most 16777216, found 4194306",
        ),
        ("model.width=4194304", "for its 1 rank in this process"),
        ("data.block=1000001", "`data.block` must be at least 1 and at most a million tokens"),
        (
            "data.tokenizer=Bpe(vocabulary: 16777217)",
            "at least 257 (256 bytes and a merge) and at most 16777216",
        ),
        ("sample=(prompt: \"%\")", "`sample.prompt`"),
        ("schedule=Linear(lr: 1e-3, min_lr: 1e-2)", "`schedule.min_lr`"),
        ("schedule.warmup=4", "below `steps`, which is 4"),
        ("schedule.warmup=Ratio(1.5)", "`schedule.warmup` must be a Ratio of at least 0 and below 1"),
        ("schedule=OneCycle(min_lr: 0.0, lr: 1e-3)", "`schedule.first_step_size` must be below `steps`"),
        ("optimizer.betas=(0.9, 1.0)", "`optimizer.betas`"),
        ("strategies=[Clip()]", "Clip(norm: ..) or Clip(value: ..), found neither"),
        ("strategies=[Clip(norm: 0.0)]", "finite and above 0"),
        ("strategies=[Amp(f16), Clip(norm: 1.0), Amp(bf16)]", "Amp is named twice: keep one of them"),
        ("strategies=[Amp(dtype: f16, keep_f32: [path(\"block.*\")])]", "`blocks.0"),
        ("strategies=[Amp(dtype: f16, loss_scale: (interval: 0))]", "`strategies.0.loss_scale.interval`"),
        (
            "param_groups=[(paths: [\"block.0\"])]",
            "parameter group 0: no parameter of the model matches `block.0`",
        ),
        ("strategies=[Amp(half)]", "unknown name `half`"),
        ("strategies=[Amp(bf16), Amp(bf16)]", "Amp is named twice"),
        ("data.path=\"missing.txt\"", "missing.txt"),
        ("device=\"gpu\"", "expected auto, cpu, cuda, rocm, metal, vulkan or wgpu"),
        ("device=\"cpu:7\"", "no cpu:7 here; this machine has "),
    ];
    for (set, expected) in cases {
        let said = refused(&[set]);
        assert!(said.contains(expected), "{set}: {said}");
    }
    let both = refused(&["batch.accumulate=2", "strategies=[Accumulate(2)]"]);
    assert!(both.contains("`strategies.0` must be left out where `batch.accumulate` is given"), "{both}");
}

#[test]
fn data_that_cannot_be_trained_on_is_refused() {
    let folder = folder();
    fs::write(folder.path().join("text.txt"), "").unwrap();
    firebrick(folder.path()).assert().code(1).stderr(contains("has no text"));
    fs::write(folder.path().join("text.txt"), [0xff, 0xfe]).unwrap();
    firebrick(folder.path()).assert().code(1).stderr(contains("not UTF-8"));
    fs::write(folder.path().join("tokenizer.json"), "{}").unwrap();
    let file = ["--set", "data.tokenizer=File(\"tokenizer.json\")"];
    fs::write(folder.path().join("text.txt"), "some text to learn from").unwrap();
    firebrick(folder.path()).args(file).assert().code(1).stderr(contains("not a usable tokenizer.json"));
}

#[test]
fn an_output_that_cannot_be_written_is_told() {
    let folder = folder();
    fs::write(folder.path().join("file"), "").unwrap();
    let set = ["--set", "output=\"file/out\""];
    firebrick(folder.path())
        .args(set)
        .assert()
        .code(1)
        .stderr(contains("file/out").and(contains("panicked").not()));
}

#[test]
fn nothing_of_the_user_is_replaced() {
    // The folder of the run file and the text is not a valid output folder.
    let folder = folder();
    let set = ["--set", "output=\".\""];
    firebrick(folder.path()).args(set).assert().code(1).stderr(contains("choose another output"));
    assert_eq!(fs::read_to_string(folder.path().join("run.ron")).unwrap(), RUN);
}

#[test]
fn a_run_that_diverges_ends_with_advice() {
    let folder = folder();
    let sets = ["--set", "schedule.lr=1e30", "--set", "steps=1000"];
    let said = contains("the run has diverged").and(contains("panicked").not());
    firebrick(folder.path()).args(sets).assert().code(1).stderr(said);
}

/// A reader that closes the pipe does not end a run.
#[cfg(unix)]
#[test]
fn closed_pipes_end_nothing() {
    let folder = folder();
    let program = assert_cmd::cargo::cargo_bin("firebrick");
    let line = format!("{:?} train run.ron --set steps=50 2>&1 | head -n 1", program.display().to_string());
    let status = std::process::Command::new("sh").arg("-c").arg(line).current_dir(folder.path()).status();
    assert!(status.unwrap().success());
    assert!(folder.path().join("out/model.safetensors").exists());
}

/// A full disk gives an error that names the file, no panic, and no half-written file.
#[cfg(target_os = "linux")]
#[test]
fn a_full_disk_is_told() {
    let folder = folder();
    let program = assert_cmd::cargo::cargo_bin("firebrick");
    // Files may grow to 4 blocks of 512 bytes, which metrics.jsonl soon exceeds.
    let line = format!(
        "trap '' XFSZ; ulimit -f 4; {:?} train run.ron --set steps=50",
        program.display().to_string()
    );
    let output =
        std::process::Command::new("sh").arg("-c").arg(line).current_dir(folder.path()).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains("error: out/") && !said.contains("panicked"), "{said}");
    assert!(!folder.path().join("out/.staged-best.safetensors").exists());
}

#[test]
fn run_wrongly_it_says_how_to_run_it_rightly() {
    let mut command = Command::cargo_bin("firebrick").unwrap();
    command.assert().code(2).stderr(contains("firebrick train examples/causal_lm.ron"));
    let mut command = Command::cargo_bin("firebrick").unwrap();
    command.arg("tran").assert().code(2).stderr(contains("'train'"));
    let mut command = Command::cargo_bin("firebrick").unwrap();
    command.args(["train", "no.ron"]).assert().code(1).stderr(contains("no.ron: cannot read the run file"));
}

/// A signal ends the run at a step boundary, and the model is saved.
#[cfg(unix)]
#[test]
fn an_interrupt_stops_at_a_step_with_everything_saved() {
    use std::io::{BufRead, BufReader};
    use std::process::{Command, Stdio};

    let folder = folder();
    let mut child = Command::new(assert_cmd::cargo::cargo_bin("firebrick"))
        .current_dir(folder.path())
        .args(["train", "run.ron", "--set", "steps=1000000", "--report", "json"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    // The first line of a step shows that training has started.
    let mut stderr = BufReader::new(child.stderr.take().unwrap()).lines();
    stderr.find(|line| line.as_ref().is_ok_and(|line| line.starts_with("step"))).unwrap().unwrap();
    let id = child.id().to_string();
    assert!(Command::new("kill").args(["-INT", &id]).status().unwrap().success());
    stderr.for_each(drop);
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(130));
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(report["stopped"], "interrupted by SIGINT");
    assert!(report["steps"].as_u64().unwrap() < 1_000_000);
    let saved = fs::read(folder.path().join("out/model.safetensors")).unwrap();
    assert!(saved.len() > 1000);
}
