//! The program, with what you add to it.

use std::env;
use std::ffi::OsString;
use std::process::ExitCode;

use firebrick::schedule::{ScheduleRecipe, Schedules};
use firebrick::{AnyModel, Schedule};
use firebrick_strategies::optim::{OptimizerRecipe, Optimizers};
use firebrick_strategies::{Strategies, Strategy};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::arguments;
use crate::burn_device;
use crate::cli::Cli;
use crate::{Families, Task, TaskConfig, Tasks};
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
    optimizers: Optimizers,
    strategies: Strategies<AnyModel>,
    schedules: Schedules,
    families: Families,
    tasks: Tasks,
}

impl Default for Program {
    fn default() -> Self {
        Self::new()
    }
}

impl Program {
    /// Creates the program with all built-in techniques.
    pub fn new() -> Self {
        Self {
            optimizers: Optimizers::built_in(),
            strategies: Strategies::built_in(),
            schedules: Schedules::built_in(),
            families: Families::built_in(),
            tasks: Tasks::built_in(),
        }
    }

    /// Adds an optimizer by the name that it has in run files. [`OptimizerRecipe`] has an example of one.
    pub fn optimizer<R>(self, name: &'static str) -> Self
    where
        R: OptimizerRecipe + PartialEq + Serialize + DeserializeOwned + 'static,
    {
        Self { optimizers: self.optimizers.optimizer::<R>(name), ..self }
    }

    /// Adds a strategy by the name that it has in run files. [Writing a
    /// strategy](firebrick_strategies#writing-a-strategy) has an example of one.
    pub fn strategy<R>(self, name: &'static str) -> Self
    where
        R: Strategy<AnyModel> + PartialEq + Serialize + DeserializeOwned,
    {
        Self { strategies: self.strategies.strategy::<R>(name), ..self }
    }

    /// Adds a kind of schedule by the name that it has in run files. [`ScheduleRecipe`] has an example of one.
    pub fn schedule<R>(self, name: &'static str) -> Self
    where
        R: ScheduleRecipe + Clone + PartialEq + Serialize + DeserializeOwned + 'static,
    {
        Self { schedules: self.schedules.with::<R>(name, Schedule::named), ..self }
    }

    /// Adds a model by the name that its family has in run files. A family has a model for each task that it learns;
    /// [`Trainable`] lists what a model of your own implements.
    pub fn model<M: Trainable>(self, name: &'static str) -> Self {
        Self { families: self.families.model::<M>(name), ..self }
    }

    /// Adds a task by the name that it has in run files. [`Task`] has an example of one.
    pub fn task<T>(self, name: &'static str) -> Self
    where
        T: Task + PartialEq + Serialize + DeserializeOwned,
    {
        Self { tasks: self.tasks.with(name, TaskConfig::named::<T>), ..self }
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
        self.optimizers.install();
        self.strategies.install();
        self.schedules.install();
        self.families.install();
        self.tasks.install();
        let read = arguments::read(arguments);
        burn_device::translate();
        read.map_or_else(|code| code, Cli::run)
    }
}
