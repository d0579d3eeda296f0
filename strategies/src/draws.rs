//! Where random numbers come from: counters, never a generator with a state.

/// What the random numbers of a pass are a function of, besides the place in the model and in the
/// sample: nothing here depends on how the global batch is cut into micro-batches and ranks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Draws {
    /// The run's seed.
    pub seed: u64,
    /// The epoch, from 0.
    pub epoch: u64,
    /// The place in the epoch's order of the batch's first row; the other rows follow it.
    pub first: u64,
}

impl Draws {
    /// Two numbers to one, each bit of which depends on all bits of both: the finalizer of
    /// SplitMix64 (Steele, Lea & Flood, 2014).
    pub fn mix(key: u64, counter: u64) -> u64 {
        let mut z = key.wrapping_add(counter.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15));
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }
}
