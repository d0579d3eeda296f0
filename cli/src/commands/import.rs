//! `firebrick import`: converts a DeepSpeed configuration to a run file, and reports what became of each field.

use std::fs::{self, OpenOptions};
use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};

use clap::Args;
use serde_json::json;

use crate::commands::run_args::ReportFormat;
use crate::console::{insist, print, print_json};
use crate::import::{Import, Imported, read_file};
use crate::{Run, RunError};

/// `firebrick import`.
#[derive(Debug, Args)]
pub(crate) struct ImportArgs {
    /// The DeepSpeed configuration. Without it, `--training-args` is what Trainer makes of them without DeepSpeed.
    #[arg(value_name = "DS_CONFIG.json", required_unless_present = "training_arguments")]
    config: Option<PathBuf>,
    /// Hugging Face's training arguments as JSON, as `TrainingArguments.to_json_string()` writes them, or some of them.
    /// They give the values of "auto", and what a ds_config does not contain. Also torchtitan's settings, a file with the
    /// ending `.toml`, whose `parallelism` is read.
    #[arg(long = "training-args", value_name = "ARGS.json")]
    training_arguments: Option<PathBuf>,
    /// Divides the global batch among this many ranks. Default: the number that follows from the batch sizes, or one.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=100_000))]
    ranks: Option<u64>,
    /// The run file to write. An existing file is not replaced. Default: standard output.
    #[arg(long, short, value_name = "FILE")]
    output: Option<PathBuf>,
    /// Writes a run file even if unsupported or unknown fields may change the result.
    #[arg(long)]
    allow_unsupported: bool,
    /// Format of the report on each field: a table on standard error, or one JSON object as the last line on standard
    /// output, which contains the run file too.
    #[arg(long, value_enum, default_value_t = ReportFormat::Text)]
    report: ReportFormat,
}

/// Runs `firebrick import`. Prints the report on the fields even if the import fails over some of them.
pub(crate) fn import(args: &ImportArgs) -> Result<(), RunError> {
    let read = |path: &Option<PathBuf>| match path {
        Some(path) => Ok::<_, RunError>(Some((path.display().to_string(), read_file(path)?))),
        None => Ok(None),
    };
    let (config, arguments) = (read(&args.config)?, read(&args.training_arguments)?);
    let mut import = match (&config, &arguments) {
        (Some((name, text)), None) => Import::of(name, text),
        (Some((name, text)), Some((of_args, args))) => {
            Import::of(name, text).training_arguments(of_args, args)
        }
        (None, Some((name, text))) => Import::of_training_arguments(name, text),
        // The command line requires one of the two.
        (None, None) => return Ok(()),
    };
    if let Some(ranks) = args.ranks {
        import = import.ranks(ranks);
    }
    let imported = import.run()?;
    let fields = imported.may_change_the_result().count();
    let refused = fields > 0 && !args.allow_unsupported;
    match args.report {
        ReportFormat::Text => insist(imported.table().trim_end()),
        ReportFormat::Json => {
            let run_file = (!refused).then_some(&imported.run_file);
            print_json(&json!({ "run_file": run_file, "fields": imported.rows }));
        }
    }
    if refused {
        return Err(RunError::NotImported(fields));
    }
    checked(&imported)?;
    match &args.output {
        Some(path) => write(path, &imported.run_file),
        None if args.report == ReportFormat::Text => {
            print(&imported.run_file);
            Ok(())
        }
        None => Ok(()),
    }
}

/// Checks that the run file is valid once its marks are filled in. So a schedule that does not end within the run is an
/// error now, not in training.
fn checked(imported: &Imported) -> Result<(), RunError> {
    Run::parse("the run file", &imported.filled_in(), &[] as &[&str]).map(drop)
}

fn write(path: &Path, text: &str) -> Result<(), RunError> {
    let file = OpenOptions::new().write(true).create_new(true).open(path);
    let written = file.and_then(|mut file| {
        // A half-written file is ours to remove, because no file of this name existed.
        file.write_all(text.as_bytes()).inspect_err(|_| drop(fs::remove_file(path)))
    });
    written.map_err(|error| {
        let reason = match error.kind() {
            ErrorKind::AlreadyExists => "it already exists: name another file, or remove it".into(),
            _ => error.to_string(),
        };
        RunError::Write { path: path.into(), reason }
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::RunStrategy;
    use firebrick::schedule::WarmupCosineLr;
    use firebrick_strategies::Order;

    /// Returns the run that a folder of `tests/import` imports to.
    fn run_of(folder: &Path) -> Result<Run, RunError> {
        let [config, arguments] =
            ["ds_config.json", "args.json"].map(|name| read_file(&folder.join(name)).ok());
        let import = match (&config, &arguments) {
            (Some(config), Some(arguments)) => {
                Import::of("ds_config.json", config).training_arguments("args.json", arguments)
            }
            (Some(config), None) => Import::of("ds_config.json", config),
            (None, arguments) => {
                Import::of_training_arguments("args.json", arguments.as_deref().unwrap_or_default())
            }
        };
        let imported = import.run()?;
        assert!(
            Run::parse("run.ron", &imported.run_file, &[] as &[&str]).is_err(),
            "data is to be filled in"
        );
        checked(&imported)?;
        Run::parse("run.ron", &imported.filled_in(), &[] as &[&str])
    }

    fn folder(name: &str) -> PathBuf {
        ["tests", "import", name].iter().collect()
    }

    #[test]
    fn every_configuration_makes_a_run() {
        let folders = fs::read_dir(folder("")).unwrap().map(|entry| entry.unwrap().path());
        let folders: Vec<_> = folders.filter(|path| path.is_dir()).collect();
        assert!(folders.len() >= 14, "{folders:?}");
        for folder in folders {
            run_of(&folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
        }
    }

    #[test]
    fn numbers_arrive() {
        let run = run_of(&folder("megatron_gpt")).unwrap();
        assert_eq!((run.batch.micro, run.ranks, run.steps), (Some(8), Some(16), Some(100_000)));
        assert!(
            run.schedule
                .downcast_ref::<WarmupCosineLr>()
                .is_some_and(|own| own.lr == 6e-4 && own.cos_min_ratio == 0.1)
        );
        let order = Order::of(run.strategies.iter().map(|strategy| strategy.effects())).unwrap();
        assert_eq!((order.micro_batches(), order.stage()), (4, 1));
        let names = run.strategies.iter().map(RunStrategy::name);
        assert_eq!(names.collect::<Vec<_>>(), ["Amp", "Recompute", "Accumulate", "Zero", "Clip"]);
    }

    #[test]
    fn a_run_file_is_never_replaced() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("run.ron");
        write(&path, "first").unwrap();
        let error = write(&path, "second").unwrap_err().to_string();
        assert!(error.contains("it already exists"), "{error}");
        assert_eq!(fs::read_to_string(path).unwrap(), "first");
    }

    #[test]
    fn what_cannot_be_a_run_is_rejected_at_once() {
        let config = r#"{"scheduler": {"type": "WarmupLR", "params": {"warmup_num_steps": 100}}}"#;
        let import =
            Import::of("ds_config.json", config).training_arguments("args.json", r#"{"max_steps": 50}"#);
        let error = checked(&import.run().unwrap()).unwrap_err().to_string();
        assert!(error.contains("`schedule.warmup` must be below `steps`, which is 50, found 100"), "{error}");
    }
}
