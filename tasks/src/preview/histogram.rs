//! Lengths as bars.

/// Bars that a histogram has at most.
const BARS: usize = 12;

/// Eighths of a column.
const EIGHTHS: [char; 8] = ['▏', '▎', '▍', '▌', '▋', '▊', '▉', '█'];

/// A histogram of lengths, a line for each range, no wider than `width` columns, with a line of
/// the most telling numbers before it.
pub(super) fn lines(lengths: &[usize], width: usize) -> Vec<String> {
    let mut sorted = lengths.to_vec();
    sorted.sort_unstable();
    let (Some(&shortest), Some(&longest)) = (sorted.first(), sorted.last()) else {
        return vec!["no samples".into()];
    };
    let share = |part: f64| sorted[((sorted.len() - 1) as f64 * part).round() as usize];
    let mean = sorted.iter().sum::<usize>() as f64 / sorted.len() as f64;
    let mut lines = vec![format!(
        "shortest {shortest}, median {}, mean {mean:.1}, 95% up to {}, longest {longest}",
        share(0.5),
        share(0.95)
    )];
    let step = step(longest - shortest + 1);
    let start = shortest / step * step;
    let mut counts = vec![0_usize; (longest - start) / step + 1];
    for length in sorted {
        counts[(length - start) / step] += 1;
    }
    let most = counts.iter().copied().max().unwrap_or(1);
    let digits = longest.to_string().len().max((start + counts.len() * step).to_string().len());
    let room = width.saturating_sub(2 * digits + 14).max(8);
    for (bar, count) in counts.into_iter().enumerate() {
        let from = start + bar * step;
        let range = match step {
            1 => format!("{from:>digits$}{:width$}", "", width = digits + 2),
            _ => format!("{from:>digits$}..{:<digits$}", from + step - 1),
        };
        lines.push(format!("{range} {count:>8} {}", bar_of(count, most, room)).trim_end().to_owned());
    }
    lines
}

/// The smallest of 1, 2, 5, 10, 20, 50, ... with which there are few enough bars.
fn step(range: usize) -> usize {
    let steps = (0..).flat_map(|zeros| [1, 2, 5].map(|digit| digit * 10_usize.saturating_pow(zeros)));
    // A range begins at a multiple of the step, so there may be one bar more.
    steps.into_iter().find(|step| range.div_ceil(*step) < BARS).unwrap_or(1)
}

/// A bar as long as its share of `most`, of `room` columns; what is not 0 is seen.
fn bar_of(count: usize, most: usize, room: usize) -> String {
    let eighths = (count as f64 / most as f64 * (room * 8) as f64).round() as usize;
    let eighths = eighths.max(usize::from(count > 0));
    let mut bar = "█".repeat(eighths / 8);
    if !eighths.is_multiple_of(8) {
        bar.push(EIGHTHS[eighths % 8 - 1]);
    }
    bar
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bars_have_their_lengths() {
        let lengths: Vec<usize> = [vec![3; 8], vec![4; 4], vec![6; 1]].concat();
        let expected = [
            "shortest 3, median 3, mean 3.5, 95% up to 4, longest 6",
            "3           8 ████████",
            "4           4 ████",
            "5           0",
            "6           1 █",
        ];
        assert_eq!(lines(&lengths, 0), expected);
    }

    #[test]
    fn few_bars_for_any_range() {
        for longest in [1, 2, 11, 12, 99, 512, 1023, 100_000] {
            let lines = lines(&[1, longest / 2 + 1, longest], 80);
            assert!(lines.len() <= BARS + 2, "{longest}: {lines:#?}");
            assert!(lines.iter().all(|line| line.chars().count() <= 80));
        }
        assert_eq!(lines(&[], 80), ["no samples"]);
        assert_eq!(lines(&[0, 0], 80).len(), 2);
    }
}
