//! A copy of a run's state at a step boundary.

use std::sync::Arc;

use burn::module::Module;
use burn::optim::{ModuleOptimizer, OptimizerRecord};
use burn::tensor::Bytes;
use firebrick_checkpoints::{Piece, RankState};
use firebrick_strategies::values_on_host;
use firebrick_world::Communicator;

use super::layout::Layout;
use super::pieces::{packed_pieces, piece};
use super::{ResumeError, TrainerState, optimizer_state};

/// The part of the state that a rank saves, in memory that training does not touch.
pub(crate) struct Snapshot {
    rank: usize,
    ranks: usize,
    layout: Arc<Layout>,
    parameters: Vec<Piece>,
    average: Option<Vec<Piece>>,
    optimizer: Copied,
    pub state: TrainerState,
}

/// The optimizer's state, copied off the device.
enum Copied {
    /// On the host, the record's tensors are copies already; serializing them can wait.
    Record(Box<OptimizerRecord>),
    /// Data read from a device may still be in the device's memory, so it is serialized, which copies it, at once.
    Bytes(Bytes),
}

impl Snapshot {
    /// Copies master, average and optimizer state. Training waits only for this. The optimizer comes with whether it, or a
    /// part of its state, is on a device.
    ///
    /// # Errors
    ///
    /// The optimizer's state cannot be read.
    pub fn take<M: Module>(
        layout: &Arc<Layout>,
        world: &Communicator,
        master: &M,
        average: Option<&M>,
        (optimizer, on_device): (&ModuleOptimizer, bool),
        state: TrainerState,
    ) -> Result<Self, ResumeError> {
        let record = optimizer.to_record();
        let optimizer = match on_device {
            false => Copied::Record(Box::new(record)),
            true => Copied::Bytes(into_bytes(record)?),
        };
        Ok(Self {
            rank: world.rank(),
            ranks: world.size(),
            layout: layout.clone(),
            parameters: copied(layout, master),
            average: average.map(|average| copied(layout, average)),
            optimizer,
            state,
        })
    }

    /// Converts the snapshot into the contents of the files, without using a device.
    ///
    /// # Errors
    ///
    /// The optimizer's state is not in Burn's format.
    pub fn into_rank_state(self) -> Result<(RankState, TrainerState), ResumeError> {
        let Self { rank, ranks, layout, parameters, average, optimizer, state } = self;
        let bytes = match optimizer {
            Copied::Record(record) => into_bytes(*record)?,
            Copied::Bytes(bytes) => bytes,
        };
        let (optimizer, scalars) = optimizer_state::pieces(bytes, &layout)?;
        Ok((RankState { rank, ranks, parameters, optimizer, scalars, average }, state))
    }
}

fn into_bytes(record: OptimizerRecord) -> Result<Bytes, ResumeError> {
    record.into_bytes().map_err(|error| ResumeError::Optimizer { reason: error.to_string() })
}

/// Copies each parameter that this rank writes.
fn copied<M: Module>(layout: &Layout, model: &M) -> Vec<Piece> {
    let mut pieces = Vec::new();
    let written = |id| layout.place(id).filter(|place| place.is_written());
    values_on_host(
        model,
        |id| written(id).is_some() && layout.base(id).is_none(),
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
