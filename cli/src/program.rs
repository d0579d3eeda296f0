//! The program, with what you add to it.

use std::env;
use std::ffi::OsString;
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;

use firebrick::schedule::ScheduleRecipe;
use firebrick::{AnyModel, Schedule};
use firebrick_strategies::Strategy;
use firebrick_strategies::optim::OptimizerRecipe;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::arguments;
use crate::burn_device;
use crate::cli::Cli;
use crate::run::Registries;
use crate::schema::schema;
use crate::{DataRun, Run, RunError, Task, TaskConfig, TrainedRun};
use firebrick_models::family::Trainable;
use firebrick_tasks::TokenCache;

/// The program `firebrick`, whose run files can name techniques of your own. Write a `main` that runs it:
///
/// ```no_run
/// use std::process::ExitCode;
///
/// use firebrick_cli::Program;
/// # use firebrick::optim::AdamW as MyOptimizer;
/// # use firebrick::Clip as MyStrategy;
///
/// fn main() -> ExitCode {
///     Program::new()
///         .optimizer::<MyOptimizer>("MyOptimizer") // optimizer: MyOptimizer(..)
///         .strategy::<MyStrategy>("MyStrategy") // strategies: [MyStrategy(..)]
///         .run()
/// }
/// ```
#[derive(Clone, Debug)]
pub struct Program {
    registries: Arc<Registries>,
}

impl Default for Program {
    fn default() -> Self {
        Self::new()
    }
}

impl Program {
    /// Creates the program with all built-in techniques.
    pub fn new() -> Self {
        Self { registries: Registries::built_in().clone() }
    }

    fn with(self, add: impl FnOnce(Registries) -> Registries) -> Self {
        Self { registries: Arc::new(add(Arc::unwrap_or_clone(self.registries))) }
    }

    /// Adds an optimizer by the name that it has in run files. [`OptimizerRecipe`] has an example of one.
    pub fn optimizer<R>(self, name: &'static str) -> Self
    where
        R: OptimizerRecipe + PartialEq + Serialize + DeserializeOwned + 'static,
    {
        self.with(|all| Registries { optimizers: all.optimizers.optimizer::<R>(name), ..all })
    }

    /// Adds a strategy by the name that it has in run files. [Writing a
    /// strategy](firebrick_strategies#writing-a-strategy) has an example of one.
    pub fn strategy<R>(self, name: &'static str) -> Self
    where
        R: Strategy<AnyModel> + PartialEq + Serialize + DeserializeOwned,
    {
        self.with(|all| Registries { strategies: all.strategies.strategy::<R>(name), ..all })
    }

    /// Adds a kind of schedule by the name that it has in run files. [`ScheduleRecipe`] has an example of one.
    pub fn schedule<R>(self, name: &'static str) -> Self
    where
        R: ScheduleRecipe + Clone + PartialEq + Serialize + DeserializeOwned + 'static,
    {
        self.with(|all| Registries { schedules: all.schedules.with::<R>(name, Schedule::named), ..all })
    }

    /// Adds a model by the name that its family has in run files. A family has a model for each task that it learns;
    /// [`Trainable`] lists what a model of your own implements.
    pub fn model<M: Trainable>(self, name: &'static str) -> Self {
        self.with(|all| Registries { families: all.families.model::<M>(name), ..all })
    }

    /// Adds a task by the name that it has in run files. [`Task`] has an example of one.
    pub fn task<T>(self, name: &'static str) -> Self
    where
        T: Task + PartialEq + Serialize + DeserializeOwned,
    {
        self.with(|all| Registries { tasks: all.tasks.with(name, TaskConfig::named::<T>), ..all })
    }

    /// Reads a run file, which may name what was added, as [`Run::read`] does.
    ///
    /// # Errors
    ///
    /// Those of [`Run::read`].
    pub fn read(&self, path: &Path, overrides: &[impl AsRef<str>]) -> Result<Run, RunError> {
        Run::read_with(&self.registries, path, overrides)
    }

    /// Like [`read`](Self::read), but parses the given text of a file called `file`.
    ///
    /// # Errors
    ///
    /// Those of [`Run::read`].
    pub fn parse(&self, file: &str, text: &str, overrides: &[impl AsRef<str>]) -> Result<Run, RunError> {
        Run::parse_with(&self.registries, file, text, overrides)
    }

    /// Reads the data part of a run file, which may name a task that was added, as [`DataRun::read`] does.
    ///
    /// # Errors
    ///
    /// Those of [`DataRun::read`].
    pub fn read_data(&self, path: &Path, overrides: &[impl AsRef<str>]) -> Result<DataRun, RunError> {
        DataRun::read_with(&self.registries, path, overrides)
    }

    /// Opens a trained run, which may use what was added, as [`TrainedRun::open`] does.
    ///
    /// # Errors
    ///
    /// Those of [`TrainedRun::open`].
    pub fn open(
        &self,
        place: &Path,
        weights: Option<&Path>,
        overrides: &[impl AsRef<str>],
    ) -> Result<TrainedRun, RunError> {
        TrainedRun::open_with(&self.registries, place, weights, overrides)
    }

    /// Returns the JSON Schema of a run file, with what was added.
    ///
    /// RON and JSON have the same values: a struct is an object, and a name with settings, such as `AdamW(weight_decay:
    /// 0.1)`, is an object with this name as its only field, `{"AdamW": {"weight_decay": 0.1}}`. A name without settings
    /// is a string.
    pub fn schema(&self) -> Value {
        self.registries.reading(schema)
    }

    /// Runs the command of this process's arguments and returns its exit code. Errors go to standard error.
    pub fn run(self) -> ExitCode {
        self.run_from(env::args_os())
    }

    /// Runs the command of these arguments, of which the first is the name of the program.
    pub fn run_from(self, arguments: impl IntoIterator<Item = impl Into<OsString> + Clone>) -> ExitCode {
        firebrick::process_start();
        firebrick::memory::keep_freed();
        TokenCache::install();
        let read = arguments::read(arguments, self.registries.tasks.names());
        burn_device::translate();
        read.map_or_else(|code| code, |cli: Cli| cli.run_with(&self.registries))
    }
}
