//! The listing as text.

use std::fmt::{Display, Formatter, Result};

use super::{InBurn, Listed, Listing, Usage};

/// Prints rows of cells in columns; the first row is the heading. The columns in `numbers` are right-aligned.
pub(super) fn table(f: &mut Formatter, rows: &[Vec<String>], numbers: std::ops::Range<usize>) -> Result {
    let columns = rows.first().map_or(0, Vec::len);
    let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
    let widths: Vec<_> = (0..columns).map(width).collect();
    for row in rows {
        let mut line = String::new();
        for (column, cell) in row.iter().enumerate() {
            let width = widths[column];
            line += &match numbers.contains(&column) {
                true => format!("{cell:>width$}  "),
                false => format!("{cell:<width$}  "),
            };
        }
        writeln!(f, "{}", line.trim_end())?;
    }
    Ok(())
}

/// Formats a number with three digits and an exponent, or with up to seven decimals from 1e-4 to 1e5.
fn number(value: f64) -> String {
    match (1e-4..1e5).contains(&value) {
        true => {
            let text = format!("{value:.7}");
            text.trim_end_matches('0').trim_end_matches('.').into()
        }
        false => format!("{value:.2e}"),
    }
}

fn summary(device: &Listed, format: usize) -> String {
    let Some(usage) = &device.usage else { return "cannot be opened".into() };
    let Usage { storage, arithmetic, .. } = usage[format];
    // A device that computes in a format also stores it.
    let names = usage[format].names().filter(|name| !(*name == "storage" && storage && arithmetic));
    let names: Vec<_> = names.collect();
    if names.is_empty() { "none".into() } else { names.join(", ") }
}

impl Display for Listing {
    fn fmt(&self, f: &mut Formatter) -> Result {
        let heading = |names: &[&str]| names.iter().map(|name| name.to_string()).collect::<Vec<_>>();
        let mut rows = vec![heading(&["device", "auto", "memory", "hardware"])];
        for device in &self.devices {
            let memory = device.memory_bytes.map_or("-".into(), |b| format!("{:.1} GB", b as f64 / 1e9));
            let auto = if device.auto { "yes" } else { "" };
            let hardware = device.hardware.clone().unwrap_or_default();
            rows.push(vec![device.name.clone(), auto.into(), memory, hardware]);
        }
        table(f, &rows, 2..3)?;

        writeln!(f)?;
        for Listed { name, product_library, no_product_library, .. } in &self.devices {
            if let Some(library) = product_library {
                writeln!(f, "{name} multiplies matrices with {library}\n")?;
            }
            if let Some(why) = no_product_library {
                writeln!(f, "{name} multiplies matrices with CubeCL's kernels, which are slower: {why}\n")?;
            }
        }
        let names =
            ["format", "bits", "exponent", "mantissa", "min normal", "min subnormal", "max", "epsilon"];
        let mut rows = vec![heading(&names)];
        rows[0].push("in Burn".into());
        for format in &self.formats {
            let numbers = &format.numbers;
            let in_burn = match format.in_burn {
                InBurn::Tensor => "tensors",
                InBurn::Quantized => "quantized tensors",
                InBurn::Scale => "scales of quantized tensors",
                InBurn::No => "no",
            };
            rows.push(vec![
                numbers.name.into(),
                numbers.bits.to_string(),
                numbers.exponent_bits.to_string(),
                numbers.mantissa_bits.to_string(),
                number(numbers.smallest_normal),
                numbers.smallest_subnormal.map_or("-".into(), number),
                number(numbers.largest),
                number(numbers.epsilon),
                in_burn.into(),
            ]);
        }
        table(f, &rows, 1..8)?;

        writeln!(f)?;
        let mut rows = vec![heading(&["use"])];
        rows[0].extend(self.devices.iter().map(|device| device.name.clone()));
        for (index, format) in self.formats.iter().enumerate() {
            let mut row = vec![format.numbers.name.to_string()];
            row.extend(self.devices.iter().map(|device| match format.in_burn {
                InBurn::No => "not in Burn".into(),
                _ => summary(device, index),
            }));
            rows.push(row);
        }
        table(f, &rows, 0..0)?;
        writeln!(
            f,
            "\nstorage: holds and converts. arithmetic: holds, converts and computes. accelerated: units for\n\
             matrix products, such as tensor cores, take or give it."
        )
    }
}

#[cfg(test)]
mod tests {
    use super::super::NumberFormat;
    use super::super::listing::ListedFormat;
    use super::*;

    #[test]
    fn the_table_has_its_layout() {
        let all = Usage { storage: true, arithmetic: true, accelerated: true };
        let computes = Usage { accelerated: false, ..all };
        let holds = Usage { storage: true, ..Usage::default() };
        let tensor_core = Usage { arithmetic: false, ..all };
        let none = Usage::default();
        let device = |name: &str, usage: Option<[Usage; 10]>| Listed {
            name: name.into(),
            auto: name == "cuda:0",
            hardware: usage.map(|_| format!("the {name}")),
            memory_bytes: (name == "cpu:0").then_some(16_000_000_000),
            product_library: (name == "cuda:0").then_some("cuBLASLt 13.0.2 (libcublasLt.so.13)"),
            no_product_library: (name == "cuda:1").then_some("FIREBRICK_CUBLASLT is off"),
            usage: usage.map(Vec::from),
        };
        let cuda = [computes, all, all, all, tensor_core, tensor_core, holds, none, none, holds];
        let cpu = [computes, computes, computes, computes, none, none, none, none, none, none];
        let formats = NumberFormat::all().iter();
        let formats =
            formats.map(|&numbers| ListedFormat { numbers, in_burn: InBurn::of(numbers) }).collect();
        let devices = vec![device("cuda:0", Some(cuda)), device("cuda:1", None), device("cpu:0", Some(cpu))];
        let expected = include_str!("table.txt");
        assert_eq!(Listing { devices, formats }.to_string(), expected);
    }
}
