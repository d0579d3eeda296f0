//! Counter-based random numbers, without a stateful generator.

/// The inputs of a pass's random numbers, in addition to the position in the model and in the sample. They do not
/// depend on how the global batch is divided into micro-batches and ranks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Draws {
    /// The run's seed.
    pub seed: u64,
    /// The epoch, from 0.
    pub epoch: u64,
    /// The position of the batch's first row in the epoch's order; the other rows follow it.
    pub first: u64,
}

impl Draws {
    /// Mixes two numbers into one, so that each output bit depends on all input bits: the finalizer of SplitMix64
    /// (Steele, Lea & Flood, 2014).
    pub fn mix(key: u64, counter: u64) -> u64 {
        let mut z = key.wrapping_add(counter.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15));
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Returns the key of one row's random numbers at one site of the model.
    pub(crate) fn of_row(&self, site: u64, row: usize) -> u64 {
        let of_site = Self::mix(Self::mix(self.seed, self.epoch), site);
        Self::mix(of_site, self.first.wrapping_add(row as u64))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn masks_depend_on_the_position_in_the_epoch() {
        let draws = Draws { seed: 1, epoch: 2, first: 10 };
        let later = Draws { first: 13, ..draws };
        assert_eq!(draws.of_row(7, 5), later.of_row(7, 2));
        let others = [
            draws.of_row(7, 4),
            draws.of_row(8, 5),
            Draws { seed: 2, ..draws }.of_row(7, 5),
            Draws { epoch: 1, ..draws }.of_row(7, 5),
        ];
        assert!(others.iter().all(|&other| other != draws.of_row(7, 5)));
    }

    #[test]
    fn each_bit_of_a_mix_depends_on_each_bit_of_both_numbers() {
        let numbers: Vec<u64> = (0..1000).map(|at| Draws::mix(3, at)).collect();
        for bit in 0..64 {
            let changed = |mixed: fn(u64, u64) -> u64| -> u32 {
                let pairs = numbers.iter().map(|&number| mixed(number, 1 << bit));
                pairs.map(u64::count_ones).sum()
            };
            for flipped in [
                changed(|number, bit| Draws::mix(number, 5) ^ Draws::mix(number ^ bit, 5)),
                changed(|number, bit| Draws::mix(5, number) ^ Draws::mix(5, number ^ bit)),
            ] {
                // Half of the 64,000 bits, within 5 standard deviations of 126.
                assert!(flipped.abs_diff(32_000) < 630, "{bit}: {flipped}");
            }
        }
    }
}
