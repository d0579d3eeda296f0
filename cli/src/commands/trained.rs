//! The commands that use a trained run: `eval`, `predict` and `generate`.

use std::io::{BufReader, BufWriter, ErrorKind, Write, stdin, stdout};
use std::path::PathBuf;
use std::sync::Arc;

use clap::Args;
use firebrick_datasets::counted;

use crate::commands::decoding_args::DecodingArgs;
use crate::commands::run_args::ReportFormat;
use crate::commands::summary::Rows;
use crate::console::{print_written, tell, with_progress};
use crate::run::{Process, Registries};
use crate::trained_run::{Evaluated, Measure, Measured, PREDICTIONS, TEXTS, TrainedRun};
use crate::{Paths, RunError};
use firebrick::TrainError;
use firebrick::saving::Staged;

/// The trained run of a command.
#[derive(Debug, Args)]
struct TrainedArgs {
    /// The output folder of a run, or its run file.
    #[arg(value_name = "RUN")]
    run: PathBuf,
    /// A Hugging Face folder with the weights to use, or `hub:org/name`. Default: `pretrained` in the output folder,
    /// which holds the best weights of the run. It is exported first if the run has not finished.
    #[arg(long, value_name = "FOLDER")]
    weights: Option<PathBuf>,
    /// Overrides a field of the run file; the value is RON. May be given several times.
    #[arg(long = "set", value_name = "PATH=VALUE")]
    overrides: Vec<String>,
    /// Overrides the run's device: auto, cpu, cuda[:i], wgpu[:i] or vulkan[:i].
    #[arg(long, env = "BURN_DEVICE", value_name = "DEVICE")]
    device: Option<String>,
}

/// Files of records.
#[derive(Debug, Args)]
struct RecordArgs {
    /// Files to read, in the format of the run's data. Default: the run's validation data.
    #[arg(long, short, value_name = "FILE")]
    data: Vec<PathBuf>,
}

/// `firebrick eval`.
#[derive(Debug, Args)]
pub(crate) struct EvalArgs {
    #[command(flatten)]
    trained: TrainedArgs,
    #[command(flatten)]
    records: RecordArgs,
    #[command(flatten)]
    measure: MeasureArgs,
    /// Format of the result: `json` makes the last line on standard output one JSON object.
    #[arg(long, value_enum, default_value_t = ReportFormat::Text)]
    report: ReportFormat,
    #[command(flatten)]
    decoding: DecodingArgs,
}

/// The measure of `firebrick eval`.
#[derive(Debug, Args)]
#[command(next_help_heading = "Standard measures")]
struct MeasureArgs {
    /// Measures the perplexity of a causal language model on long texts, in windows that overlap: each token but a
    /// text's first counts once, after those before it in its window. A plain text file is one text; in other formats
    /// each record is one: a conversation as the chat template writes it, and of a pair the prompt with the chosen answer.
    #[arg(long, group = "measure")]
    perplexity: bool,
    /// Tokens of a window. Default: as many as the model reads.
    #[arg(long, value_name = "TOKENS", requires = "perplexity")]
    window: Option<usize>,
    /// Tokens between the beginnings of two windows: fewer give each token a longer context, and take longer. Default:
    /// half of the window.
    #[arg(long, value_name = "TOKENS", requires = "perplexity")]
    stride: Option<usize>,
    /// Measures multiple choice: the share of records whose right ending is the most likely one (`acc`), and the most
    /// likely one per character (`acc_norm`), as lm-evaluation-harness computes them.
    ///
    /// A record, such as a line of HellaSwag's JSONL, has a context (`context`, `ctx`, `query` or `question`), a list of
    /// endings (`endings` or `choices`), and the index of the right one (`label`, `answer`, `gold` or `answerKey`).
    #[arg(long, group = "measure")]
    choices: bool,
    /// Begins each text (`--perplexity`) or context (`--choices`) with the tokenizer's begin token, or else its end token,
    /// for models that were trained with it. A text that the tokenizer begins with it has it in any case.
    #[arg(long, requires = "measure", conflicts_with = "texts")]
    begin_token: bool,
    /// Scores the texts that the model writes against those that the records expect: BLEU and chrF as sacrebleu computes
    /// them, ROUGE as rouge_score does, exact match and F1 of words as SQuAD does. The options below say how texts are written.
    #[arg(long, group = "measure")]
    texts: bool,
}

impl EvalArgs {
    /// Returns the measure that is asked for, if one is. `of_run` is the length of the run's texts, if it sets one.
    fn measure(&self, of_run: Option<usize>) -> Option<Measure> {
        let MeasureArgs { perplexity, window, stride, choices, begin_token, texts } = self.measure;
        if perplexity {
            return Some(Measure::Perplexity { window, stride, begins: begin_token });
        }
        let choices = choices.then_some(Measure::Choices { begins: begin_token });
        choices.or_else(|| texts.then(|| Measure::Texts { decoding: self.decoding.decoding(of_run) }))
    }
}

/// `firebrick predict`.
#[derive(Debug, Args)]
pub(crate) struct PredictArgs {
    #[command(flatten)]
    trained: TrainedArgs,
    /// `-` answers the lines of standard input as they come: each is a record in JSON, or a text.
    #[arg(value_name = "-", value_parser = standard_input, conflicts_with = "data")]
    lines: Option<String>,
    #[command(flatten)]
    records: RecordArgs,
    /// The file to write. It is replaced when all records are answered, so it may be the file that is read; if the
    /// command fails, it stays as it was. Default: standard output.
    #[arg(long, short, value_name = "FILE")]
    output: Option<PathBuf>,
    /// Answers at most this many records.
    #[arg(long, value_name = "N")]
    limit: Option<usize>,
    #[command(flatten)]
    decoding: DecodingArgs,
}

fn standard_input(text: &str) -> Result<String, String> {
    match text {
        "-" => Ok(text.into()),
        _ => Err(format!("expected `-`, which is standard input; a file is named with --data {text}")),
    }
}

/// `firebrick generate`.
#[derive(Debug, Args)]
pub(crate) struct GenerateArgs {
    #[command(flatten)]
    trained: TrainedArgs,
    /// The prompt, or the source of a Seq2Seq model. May be given several times. Default: each line of standard input,
    /// which is answered as it comes.
    #[arg(long, short, value_name = "TEXT")]
    prompt: Vec<String>,
    /// The system's message before the prompt, for a run trained on conversations. Default: none.
    #[arg(long, value_name = "TEXT", conflicts_with = "raw")]
    system: Option<String>,
    /// Continues the prompt as it is. Default: a run trained on conversations answers it as a user's message.
    #[arg(long)]
    raw: bool,
    /// Shards the model over this many ranks, each on its own device if there are several, for a model that no device
    /// can hold. Default: 1, or one for each process that `mpirun` started.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=100_000))]
    ranks: Option<u64>,
    #[command(flatten)]
    decoding: DecodingArgs,
}

impl TrainedArgs {
    fn open(&self, registries: &Arc<Registries>) -> Result<TrainedRun, RunError> {
        let trained = TrainedRun::open_with(registries, &self.run, self.weights.as_deref(), &self.overrides)?;
        Ok(match &self.device {
            Some(device) => trained.on(device),
            None => trained,
        })
    }
}

impl RecordArgs {
    fn paths(&self) -> Option<Paths> {
        (!self.data.is_empty()).then(|| Paths::Several(self.data.clone()))
    }
}

/// Runs `firebrick eval`.
pub(crate) fn eval(args: &EvalArgs, registries: &Arc<Registries>) -> Result<(), RunError> {
    let trained = args.trained.open(registries)?;
    if let Some(measure) = args.measure(trained.written_tokens()) {
        let measured = trained.measure(&measure, args.records.paths(), tell)?;
        args.report.print(&measured, || measured_summary(&measured));
        return Ok(());
    }
    let evaluated = trained.evaluate(args.records.paths(), tell)?;
    args.report.print(&evaluated, || summary(&evaluated));
    Ok(())
}

fn measured_summary(measured: &Measured) -> String {
    let Measured { scores, samples, tokens, counted: [counted, predicted], .. } = measured;
    let mut rows = Rows::default();
    rows.extend(scores.iter().map(|(name, value)| (name, format!("{value:.4}"))));
    rows.extend([(counted, samples), (predicted, tokens)]);
    rows.text
}

fn summary(evaluated: &Evaluated) -> String {
    let Evaluated { loss, scores, items, samples, tokens_per_second } = evaluated;
    let mut rows = Rows::default();
    rows.add("loss", Some(format!("{loss:.4}")));
    rows.extend(scores.iter().map(|(name, value)| (name, format!("{value:.4}"))));
    rows.extend([("samples", samples), ("items", items)]);
    rows.add("tokens/s", Some(format!("{tokens_per_second:.0}")));
    rows.text
}

/// Runs `firebrick predict`.
pub(crate) fn predict(args: &PredictArgs, registries: &Arc<Registries>) -> Result<(), RunError> {
    // Before anything is read.
    let staged = args.output.as_deref().map(|path| match Staged::create(path) {
        Ok(output) => Ok((path, output)),
        Err(error) => Err(TrainError::file(path, "making the file", error)),
    });
    let staged = staged.transpose()?;
    let trained = args.trained.open(registries)?;
    let decoding = args.decoding.decoding(trained.written_tokens());
    let ask = |output: &mut dyn Write| match args.lines {
        Some(_) => trained.predict_lines(BufReader::new(stdin()), args.limit, &decoding, output, tell),
        None => trained.predict(args.records.paths(), args.limit, &decoding, output, tell),
    };
    let predicted = match staged {
        Some((path, mut output)) => {
            let predicted = ask(&mut output)?;
            output.finish().map_err(|error| match error.kind() {
                // A pipe has a path as well, such as `/dev/stdout`.
                ErrorKind::BrokenPipe => RunError::Unread,
                _ => TrainError::file(path, "writing", error).into(),
            })?;
            predicted
        }
        None => {
            let mut output = BufWriter::new(stdout());
            let predicted = ask(&mut output)?;
            output.flush().map_err(|error| RunError::output(PREDICTIONS, error))?;
            predicted
        }
    };
    let right = match predicted.expected {
        0 => String::new(),
        of => format!(", {} of {of} as expected", predicted.right),
    };
    tell(&format!("{}{right}", counted(predicted.answers, "answer")));
    Ok(())
}

/// Runs `firebrick generate`.
pub(crate) fn generate(args: &GenerateArgs, registries: &Arc<Registries>) -> Result<(), RunError> {
    let trained = args.trained.open(registries)?;
    let trained = match args.ranks {
        Some(ranks) => trained.over(ranks as usize),
        None => trained,
    };
    let trained = trained.raw(args.raw).system(args.system.clone());
    let decoding = args.decoding.decoding(trained.written_tokens());
    let leads = Process::this()?.leads();
    let written = |texts: Vec<String>| match leads {
        true => texts.into_iter().try_for_each(|text| print_written(&(text + "\n"))),
        false => Ok(()),
    };
    if args.prompt.is_empty() {
        return trained.generate_lines(BufReader::new(stdin()), &decoding, written);
    }
    let texts = with_progress("generating", || trained.generate(&args.prompt, &decoding))?;
    texts.into_iter().try_for_each(written).map_err(|error| RunError::output(TEXTS, error))
}
