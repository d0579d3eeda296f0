use proptest::prelude::*;
use serde_json::Value;

use super::*;

fn transposed(matrix: &[f32], [rows, columns]: [usize; 2]) -> Vec<f32> {
    (0..rows * columns).map(|at| matrix[at % rows * columns + at / rows]).collect()
}

fn numbers(value: &Value) -> Vec<f32> {
    value.as_array().unwrap().iter().map(|number| number.as_f64().unwrap() as f32).collect()
}

#[test]
fn codes_scales_and_numbers_are_those_of_bitsandbytes() {
    let cases: Vec<Value> = serde_json::from_str(include_str!("../../tests/golden/nf4.json")).unwrap();
    assert_eq!(cases.len(), 3);
    for case in cases {
        let size = |name: &str| case[name].as_u64().unwrap() as usize;
        let (from, to) = (size("in"), size("out"));
        let packed = Packing::Nf4.pack(&transposed(&numbers(&case["matrix"]), [to, from]), [from, to]);
        let codes: Vec<f32> = packed.codes.iter().map(|code| f32::from(*code)).collect();
        // Of an odd number, the last half of a byte belongs to no element: it is another value of 0 there.
        let whole = from * to / 2;
        assert_eq!(codes[..whole], numbers(&case["codes"])[..whole]);
        assert_eq!(packed.scales, numbers(&case["scales"]));
        assert_eq!(packed.to_f32(), transposed(&numbers(&case["dense"]), [to, from]));
    }
}

#[test]
fn eight_bits_are_within_half_a_step() {
    let matrix: Vec<f32> = (0..64 * 3).map(|at| (at as f32 * 0.37).sin() * 1e-3).collect();
    let packed = Packing::Int8.pack(&matrix, [64, 3]);
    let largest = |column: usize| (0..64).map(|row| matrix[row * 3 + column].abs()).fold(0.0, f32::max);
    assert_eq!(packed.scales, [0, 1, 2].map(largest));
    for (at, (unpacked, number)) in packed.to_f32().into_iter().zip(&matrix).enumerate() {
        assert!((unpacked - number).abs() <= largest(at % 3) / 254.0 * 1.0001);
    }
    assert_eq!(packed.bytes(), 64 * 3 + 3 * 4);
}

#[test]
fn zeros_stay_zeros_and_nothing_has_no_blocks() {
    for packing in [Packing::Nf4, Packing::Int8] {
        assert_eq!(packing.pack(&[0.0; 70], [7, 10]).to_f32(), [0.0; 70]);
        let empty = packing.pack(&[], [0, 4]);
        assert_eq!((empty.bytes(), empty.to_f32().len()), (0, 0));
    }
}

proptest! {
    /// A checkpoint is packed again when a run resumes from it.
    #[test]
    fn packing_again_changes_nothing(
        matrix in prop::collection::vec(prop_oneof![-1e3f32..1e3, -1e-30f32..1e-30, Just(0.0)], 90),
        is_nf4: bool,
    ) {
        let packing = if is_nf4 { Packing::Nf4 } else { Packing::Int8 };
        let packed = packing.pack(&matrix, [9, 10]);
        prop_assert_eq!(packing.pack(&packed.to_f32(), [9, 10]), packed);
    }
}
