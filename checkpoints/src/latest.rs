//! The file that names the newest sound checkpoint.

use std::path::Path;

use crate::disk::{self, Disk, at};
use crate::error::Result;
use crate::file_names::{LATEST, STAGED_LATEST, step_folder};

/// Makes `latest` name the checkpoint of a step. At every moment it names the old one or the new one.
pub(crate) fn write_latest(disk: &dyn Disk, folder: &Path, step: u64) -> Result<()> {
    let staged = folder.join(STAGED_LATEST);
    disk::write_file(disk, &staged, format!("{}\n", step_folder(step)).as_bytes())?;
    let point = "rename latest";
    at(point, &staged, disk.rename(point, &staged, &folder.join(LATEST)))?;
    let point = "sync the checkpoints' folder after latest";
    at(point, folder, disk.sync_dir(point, folder))
}
