//! Tests of buckets in a file.

use super::*;

/// Tensors of these sizes in bytes, each of other bytes.
fn tensors(sizes: &[usize], seed: u8) -> Vec<Unstored> {
    let one = |(index, size): (usize, &usize)| {
        let bytes = (0..*size).map(|at| (at / 7) as u8 ^ (at as u8) ^ seed ^ index as u8).collect();
        Unstored {
            name: format!("{index}.moment"),
            dtype: DType::U8,
            shape: Shape::from([*size]),
            bytes: Bytes::from_bytes_vec(bytes),
        }
    };
    sizes.iter().enumerate().map(one).collect()
}

/// Writes one bucket.
fn write(
    file: &Arc<ScratchFile>,
    name: &str,
    before: Option<Arc<Stored>>,
    tensors: Vec<Unstored>,
) -> Result<Stored, ScratchError> {
    Ok(Stored::write(file, vec![Unwritten { name: name.into(), before, tensors }])?.remove(0))
}

fn bytes(tensors: &[Unstored]) -> Vec<Vec<u8>> {
    tensors.iter().map(|tensor| tensor.bytes.to_vec()).collect()
}

/// Ends of chunks and of blocks, and a tensor without an element.
const SIZES: [usize; 7] = [1, 4096, 4097, 0, CHUNK, CHUNK + 1, 3 * CHUNK - 5];

#[test]
fn what_is_read_is_what_was_written() {
    let folder = tempfile::tempdir().unwrap();
    let file = ScratchFile::create(folder.path(), 0).unwrap();
    let mut stored = None::<Arc<Stored>>;
    for seed in 0..3 {
        let written = tensors(&SIZES, seed);
        let expected = bytes(&written);
        let found = write(&file, "bucket 0", stored.take(), written).unwrap();
        assert_eq!(Stored::read(&[&found]).unwrap(), expected);
        for (index, expected) in expected.iter().enumerate() {
            assert_eq!(&found.read_tensor(index).unwrap(), expected);
        }
        stored = Some(Arc::new(found));
    }
    let blocks: usize = SIZES.iter().map(|size| in_blocks(*size)).sum();
    assert_eq!(file.bytes(), blocks as u64, "each is written in the place of the one before");
}

#[test]
fn a_bucket_that_is_still_read_is_not_overwritten() {
    let folder = tempfile::tempdir().unwrap();
    let file = ScratchFile::create(folder.path(), 0).unwrap();
    let before = tensors(&[5000], 1);
    let expected = bytes(&before);
    let first = Arc::new(write(&file, "bucket 0", None, before).unwrap());
    let second = write(&file, "bucket 0", Some(first.clone()), tensors(&[5000], 2)).unwrap();
    assert_eq!(Stored::read(&[&first]).unwrap(), expected);
    assert_ne!(Stored::read(&[&second]).unwrap(), expected);
    drop(first);
    write(&file, "bucket 1", None, tensors(&[5000], 3)).unwrap();
    assert_eq!(file.bytes(), 2 * 8192, "its place is used again");
}

#[test]
fn a_bit_that_flips_is_found_wherever_it_is() {
    let folder = tempfile::tempdir().unwrap();
    let file = ScratchFile::create(folder.path(), 3).unwrap();
    let stored = write(&file, "bucket 12", None, tensors(&SIZES, 0)).unwrap();
    for (index, tensor) in stored.tensors.iter().enumerate().filter(|(_, tensor)| tensor.bytes > 0) {
        for at in [0, tensor.bytes / 2, tensor.bytes - 1] {
            let place = tensor.start + at;
            let mut block = Aligned::new(1);
            let blocks = block.first(1);
            let start = place / blocks.len() * blocks.len();
            let flip = |blocks: &mut [u8]| {
                stored.extent.read(blocks, start).unwrap();
                blocks[place - start] ^= 16;
                stored.extent.write(blocks, start).unwrap();
            };
            flip(blocks);
            for error in [Stored::read(&[&stored]).unwrap_err(), stored.read_tensor(index).unwrap_err()] {
                let text = error.to_string();
                let ScratchError::Damaged { part, tensor: name, at: chunk, expected, found, .. } = error
                else {
                    panic!("{text}")
                };
                assert_eq!((&*part, &name), ("bucket 12", &tensor.name));
                assert_eq!(chunk, at / CHUNK * CHUNK);
                assert!(expected != found && text.contains(&*expected) && text.contains(&*found), "{text}");
                assert!(text.contains("of rank 3") && text.contains("bucket 12"), "{text}");
            }
            flip(blocks);
        }
    }
    Stored::read(&[&stored]).unwrap();
}
