//! A cluster, and the seconds that a collective takes on it.
//!
//! ```text
//! text.rs  reads a description, as in `nodes=16,gpus=8,intra=450GB/s,inter=50GB/s`
//! ```

mod text;

use burn::tensor::FloatDType;
use serde::Serialize;

use firebrick::device::peak_flops_of;

use crate::ClusterError;

/// Nodes of devices, each device a rank, as in `nodes=16,gpus=8,intra=450GB/s,inter=50GB/s`.
///
/// | key | meaning | default |
/// |---|---|---|
/// | `nodes`, `gpus` | nodes, and devices of a node | needed |
/// | `intra` | what a device can send to the others of its node, per second and in one direction | needed |
/// | `inter` | what a *node* can send to the others, per second and in one direction, over all of its network cards | needed if there are several nodes |
/// | `latency` | the time of a hop: until a message of no bytes has arrived | `10us` |
/// | `mfu` | the share of the peak that computation reaches | `0.4`, as in published runs on H100s |
/// | `peak` | the peak of a device in FLOP/s, or a known device's name | that of the run's device |
/// | `collectives` | `direct`: each rank sends to each other one, as ranks do through host memory; `ring`: as NCCL does | `direct` |
///
/// Rates have a unit of bytes (`MB/s`, `GB/s`, `TB/s`) or of bits (`Mbit/s`, `Gbit/s`, `Tbit/s`), in powers of 1000.
///
/// ```
/// use firebrick_cli::{Cluster, Group};
///
/// let cluster: Cluster = "nodes=2,gpus=4,intra=100GB/s,inter=400Gbit/s,latency=1us".parse()?;
/// assert_eq!((cluster.ranks(), cluster.inter), (8, 50e9));
/// // Of 7 GB that a rank sends to 7 others, 4 GB leave the node, over a quarter of its 50 GB/s.
/// let seconds = cluster.seconds(Group { ranks: 8, per_node: 4 }, 7_000_000_000, 1);
/// assert!((seconds - (1e-6 + 4.0 / 12.5)).abs() < 1e-9);
/// # Ok::<(), firebrick_cli::ClusterError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Cluster {
    /// Number of nodes.
    pub nodes: u64,
    /// Devices of a node.
    pub gpus: u64,
    /// Bytes per second from a device to the others of its node.
    pub intra: f64,
    /// Bytes per second from a node to the others; infinite if there is a single node and no rate was given.
    #[serde(skip_serializing_if = "is_infinite")]
    pub inter: f64,
    /// Seconds of a hop.
    pub latency: f64,
    /// The share of the peak that computation reaches.
    pub mfu: f64,
    /// The peak of a device.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub peak: Option<Peak>,
    /// The way of a collective.
    pub collectives: Collectives,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
fn is_infinite(rate: &f64) -> bool {
    rate.is_infinite()
}

/// The peak rate of a device.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Peak {
    /// Floating-point operations per second.
    Flops(f64),
    /// That of a known device, in the dtype that the passes compute in.
    Device(String),
}

/// How the ranks of a collective send.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Collectives {
    /// Each rank sends its part to each other rank at once.
    Direct,
    /// Each rank sends to the next one. The rings of a node's devices together use all of its network cards.
    Ring,
}

/// Ranks that exchange data with one another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Group {
    /// Ranks in the group.
    pub ranks: u64,
    /// Of these, ranks on one node. The node's other devices are in groups like this one, which send at the same time.
    pub per_node: u64,
}

impl Peak {
    /// Returns the operations per second in products of this dtype.
    ///
    /// # Errors
    ///
    /// The device has no units for the dtype.
    pub(super) fn flops(&self, dtype: FloatDType) -> Result<f64, ClusterError> {
        match self {
            Self::Flops(flops) => Ok(*flops),
            Self::Device(name) => peak_flops_of(name, dtype)
                .ok_or_else(|| ClusterError::NoPeak { device: name.clone(), dtype: format!("{dtype:?}") }),
        }
    }
}

impl Cluster {
    /// Returns the number of ranks.
    pub fn ranks(&self) -> u64 {
        self.nodes * self.gpus
    }

    /// Returns the seconds of a collective in which each rank of the group sends so many bytes, in one `pass` over the
    /// ranks (a gather, or a sum of which each rank gets a chunk) or in two (a sum that all ranks get).
    ///
    /// With n ranks in the group, m of them on a node:
    ///
    /// ```text
    /// direct:  passes · latency           + max(bytes · (m-1)/(n-1) / intra, bytes · (n-m)/(n-1) / (inter/gpus))
    /// ring:    passes · (n-1) · latency   + bytes / min(intra, inter / (gpus/m))
    /// ```
    ///
    /// Links within and between nodes work at the same time. A ring leaves each node once, so that it has all of `inter`,
    /// or its part if the node's devices are in several groups.
    pub fn seconds(&self, group: Group, bytes: u64, passes: u64) -> f64 {
        let Group { ranks, per_node } = group;
        if ranks < 2 || bytes == 0 {
            return 0.0;
        }
        let (bytes, passes, others) = (bytes as f64, passes as f64, (ranks - 1) as f64);
        match self.collectives {
            Collectives::Direct => {
                let outside = (ranks - per_node) as f64 / others;
                let (inside, outside) = (bytes * (1.0 - outside), bytes * outside);
                passes * self.latency + (inside / self.intra).max(outside * self.gpus as f64 / self.inter)
            }
            Collectives::Ring => {
                let groups = self.gpus as f64 / per_node as f64;
                let inside = if per_node > 1 { self.intra } else { f64::INFINITY };
                let outside = if ranks > per_node { self.inter / groups } else { f64::INFINITY };
                passes * others * self.latency + bytes / inside.min(outside)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_peak_of_a_device_depends_on_the_dtype() {
        let peak = Peak::Device("T4".into());
        assert_eq!(peak.flops(FloatDType::F16), Ok(65e12));
        let error = peak.flops(FloatDType::BF16).unwrap_err().to_string();
        assert!(
            error.contains("the peak of T4 in BF16 is not known: add it, as in `peak=312TFLOP/s`"),
            "{error}"
        );
    }

    /// By hand, for 4 nodes of 2 devices, 10 GB/s within a node, 4 GB/s out of it, and 1 ms of latency.
    #[test]
    fn seconds_are_those_of_the_equations() {
        let of = |collectives| Cluster {
            collectives,
            .."nodes=4,gpus=2,intra=10GB/s,inter=4GB/s,latency=1ms".parse().unwrap()
        };
        let (direct, ring) = (of(Collectives::Direct), of(Collectives::Ring));
        let close = |found: f64, expected: f64| {
            assert!((found / expected - 1.0).abs() < 1e-12, "{found}, not {expected}");
        };
        let bytes = 7_000_000_000;
        let (all, within, across) = (
            Group { ranks: 8, per_node: 2 },
            Group { ranks: 2, per_node: 2 },
            Group { ranks: 4, per_node: 1 },
        );
        // 6 of 7 GB leave the node over 2 GB/s of the device.
        close(direct.seconds(all, bytes, 1), 1e-3 + 3.0);
        close(direct.seconds(all, bytes, 2), 2e-3 + 3.0);
        close(direct.seconds(within, bytes, 1), 1e-3 + 0.7);
        close(direct.seconds(across, bytes, 1), 1e-3 + 3.5);
        // Over the 4 GB/s of the node, 7 hops.
        close(ring.seconds(all, bytes, 1), 7e-3 + 1.75);
        close(ring.seconds(within, bytes, 1), 1e-3 + 0.7);
        // Two groups share the node's 4 GB/s.
        close(ring.seconds(across, bytes, 2), 6e-3 + 3.5);
        // Few bytes leave the node, and the link within it is the slower one.
        let slow = Cluster { intra: 0.1e9, ..direct.clone() };
        close(slow.seconds(all, bytes, 1), 1e-3 + 10.0);
        assert_eq!(direct.seconds(Group { ranks: 1, per_node: 1 }, bytes, 1), 0.0);
        assert_eq!(direct.seconds(all, 0, 1), 0.0);
    }
}
