//! Whether all ranks can exchange between their devices.

use crate::{Communicator, DeviceCollectives};

/// What distinguishes each device of a process from all others, or why NCCL does not serve them.
pub(crate) type Places = Result<Vec<String>, String>;

/// Lets the ranks of this process exchange `between` their devices, if those of all processes can.
pub(crate) fn meet(
    ranks: Vec<Communicator>,
    places: &[Places],
    between: Vec<DeviceCollectives>,
) -> Vec<Communicator> {
    match apart(places) {
        Ok(()) => ranks
            .into_iter()
            .zip(between)
            .map(|(rank, between)| rank.between_devices(Some(between)))
            .collect(),
        Err(why) => ranks.into_iter().map(|rank| rank.through_host_because(&why)).collect(),
    }
}

/// Checks that several ranks have a device each.
fn apart(places: &[Places]) -> Result<(), String> {
    let mut all = Vec::new();
    for places in places {
        all.extend(places.as_ref().map_err(Clone::clone)?);
    }
    match all.iter().enumerate().find(|(at, place)| all[..*at].contains(place)) {
        _ if all.len() < 2 => Err("there is one rank".into()),
        Some((at, _)) => Err(format!("rank {at} shares its device with another rank")),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// NCCL needs each rank on a device of its own, everywhere.
    #[test]
    fn ranks_meet_on_devices_of_their_own() {
        let places = |all: &[&str]| -> Places { Ok(all.iter().map(ToString::to_string).collect()) };
        let missing = || -> Places { Err("NCCL is not installed as libnccl.so.2".to_string()) };
        assert_eq!(apart(&[places(&["a 0", "a 1"]), places(&["b 0", "b 1"])]), Ok(()));
        let shared = apart(&[places(&["a 0", "a 1"]), places(&["b 0", "a 1"])]);
        assert_eq!(shared, Err("rank 3 shares its device with another rank".to_string()));
        assert_eq!(apart(&[places(&["a 0", "a 1"]), missing()]), missing().map(drop));
        assert_eq!(apart(&[places(&["a 0"])]), Err("there is one rank".to_string()));
    }
}
