//! Matrices that are saved packed are read as f32.

use std::fs;

use firebrick_checkpoints::{
    Checkpoint, Consolidate, Dtype, Folder, Manifest, PackedMatrices, Piece, RankState, What, consolidate,
};
use safetensors::SafeTensors;

/// The transpose of the matrix has the codes 0, 3, 1, 2, 3, 1, in blocks of four.
fn packed() -> PackedMatrices {
    let shapes = [("dense.weight".to_string(), [3, 2])].into();
    PackedMatrices { bits: 4, block: 4, values: vec![-1.0, 0.0, 0.5, 1.0], shapes }
}

const ROWS: [[f32; 2]; 3] = [[-2.0, 1.0], [2.0, 10.0], [0.0, 0.0]];

fn piece(name: String, dtype: Dtype, shape: &[usize], bytes: Vec<u8>) -> Piece {
    Piece { name, dtype, shape: shape.to_vec(), rows: None, columns: None, bytes: bytes.into() }
}

fn floats(numbers: &[f32]) -> Vec<u8> {
    numbers.iter().flat_map(|number| number.to_le_bytes()).collect()
}

/// Saves the matrix with factors whose scaled product is one at (0, 0).
fn saved(codes: &[u8], how: PackedMatrices) -> Result<(tempfile::TempDir, Checkpoint), String> {
    let output = tempfile::tempdir().unwrap();
    let path = "dense.weight";
    let parameters = vec![
        piece(PackedMatrices::codes_of(path), Dtype::U8, &[codes.len()], codes.to_vec()),
        piece(PackedMatrices::scales_of(path), Dtype::F32, &[2], floats(&[2.0, 10.0])),
        piece(format!("{path}.lora.a"), Dtype::F32, &[3, 1], floats(&[2.0, 0.0, 0.0])),
        piece(format!("{path}.lora.b"), Dtype::F32, &[1, 2], floats(&[1.0, 0.0])),
    ];
    let state = RankState { rank: 0, ranks: 1, parameters, ..Default::default() };
    let staging = Folder::new(output.path().join("checkpoints")).staging(1, "test");
    let manifest = Manifest::new("run", 1, 1, "0.1.0").files(staging.write_rank(&state).unwrap());
    let manifest = manifest.lora_scale(0.5).packed(how);
    let saved = staging.publish(manifest, "()").map_err(|error| error.to_string())?;
    let checkpoint = Checkpoint::open(saved.path).map_err(|error| error.to_string())?;
    Ok((output, checkpoint))
}

#[test]
#[expect(clippy::single_range_in_vec_init, reason = "columns are lists of ranges")]
fn a_packed_matrix_is_read_unpacked_and_merged_with_its_factors() {
    let (output, checkpoint) = saved(&[0x03, 0x12, 0x31], packed()).unwrap();
    let tensors = checkpoint.parameters();
    let names: Vec<_> = tensors.names().collect();
    assert_eq!(names, ["dense.weight", "dense.weight.lora.a", "dense.weight.lora.b"]);
    let info = tensors.info("dense.weight").unwrap();
    assert_eq!((info.dtype, info.shape.as_slice()), (Dtype::F32, [3, 2].as_slice()));
    assert_eq!(tensors.read("dense.weight").unwrap(), floats(ROWS.as_flattened()));
    assert_eq!(tensors.read_rows("dense.weight", 1..2).unwrap(), floats(&ROWS[1]));
    assert!(tensors.read_rows("dense.weight", 2..4).is_err());
    assert_eq!(tensors.read_columns("dense.weight", 0..3, &[1..2]).unwrap(), floats(&[1.0, 10.0, 0.0]));
    assert_eq!(tensors.read_columns("dense.weight", 1..2, &[0..1, 1..2]).unwrap(), floats(&ROWS[1]));
    assert!(tensors.read_columns("dense.weight", 0..3, &[1..3]).is_err());

    let to = output.path().join("model.safetensors");
    consolidate(&checkpoint, What::Parameters, &to, &Consolidate::default(), |_, _| {}).unwrap();
    let file = fs::read(&to).unwrap();
    let file = SafeTensors::deserialize(&file).unwrap();
    assert_eq!(file.names(), ["dense.weight"]);
    let mut merged = ROWS;
    merged[0][0] += 1.0;
    assert_eq!(file.tensor("dense.weight").unwrap().data(), floats(merged.as_flattened()));
}

#[test]
fn eight_bits_are_one_code_a_byte() {
    let eight = PackedMatrices { bits: 8, ..packed() };
    let (_output, checkpoint) = saved(&[0, 3, 1, 2, 3, 1], eight).unwrap();
    assert_eq!(checkpoint.parameters().read("dense.weight").unwrap(), floats(ROWS.as_flattened()));
}

#[test]
fn codes_that_do_not_fit_are_refused() {
    let error = saved(&[0x03, 0x12], packed()).err().unwrap();
    assert!(error.contains("dense.weight.packed.codes") && error.contains("U8 [3]"), "{error}");
    for wrong in [
        PackedMatrices { bits: 3, ..packed() },
        PackedMatrices { block: 0, ..packed() },
        PackedMatrices { values: vec![f32::NAN], ..packed() },
        PackedMatrices { shapes: [("dense.weight".to_string(), [usize::MAX, 2])].into(), ..packed() },
    ] {
        assert!(saved(&[0x03, 0x12, 0x31], wrong.clone()).is_err(), "{wrong:?}");
    }
}
