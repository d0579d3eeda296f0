//! Numbers that may still be on the device.

use std::sync::{Arc, Mutex, PoisonError};

use burn::tensor::{Bytes, DType, Tensor};
use firebrick_kernels::Reading;
use firebrick_strategies::StrategyError;
use firebrick_world::{count_read, numbers};

use crate::TrainError;

/// A number that the device may not have computed yet. Reading it waits for the device, unless it was read together with
/// another number. Clones are the same number.
#[derive(Clone, Debug)]
pub(crate) struct Late(Arc<Mutex<Where>>);

#[derive(Debug)]
enum Where {
    OnDevice(Box<Tensor<1>>),
    /// In a read that has begun, at this place.
    Begun(Arc<Mutex<SharedRead>>, usize),
    Read(f64),
}

/// A read that the numbers of a step share.
#[derive(Debug)]
enum SharedRead {
    Reading(Reading),
    Read(Result<Vec<f32>, String>),
    /// Only while the read is waited for.
    Waiting,
}

impl SharedRead {
    fn number(&mut self, place: usize) -> Result<f64, TrainError> {
        *self = match std::mem::replace(self, Self::Waiting) {
            Self::Reading(reading) => {
                count_read();
                let number = |bytes: &Bytes| f32::from_ne_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
                Self::Read(reading.wait().map(|read| read.iter().map(number).collect()))
            }
            read => read,
        };
        match self {
            Self::Read(Ok(numbers)) => Ok(numbers[place].into()),
            Self::Read(Err(error)) => Err(StrategyError::Read(error.clone()).into()),
            Self::Reading(_) | Self::Waiting => unreachable!("it has just been read"),
        }
    }
}

impl Late {
    /// Takes a tensor `[1]`.
    pub fn new(tensor: Tensor<1>) -> Self {
        Self(Arc::new(Mutex::new(Where::OnDevice(Box::new(tensor)))))
    }

    /// Returns a number that is known already.
    pub fn known(number: f64) -> Self {
        Self(Arc::new(Mutex::new(Where::Read(number))))
    }

    /// Begins to read several numbers, which the device then copies before it computes what is queued behind them. Returns
    /// false, and leaves them as they are, where no read can begin before it is waited for, as on the CPU.
    pub fn begin(all: &[Self]) -> bool {
        let Some(tensors) = all.iter().map(Self::unread).collect::<Option<Vec<_>>>() else { return false };
        if tensors.iter().any(|number| number.dtype() != DType::F32) {
            return false;
        }
        let Some(reading) = Reading::begin(&tensors) else { return false };
        let begun = Arc::new(Mutex::new(SharedRead::Reading(reading)));
        (0..).zip(all).for_each(|(place, late)| late.set(Where::Begun(begun.clone(), place)));
        true
    }

    /// Reads several numbers with one wait.
    pub fn read_all(all: &[Self]) -> Result<Vec<f64>, TrainError> {
        let unread: Vec<_> = all.iter().filter(|late| late.unread().is_some()).collect();
        let read = numbers(unread.iter().filter_map(|late| late.unread()).collect())?;
        unread.into_iter().zip(read).for_each(|(late, number)| late.set(Where::Read(number)));
        all.iter().map(Self::read).collect()
    }

    /// Reads the number.
    pub fn read(&self) -> Result<f64, TrainError> {
        let mut place = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let number = match &*place {
            Where::Read(number) => return Ok(*number),
            Where::OnDevice(tensor) => numbers(vec![(**tensor).clone()])?[0],
            Where::Begun(begun, at) => begun.lock().unwrap_or_else(PoisonError::into_inner).number(*at)?,
        };
        *place = Where::Read(number);
        Ok(number)
    }

    /// Returns the tensor, if nothing has read it or begun to.
    fn unread(&self) -> Option<Tensor<1>> {
        match &*self.0.lock().unwrap_or_else(PoisonError::into_inner) {
            Where::OnDevice(tensor) => Some((**tensor).clone()),
            Where::Begun(..) | Where::Read(_) => None,
        }
    }

    fn set(&self, place: Where) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = place;
    }
}

#[cfg(test)]
mod tests {
    use firebrick_world::{is_host, reads};

    use super::*;
    use crate::testing;

    fn late(x: f32) -> Late {
        Late::new(Tensor::from_data([x], &testing::device()))
    }

    #[test]
    fn numbers_are_read_once_and_together() {
        let (a, b, before) = (late(1.5), late(-2.0), reads());
        assert_eq!(Late::read_all(&[a.clone(), b.clone()]).unwrap(), [1.5, -2.0]);
        assert_eq!((b.read().unwrap(), a.read().unwrap(), a.unread().is_none()), (-2.0, 1.5, true));
        assert_eq!(reads() - before, 1);
        assert_eq!((Late::known(7.0).read().unwrap(), reads() - before), (7.0, 1));
    }

    #[test]
    fn a_read_that_began_is_waited_for_once() {
        let (all, before) = ([late(1.5), late(f32::INFINITY)], reads());
        assert_eq!(Late::begin(&all), !is_host(&testing::device()));
        assert_eq!(Late::read_all(&all).unwrap(), [1.5, f64::INFINITY]);
        assert_eq!(Late::read_all(&all).unwrap(), [1.5, f64::INFINITY]);
        assert_eq!(reads() - before, 1);
        assert!(!Late::begin(&[late(0.0), Late::known(1.0)]), "only all or none");
    }

    #[test]
    fn a_read_that_began_sees_the_number_of_then() {
        let numbers = Tensor::<1>::from_data([3.0f32], &testing::device());
        let all = [Late::new(numbers.clone() * 2.0)];
        Late::begin(&all);
        let _later = numbers.mul_scalar(10.0);
        assert_eq!(all[0].read().unwrap(), 6.0);
    }
}
