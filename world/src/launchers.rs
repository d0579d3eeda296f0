//! The environment variables in which process launchers pass each process its number.

/// A process launcher, described by the names of its environment variables.
#[derive(Clone, Copy, Debug)]
pub struct Launcher {
    /// The number of a process, from 0.
    pub number: &'static str,
    /// How many processes there are.
    pub count: &'static str,
    /// The number of a process on its machine.
    pub on_machine: &'static str,
    /// The variables that it sets for MPI processes alone.
    pub of_mpi: &'static [&'static str],
}

/// The known launchers: Open MPI's `mpirun`, MPICH's and Intel MPI's (Hydra), and Slurm's `srun`.
pub const LAUNCHERS: [Launcher; 3] = [
    Launcher {
        number: "OMPI_COMM_WORLD_RANK",
        count: "OMPI_COMM_WORLD_SIZE",
        on_machine: "OMPI_COMM_WORLD_LOCAL_RANK",
        of_mpi: &["OMPI_COMM_WORLD_SIZE"],
    },
    Launcher {
        number: "PMI_RANK",
        count: "PMI_SIZE",
        on_machine: "MPI_LOCALRANKID",
        of_mpi: &["PMI_RANK", "MPI_LOCALNRANKS"],
    },
    // Slurm starts processes of any kind, and speaks PMI or PMIx with MPI processes.
    Launcher {
        number: "SLURM_PROCID",
        count: "SLURM_STEP_NUM_TASKS",
        on_machine: "SLURM_LOCALID",
        of_mpi: &["PMI_RANK", "PMIX_RANK"],
    },
];
