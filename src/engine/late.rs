//! Numbers that may still be on the device.

use std::sync::{Arc, Mutex, PoisonError};

use burn::tensor::Tensor;
use firebrick_world::numbers;

use crate::TrainError;

/// A number that the device may not have computed yet. Reading it waits for the device, unless it was read together with
/// another number. Clones are the same number.
#[derive(Clone, Debug)]
pub(crate) struct Late(Arc<Mutex<Where>>);

#[derive(Clone, Debug)]
enum Where {
    OnDevice(Box<Tensor<1>>),
    Read(f64),
}

impl Late {
    /// Takes a tensor `[1]`.
    pub fn new(tensor: Tensor<1>) -> Self {
        Self(Arc::new(Mutex::new(Where::OnDevice(Box::new(tensor)))))
    }

    /// Returns the tensor, if nothing has read it.
    pub fn unread(&self) -> Option<Tensor<1>> {
        match &*self.0.lock().unwrap_or_else(PoisonError::into_inner) {
            Where::OnDevice(tensor) => Some((**tensor).clone()),
            Where::Read(_) => None,
        }
    }

    /// Keeps the number, which was read with others.
    pub fn known(&self, number: f64) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Where::Read(number);
    }

    /// Reads several numbers with one wait.
    pub fn read_all(all: &[Self]) -> Result<Vec<f64>, TrainError> {
        let unread: Vec<_> = all.iter().filter(|late| late.unread().is_some()).collect();
        let read = numbers(unread.iter().filter_map(|late| late.unread()).collect())?;
        unread.into_iter().zip(read).for_each(|(late, number)| late.known(number));
        let read = all.iter().map(|late| match &*late.0.lock().unwrap_or_else(PoisonError::into_inner) {
            Where::Read(number) => *number,
            Where::OnDevice(_) => unreachable!("it has just been read"),
        });
        Ok(read.collect())
    }

    /// Reads the number.
    pub fn read(&self) -> Result<f64, TrainError> {
        Ok(Self::read_all(std::slice::from_ref(self))?[0])
    }
}

#[cfg(test)]
mod tests {
    use firebrick_world::reads;

    use super::*;
    use crate::testing;

    #[test]
    fn numbers_are_read_once_and_together() {
        let late = |x: f32| Late::new(Tensor::from_data([x], &testing::device()));
        let (a, b, before) = (late(1.5), late(-2.0), reads());
        assert_eq!(Late::read_all(&[a.clone(), b.clone()]).unwrap(), [1.5, -2.0]);
        assert_eq!((b.read().unwrap(), a.read().unwrap(), a.unread().is_none()), (-2.0, 1.5, true));
        assert_eq!(reads() - before, 1);
        let c = late(0.0);
        c.known(7.0);
        assert_eq!((c.read().unwrap(), reads() - before), (7.0, 1));
    }
}
