//! A plan as text.

use super::{Plan, Planned};
use firebrick::ByteSize;

/// Formats bytes.
fn bytes(bytes: u64) -> String {
    ByteSize(usize::try_from(bytes).unwrap_or(usize::MAX)).to_string()
}

/// Formats operations.
fn operations(flops: f64) -> String {
    let units = [(1e18, "E"), (1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M")];
    match units.iter().find(|(factor, _)| flops >= *factor) {
        Some((factor, unit)) => format!("{:.3} {unit}FLOP", flops / factor),
        None => format!("{flops:.0} FLOP"),
    }
}

impl Plan {
    /// Returns the plan as `firebrick plan` prints it.
    pub fn summary(&self) -> String {
        let mut text = format!("{}; {:.0} tokens\n", self.batch, self.tokens);
        text += &format!("{} parameters on {}\n", self.parameters, self.device);
        text += &match self.budget_bytes {
            Some(budget) => {
                let host = if self.host_is_device { ", which what waits on the host takes too" } else { "" };
                format!("a rank may have {} on the device{host}\n", bytes(budget))
            }
            None => "what a rank may have on the device is not known: say it with --budget\n".into(),
        };
        text += &self.describe_written();
        text += "\nAll combinations, the cheapest first; bytes of each rank\n";
        text += &self.table();
        text + &self.describe_recommended()
    }

    fn describe_written(&self) -> String {
        let run = &self.as_written;
        let fits = match run.fits {
            Some(true) => ": it fits",
            Some(false) => ": it does not fit",
            None => "",
        };
        let mut text =
            format!("\nThe run as it is written, {}{fits}\n", run.strategies.trim_end_matches(','));
        let parts = [
            ("master", run.master_bytes),
            ("replica", run.replica_bytes),
            ("averaged weights", run.averaged_bytes),
            ("gradients", run.gradient_bytes),
            ("optimizer state", run.optimizer_bytes),
            ("activations", run.activation_bytes),
            ("on the host", run.host_bytes),
            ("device, between steps", run.between_steps_bytes),
            ("device, at the peak", run.peak_bytes),
            ("sent in an update", run.sent_bytes),
        ];
        for (name, part) in parts.into_iter().filter(|(_, part)| *part > 0) {
            text += &format!("  {name:<22} {:>10}\n", bytes(part));
        }
        text + &format!("  {:<22} {:>10}\n", "computed in an update", operations(run.flops))
    }

    fn table(&self) -> String {
        let lists = self.combinations.iter().map(|one| listed(one).len());
        let width = lists.max().unwrap_or(0).max("strategies".len());
        let line = |list: &str, fits: &str, cells: [String; 9]| {
            let cells = cells.iter().fold(String::new(), |line, cell| line + &format!(" {cell:>10}"));
            format!("{list:<width$} {fits:<4}{cells}\n")
        };
        let names =
            ["master", "replica", "gradients", "optimizer", "activat.", "host", "peak", "sent", "computed"];
        let mut text = line("strategies", "fits", names.map(String::from));
        for one in &self.combinations {
            let fits = one.fits.map_or("?", |fits| if fits { "yes" } else { "no" });
            let [master, replica, gradients, optimizer, activations, host, peak, sent] = [
                one.master_bytes,
                one.replica_bytes,
                one.gradient_bytes,
                one.optimizer_bytes,
                one.activation_bytes,
                one.host_bytes,
                one.peak_bytes,
                one.sent_bytes,
            ]
            .map(bytes);
            let computed = operations(one.flops).replace("FLOP", "");
            let cells = [
                master,
                replica,
                gradients,
                optimizer,
                activations,
                host,
                peak,
                sent,
                computed.trim().into(),
            ];
            text += &line(listed(one), fits, cells);
        }
        text
    }

    fn describe_recommended(&self) -> String {
        if let Some(found) = self.recommended.and_then(|index| self.combinations.get(index)) {
            return format!("\nThe cheapest that fits, as lines of the run file:\n  {}\n", found.strategies);
        }
        let (Some(budget), Some(least)) =
            (self.budget_bytes, self.combinations.iter().min_by_key(|one| one.peak_bytes))
        else {
            return String::new();
        };
        let largest = match least.activation_bytes * 2 > least.peak_bytes {
            true => "`batch.micro` (with `batch.accumulate` higher), or the length of the rows",
            false => "`model.width`, `model.layers` or the vocabulary, or train on more ranks",
        };
        format!(
            "\nNothing fits within {}: the least that a rank needs is {}, with\n  {}\nLower {largest}.\n",
            bytes(budget),
            bytes(least.peak_bytes),
            least.strategies
        )
    }
}

/// Returns the list without the text around it.
fn listed(one: &Planned) -> &str {
    let list = one.strategies.trim_start_matches("strategies: [").trim_end_matches("],");
    if list.is_empty() { "none" } else { list }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    fn plan(peaks: &[u64], budget: u64) -> Plan {
        let planned = |peak_bytes: &u64| Planned {
            strategies: format!("strategies: [Accumulate({peak_bytes})],"),
            master_bytes: 4,
            replica_bytes: 0,
            averaged_bytes: 0,
            gradient_bytes: 4,
            optimizer_bytes: 8,
            activation_bytes: *peak_bytes,
            host_bytes: 0,
            between_steps_bytes: 12,
            peak_bytes: *peak_bytes,
            sent: BTreeMap::new(),
            sent_elements: 0,
            sent_bytes: 0,
            flops: 2.5e12,
            fits: Some(*peak_bytes <= budget),
        };
        let combinations: Vec<_> = peaks.iter().map(planned).collect();
        Plan {
            batch: "1 rank x 1 micro-batch of 1 = 1 sample in an update".into(),
            parameters: 1,
            ranks: 1,
            tokens: 1.0,
            device: "cpu:0".into(),
            budget_bytes: Some(budget),
            host_is_device: false,
            as_written: combinations[0].clone(),
            recommended: combinations.iter().position(|one| one.fits == Some(true)),
            combinations,
        }
    }

    #[test]
    fn the_first_that_fits_can_be_pasted() {
        let words = plan(&[900, 500, 100], 600).summary();
        assert!(words.ends_with("as lines of the run file:\n  strategies: [Accumulate(500)],\n"), "{words}");
        assert!(words.contains("Accumulate(900) no ") && words.contains("Accumulate(100) yes"), "{words}");
        assert!(
            words.contains("as it is written, strategies: [Accumulate(900)]: it does not fit"),
            "{words}"
        );
        assert!(words.contains("2.500 TFLOP"), "{words}");
    }

    #[test]
    fn where_nothing_fits_the_least_is_told_and_what_to_lower() {
        let words = plan(&[900, 700], 600).summary();
        assert!(words.contains("Nothing fits within 600 B: the least that a rank needs is 700 B"), "{words}");
        assert!(words.contains("strategies: [Accumulate(700)],\nLower `batch.micro`"), "{words}");
    }
}
