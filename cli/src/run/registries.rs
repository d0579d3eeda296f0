//! The techniques, tasks and models that run files can name.

use std::sync::{Arc, LazyLock};

use firebrick::AnyModel;
use firebrick::schedule::Schedules;
use firebrick_strategies::Strategies;
use firebrick_strategies::optim::Optimizers;
use firebrick_tasks::Tasks;

use super::Families;

/// The techniques, tasks and models that run files can name.
#[derive(Clone, Debug)]
pub(crate) struct Registries {
    pub optimizers: Optimizers,
    pub strategies: Strategies<AnyModel>,
    pub schedules: Schedules,
    pub families: Families,
    pub tasks: Tasks,
}

impl Registries {
    /// Returns those that Firebrick has.
    pub fn built_in() -> &'static Arc<Self> {
        static BUILT_IN: LazyLock<Arc<Registries>> = LazyLock::new(|| {
            Arc::new(Registries {
                optimizers: Optimizers::built_in(),
                strategies: Strategies::built_in(),
                schedules: Schedules::built_in(),
                families: Families::built_in(),
                tasks: Tasks::built_in(),
            })
        });
        &BUILT_IN
    }

    /// Calls `read`, in which run files, and parts of them, may name these.
    pub fn reading<R>(&self, read: impl FnOnce() -> R) -> R {
        let Self { optimizers, strategies, schedules, families, tasks } = self;
        let read = || schedules.reading(|| families.reading(|| tasks.reading(read)));
        optimizers.reading(|| strategies.reading(read))
    }
}

/// The registries that a run was read with. Runs are compared by what their files say, so any two of these are equal.
#[derive(Clone, Debug)]
pub(crate) struct ReadWith(pub Arc<Registries>);

impl Default for ReadWith {
    fn default() -> Self {
        Self(Registries::built_in().clone())
    }
}

impl PartialEq for ReadWith {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}
