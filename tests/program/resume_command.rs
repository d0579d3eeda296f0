//! Checkpoints as users of the program meet them: stopped by a signal, continued, shown, checked, compared, and made
//! one file.

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Stdio};

use assert_cmd::Command;
use predicates::str::contains;
use tempfile::TempDir;

/// A run of a second: dropout, evaluations, an average, and a checkpoint at every tenth update.
const RUN: &str = r#"(
    data: (path: "text.txt", tokenizer: Characters, block: 8, valid_fraction: 0.2),
    model: Gpt(layers: 2, heads: 2, width: 16, dropout: 0.1, tied: true),
    optimizer: AdamW(weight_decay: 0.1),
    schedule: Cosine(lr: 1e-2, warmup: 3),
    batch: (micro: 4, accumulate: 2),
    steps: 40,
    evaluate_every: 8,
    checkpoints: (every: 10, keep_last: 3, keep_best: 1),
    strategies: [Clip(norm: 1.0), Ema(decay: 0.9)],
    output: "out",
)
"#;

fn folder() -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("run.ron"), RUN).unwrap();
    fs::write(folder.path().join("text.txt"), "to be or not to be, that is the question\n".repeat(40))
        .unwrap();
    folder
}

fn firebrick(folder: &Path) -> Command {
    let mut command = Command::cargo_bin("firebrick").unwrap();
    command.current_dir(folder);
    command
}

fn train(folder: &Path, options: &[&str]) -> Command {
    let mut command = firebrick(folder);
    command.args(["train", "run.ron", "--report", "json"]).args(options);
    command
}

fn report(command: &mut Command) -> serde_json::Value {
    let output = command.assert().success().get_output().stdout.clone();
    serde_json::from_str(String::from_utf8(output).unwrap().lines().last().unwrap()).unwrap()
}

/// The numbers of each step and evaluation in the log, without times and sizes.
fn log(folder: &Path) -> Vec<String> {
    let text = fs::read_to_string(folder.join("metrics.jsonl")).unwrap();
    let lines = text.lines().map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap());
    let steps = lines.filter(|line| line["kind"] != "checkpoint");
    steps
        .map(|line| ["kind", "step", "loss", "learning_rate"].map(|name| line[name].to_string()).join(" "))
        .collect()
}

/// The tensors of a safetensors file: what follows the header, whose order of names may vary.
fn tensors(path: &Path) -> Vec<u8> {
    let bytes = fs::read(path).unwrap();
    let header = u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
    bytes[8 + header..].to_vec()
}

#[test]
fn a_run_goes_on_in_its_folder_as_if_it_had_never_ended() {
    let (folder, whole) = (folder(), folder());
    report(&mut train(whole.path(), &[]));
    // It fails, by itself, at a checkpoint that it had not reached: one that is over early stands for one that was killed.
    let first = report(&mut train(
        folder.path(),
        &["--set", "schedule=Cosine(lr: 1e-2, warmup: 3)", "--set", "steps=40"],
    ));
    assert_eq!(first["checkpoint_step"], 40);
    fs::remove_dir_all(folder.path().join("out/checkpoints/step-00000040")).unwrap();
    let said = train(folder.path(), &["--resume", "step-30"]).assert().success();
    said.stderr(contains("going on after update 30"));
    let out = |folder: &TempDir| folder.path().join("out");
    assert_eq!(log(&out(&folder)), log(&out(&whole)));
    for name in ["model.safetensors", "ema.safetensors", "best.safetensors"] {
        assert!(tensors(&out(&folder).join(name)) == tensors(&out(&whole).join(name)), "{name}");
    }
    assert!(!folder.path().join("out-1").exists(), "the run's own folder goes on");
    let of = |folder: &TempDir| {
        let step = out(folder).join("checkpoints/step-00000040");
        firebrick(folder.path()).args(["checkpoint", "verify"]).arg(&step).assert().success();
        step
    };
    let same = firebrick(folder.path()).args(["checkpoint", "diff"]).args([of(&folder), of(&whole)]).assert();
    same.success().stdout(contains("0 differ"));
    let other = out(&whole).join("checkpoints/step-00000030");
    let differ = firebrick(folder.path()).args(["checkpoint", "diff"]).args([of(&folder), other]).assert();
    differ.code(1).stdout(contains("tokens.weight")).stdout(contains("elements differ"));
}

#[test]
fn checkpoints_are_shown_and_kept_as_the_run_file_says() {
    let folder = folder();
    report(&mut train(folder.path(), &["--set", "checkpoints.every=5"]));
    let mut kept: Vec<_> = fs::read_dir(folder.path().join("out/checkpoints"))
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .filter(|name| name.starts_with("step-"))
        .collect();
    kept.sort();
    assert!(kept.len() == 3 || kept.len() == 4, "the newest three, and the best: {kept:?}");
    assert!(kept.ends_with(&["step-00000030", "step-00000035", "step-00000040"].map(String::from)));
    let shown = firebrick(folder.path()).args(["checkpoint", "show", "out", "--tensors"]).assert().success();
    for part in
        ["step             40", "ranks            1", "Clip, Ema", "moment", "average", "F32 [16, 48]"]
    {
        assert!(String::from_utf8_lossy(&shown.get_output().stdout).contains(part), "{part}");
    }
    let json = firebrick(folder.path()).args(["checkpoint", "show", "out", "--json"]).assert().success();
    let json: serde_json::Value = serde_json::from_slice(&json.get_output().stdout).unwrap();
    assert_eq!((&json["manifest"]["step"], &json["trainer"]["step"]), (&40.into(), &40.into()));
    assert!(json["trainer"]["run"].as_str().unwrap().contains("Cosine"));
}

#[test]
fn one_file_holds_the_weights_in_any_dtype_and_in_parts() {
    let folder = folder();
    report(&mut train(folder.path(), &["--ranks", "2", "--set", "batch.accumulate=1"]));
    let consolidate = |options: &[&str]| {
        let mut command = firebrick(folder.path());
        command.args(["consolidate", "out"]).args(options);
        command.assert()
    };
    consolidate(&["-o", "whole.safetensors"]).success().stdout(contains("whole.safetensors"));
    let whole = fs::metadata(folder.path().join("whole.safetensors")).unwrap().len();
    consolidate(&["-o", "half.safetensors", "--dtype", "bf16"]).success();
    let half = fs::metadata(folder.path().join("half.safetensors")).unwrap().len();
    assert!(half < whole * 7 / 10, "{half} of {whole}");
    consolidate(&["-o", "average.safetensors", "--average"]).success();
    assert!(
        tensors(&folder.path().join("average.safetensors"))
            != tensors(&folder.path().join("whole.safetensors"))
    );
    consolidate(&["-o", "parts/model.safetensors", "--sharded", "10kB"]).failure().stderr(contains("parts"));
    fs::create_dir(folder.path().join("parts")).unwrap();
    consolidate(&["-o", "parts/model.safetensors", "--sharded", "10kB"]).success();
    let index = fs::read_to_string(folder.path().join("parts/model.safetensors.index.json")).unwrap();
    assert!(index.contains("model-00001-of-0000"), "{index}");
}

#[test]
fn mistakes_are_told_with_what_to_do() {
    let folder = folder();
    let refused = |options: &[&str]| {
        let output = train(folder.path(), options).assert().code(1).get_output().stderr.clone();
        String::from_utf8(output).unwrap()
    };
    let none = refused(&["--resume"]);
    assert!(none.contains("no complete checkpoint") && none.contains("--resume auto"), "{none}");
    assert!(!folder.path().join("out").exists());
    report(&mut train(folder.path(), &["--resume", "auto"]));
    let changed = refused(&["--resume", "step-20", "--set", "seed=5", "--set", "steps=50"]);
    assert!(
        changed.contains("`seed` was 1337, and is 5") && changed.contains("--allow-changes"),
        "{changed}"
    );
    assert!(!changed.contains("steps"), "{changed}");
    let impossible = refused(&["--resume", "step-20", "--set", "model.layers=3", "--allow-changes"]);
    assert!(impossible.contains("`model.Gpt.layers` was 2, and is 3"), "{impossible}");
    let batch = refused(&["--resume", "step-20", "--ranks", "2"]);
    assert!(batch.contains("global batch"), "{batch}");
    report(&mut train(
        folder.path(),
        &["--resume", "step-20", "--ranks", "2", "--set", "batch.accumulate=1"],
    ));

    // What was damaged is refused, by its name, and the one before it still continues.
    let step = folder.path().join("out/checkpoints/step-00000040");
    let file = fs::read_dir(&step).unwrap().map(|entry| entry.unwrap().path());
    let file = file.into_iter().find(|path| path.to_string_lossy().contains("optimizer")).unwrap();
    let mut bytes = fs::read(&file).unwrap();
    *bytes.last_mut().unwrap() ^= 1;
    fs::write(&file, bytes).unwrap();
    let damaged = refused(&["--resume", "latest", "--set", "steps=60"]);
    assert!(damaged.contains("optimizer-0000") && damaged.contains("BLAKE3"), "{damaged}");
    let verified = firebrick(folder.path()).args(["checkpoint", "verify", "out"]).assert().failure();
    verified.stderr(contains("optimizer-0000")).stderr(contains("1 problem"));
    assert_eq!(report(&mut train(folder.path(), &["--resume", "step-30"]))["steps"], 40);
}

/// Flips the last bit of a file of a checkpoint.
fn damage(checkpoint: &Path, name: &str) {
    let file = fs::read_dir(checkpoint).unwrap().map(|entry| entry.unwrap().path());
    let file = file.into_iter().find(|path| path.to_string_lossy().contains(name)).unwrap();
    let mut bytes = fs::read(&file).unwrap();
    *bytes.last_mut().unwrap() ^= 1;
    fs::write(&file, bytes).unwrap();
}

#[test]
fn auto_goes_on_from_the_newest_sound_checkpoint_and_never_from_zero() {
    let folder = folder();
    let step = |step: u64| folder.path().join(format!("out/checkpoints/step-000000{step}"));
    report(&mut train(folder.path(), &[]));
    let auto = |steps: &str| train(folder.path(), &["--resume", "auto", "--set", steps]).assert();
    for ranks in ["1", "2"] {
        // The newest fails its sums, also where only its tensors do; the one before it is sound.
        let accumulate = if ranks == "1" { "batch.accumulate=2" } else { "batch.accumulate=1" };
        damage(&step(40), "parameters");
        let options = ["--resume", "auto", "--ranks", ranks, "--set", accumulate];
        let went_on = train(folder.path(), &options).assert().success();
        let said = String::from_utf8(went_on.get_output().stderr.clone()).unwrap();
        assert!(
            said.contains("warning: passed over a checkpoint") && said.contains("parameters-0000"),
            "{said}"
        );
        assert!(said.contains("going on after update 30"), "{said}");
    }
    // Nor does it count that all are of a newer version: that one would start again from zero, or over them.
    let steps: Vec<_> = fs::read_dir(folder.path().join("out/checkpoints"))
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.is_dir())
        .collect();
    for step in &steps {
        let manifest = fs::read_to_string(step.join("manifest.json")).unwrap();
        fs::write(step.join("manifest.json"), manifest.replace("\"format\": 2", "\"format\": 7")).unwrap();
    }
    let refused = auto("steps=50").code(1);
    let refused = refused.stderr(contains("none of the checkpoints here can be resumed from"));
    refused.stderr(contains("found format 7"));
    assert!(!folder.path().join("out-1").exists());
    // No manifest can be read.
    steps.iter().for_each(|step| fs::write(step.join("manifest.json"), "{").unwrap());
    auto("steps=50").code(1).stderr(contains("none of the checkpoints here can be resumed from"));
    steps.iter().for_each(|step| fs::remove_file(step.join("manifest.json")).unwrap());
    auto("steps=50").code(1).stderr(contains("manifest.json"));
    assert!(!folder.path().join("out-1").exists());
    // All are complete, and none keeps its sums.
    fs::remove_dir_all(folder.path().join("out")).unwrap();
    report(&mut train(folder.path(), &["--set", "checkpoints=(every: 20, keep_last: 9)"]));
    [20, 40].iter().for_each(|at| damage(&step(*at), "optimizer"));
    auto("steps=50").code(1).stderr(contains("BLAKE3")).stderr(contains("step-00000020"));
    // Without any the run starts from the beginning.
    fs::remove_dir_all(folder.path().join("out")).unwrap();
    auto("steps=4").success();
}

#[test]
fn a_checkpoint_of_another_format_is_never_replaced() {
    let folder = folder();
    report(&mut train(folder.path(), &[]));
    let newest = folder.path().join("out/checkpoints/step-00000040/manifest.json");
    let manifest = fs::read_to_string(&newest).unwrap();
    let other = manifest.replace("\"format\": 2", "\"format\": 7");
    assert_ne!(other, manifest);
    fs::write(&newest, &other).unwrap();
    // The run goes on from an older one; its last save, of the same step, is refused, and the exit code says so.
    let went_on = train(folder.path(), &["--resume", "auto"]).assert().failure();
    went_on
        .stderr(contains("found format 7"))
        .stderr(contains("going on after update 30"))
        .stderr(contains("nothing was replaced"));
    assert_eq!(fs::read_to_string(&newest).unwrap(), other);
}

/// The names in a folder, sorted.
fn names(folder: &Path) -> Vec<String> {
    let mut names: Vec<_> = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    names.sort();
    names.into_iter().map(|name| name.into_string().unwrap()).collect()
}

#[test]
fn a_start_that_comes_to_nothing_leaves_the_run_that_is_there() {
    let folder = folder();
    report(&mut train(folder.path(), &["--set", "seed=3"]));
    let (there, of_run) = (names(folder.path()), names(&folder.path().join("out")));
    let model = fs::read(folder.path().join("out/model.safetensors")).unwrap();
    let is_as_it_was = |options: &[&str]| {
        assert_eq!(names(folder.path()), there, "{options:?}");
        assert_eq!(names(&folder.path().join("out")), of_run, "{options:?}");
        assert!(fs::read(folder.path().join("out/model.safetensors")).unwrap() == model);
    };
    let failing: [&[&str]; 6] = [
        &["--resume", "no/such/path"],
        &["--resume", "step-31"],
        &["--resume", "out/checkpoints/step-00000040/trainer.ron"],
        &["--resume", "out", "--set", "seed=4"],
        &["--device-is-none"],
        &["--set", "device_budget=\"1kB\""],
    ];
    for options in failing {
        let refused = train(folder.path(), options).assert().failure();
        let said = String::from_utf8_lossy(&refused.get_output().stderr).into_owned();
        assert!(said.contains("error") && !said.contains("panicked"), "{options:?}: {said}");
        is_as_it_was(options);
    }
    // A start that is killed before its first update, at whatever moment.
    #[cfg(unix)]
    {
        let endless = ["--set", "batch=(micro: 1, accumulate: 1000000)", "--set", "evaluate_every=None"];
        let mut child = std::process::Command::new(assert_cmd::cargo::cargo_bin("firebrick"))
            .current_dir(folder.path())
            .args(["train", "run.ron", "--plain"])
            .args(endless)
            .spawn()
            .unwrap();
        while !folder.path().join(".out-starting/metrics.jsonl").exists() {
            assert!(child.try_wait().unwrap().is_none(), "it ended before it trained");
            std::thread::yield_now();
        }
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(fs::read(folder.path().join("out/model.safetensors")).unwrap() == model);
        assert!(!folder.path().join("out-1").exists());
    }
    // The next that trains keeps it under another name, and leaves nothing of the killed start.
    let moved = train(folder.path(), &[]).assert().success();
    moved.stderr(contains("kept the earlier run as out-1"));
    assert!(fs::read(folder.path().join("out-1/model.safetensors")).unwrap() == model);
    assert!(!folder.path().join(".out-starting").exists());
    assert_eq!(names(&folder.path().join("out")), of_run, "all of its files are in its own folder");
    // Of ranks, too, none writes a checkpoint into the folder of the run that is moved.
    let ranks = ["--ranks", "2", "--set", "batch.accumulate=1", "--set", "checkpoints=(every: 1)"];
    report(&mut train(folder.path(), &ranks));
    assert_eq!(names(&folder.path().join("out-2")), of_run);
    firebrick(folder.path()).args(["checkpoint", "verify", "out"]).assert().success();
}

/// Starts a run that would take minutes, and waits until it trains.
#[cfg(unix)]
fn started(folder: &Path, options: &[&str]) -> Child {
    let mut child = std::process::Command::new(assert_cmd::cargo::cargo_bin("firebrick"))
        .current_dir(folder)
        .args(["train", "run.ron", "--plain", "--report", "json"])
        .args(options)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stderr.take().unwrap()).lines();
    lines.find(|line| line.as_ref().unwrap().starts_with("step")).unwrap().unwrap();
    // What it says later must find a reader.
    std::thread::spawn(move || lines.for_each(drop));
    child
}

/// A step that lasts for minutes does not keep a run beyond its time of grace.
#[cfg(unix)]
#[test]
fn a_run_that_does_not_end_in_time_is_ended() {
    let folder = folder();
    fs::write(folder.path().join("text.txt"), "to be or not to be, that is the question\n".repeat(50_000))
        .unwrap();
    let mut child = std::process::Command::new(assert_cmd::cargo::cargo_bin("firebrick"))
        .current_dir(folder.path())
        .args(["train", "run.ron", "--plain", "--set", "checkpoints.grace=1"])
        .args(["--set", "batch=(micro: 1, accumulate: 1000000)", "--set", "evaluate_every=None"])
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    // It is written when nothing is left to be done before the first step.
    while !folder.path().join("out/metrics.jsonl").exists() {
        assert!(child.try_wait().unwrap().is_none(), "it ended before it trained");
        std::thread::yield_now();
    }
    assert!(
        std::process::Command::new("kill")
            .args(["-TERM", &child.id().to_string()])
            .status()
            .unwrap()
            .success()
    );
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(143));
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(said.contains("did not end within its 1 s of grace"), "{said}");
}

/// Whether whoever started these tests had SIGHUP ignored.
#[cfg(unix)]
fn hang_up_is_ignored() -> bool {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let ignored = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    ignored.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).is_some_and(|mask| mask & 1 != 0)
}

#[cfg(unix)]
#[test]
fn a_run_that_is_told_to_end_is_saved_and_goes_on() {
    for (signal, code, ranks) in [("-TERM", 143, "1"), ("-INT", 130, "2"), ("-HUP", 129, "1")] {
        if signal == "-HUP" && hang_up_is_ignored() {
            continue; // The program inherits that, and goes on, as `nohup` asks of it.
        }
        let folder = folder();
        let long = ["--set", "steps=1000000", "--set", "checkpoints=()", "--ranks", ranks];
        let child = started(folder.path(), &long);
        assert!(
            std::process::Command::new("kill")
                .args([signal, &child.id().to_string()])
                .status()
                .unwrap()
                .success()
        );
        let output = child.wait_with_output().unwrap();
        assert_eq!(output.status.code(), Some(code));
        let text = String::from_utf8(output.stdout).unwrap();
        let first: serde_json::Value = serde_json::from_str(text.lines().last().unwrap()).unwrap();
        let step = first["checkpoint_step"].as_u64().unwrap();
        assert_eq!(first["steps"], step);
        assert!(first["stopped"].as_str().unwrap().contains("interrupted"), "{first}");
        let more = (step + 3).to_string();
        let steps = format!("steps={more}");
        let options = ["--resume", "--ranks", ranks, "--set", &steps];
        assert_eq!(report(&mut train(folder.path(), &options))["steps"].to_string(), more);
        assert_eq!(
            log(&folder.path().join("out")).iter().filter(|line| line.contains("train")).count() as u64,
            step + 3
        );
    }
}
