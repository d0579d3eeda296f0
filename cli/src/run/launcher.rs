//! Reads the place of a process from the environment variables of `mpirun` and Slurm's `srun`.

use firebrick_world::{LAUNCHERS, Launcher};

use super::{RunStrategy, first_effect};
use crate::RunError;

/// A process of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Process {
    /// The number of the process, from 0.
    pub number: usize,
    pub of: usize,
    /// The number of the process on its machine, from 0.
    pub on_machine: usize,
}

impl Process {
    /// A process that no launcher started.
    const ALONE: Self = Self { number: 0, of: 1, on_machine: 0 };

    /// Reads this process's place from the variables that `var` returns.
    fn by(var: impl Fn(&str) -> Option<String>) -> Self {
        let number = |name: &str| var(name)?.parse::<usize>().ok();
        let found = LAUNCHERS.iter().find_map(|Launcher { number: own, count, on_machine, .. }| {
            let (of, own) = (number(count)?, number(own)?);
            (of > 1).then(|| Self { number: own, of, on_machine: number(on_machine).unwrap_or(own) })
        });
        found.unwrap_or(Self::ALONE)
    }

    /// Returns this process.
    ///
    /// # Errors
    ///
    /// There are several processes, and this program was built without MPI.
    pub fn this() -> Result<Self, RunError> {
        Self::by(|name| std::env::var(name).ok()).with_mpi(cfg!(feature = "mpi"))
    }

    /// Checks this process against whether the program was built with MPI.
    fn with_mpi(self, has_mpi: bool) -> Result<Self, RunError> {
        if self.of > 1 && !has_mpi { Err(RunError::NoMpi(self.of)) } else { Ok(self) }
    }

    /// Whether this process owns the output folder and the display.
    pub fn leads(self) -> bool {
        self.number == 0
    }
}

/// Returns the number of ranks, or of groups of them whose ranks train on the same samples: at least one.
pub(super) fn data_ranks(said: Option<usize>, strategies: &[RunStrategy]) -> usize {
    let context = first_effect(strategies, |effects| effects.context).unwrap_or(1);
    let tensor = first_effect(strategies, |effects| effects.tensor).unwrap_or(1);
    let per_batch = context.max(1).saturating_mul(tensor.max(1));
    (number_of_ranks(said) / per_batch).max(1)
}

/// Returns the number of ranks: the given one, or one for each process that a launcher started.
pub(super) fn number_of_ranks(said: Option<usize>) -> usize {
    let processes = || Process::this().map_or(1, |process| process.of);
    said.unwrap_or_else(processes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_is_known_by_its_launcher() {
        let by = |set: &[(&str, &str)]| {
            Process::by(|name| {
                set.iter().find(|(known, _)| *known == name).map(|(_, value)| value.to_string())
            })
        };
        assert_eq!(by(&[]), Process::ALONE);
        // A batch job with several tasks runs its script once.
        assert_eq!(by(&[("SLURM_NTASKS", "4"), ("SLURM_PROCID", "0")]), Process::ALONE);
        let of_open_mpi = [("OMPI_COMM_WORLD_RANK", "3"), ("OMPI_COMM_WORLD_SIZE", "4")];
        assert_eq!(by(&of_open_mpi), Process { number: 3, of: 4, on_machine: 3 });
        let of_slurm = [("SLURM_PROCID", "5"), ("SLURM_STEP_NUM_TASKS", "8"), ("SLURM_LOCALID", "1")];
        assert_eq!(by(&of_slurm), Process { number: 5, of: 8, on_machine: 1 });
        assert!(by(&[]).leads() && !by(&of_slurm).leads());
    }

    #[test]
    fn several_processes_need_mpi() {
        let several = Process { number: 1, of: 4, on_machine: 1 };
        assert_eq!(several.with_mpi(true).unwrap(), several);
        assert_eq!(Process::ALONE.with_mpi(false).unwrap(), Process::ALONE);
        let error = several.with_mpi(false).unwrap_err().to_string();
        for words in ["4 processes", "--features mpi", "--ranks 4"] {
            assert!(error.contains(words), "{error}");
        }
    }
}
