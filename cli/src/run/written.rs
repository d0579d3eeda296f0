//! Writes strategies as in a run file.

use super::{OffloadConfig, RecomputeConfig, StrategyConfig, ZeroConfig, parse};

/// Writes the list as a line of a run file: `strategies: [Amp(bf16), Clip(norm: 1.0)],`.
pub(crate) fn strategies_line(strategies: &[StrategyConfig]) -> String {
    let written: Vec<String> = strategies.iter().map(StrategyConfig::written).collect();
    format!("strategies: [{}],", written.join(", "))
}

impl StrategyConfig {
    /// Writes the strategy as in a run file, without settings at their defaults.
    pub(crate) fn written(&self) -> String {
        match self {
            Self::Zero(zero) if *zero == ZeroConfig::from(zero.stage) => {
                format!("Zero(stage: {})", zero.stage)
            }
            Self::Recompute(recompute) if *recompute == RecomputeConfig::every_block() => {
                "Recompute(every: 1)".into()
            }
            Self::Offload(OffloadConfig::optimizer) => "Offload(optimizer)".into(),
            Self::Offload(OffloadConfig::parameters) => "Offload(parameters)".into(),
            Self::Lora(lora) => lora.written(),
            other => {
                let options = ron::Options::default().with_default_extension(parse::extensions());
                let pretty = ron::ser::PrettyConfig::new().depth_limit(0).separate_tuple_members(false);
                // A value that was read from a run file can be written to one.
                let text = options.to_string_pretty(other, pretty).unwrap_or_default();
                without_defaults(&text)
            }
        }
    }
}

/// Removes settings that are not given, which RON writes as `None`.
fn without_defaults(text: &str) -> String {
    let (Some(start), true) = (text.find('('), text.ends_with(')')) else { return text.into() };
    let inside = &text[start + 1..text.len() - 1];
    if !inside.contains("None") || inside.contains(['(', '[', '"']) {
        return text.into();
    }
    let given: Vec<&str> =
        inside.split(',').map(str::trim).filter(|setting| !setting.ends_with("None")).collect();
    format!("{}({})", &text[..start], given.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Run;

    #[test]
    fn what_is_written_is_read_as_the_same() {
        let file = include_str!("../../../examples/tinyshakespeare.ron");
        for line in [
            "[Zero(stage: 2), Offload(optimizer), Amp(bf16), Recompute(every: 1), Accumulate(4), Clip(norm: 1.0)]",
            "[Amp(dtype: f16, keep_f32: [norms]), Accumulate(4), Zero(stage: 1), Clip(value: 0.5)]",
            "[Zero(stage: 3, replicate_below: 9), Offload(parameters), Recompute(every: 2, offloaded: true)]",
            "[AccumulateIn(2, bf16), Ema(decay: 0.99)]",
            "[Freeze([\"tokens\"]), Lora(rank: 8, alpha: 16, paths: [\"*.query.weight\"], also: [\"head\"]), Lora(rank: 2)]",
        ] {
            let read = |line: &str| {
                let run = Run::parse("file", file, &[format!("strategies={line}")]);
                run.unwrap_or_else(|error| panic!("{line}: {error}")).strategies
            };
            let strategies = read(line);
            let written = strategies_line(&strategies);
            let list = written.strip_prefix("strategies: ").unwrap().strip_suffix(',').unwrap();
            assert_eq!(read(list), strategies, "{written}");
        }
        let run = Run::parse("file", file, &["strategies=[Zero(stage: 2), Amp(bf16), Clip(norm: 1.0)]"]);
        let written = strategies_line(&run.unwrap().strategies);
        assert_eq!(written, "strategies: [Zero(stage: 2), Amp(bf16), Clip(norm: 1.0)],");
    }
}
