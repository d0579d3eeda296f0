//! Event files for [TensorBoard](https://www.tensorflow.org/tensorboard), with a run's numbers and texts.
//!
//! An event file is a sequence of records, each an `Event` message. `tensorboard --logdir OUTPUT` reads all files of
//! a folder as one run, in the order of their names, while they are being written. A resumed run writes a new file,
//! which starts by stating the step from which earlier files are invalid.

mod board;
mod event;
mod writer;

pub(crate) use board::host;
pub use board::{TensorBoard, TensorBoardError};
pub(crate) use writer::{FOLDER, Writer};

#[cfg(test)]
mod tests {
    use super::event;

    /// A file verified with TensorBoard's own reader: of steps 1 to 4, it kept 1, 2 and the second 3.
    const GOLDEN: &[u8] = include_bytes!("../../../tests/golden/tensorboard/resumed.tfevents");

    #[test]
    fn a_file_has_the_bytes_that_tensorboard_reads() {
        let mut events = vec![event::file_version(1_700_000_000.0), event::session_start(1_700_000_000.0, 0)];
        for step in 1..=4 {
            let loss = 4.0 / step as f64;
            let values = [("train/loss", loss), ("train/learning_rate", 1e-3)];
            events.push(event::scalars(1_700_000_000.25 + step as f64, step, &values));
        }
        events.push(event::scalars(1_700_000_005.0, 2, &[("valid/loss", f64::NAN)]));
        events.push(event::session_start(1_700_000_010.0, 3));
        events.push(event::scalars(1_700_000_011.0, 3, &[("train/loss", 9.5)]));
        events.push(event::text(1_700_000_012.0, 3, "sample", "not to be \u{1f525}"));
        let mut file = Vec::new();
        events.iter().for_each(|event| event::write_record(&mut file, event).unwrap());
        assert_eq!(file, GOLDEN);
    }
}
