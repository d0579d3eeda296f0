//! How long a rank waits for the others inside a collective.

use std::time::{Duration, Instant};

use thiserror::Error;

use crate::WorldError;
use crate::seat::Seat;

/// The longest pause between two looks. It adds to a collective's time, and each look takes a microsecond or two.
const LONGEST: Duration = Duration::from_micros(500);

/// Why a collective ended early.
#[derive(Debug, Error)]
pub(crate) enum Stop {
    /// The world is over.
    #[error("{0}")]
    World(WorldError),
    /// Something is wrong here.
    #[error("{0}")]
    Failed(String),
    /// Something is wrong, here or elsewhere, and this rank has given up.
    #[error("{0}")]
    GaveUp(String),
}

/// The time that a rank has waited in a collective.
pub(crate) struct Watch<'a> {
    seat: &'a Seat,
    looks: u32,
    waited: Duration,
}

impl<'a> Watch<'a> {
    pub fn of(seat: &'a Seat) -> Self {
        Self { seat, looks: 0, waited: Duration::ZERO }
    }

    /// Waits a moment.
    ///
    /// # Errors
    ///
    /// The world is over, or three quarters of the deadline have passed: the rank then has the rest of the time to tell the
    /// others that it is not the one that is missing.
    pub fn pause(&mut self) -> Result<(), Stop> {
        let exchange = &self.seat.exchange;
        if let Some(error) = exchange.failure(self.seat.world_rank) {
            return Err(Stop::World(error));
        }
        let limit = exchange.deadline();
        if self.waited >= limit / 4 * 3 {
            return Err(Stop::GaveUp(format!("the collective did not end within {:?}", self.waited)));
        }
        let before = Instant::now();
        match self.looks {
            0..100 => std::thread::yield_now(),
            looks => std::thread::sleep(LONGEST.min(Duration::from_micros(10 << (looks / 100).min(6)))),
        }
        self.looks += 1;
        // If the whole process was suspended, only a step counts, as in the world's exchange.
        self.waited += before.elapsed().min(limit / 20).max(Duration::from_nanos(1));
        Ok(())
    }
}
