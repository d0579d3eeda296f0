//! A copy of a run's state at a step boundary.

use std::collections::HashSet;
use std::sync::Arc;

use burn::module::Module;
use burn::tensor::{Bytes, TensorData};
use firebrick_checkpoints::{Piece, RankState};
use firebrick_strategies::optim::{ModelOptimizer, OptimizerStates};
use firebrick_strategies::{AnyParam, each_distinct_param, values_on_host};
use firebrick_world::Communicator;

use super::layout::{Layout, packed_pieces, piece, piece_on_disk};
use super::on_disk::{OnDisk, OnDiskNow};
use super::{TrainerState, optimizer_state};
use crate::ResumeError;
use crate::scratch::{Stored, Values};

/// The part of the state that a rank saves, in memory that training does not touch.
pub(crate) struct Snapshot {
    rank: usize,
    ranks: usize,
    layout: Arc<Layout>,
    parameters: Vec<Piece>,
    average: Option<Vec<Piece>>,
    optimizer: OptimizerCopy,
    pub state: TrainerState,
}

/// The optimizer's state, copied off the device.
enum OptimizerCopy {
    Host(OptimizerStates),
    /// On a disk, later updates leave these tensors as they are.
    Disk(OnDiskNow),
}

/// Where the optimizer's state is.
pub(crate) enum StateAt<'a> {
    /// In the optimizer, on the host.
    Host(&'a ModelOptimizer),
    /// In the optimizer; all or a part of it is on a device.
    Device(&'a ModelOptimizer),
    Disk(&'a OnDisk),
}

impl Snapshot {
    /// Copies master, average and optimizer state. Training waits only for this.
    ///
    /// # Errors
    ///
    /// The optimizer's state cannot be read.
    pub fn take<M: Module>(
        layout: &Arc<Layout>,
        world: &Communicator,
        master: &M,
        average: Option<&M>,
        optimizer: &StateAt<'_>,
        state: TrainerState,
    ) -> Result<Self, ResumeError> {
        let offloaded = match optimizer {
            StateAt::Disk(disk) => disk.offloaded().cloned(),
            StateAt::Host(_) | StateAt::Device(_) => None,
        };
        let optimizer = match optimizer {
            StateAt::Host(optimizer) => OptimizerCopy::Host(states_of(optimizer)?),
            StateAt::Device(optimizer) => OptimizerCopy::Host(off_device(states_of(optimizer)?)),
            StateAt::Disk(disk) => OptimizerCopy::Disk(disk.now()),
        };
        let waits = |param: &dyn AnyParam| offloaded.as_ref()?.stored(param.id(), Values::Master);
        Ok(Self {
            rank: world.rank(),
            ranks: world.size(),
            layout: layout.clone(),
            parameters: copied(layout, master, waits),
            // Those of an average that are not trained are the master's, and wait with it.
            average: average.map(|average| {
                copied(layout, average, |param| waits(param).filter(|_| !param.is_initialized()))
            }),
            optimizer,
            state,
        })
    }

    /// Converts the snapshot into the contents of the files, without using a device.
    pub fn into_rank_state(self) -> (RankState, TrainerState) {
        let Self { rank, ranks, layout, parameters, average, optimizer, state } = self;
        let (optimizer, scalars) = match optimizer {
            OptimizerCopy::Host(states) => optimizer_state::pieces(states, &layout),
            OptimizerCopy::Disk(state) => optimizer_state::pieces_on_disk(state, &layout),
        };
        (RankState { rank, ranks, parameters, optimizer, scalars, average }, state)
    }
}

fn states_of(optimizer: &ModelOptimizer) -> Result<OptimizerStates, ResumeError> {
    optimizer.states(None).map_err(|error| ResumeError::Optimizer { reason: error.to_string() })
}

/// Copies the tensors into memory that is the host's: data read from a device may still be in the device's memory.
fn off_device(mut states: OptimizerStates) -> OptimizerStates {
    for (_, data) in states.values_mut().flat_map(|state| &mut state.tensors) {
        let bytes = Bytes::from_bytes_vec(data.as_bytes().to_vec());
        *data = TensorData::from_bytes(bytes, data.shape().clone(), data.dtype());
    }
    states
}

/// Copies each parameter that this rank writes. Those that wait on a disk are read when they are written.
fn copied<M: Module>(
    layout: &Layout,
    model: &M,
    waits: impl Fn(&dyn AnyParam) -> Option<Arc<Stored>>,
) -> Vec<Piece> {
    let mut pieces = Vec::new();
    let written = |id| layout.place(id).filter(|place| place.is_written() && layout.base(id).is_none());
    let mut on_disk = HashSet::new();
    each_distinct_param(model, |param| {
        if let (Some(place), Some(stored)) = (written(param.id()), waits(param)) {
            pieces.extend(piece_on_disk(place, place.path.clone(), &stored, 0));
            on_disk.insert(param.id());
        }
    });
    values_on_host(
        model,
        |id| written(id).is_some() && !on_disk.contains(&id),
        |id, data| {
            if let Some(place) = written(id) {
                let (bytes, shape, dtype) = data.into_parts();
                pieces.extend(piece(place, place.path.clone(), dtype, &shape, bytes));
            }
        },
    );
    let packed = layout.places().filter(|(_, place)| place.is_written());
    let packed = packed.filter_map(|(id, place)| Some((place, layout.base(id)?.get()?)));
    pieces.extend(packed.flat_map(|(place, matrix)| packed_pieces(&place.path, &matrix.to_host())));
    pieces
}
