//! Times steps whose optimizer state is on a disk, and steps whose parameters of blocks are there too, and prints a line of
//! JSON for each.
//!
//! The bytes per second that buckets and blocks are read and written with, checksums included and beside each other and the
//! computation, are compared with those of plain reads beside plain writes of the same bytes in the same folder, by as many threads and
//! in chunks of the same size, and with those of `fio` if it is installed.
//!
//! ```sh
//! cargo bench --bench disk -- /nvme/scratch
//! ```

use std::fs::{File, OpenOptions};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;
use std::time::Instant;

use burn::tensor::Device;
use firebrick::datasets::Windows;
use firebrick::optim::AdamW;
use firebrick::{Data, DiskBytes, Offload, Schedule, StepNumbers, Trainer};
use firebrick_models::GptConfig;
use serde_json::{Value, json};

/// A model of about 50 million parameters, whose state takes 400 MB.
const CONFIG: GptConfig =
    GptConfig { layers: 16, heads: 8, width: 512, dropout: 0.0, bias: true, tied: true };
const STEPS: u64 = 7;
const CHUNK: usize = 1 << 20;
const THREADS: usize = 4;

/// Trains, and returns the median seconds of a step that reads the state, and what a disk has kept.
fn train(offload: Offload) -> (f64, Option<DiskBytes>) {
    let tokens: Vec<u32> = (0..999).map(|i| i * 7 % 64).collect();
    let data = Data::new(Windows::new(tokens, 8).unwrap().shuffled(1)).micro_batch(1);
    let (sender, seconds) = std::sync::mpsc::channel();
    let trained = Trainer::new()
        .with(offload)
        .steps(STEPS)
        .observe(move |step: &StepNumbers| sender.send(step.seconds).unwrap_or_default())
        .fit(
            CONFIG.init(64, 8, &Device::flex().autodiff()),
            AdamW::new().init().unwrap(),
            Schedule::constant(1e-4),
            data,
        )
        .unwrap();
    // The first update only writes.
    (median(seconds.into_iter().skip(1).collect()), trained.report.disk)
}

fn median(mut seconds: Vec<f64>) -> f64 {
    seconds.sort_by(f64::total_cmp);
    seconds[seconds.len() / 2]
}

/// Opens a file that bypasses the page cache, if it can.
fn open(path: &Path, direct: bool) -> File {
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true).truncate(false);
    #[cfg(target_os = "linux")]
    if direct {
        options.custom_flags(rustix::fs::OFlags::DIRECT.bits().cast_signed());
    }
    options.open(path).unwrap()
}

/// Reads a file and writes another one meanwhile, each by a few threads. Returns the median seconds of both.
fn plain(folder: &Path, bytes: usize, direct: bool) -> [f64; 2] {
    let [from, to] = ["from", "to"].map(|name| open(&folder.join(name), direct));
    let chunks = bytes / CHUNK;
    let each = |work: &(dyn Fn(&mut [u8], u64) + Sync)| {
        thread::scope(|scope| {
            for first in 0..THREADS {
                scope.spawn(move || {
                    let mut buffer = vec![1; CHUNK + 4096];
                    let start = buffer.as_ptr().addr().wrapping_neg() % 4096;
                    for chunk in (first..chunks).step_by(THREADS) {
                        work(&mut buffer[start..start + CHUNK], (chunk * CHUNK) as u64);
                    }
                });
            }
        });
    };
    let write = |file: &File| each(&|buffer, at| file.write_all_at(buffer, at).unwrap());
    write(&from);
    write(&to);
    let seconds = |work: &dyn Fn()| {
        let begun = Instant::now();
        work();
        begun.elapsed().as_secs_f64()
    };
    let rounds = (0..STEPS).map(|_| {
        thread::scope(|scope| {
            let read =
                scope.spawn(|| seconds(&|| each(&|buffer, at| from.read_exact_at(buffer, at).unwrap())));
            let written = seconds(&|| write(&to));
            (read.join().unwrap(), written)
        })
    });
    let (read, written): (Vec<_>, Vec<_>) = rounds.unzip();
    [median(read), median(written)]
}

/// Returns the gigabytes per second that `fio` reads and writes, or null without `fio`.
fn fio(folder: &Path, bytes: usize, direct: bool) -> Value {
    let output = Command::new("fio")
        .args([
            "--name=state",
            "--rw=rw",
            "--bs=1M",
            "--ioengine=psync",
            "--output-format=json",
            "--group_reporting",
        ])
        .arg(format!("--numjobs={THREADS}"))
        .arg(format!("--size={}", 2 * bytes / THREADS / CHUNK * CHUNK))
        .arg(format!("--direct={}", u8::from(direct)))
        .arg(format!("--directory={}", folder.display()))
        .output();
    let Some(found) = output.ok().and_then(|output| serde_json::from_slice::<Value>(&output.stdout).ok())
    else {
        return Value::Null;
    };
    let job = &found["jobs"][0];
    let rate = |kind: &str| job[kind]["bw_bytes"].as_f64().unwrap_or_default();
    json!(["read", "write"].map(|kind| rate(kind) / 1e9))
}

/// Trains with a disk and without, and returns what was measured of both.
fn compare(keeps: &str, offload: Offload, folder: &Path) -> Value {
    let (on_host, _) = train(offload.clone());
    let (on_disk, disk) = train(offload.on(folder));
    let disk = disk.unwrap();
    let kept = disk.state_bytes + disk.parameter_bytes;
    let plain = plain(folder, kept, disk.direct).map(|seconds| kept as f64 / 1e9 / seconds);
    let found = [
        disk.read_bytes as f64 / 1e9 / disk.read_seconds,
        disk.written_bytes as f64 / 1e9 / disk.write_seconds,
    ];
    json!({
        "keeps": keeps,
        "gigabytes": kept as f64 / 1e9,
        "direct": disk.direct,
        "step_seconds_on_host": on_host,
        "step_seconds_on_disk": on_disk,
        "read_and_write_gigabytes_per_second": found,
        "plain_gigabytes_per_second": plain,
        "ratios": [found[0] / plain[0], found[1] / plain[1]],
        "fio_gigabytes_per_second": fio(folder, kept, disk.direct),
    })
}

fn main() {
    let folder = std::env::args().skip(1).find(|argument| !argument.starts_with("--"));
    let folder = folder.map_or_else(std::env::temp_dir, PathBuf::from);
    for (keeps, offload) in
        [("the state", Offload::optimizer()), ("the state and parameters", Offload::parameters())]
    {
        let folder = tempfile::tempdir_in(&folder).unwrap();
        println!("{}", compare(keeps, offload, folder.path()));
    }
}
