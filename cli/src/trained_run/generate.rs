//! Generating texts with a trained model, from prompts or sources.

use std::io::{self, BufRead};
use std::sync::Arc;

use burn::module::Module;
use burn::tensor::{Device, FloatDType};
use firebrick_datasets::Tokenizer;
use firebrick_strategies::{Composition, Pass, Setup, Zero};
use firebrick_world::Communicator;
use serde_json::Value;

use super::TrainedRun;
use super::incoming::{Incoming, Line, NoLine, TOGETHER, lines};
use crate::RunError;
use crate::console::{tell, with_progress};
use crate::run::parameters;
use firebrick::engine::ranks::each_rank;
use firebrick::gather::gather;
use firebrick::{AnyModel, TrainError, device};
use firebrick_models::AnyConfig;
use firebrick_models::decoding::Decoding;
use firebrick_models::inference::{Inference, Question};
use firebrick_tasks::{Writing, chat_prompt};

impl TrainedRun {
    /// Generates `decoding.returned` texts for each prompt. With a causal language model, each text includes its
    /// prompt; one that was trained on conversations answers each prompt as a user's message, unless the run is
    /// [raw](Self::raw). Texts end at the tokenizer's end token, unless `decoding` names others.
    ///
    /// [Several ranks](Self::over) share the model as [`Zero`](firebrick::Zero) does in stage 3: each holds a part, and
    /// blocks are gathered one at a time for each token. Each rank generates some of the texts, and every process
    /// returns all of them. The prompts are those of the first rank.
    ///
    /// # Errors
    ///
    /// The task generates no text, a setting is invalid, or a device or a rank fails.
    pub fn generate(&self, prompts: &[String], decoding: &Decoding) -> Result<Vec<Vec<String>>, RunError> {
        let mut texts = Vec::new();
        self.generate_for(Prompts::Given(prompts.to_vec()), decoding, &mut |of_prompt| {
            texts.push(of_prompt);
            Ok(())
        })?;
        Ok(texts)
    }

    /// Like [`generate`](Self::generate), but answers lines as they come: each is a prompt, and `written` gets its texts.
    /// An error comes after the texts of the lines before it. Several ranks read all lines first.
    ///
    /// # Errors
    ///
    /// Those of [`generate`](Self::generate), and those of `written`, which end the work: [`RunError::Unread`] if the
    /// reader of the texts is gone. A line that is not UTF-8, or longer than 1 MiB.
    pub fn generate_lines(
        &self,
        lines: impl BufRead + Send + 'static,
        decoding: &Decoding,
        mut written: impl FnMut(Vec<String>) -> io::Result<()>,
    ) -> Result<(), RunError> {
        self.generate_for(Prompts::Lines(Box::new(lines)), decoding, &mut written)
    }

    fn generate_for(
        &self,
        prompts: Prompts,
        decoding: &Decoding,
        written: &mut Written,
    ) -> Result<(), RunError> {
        let Some(writing) = self.run.task.writing() else {
            return Err(RunError::WritesNothing(self.run.task.name()));
        };
        let writing = match writing {
            Writing::Answer if self.raw => Writing::Continuation,
            other => other,
        };
        let (run, system) = (&self.run, self.system.as_deref());
        let folder = self.weights()?;
        let model = run.model_in(&folder)?;
        let (device, name) = run.find_device(tell)?;
        let config = model.config_in(&folder)?;
        let tokenizer = Tokenizer::from_file(folder.path())?.with_special(run.data.special.clone())?;
        run.task.require_fit(&config, &tokenizer, None)?;
        let tokenizer = Arc::new(run.task.prepare(tokenizer)?);
        let is_chat = writing == Writing::Answer;
        let asked = |prompt: String| match is_chat {
            true => Ok::<_, RunError>(chat_prompt(&tokenizer, system, &prompt)?),
            false => Ok(prompt),
        };
        let mut writer = Writer {
            inference: run.inference(&config, Some(&folder), &tokenizer, &device, decoding.clone())?,
            config: config.clone(),
            writing,
        };
        let prompts = match prompts {
            Prompts::Given(prompts) => prompts,
            Prompts::Lines(lines) if run.number_of_ranks() == 1 => {
                let model = config.load(&folder, &device)?.model;
                return writer.write_lines(&model, lines, asked, written);
            }
            Prompts::Lines(source) => all_prompts(lines(source))?,
        };
        let prompts = prompts.into_iter().map(asked).collect::<Result<Vec<_>, _>>()?;
        if run.number_of_ranks() == 1 {
            let model = config.load(&folder, &device)?.model;
            return handed_over(writer.write(&model, &prompts)?, written);
        }
        // The ranks share the weights in f32.
        let held = |processes| 4.0 * parameters(&config) / processes as f64;
        let world = run.world(device::alike(&run.device, &name), held)?;
        let mut jobs = Vec::new();
        for rank in world.join().map_err(TrainError::from)? {
            let device = world.device(rank.local_rank()).unwrap_or(&device).clone();
            let model = config.load_later(&folder, &device)?.model;
            jobs.push((rank, (model, device, prompts.clone())));
        }
        let texts = each_rank(jobs, world.limit(), move |world, (model, device, prompts)| {
            let (model, pass) = part(model, &device, &world)?;
            writer.clone().write_among((world, pass), &model, prompts)
        });
        handed_over(texts?, written)
    }
}

/// What errors call the output.
pub(crate) const TEXTS: &str = "the texts";

/// Gets the texts of each prompt, in order.
type Written<'a> = dyn FnMut(Vec<String>) -> io::Result<()> + 'a;

/// Where the prompts are.
enum Prompts {
    Given(Vec<String>),
    Lines(Box<dyn BufRead + Send>),
}

/// Hands over the texts of each prompt, until they cannot be written.
fn handed_over(texts: Vec<Vec<String>>, written: &mut Written) -> Result<(), RunError> {
    texts.into_iter().try_for_each(written).map_err(|error| RunError::output(TEXTS, error))
}

/// Returns the prompt of a line of standard input.
fn prompt_of((number, line): Line) -> Result<String, RunError> {
    line.map_err(|error| match error {
        NoLine::Malformed { expected, found } => {
            not_read(format!("line {number}: expected {expected}; found {found}"))
        }
        NoLine::Io(error) => not_read(error.to_string()),
    })
}

/// Returns the error for standard input that cannot be read.
fn not_read(reason: String) -> RunError {
    TrainError::file("standard input", "reading prompts", reason).into()
}

/// The most bytes of prompts that several ranks read before they generate the first text.
const MOST: usize = 64 << 20;

/// Returns the prompts of all lines of standard input.
fn all_prompts(lines: impl Iterator<Item = Line>) -> Result<Vec<String>, RunError> {
    let (mut prompts, mut bytes) = (Vec::new(), 0);
    for line in lines {
        let prompt = prompt_of(line)?;
        // A line end, too.
        bytes += prompt.len() + 1;
        if bytes > MOST {
            return Err(not_read(format!(
                "several ranks read all prompts before they answer, at most {MOST} bytes, and found more: give fewer at \
                 a time, or leave out --ranks to have each answered as it comes"
            )));
        }
        prompts.push(prompt);
    }
    Ok(prompts)
}

/// How to turn prompts into texts.
#[derive(Clone)]
struct Writer {
    config: AnyConfig,
    inference: Inference,
    writing: Writing,
}

impl Writer {
    /// Generates the texts of each prompt.
    fn write(&self, model: &AnyModel, prompts: &[String]) -> Result<Vec<Vec<String>>, TrainError> {
        let question = |prompt: &String| match &self.writing {
            Writing::Continuation | Writing::Answer => Question::Text(prompt.clone()),
            Writing::FromSource { prefix } => Question::Text(format!("{prefix}{prompt}")),
        };
        let questions: Vec<_> = prompts.iter().map(question).collect();
        let answers = self.config.answers(model, &questions, &self.inference)?;
        let texts = prompts.iter().zip(answers).map(|(prompt, mut answer)| {
            let texts = match answer.remove("texts") {
                Some(Value::Array(texts)) => texts,
                _ => answer.remove("predicted").into_iter().collect(),
            };
            let written = texts.into_iter().filter_map(|text| text.as_str().map(str::to_owned));
            let whole = |text: String| match &self.writing {
                Writing::Continuation => format!("{prompt}{text}"),
                Writing::Answer | Writing::FromSource { .. } => text,
            };
            written.map(whole).collect()
        });
        Ok(texts.collect())
    }

    /// Generates the texts of the lines that have come, and then waits for more. What comes before a line that cannot be
    /// read is written before its error is returned.
    fn write_lines(
        &mut self,
        model: &AnyModel,
        lines: Box<dyn BufRead + Send>,
        asked: impl Fn(String) -> Result<String, RunError>,
        written: &mut Written,
    ) -> Result<(), RunError> {
        let incoming = Incoming::of(lines).map_err(|error| not_read(error.to_string()))?;
        while let Some(lines) = incoming.next(TOGETHER) {
            let (mut prompts, mut failed) = (Vec::new(), None);
            for line in lines {
                match prompt_of(line).and_then(&asked) {
                    Ok(prompt) => prompts.push(prompt),
                    Err(error) => {
                        failed = Some(error);
                        break;
                    }
                }
            }
            let texts = with_progress("generating", || self.write(model, &prompts))?;
            self.inference.first += prompts.len() as u64;
            handed_over(texts, written)?;
            if let Some(error) = failed {
                return Err(error);
            }
        }
        Ok(())
    }

    /// Generates the texts of each prompt, divided evenly among the ranks.
    fn write_among(
        mut self,
        (world, pass): (Communicator, Pass),
        model: &AnyModel,
        prompts: Vec<String>,
    ) -> Result<Vec<Vec<String>>, TrainError> {
        // A launcher passes standard input to one process only.
        let prompts = gather(&world, "the prompts", &prompts)?.swap_remove(0);
        let each = prompts.len().div_ceil(world.size());
        let first = world.rank() * each;
        // If the prompts do not divide evenly, some ranks repeat prompts of other ranks, and their texts are dropped.
        let own: Vec<_> = prompts.iter().cycle().skip(first).take(each).cloned().collect();
        self.inference.first = first as u64;
        self.inference.among = Some((world.clone(), pass));
        let own = self.write(model, &own)?;
        let mut texts: Vec<_> = gather(&world, "the texts", &own)?.into_iter().flatten().collect();
        texts.truncate(prompts.len());
        Ok(texts)
    }
}

/// This rank's part of the model, and the evaluation pass that gathers the blocks. The rest of the model is dropped.
fn part(model: AnyModel, device: &Device, world: &Communicator) -> Result<(AnyModel, Pass), TrainError> {
    let mut setup = Setup::new(&model, device).among(world.clone());
    let mut stage = Zero::stage(3).start(&mut setup)?;
    let pass = setup.into_pass().evaluating(FloatDType::F32);
    let master = stage.init_master(model)?;
    let replica = stage.publish(master.clone())?;
    Ok((stage.evaluator(&master, replica)?.valid(), pass))
}
