//! Saves checkpoints of two ranks, one step after the other, and reports which one opens at the end: for
//! .ci/checkpoints, which tests a full and a read-only disk.
//!
//!     save_steps FOLDER STEPS BYTES     saves STEPS steps after the newest, of BYTES bytes per rank
//!     save_steps FOLDER                 opens the newest

use std::path::Path;
use std::process::ExitCode;

use firebrick_checkpoints::{Checkpoint, Dtype, Folder, Keep, Manifest, Piece, RankState, Result};

const RANKS: usize = 2;

/// The byte that fills a step's tensors, which lets a reader check an opened one.
fn byte(step: u64) -> u8 {
    (step % 251) as u8
}

fn rank_state(step: u64, rank: usize, bytes: usize) -> RankState {
    let weight = Piece {
        name: "weight".into(),
        dtype: Dtype::U8,
        shape: vec![RANKS * bytes],
        rows: Some(rank * bytes..(rank + 1) * bytes),
        columns: None,
        bytes: vec![byte(step); bytes].into(),
    };
    RankState { rank, ranks: RANKS, parameters: vec![weight], ..Default::default() }
}

fn save(folder: &Folder, step: u64, bytes: usize) -> Result<()> {
    let staging = folder.staging(step, "example");
    let saved = (0..RANKS).try_fold(Manifest::new("example", step, RANKS, "0.1.0"), |manifest, rank| {
        Ok(manifest.files(staging.write_rank(&rank_state(step, rank, bytes))?))
    });
    let saved = saved.and_then(|manifest| staging.publish(manifest, "()"));
    if let Err(error) = saved {
        // `discard` may fail for the same reason. The next run that claims the folder cleans it.
        if let Err(error) = staging.discard() {
            eprintln!("step {step}: {error}");
        }
        return Err(error);
    }
    folder.prune(&Keep::all()).map(drop)
}

fn run(folder: &Path, steps: u64, bytes: usize) -> Result<()> {
    let folder = Folder::new(folder);
    if steps > 0 {
        folder.clean()?;
    }
    let newest = folder.latest()?.map_or(0, |saved| saved.step);
    let saved = (newest + 1..=newest + steps).try_for_each(|step| save(&folder, step, bytes));
    match folder.latest()? {
        Some(latest) => {
            let weight = Checkpoint::open(latest.path)?.parameters().read("weight")?;
            assert!(weight.iter().all(|&found| found == byte(latest.step)), "the weights are others");
            println!("step {} opens", latest.step);
        }
        None => println!("there is no checkpoint"),
    }
    saved
}

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let number = |at: usize| arguments.get(at).map_or(Some(0), |text| text.parse().ok());
    let (Some(folder), Some(steps), Some(bytes)) = (arguments.first(), number(1), number(2)) else {
        eprintln!("save_steps FOLDER [STEPS BYTES]");
        return ExitCode::from(2);
    };
    match run(Path::new(folder), steps, bytes as usize) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}
