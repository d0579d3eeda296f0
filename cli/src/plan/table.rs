//! A plan as text, in 80 columns: the answer first, and the details if they are asked for.

use firebrick_datasets::counted;

use super::{Plan, Planned};
use firebrick::ByteSize;
use firebrick::accounting::part;

/// The most columns of a line.
const WIDTH: usize = 80;

/// Formats bytes.
fn bytes(bytes: u64) -> String {
    ByteSize(usize::try_from(bytes).unwrap_or(usize::MAX)).to_string()
}

/// Formats operations in three digits.
pub(super) fn operations(flops: f64) -> String {
    let units = [(1e18, "E"), (1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M")];
    let Some((factor, unit)) = units.iter().find(|(factor, _)| flops >= *factor) else {
        return format!("{flops:.0} FLOP");
    };
    let value = flops / factor;
    let digits = if value < 10.0 { 2 } else { usize::from(value < 100.0) };
    format!("{value:.digits$} {unit}FLOP")
}

impl Plan {
    /// Returns the plan as `firebrick plan` prints it: whether the run fits, and the cheapest strategies that do.
    /// `details` adds the parts of the run's memory and all combinations of strategies.
    pub fn summary(&self, details: bool) -> String {
        let mut text = self.answer();
        text += &self.recommended();
        text += &format!("\n{}; {:.0} tokens\n", self.batch, self.tokens);
        text += &format!("{} parameters on {}\n", self.parameters, self.device);
        if let Some(on_cluster) = &self.on_cluster {
            text += &format!("\n{}", on_cluster.summary());
        }
        text += &self.largest_batches();
        if !details {
            let all = self.combinations.len();
            return text
                + &format!("\n--details shows the parts of its memory, and all {all} combinations.\n");
        }
        text += &self.parts();
        text += &format!(
            "\nAll {} combinations, the cheapest first; bytes of each rank\n",
            self.combinations.len()
        );
        text + &self.table()
    }

    /// Says whether the run fits as it is written.
    fn answer(&self) -> String {
        let peak = bytes(self.as_written.peak_bytes);
        let host = self.as_written.host_bytes + self.as_written.host_gradient_bytes;
        let host = match self.host_is_device && host > 0 {
            true => format!(", and {} on the host, which is the same memory", bytes(host)),
            false => String::new(),
        };
        let Planned { disk_bytes: state, disk_parameter_bytes: parameters, .. } = self.as_written;
        let disk = match (state, parameters) {
            (0, 0) => String::new(),
            (_, 0) => format!(" The optimizer's state takes {} on the disk.", bytes(state)),
            _ => format!(
                " The optimizer's state and the parameters of blocks take {} on the disk.",
                bytes(state + parameters)
            ),
        };
        let answer = match (self.as_written.fits, self.budget_bytes.map(bytes)) {
            (Some(true), Some(budget)) => {
                format!("As it is written, it fits: {peak} at the peak{host}, of {budget} for a rank.")
            }
            (Some(false), Some(budget)) => format!(
                "As it is written, it does not fit: {peak} at the peak{host}, of {budget} for a rank."
            ),
            _ => format!(
                "As it is written, a rank needs {peak} at the peak{host}. Whether it fits is not known: say with \
                 --budget what a rank may have."
            ),
        };
        wrapped(&(answer + &disk), "") + "\n" + &pasted(&self.as_written.strategies)
    }

    /// Says which strategies are the cheapest that fit.
    fn recommended(&self) -> String {
        if let Some(found) = self.recommended.and_then(|index| self.combinations.get(index)) {
            if found.strategies == self.as_written.strategies {
                return "No cheaper combination of strategies fits.\n".into();
            }
            let needs = bytes(found.peak_bytes);
            return format!("The cheapest that fits, as lines of the run file ({needs} at the peak):\n")
                + &pasted(&found.strategies);
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
        let (budget, needs) = (bytes(budget), bytes(least.peak_bytes));
        format!("Nothing fits within {budget}: the least that a rank needs is {needs}, with\n")
            + &pasted(&least.strategies)
            + &wrapped(&format!("Lower {largest}."), "")
            + "\n"
    }

    /// Lists the largest micro-batch of each combination, if they are known.
    fn largest_batches(&self) -> String {
        let (Some(tokens), Some(budget)) = (self.row_tokens, self.budget_bytes.map(bytes)) else {
            return String::new();
        };
        let mut text = format!(
            "\nThe most rows of {} in a micro-batch, of {budget} for a rank\n",
            counted(tokens, "token")
        );
        for one in &self.combinations {
            let most = one
                .largest_micro
                .map_or("?".into(), |rows| if rows > 0 { rows.to_string() } else { "-".into() });
            let strategies = wrapped(listed(one), "         ");
            text += &format!("{most:>7}  {}\n", strategies.trim_start());
        }
        text
    }

    /// Lists the parts of the run's memory.
    fn parts(&self) -> String {
        let run = &self.as_written;
        let mut text = "\nThe run as it is written\n".to_owned();
        let parts = [
            (part::MASTER, run.master_bytes),
            (part::REPLICA, run.replica_bytes),
            (part::AVERAGED, run.averaged_bytes),
            (part::GRADIENTS, run.gradient_bytes),
            (part::OPTIMIZER, run.optimizer_bytes),
            (part::ACTIVATIONS, run.activation_bytes),
            (part::ON_HOST, run.host_bytes),
            ("gradients on the host", run.host_gradient_bytes),
            (part::ON_DISK, run.disk_bytes + run.disk_parameter_bytes),
            ("device, between steps", run.between_steps_bytes),
            (part::PEAK, run.peak_bytes),
            ("sent in an update", run.sent_bytes),
        ];
        for (name, part) in parts.into_iter().filter(|(_, part)| *part > 0) {
            text += &format!("  {name:<22} {:>10}\n", bytes(part));
        }
        if let Some(bubble) = run.bubble {
            text += &format!("  {:<22} {:>9.0}%\n", "waits, beside computing", 100.0 * bubble);
        }
        text + &format!("  {:<22} {:>10}\n", "computed in an update", operations(run.flops))
    }

    /// Lists all combinations: the numbers of each in a row, and its strategies below.
    fn table(&self) -> String {
        let line = |fits: &str, cells: [String; 9]| {
            let cells = cells.iter().fold(String::new(), |line, cell| line + &format!("{cell:>8}"));
            format!("{fits:<4}{cells}\n")
        };
        let names = ["peak", "master", "replica", "grads", "optim.", "activ.", "host", "sent", "FLOP"];
        let mut text = line("fits", names.map(String::from));
        for one in &self.combinations {
            let fits = one.fits.map_or("?", |fits| if fits { "yes" } else { "no" });
            let [peak, master, replica, gradients, optimizer, activations, host, sent] = [
                one.peak_bytes,
                one.master_bytes,
                one.replica_bytes,
                one.gradient_bytes,
                one.optimizer_bytes,
                one.activation_bytes,
                one.host_bytes,
                one.sent_bytes,
            ]
            .map(bytes);
            let computed = operations(one.flops).replace("FLOP", "").trim().to_owned();
            text +=
                &line(fits, [peak, master, replica, gradients, optimizer, activations, host, sent, computed]);
            text += &(wrapped(listed(one), "  ") + "\n");
        }
        text
    }
}

/// Returns the list without the text around it.
fn listed(one: &Planned) -> &str {
    let list = one.strategies.trim_start_matches("strategies: [").trim_end_matches("],");
    if list.is_empty() { "none" } else { list }
}

/// Returns a line of a run file, or several if it is longer than the page.
pub(super) fn pasted(line: &str) -> String {
    if line.len() + 2 <= WIDTH {
        return format!("  {line}\n");
    }
    let Some((name, list)) = line.strip_suffix("],").and_then(|line| line.split_once('[')) else {
        return format!("  {line}\n");
    };
    let mut text = format!("  {name}[\n");
    let (mut depth, mut from) = (0, 0);
    for (at, c) in list.char_indices() {
        match c {
            '(' | '[' => depth += 1,
            ')' | ']' => depth -= 1,
            ',' if depth == 0 => {
                text += &format!("      {},\n", list[from..at].trim());
                from = at + 1;
            }
            _ => {}
        }
    }
    let last = list[from..].trim();
    if !last.is_empty() {
        text += &format!("      {last},\n");
    }
    text + "  ],\n"
}

/// Breaks a text into lines between words, each with this indentation.
fn wrapped(text: &str, indent: &str) -> String {
    let mut lines = vec![indent.to_owned()];
    for word in text.split(' ') {
        let line = lines.last().map_or(0, String::len);
        if line > indent.len() && line + 1 + word.len() > WIDTH {
            lines.push(indent.to_owned());
        }
        if let Some(line) = lines.last_mut() {
            if line.len() > indent.len() {
                line.push(' ');
            }
            line.push_str(word);
        }
    }
    lines.join("\n")
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    fn plan(peaks: &[u64], budget: Option<u64>) -> Plan {
        let planned = |peak_bytes: &u64| Planned {
            strategies: format!("strategies: [Accumulate({peak_bytes})],"),
            master_bytes: 4,
            replica_bytes: 0,
            averaged_bytes: 0,
            gradient_bytes: 4,
            optimizer_bytes: 8,
            activation_bytes: *peak_bytes,
            host_bytes: 0,
            host_gradient_bytes: 0,
            disk_bytes: 0,
            disk_parameter_bytes: 0,
            between_steps_bytes: 12,
            peak_bytes: *peak_bytes,
            sent: BTreeMap::new(),
            sent_elements: 0,
            sent_bytes: 0,
            bubble: None,
            flops: 2.5e12,
            fits: budget.map(|budget| *peak_bytes <= budget),
            largest_micro: None,
        };
        let combinations: Vec<_> = peaks.iter().map(planned).collect();
        Plan {
            batch: "1 rank x 1 micro-batch of 1 = 1 sample in an update".into(),
            parameters: 1,
            ranks: 1,
            tokens: 1.0,
            row_tokens: None,
            device: "cpu:0".into(),
            budget_bytes: budget,
            host_is_device: false,
            as_written: combinations[0].clone(),
            recommended: combinations.iter().position(|one| one.fits == Some(true)),
            combinations,
            on_cluster: None,
        }
    }

    #[test]
    fn the_answer_comes_first_and_can_be_pasted() {
        let words = plan(&[900, 500, 100], Some(600)).summary(false);
        let first = "As it is written, it does not fit: 900 B at the peak, of 600 B for a rank.\n";
        assert!(words.starts_with(first), "{words}");
        let pasted = "as lines of the run file (500 B at the peak):\n  strategies: [Accumulate(500)],\n";
        assert!(words.contains(pasted) && !words.contains("Accumulate(100)"), "{words}");
        assert!(
            words.ends_with("--details shows the parts of its memory, and all 3 combinations.\n"),
            "{words}"
        );
        let fits = plan(&[500, 100], Some(600)).summary(false);
        assert!(fits.starts_with("As it is written, it fits: ") && fits.contains("No cheaper"), "{fits}");
        let unknown = plan(&[500, 100], None).summary(false);
        assert!(unknown.contains("--budget") && !unknown.contains("cheapest"), "{unknown}");
    }

    #[test]
    fn details_fit_the_page() {
        let mut plan = plan(&[900, 500, 100], Some(600));
        let long = "strategies: [Amp(bf16), Recompute(every: 1), Zero(stage: 3, blocks: [\"a\", \"b\"]), Accumulate(8), Clip(norm: 1.0)],";
        for one in plan.combinations.iter_mut().chain([&mut plan.as_written]) {
            one.strategies = long.into();
            (one.master_bytes, one.sent_bytes, one.flops) = (999_400_000, 123_000, 4.449e8);
            one.largest_micro = Some(12);
        }
        plan.row_tokens = Some(64);
        let words = plan.summary(true);
        assert!(words.lines().all(|line| line.chars().count() <= WIDTH), "{words}");
        assert!(words.contains("      Zero(stage: 3, blocks: [\"a\", \"b\"]),\n"), "{words}");
        let rows = "\nThe most rows of 64 tokens in a micro-batch, of 600 B for a rank\n     12  Amp(bf16), ";
        assert!(words.contains(rows), "{words}");
        assert!(words.contains("no  ") && words.contains("445 M\n"), "{words}");
        assert_eq!(words.matches("Recompute(every: 1)").count(), 7, "{words}");
    }

    #[test]
    fn where_nothing_fits_the_least_is_told_and_what_to_lower() {
        let words = plan(&[900, 700], Some(600)).summary(false);
        assert!(words.contains("Nothing fits within 600 B: the least that a rank needs is 700 B"), "{words}");
        assert!(words.contains("strategies: [Accumulate(700)],\nLower `batch.micro`"), "{words}");
    }
}
