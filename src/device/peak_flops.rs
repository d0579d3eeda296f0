//! The peak rate of known devices in matrix products.

use burn::tensor::{Device, FloatDType};

use super::listing::hardware;

/// The rates of one kind of device, in 10^12 floating-point operations per second, without sparsity. A product of 16-bit
/// numbers is summed in f32, as kernels that train do.
struct Peak {
    /// The words that the device's name contains.
    words: &'static [&'static str],
    bf16: Option<f64>,
    f16: f64,
    /// In f32, on the units that kernels use for it: on NVIDIA's devices those of tf32, if the device has them.
    f32: f64,
}

/// A device of a data centre.
const fn card(words: &'static [&'static str], bf16: Option<f64>, f16: f64, f32: f64) -> Peak {
    Peak { words, bf16, f16, f32 }
}

/// A GeForce card of the generations Ampere, Ada and Blackwell: its tensor cores have the rate of its other units in
/// tf32, and twice of it in 16 bits. `f32` is 2 x cores x boost clock.
const fn geforce(words: &'static [&'static str], f32: f64) -> Peak {
    Peak { words, bf16: Some(2.0 * f32), f16: 2.0 * f32, f32 }
}

/// Sources: the data sheets of V100 (2020), T4, A10, A100 (2021), L4, L40S, H100 (2023) and H200 (2023); for GeForce
/// cards, appendix A of the white papers on GA102 (2.1), on Ada (2.02) and on RTX Blackwell (1.0), and NVIDIA's pages of
/// the smaller cards; AMD's white papers on CDNA 2 and CDNA 3 and the data sheets of MI250 and MI300. Data sheets of
/// NVIDIA since A100 state rates with sparsity: these are half of them.
///
/// V100 and T4 have no units for bf16 and tf32. Each half of an MI250 is a device.
const PEAKS: &[Peak] = &[
    card(&["V100"], None, 125.0, 15.7),
    card(&["V100", "PCIE"], None, 112.0, 14.0),
    card(&["V100S"], None, 130.0, 16.4),
    card(&["T4"], None, 65.0, 8.1),
    card(&["A10"], Some(125.0), 125.0, 62.5),
    card(&["A100"], Some(312.0), 312.0, 156.0),
    card(&["L4"], Some(121.0), 121.0, 60.0),
    card(&["L40S"], Some(362.0), 362.0, 183.0),
    card(&["H100"], Some(989.4), 989.4, 494.7),
    card(&["H100", "PCIE"], Some(756.0), 756.0, 378.0),
    card(&["H100", "NVL"], Some(835.0), 835.0, 417.5),
    card(&["H200"], Some(989.5), 989.5, 494.5),
    card(&["H200", "NVL"], Some(835.5), 835.5, 417.5),
    geforce(&["RTX", "3050"], 9.1),
    geforce(&["RTX", "3060"], 12.7),
    geforce(&["RTX", "3060", "TI"], 16.2),
    geforce(&["RTX", "3070"], 20.3),
    geforce(&["RTX", "3070", "TI"], 21.7),
    geforce(&["RTX", "3080"], 29.8),
    geforce(&["RTX", "3080", "TI"], 34.1),
    geforce(&["RTX", "3090"], 35.6),
    geforce(&["RTX", "3090", "TI"], 40.0),
    geforce(&["RTX", "4060"], 15.1),
    geforce(&["RTX", "4060", "TI"], 22.1),
    geforce(&["RTX", "4070"], 29.1),
    geforce(&["RTX", "4070", "SUPER"], 35.5),
    geforce(&["RTX", "4070", "TI"], 40.1),
    geforce(&["RTX", "4070", "TI", "SUPER"], 44.1),
    geforce(&["RTX", "4080"], 48.7),
    geforce(&["RTX", "4080", "SUPER"], 52.2),
    geforce(&["RTX", "4090"], 82.6),
    geforce(&["RTX", "5060"], 19.2),
    geforce(&["RTX", "5060", "TI"], 23.7),
    geforce(&["RTX", "5070"], 30.9),
    geforce(&["RTX", "5070", "TI"], 43.9),
    geforce(&["RTX", "5080"], 56.3),
    geforce(&["RTX", "5090"], 104.8),
    card(&["MI250"], Some(181.0), 181.0, 45.3),
    card(&["MI250X"], Some(191.5), 191.5, 47.9),
    card(&["MI300A"], Some(980.6), 980.6, 122.6),
    card(&["MI300X"], Some(1307.4), 1307.4, 163.4),
];

/// Words of devices with other rates than the card that they are named after: cards of notebooks, parts of a card, and
/// cards of the Chinese market.
const OTHERS: [&str; 5] = ["LAPTOP", "MOBILE", "MAX", "MIG", "D"];

/// Returns the peak rate of a device in matrix products of numbers of this dtype, in floating-point operations per
/// second: dense, summed in f32, and for f32 on NVIDIA's units of tf32 where the device has them. Returns `None` for a
/// CPU, and for a device or a dtype that is not in the table.
///
/// ```
/// use burn::tensor::{Device, FloatDType};
///
/// assert_eq!(firebrick::device::peak_flops(&Device::flex(), FloatDType::F32), None);
/// ```
pub fn peak_flops(device: &Device, dtype: FloatDType) -> Option<f64> {
    peak_flops_of(&hardware(device)?, dtype)
}

/// Returns the peak rate of a device by the name of its hardware, such as `A100` or `NVIDIA H100 PCIe`, as
/// [`peak_flops`] does: the entry of the table with the most words of the name.
///
/// ```
/// use burn::tensor::FloatDType;
/// use firebrick::device::peak_flops_of;
///
/// assert_eq!(peak_flops_of("NVIDIA A100-SXM4-80GB", FloatDType::BF16), Some(312e12));
/// assert_eq!(peak_flops_of("Pentium", FloatDType::F32), None);
/// ```
pub fn peak_flops_of(name: &str, dtype: FloatDType) -> Option<f64> {
    let peak = peak_of(name)?;
    let tera = match dtype {
        FloatDType::BF16 => peak.bf16?,
        FloatDType::F16 => peak.f16,
        FloatDType::F32 | FloatDType::Flex32 => peak.f32,
        FloatDType::F64 => return None,
    };
    Some(tera * 1e12)
}

/// Returns the entry of a device by the name of its hardware.
fn peak_of(name: &str) -> Option<&'static Peak> {
    let name = name.to_uppercase();
    let words: Vec<&str> = name.split(|letter: char| !letter.is_alphanumeric()).collect();
    if OTHERS.iter().any(|other| words.contains(other)) {
        return None;
    }
    let of_name = PEAKS.iter().filter(|peak| peak.words.iter().all(|word| words.contains(word)));
    of_name.max_by_key(|peak| peak.words.len())
}

/// Returns whether a device multiplies 8-bit floats at twice the rate of bf16, with sums in f32, as NVIDIA's Ada, Hopper and
/// Blackwell do; false for a CPU, and for a device that is not in the table of [`peak_flops`].
///
/// ```
/// assert!(!firebrick::device::doubles_in_fp8(&burn::tensor::Device::flex()));
/// ```
pub fn doubles_in_fp8(device: &Device) -> bool {
    hardware(device).is_some_and(|name| doubles_in_fp8_of(&name))
}

/// Returns the same of a device by the name of its hardware, as [`peak_flops_of`] does.
///
/// ```
/// use firebrick::device::doubles_in_fp8_of;
///
/// assert!(doubles_in_fp8_of("NVIDIA H100 PCIe") && doubles_in_fp8_of("NVIDIA GeForce RTX 4090"));
/// assert!(!doubles_in_fp8_of("NVIDIA A100-SXM4-80GB") && !doubles_in_fp8_of("NVIDIA GeForce RTX 3090"));
/// ```
pub fn doubles_in_fp8_of(name: &str) -> bool {
    let Some(peak) = peak_of(name) else { return false };
    match peak.words {
        ["RTX", number, ..] => number.starts_with("40") || number.starts_with("50"),
        [first, ..] => ["L4", "L40S", "H100", "H200"].contains(first),
        [] => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_card_is_known_by_the_names_that_drivers_give_it() {
        use FloatDType::{BF16, F16, F32, F64};
        for (name, dtype, expected) in [
            ("NVIDIA A100-SXM4-80GB", BF16, Some(312e12)),
            ("NVIDIA A100-PCIE-40GB", F32, Some(156e12)),
            ("NVIDIA H100 80GB HBM3", BF16, Some(989.4e12)),
            ("NVIDIA H100 PCIe", F16, Some(756e12)),
            ("NVIDIA H200", BF16, Some(989.5e12)),
            ("NVIDIA L4", BF16, Some(121e12)),
            ("NVIDIA L40S", F16, Some(362e12)),
            ("NVIDIA A10", F32, Some(62.5e12)),
            ("Tesla T4", F16, Some(65e12)),
            ("Tesla V100-SXM2-16GB", F16, Some(125e12)),
            ("Tesla V100-PCIE-16GB", F32, Some(14e12)),
            ("NVIDIA GeForce RTX 3090", BF16, Some(71.2e12)),
            ("NVIDIA GeForce RTX 4070 Ti SUPER", F32, Some(44.1e12)),
            ("NVIDIA GeForce RTX 4070", F16, Some(58.2e12)),
            ("NVIDIA GeForce RTX 5090", BF16, Some(209.6e12)),
            ("AMD Instinct MI300X (RADV GFX942)", BF16, Some(1307.4e12)),
            ("AMD Instinct MI250X", F16, Some(191.5e12)),
            // No such units, another card, a part of one, or none.
            ("Tesla T4", BF16, None),
            ("NVIDIA H100 80GB HBM3", F64, None),
            ("NVIDIA A10G", BF16, None),
            ("NVIDIA GeForce RTX 4090 Laptop GPU", BF16, None),
            ("NVIDIA GeForce RTX 4090 D", BF16, None),
            ("NVIDIA H100 80GB HBM3 MIG 1g.10gb", BF16, None),
            ("llvmpipe (LLVM 15.0.7, 256 bits)", F32, None),
            ("AMD EPYC 9654, 2 threads", F32, None),
        ] {
            let found = peak_flops_of(name, dtype);
            let alike = match (found, expected) {
                (Some(found), Some(expected)) => (found / expected - 1.0).abs() < 1e-9,
                (found, expected) => found == expected,
            };
            assert!(alike, "{name} in {dtype:?}: {found:?}");
        }
    }
}
