//! A rank's place in the exchange.

use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use crate::call::Call;
use crate::exchange::{Arrived, Exchange, Piece};
use crate::{Kind, WorldError};

/// What a thread that works for a rank does around its work.
pub(crate) type Around = Arc<dyn Fn(&mut dyn FnMut()) + Send + Sync>;

/// A rank's place in the exchange.
///
/// Threads that work for the rank share it: unlike the [`Communicator`](crate::Communicator), it does not keep the rank
/// alive. They take the numbers of their exchanges from the communicator beforehand, in the order of the rank's calls.
pub(crate) struct Seat {
    pub exchange: Arc<Exchange>,
    pub rank: usize,
    /// What threads that work for the rank do around their work.
    pub around: OnceLock<Around>,
    /// Seconds waited for each rank.
    waited: Mutex<Vec<f64>>,
}

impl Seat {
    pub fn new(exchange: Arc<Exchange>, rank: usize) -> Self {
        let waited = Mutex::new(vec![0.0; exchange.size()]);
        Self { exchange, rank, around: OnceLock::new(), waited }
    }

    /// Returns the number of ranks.
    pub fn size(&self) -> usize {
        self.exchange.size()
    }

    /// Returns the seconds waited for each rank so far.
    pub fn lateness(&self) -> Vec<f64> {
        self.waited.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Tells all ranks that this one stops, and why.
    pub fn fail(&self, reason: &str) {
        let (rank, call) = (self.rank, self.exchange.place(self.rank));
        self.exchange.fail(WorldError::Rank { rank, call, reason: format!("failed: {reason}") });
    }

    /// Counts the traffic of a ring sum between devices: 2(N-1)/N of `elements`, of `bytes` bytes each.
    pub fn count_ring(&self, kind: Kind, elements: usize, bytes: usize) {
        let moved = (2 * elements * (self.size() - 1)).div_ceil(self.size());
        self.exchange.count_moved(self.rank, kind, moved, moved * bytes);
    }

    /// Sends `pieces[to]` to each rank in the exchange of number `sequence`.
    pub fn post(
        &self,
        sequence: u64,
        call: &Arc<Call>,
        pieces: Vec<Vec<Option<Piece>>>,
    ) -> Result<(), WorldError> {
        self.exchange.post(self.rank, sequence, call, pieces)
    }

    /// Waits for all ranks' pieces and returns them by rank.
    pub fn complete(&self, sequence: u64, call: &Arc<Call>) -> Result<Vec<Vec<Option<Piece>>>, WorldError> {
        let Arrived { pieces, waited } = self.exchange.complete(self.rank, sequence, call)?;
        let mut sums = self.waited.lock().unwrap_or_else(PoisonError::into_inner);
        sums.iter_mut().zip(waited).for_each(|(sum, waited)| *sum += waited);
        Ok(pieces)
    }

    /// Sends the pieces and waits for all ranks'.
    pub fn exchanged(
        &self,
        sequence: u64,
        call: &Arc<Call>,
        pieces: Vec<Vec<Option<Piece>>>,
    ) -> Result<Vec<Vec<Option<Piece>>>, WorldError> {
        self.post(sequence, call, pieces)?;
        self.complete(sequence, call)
    }
}
