//! Reads the description of a cluster, as in `nodes=16,gpus=8,intra=450GB/s,inter=50GB/s`.

use std::str::FromStr;

use burn::tensor::FloatDType;

use super::{Cluster, Collectives, Peak};
use crate::ClusterError;
use firebrick::device::peak_flops_of;

/// The share of the peak that computation reaches by default.
const MFU: f64 = 0.4;

/// Seconds of a hop by default.
const LATENCY: f64 = 10e-6;

const MOST_RANKS: u64 = 100_000;

const NAMES: [&str; 8] = ["nodes", "gpus", "intra", "inter", "latency", "mfu", "peak", "collectives"];
const RATE: &str = "a rate above 0, as `450GB/s` or `400Gbit/s`";
const RATES: [(&str, f64); 13] = [
    ("MB/s", 1e6),
    ("GB/s", 1e9),
    ("TB/s", 1e12),
    ("Mbit/s", 1e6 / 8.0),
    ("Gbit/s", 1e9 / 8.0),
    ("Tbit/s", 1e12 / 8.0),
    ("Mb/s", 1e6 / 8.0),
    ("Gb/s", 1e9 / 8.0),
    ("Tb/s", 1e12 / 8.0),
    ("Mbps", 1e6 / 8.0),
    ("Gbps", 1e9 / 8.0),
    ("Tbps", 1e12 / 8.0),
    ("B/s", 1.0),
];
const TIMES: [(&str, f64); 5] = [("s", 1.0), ("ms", 1e-3), ("us", 1e-6), ("µs", 1e-6), ("ns", 1e-9)];
const OPERATIONS: [(&str, f64); 5] =
    [("", 1.0), ("FLOP/s", 1.0), ("GFLOP/s", 1e9), ("TFLOP/s", 1e12), ("PFLOP/s", 1e15)];

/// Reads a number, at least 0, with one of these units.
fn with_unit(text: &str, units: &[(&str, f64)]) -> Option<f64> {
    let mut values = units.iter().filter_map(|(unit, factor)| {
        let number: f64 = text.strip_suffix(unit)?.trim().parse().ok()?;
        Some(number * factor)
    });
    values.find(|value| value.is_finite() && *value >= 0.0)
}

/// The values by their keys.
struct Values<'a>([Option<&'a str>; 8]);

impl<'a> Values<'a> {
    fn of(text: &'a str) -> Result<Self, ClusterError> {
        let mut values = [None; 8];
        for part in text.split(',') {
            let (key, value) =
                part.split_once('=').ok_or_else(|| ClusterError::Form { found: part.into() })?;
            let key = key.trim();
            let Some(place) = NAMES.iter().position(|name| *name == key) else {
                return Err(ClusterError::Key { key: key.into() });
            };
            if values[place].replace(value.trim()).is_some() {
                return Err(ClusterError::Twice { key: NAMES[place] });
            }
        }
        Ok(Self(values))
    }

    /// Reads the value of a key, if it is there.
    fn read<T>(
        &self,
        key: &'static str,
        expected: &'static str,
        read: impl FnOnce(&str) -> Option<T>,
    ) -> Result<Option<T>, ClusterError> {
        let value = NAMES.iter().position(|name| *name == key).and_then(|place| self.0[place]);
        let Some(found) = value else { return Ok(None) };
        read(found).map(Some).ok_or(ClusterError::Value { key, expected, found: found.into() })
    }

    fn needed<T>(
        &self,
        key: &'static str,
        expected: &'static str,
        read: impl FnOnce(&str) -> Option<T>,
    ) -> Result<T, ClusterError> {
        self.read(key, expected, read)?.ok_or(ClusterError::Missing { key })
    }
}

impl FromStr for Cluster {
    type Err = ClusterError;

    fn from_str(text: &str) -> Result<Self, ClusterError> {
        let values = Values::of(text)?;
        let count = |text: &str| text.parse().ok().filter(|count| (1..=MOST_RANKS).contains(count));
        let rate = |text: &str| with_unit(text, &RATES).filter(|rate| *rate > 0.0);
        let nodes = values.needed("nodes", "a whole number from 1 to 100000", count)?;
        let gpus = values.needed("gpus", "a whole number from 1 to 100000", count)?;
        if nodes * gpus > MOST_RANKS {
            let found = format!("{gpus}` on `nodes={nodes}");
            return Err(ClusterError::Value { key: "gpus", expected: "at most 100000 on all nodes", found });
        }
        let inter = match nodes {
            1 => values.read("inter", RATE, rate)?.unwrap_or(f64::INFINITY),
            _ => values.needed("inter", RATE, rate)?,
        };
        let share = |text: &str| text.parse().ok().filter(|share: &f64| *share > 0.0 && *share <= 1.0);
        Ok(Self {
            nodes,
            gpus,
            intra: values.needed("intra", RATE, rate)?,
            inter,
            latency: values
                .read("latency", "a time, as `10us`", |text| with_unit(text, &TIMES))?
                .unwrap_or(LATENCY),
            mfu: values.read("mfu", "above 0 and at most 1, as `0.4`", share)?.unwrap_or(MFU),
            peak: values.read(
                "peak",
                "a rate above 0, as `312TFLOP/s` or `312e12`, or the name of a known device, as `A100` or `H100 PCIe`",
                Peak::read,
            )?,
            collectives: values
                .read("collectives", "`direct` or `ring`", |text| match text {
                    "direct" => Some(Collectives::Direct),
                    "ring" => Some(Collectives::Ring),
                    _ => None,
                })?
                .unwrap_or(Collectives::Direct),
        })
    }
}

impl Peak {
    fn read(text: &str) -> Option<Self> {
        if let Some(flops) = with_unit(text, &OPERATIONS) {
            return (flops > 0.0).then_some(Self::Flops(flops));
        }
        peak_flops_of(text, FloatDType::F32).map(|_| Self::Device(text.into()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PLAIN: &str = "nodes=16,gpus=8,intra=450GB/s,inter=50GB/s";

    fn error(text: &str) -> String {
        text.parse::<Cluster>().unwrap_err().to_string()
    }

    #[test]
    fn a_cluster_is_read_with_its_units_and_defaults() {
        let plain: Cluster = PLAIN.parse().unwrap();
        let expected = Cluster {
            nodes: 16,
            gpus: 8,
            intra: 450e9,
            inter: 50e9,
            latency: 10e-6,
            mfu: 0.4,
            peak: None,
            collectives: Collectives::Direct,
        };
        assert_eq!(plain, expected);
        let more =
            " nodes = 1 , gpus=2,intra=0.9 TB/s,latency=1.5ms,mfu=0.55,peak=H100 PCIe,collectives=ring";
        let expected = Cluster {
            nodes: 1,
            gpus: 2,
            intra: 900e9,
            inter: f64::INFINITY,
            latency: 1.5e-3,
            mfu: 0.55,
            peak: Some(Peak::Device("H100 PCIe".into())),
            collectives: Collectives::Ring,
        };
        assert_eq!(more.parse(), Ok(expected));
        for (rate, bytes) in [
            ("400Gbit/s", 50e9),
            ("400Gb/s", 50e9),
            ("400Gbps", 50e9),
            ("3.2Tbit/s", 400e9),
            ("800Mbit/s", 100e6),
            ("5e9B/s", 5e9),
        ] {
            let cluster: Cluster = format!("nodes=2,gpus=1,intra=1GB/s,inter={rate}").parse().unwrap();
            assert!((cluster.inter / bytes - 1.0).abs() < 1e-12, "{rate}: {}", cluster.inter);
        }
        for (peak, flops) in [("312e12", 312e12), ("312 TFLOP/s", 312e12), ("1.5PFLOP/s", 1.5e15)] {
            let cluster: Cluster = format!("{PLAIN},peak={peak}").parse().unwrap();
            assert_eq!(cluster.peak, Some(Peak::Flops(flops)), "{peak}");
        }
    }

    #[test]
    fn what_cannot_be_read_is_named_with_what_to_write() {
        assert!(error("nodes").contains("found `nodes`; an example is `nodes=16,"));
        assert!(error("nodes=1,,gpus=2").contains("found ``"));
        assert!(error("node=1").contains("unknown key `node`, expected one of nodes, gpus, intra,"));
        assert!(error("nodes=1,nodes=2").contains("`nodes` is there twice"));
        assert!(error("nodes=1,intra=1GB/s").contains("`gpus` is missing; an example"));
        assert!(error("nodes=1,gpus=1").contains("`intra` is missing"));
        assert!(error("nodes=2,gpus=1,intra=1GB/s").contains("`inter` is missing"));
        for (key, value, expected) in [
            ("nodes", "0", "a whole number from 1 to 100000"),
            ("nodes", "1.5", "a whole number"),
            ("gpus", "20000", "at most 100000 on all nodes, found `20000` on `nodes=16`"),
            ("intra", "450", "as `450GB/s` or `400Gbit/s`, found `450`"),
            ("intra", "450GiB/s", "`intra` must be a rate"),
            ("inter", "0GB/s", "a rate above 0"),
            ("inter", "-5GB/s", "a rate above 0"),
            ("inter", "infGB/s", "a rate above 0"),
            ("latency", "10", "a time, as `10us`, found `10`"),
            ("mfu", "40", "above 0 and at most 1"),
            ("mfu", "0", "above 0 and at most 1"),
            ("peak", "0", "a rate above 0"),
            ("peak", "Pentium", "the name of a known device, as `A100` or `H100 PCIe`, found `Pentium`"),
            ("collectives", "tree", "`direct` or `ring`, found `tree`"),
        ] {
            let parts = PLAIN.split(',').filter(|part| !part.starts_with(&format!("{key}=")));
            let text = parts.chain([&*format!("{key}={value}")]).collect::<Vec<_>>().join(",");
            assert!(error(&text).contains(expected), "{key}={value}: {}", error(&text));
        }
    }
}
