//! Writes files atomically.
//!
//! Each file is written next to its place and renamed to its name when it is complete and synced. What a library writes
//! is staged in a folder of its own, `.staged-NAME`, since the library may write further files beside it. So is a folder
//! whose files belong together, in `.staged-PROCESS-NAME`.
//! An error removes the staged file, and so does a signal that ends the program ([`remove_staged`]); the earlier file
//! stays. The staged file of a killed process is removed by the next run in its folder, or by the next command that
//! writes the same file.

use std::fs::{self, File, OpenOptions, Permissions};
use std::io::{self, BufWriter, ErrorKind, Write};
use std::mem;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Prefix of the names of staged files.
const STAGED_NAME: &str = ".staged-";

/// Writes a staged file with `write`, and renames it to `path` when it is complete. The file gets the permissions of a
/// new file under the process's umask, whatever the library that writes it would set.
///
/// # Errors
///
/// The error of `write`, or the system's error converted by `failed`. `path` then stays as it was.
pub fn replace_or<E>(
    path: &Path,
    write: impl FnOnce(&Path) -> Result<(), E>,
    failed: impl Fn(io::Error) -> E,
) -> Result<(), E> {
    let mut place = StagedFile::within(path.into()).map_err(&failed)?;
    write(&place.staged)?;
    place.take().map_err(failed)
}

/// Writes the files of a folder with `write`, and puts them in place when all are complete: a new folder by one rename,
/// and files of an earlier one by a rename for each, at the end and while signals wait. Other files of an earlier folder
/// stay. `write` gets the folder to write into.
///
/// The last of the renames are those of hidden files, which may say what the others are.
///
/// # Errors
///
/// The error of `write`, or the system's error converted by `failed`. `folder` then stays as it was.
pub fn replace_folder<E>(
    folder: &Path,
    write: impl FnOnce(&Path) -> Result<(), E>,
    failed: impl Fn(io::Error) -> E,
) -> Result<(), E> {
    let staged = StagedFolder::of(folder).map_err(&failed)?;
    write(&staged.staged)?;
    staged.take().map_err(failed)
}

/// A staged folder and its place. Dropping this removes the staged folder.
struct StagedFolder {
    folder: PathBuf,
    staged: PathBuf,
}

impl StagedFolder {
    /// Creates an empty folder: in the one that is there, which may be on a disk of its own, or else beside it.
    fn of(folder: &Path) -> io::Result<Self> {
        let folder = resolved(folder)?;
        let name = folder.file_name().unwrap_or_default().to_string_lossy();
        // The name is unique to this process: a run may end while commands that read it write the same folder.
        let own = format!("{STAGED_NAME}{}-{name}", std::process::id());
        let staged = if folder.is_dir() { folder.join(own) } else { folder.with_file_name(own) };
        if let Some(parent) = folder.parent() {
            fs::create_dir_all(parent)?;
        }
        if folder.exists() && !folder.is_dir() {
            return Err(io::Error::new(ErrorKind::NotADirectory, "there is a file in its place"));
        }
        remove_of_killed(&staged, &name);
        let mut all = all_staged();
        // An earlier process may have had the same number.
        let _ = remove_any(&staged);
        fs::create_dir(&staged)?;
        all.push(staged.clone());
        Ok(Self { folder, staged })
    }

    fn take(&self) -> io::Result<()> {
        // A signal handler waits for the lock, so it ends the program before or after.
        let mut all = all_staged();
        // Another process may make the folder meanwhile.
        let is_new = !self.folder.is_dir()
            && match fs::rename(&self.staged, &self.folder) {
                Err(_) if self.folder.is_dir() => false,
                renamed => renamed.map(|()| true)?,
            };
        if !is_new {
            let files = fs::read_dir(&self.staged)?.map(|entry| Ok(entry?.file_name()));
            let mut files: Vec<_> = files.collect::<io::Result<_>>()?;
            files.sort_by(|one, other| other.cmp(one));
            for file in files {
                fs::rename(self.staged.join(&file), self.folder.join(&file))?;
            }
            let _ = remove_any(&self.staged);
        }
        all.retain(|path| *path != self.staged);
        Ok(())
    }
}

impl Drop for StagedFolder {
    fn drop(&mut self) {
        let mut all = all_staged();
        if let Some(at) = all.iter().position(|path| *path == self.staged) {
            all.swap_remove(at);
            let _ = remove_any(&self.staged);
        }
    }
}

/// A file that is written in parts, and takes its name with [`finish`](Self::finish). If it is dropped before, the
/// earlier file stays.
///
/// A pipe, a terminal or a device, such as `/dev/stdout`, holds nothing that could be lost, so it is written directly.
#[derive(Debug)]
pub struct Staged {
    file: BufWriter<File>,
    /// `None` for a path that is written directly.
    place: Option<StagedFile>,
}

impl Staged {
    /// Starts to write `path`. An existing file must be writable, and its permissions are kept. If it is a link, the
    /// target is replaced.
    ///
    /// # Errors
    ///
    /// `path` is a folder, or the file or its folder is not writable.
    pub fn create(path: &Path) -> io::Result<Self> {
        let path = resolved(path)?;
        let earlier = match OpenOptions::new().write(true).open(&path) {
            Ok(file) => Some(file),
            Err(error) if error.kind() == ErrorKind::NotFound => None,
            Err(error) => return Err(error),
        };
        let permissions = match earlier {
            None => None,
            Some(file) => {
                let metadata = file.metadata()?;
                if !metadata.is_file() {
                    return Ok(Self { file: BufWriter::new(file), place: None });
                }
                Some(metadata.permissions())
            }
        };
        // The name is unique to this process, so two processes that write the same file do not collide.
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        remove_of_killed(&path, &name);
        let mut place =
            StagedFile::beside(path.clone(), format!("{STAGED_NAME}{}-{name}", std::process::id()))?;
        if let Some(permissions) = permissions {
            place.permissions = permissions;
        }
        let file = OpenOptions::new().write(true).open(&place.staged)?;
        // The lock ends with the process, so others know a file that nobody writes. Some file systems have no locks.
        let _ = file.try_lock();
        Ok(Self { file: BufWriter::new(file), place: Some(place) })
    }

    /// Renames the file to its place.
    ///
    /// # Errors
    ///
    /// It cannot be written, synced or renamed. The earlier file then stays as it was.
    pub fn finish(mut self) -> io::Result<()> {
        self.file.flush()?;
        match &mut self.place {
            None => Ok(()),
            Some(place) => place.take(),
        }
    }
}

impl Write for Staged {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.file.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

/// Removes the staged files and folders of `path` that killed processes left: files that no process has locked, and folders
/// where the system says which processes there are. Whatever cannot be read or removed stays, for the next call.
fn remove_of_killed(path: &Path, name: &str) {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        let staged = entry.file_name();
        let staged = staged.to_str().and_then(|staged| staged.strip_prefix(STAGED_NAME)?.split_once('-'));
        let Some((process, _)) = staged.filter(|(_, of)| *of == name) else { continue };
        let Some(kind) = entry.file_type().ok().filter(|_| is_number(process)) else { continue };
        // A process that has just made its file may not have locked it yet.
        let processes = Path::new("/proc");
        let is_alive = processes.join(process).exists();
        let is_free = || match kind.is_file() {
            true => {
                let file = OpenOptions::new().write(true).open(entry.path());
                file.is_ok_and(|file| file.try_lock().is_ok())
            }
            false => kind.is_dir() && processes.join("self").exists(),
        };
        if !is_alive && is_free() {
            let _ = remove_any(&entry.path());
        }
    }
}

fn is_number(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|digit| digit.is_ascii_digit())
}

/// Follows links to the file of a path. The target of the last link may not exist yet.
fn resolved(path: &Path) -> io::Result<PathBuf> {
    match (path.canonicalize(), fs::read_link(path)) {
        (Ok(path), _) => Ok(path),
        (Err(error), Ok(_)) if error.kind() != ErrorKind::NotFound => Err(error),
        (Err(_), Ok(to)) => Ok(path.parent().unwrap_or(Path::new("")).join(to)),
        (Err(_), Err(_)) => Ok(path.into()),
    }
}

/// A staged file and its place. Dropping this removes the staged file.
#[derive(Debug)]
struct StagedFile {
    path: PathBuf,
    staged: PathBuf,
    /// What to remove: the staged file, or the folder that holds it.
    left: PathBuf,
    permissions: Permissions,
}

impl StagedFile {
    /// Creates an empty staged file of this name next to `path`.
    fn beside(path: PathBuf, name: String) -> io::Result<Self> {
        let staged = path.with_file_name(name);
        Self::at(path, staged.clone(), staged)
    }

    /// Creates an empty staged file of the same name in a folder next to `path`.
    fn within(path: PathBuf) -> io::Result<Self> {
        let name = path.file_name().unwrap_or_default().to_owned();
        let folder = path.with_file_name(format!("{STAGED_NAME}{}", name.to_string_lossy()));
        Self::at(path, folder.join(name), folder)
    }

    fn at(path: PathBuf, staged: PathBuf, left: PathBuf) -> io::Result<Self> {
        // The file of a killed process may have other permissions.
        let _ = remove_any(&left);
        // A signal handler waits for the lock, so nothing is created once it has removed what there is.
        let mut all = all_staged();
        all.push(left.clone());
        let folder = if left == staged { Ok(()) } else { fs::create_dir(&left) };
        let file = folder.and_then(|()| File::create(&staged));
        let permissions = file.and_then(|file| Ok(file.metadata()?.permissions()));
        let permissions = permissions.map_err(|error| {
            all.retain(|path| *path != left);
            let _ = remove_any(&left);
            gone(&path, error)
        })?;
        Ok(Self { path, staged, left, permissions })
    }

    /// Renames the staged file to its name, after its bytes are on the disk.
    fn take(&mut self) -> io::Result<()> {
        File::open(&self.staged)?.sync_all()?;
        fs::set_permissions(&self.staged, self.permissions.clone())?;
        // A signal handler waits for the lock, so it removes nothing between the two.
        let mut all = all_staged();
        fs::rename(&self.staged, &self.path)?;
        all.retain(|path| *path != self.left);
        if self.left != self.staged {
            // The next write of the same file tries again.
            let _ = remove_any(&self.left);
        }
        Ok(())
    }
}

impl Drop for StagedFile {
    fn drop(&mut self) {
        let mut all = all_staged();
        if let Some(at) = all.iter().position(|path| *path == self.left) {
            all.swap_remove(at);
            let _ = remove_any(&self.left);
        }
    }
}

/// Returns the error of a file whose folder was there when the run, or the command, began.
fn gone(path: &Path, error: io::Error) -> io::Error {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    match folder {
        Some(folder) if error.kind() == ErrorKind::NotFound && !folder.exists() => {
            let folder = folder.display();
            let reason = format!(
                "the folder {folder} does not exist, or was removed or renamed meanwhile: create it again, or use another one"
            );
            io::Error::new(ErrorKind::NotFound, reason)
        }
        _ => error,
    }
}

/// Requires that the folder of a run is still there. To create it again would hide that all that was in it is lost.
pub(crate) fn require_folder(folder: &Path) -> io::Result<()> {
    match folder.is_dir() {
        true => Ok(()),
        false => Err(gone(&folder.join("any"), ErrorKind::NotFound.into())),
    }
}

/// The staged files of this process.
static STAGED: Mutex<Vec<PathBuf>> = Mutex::new(Vec::new());

fn all_staged() -> MutexGuard<'static, Vec<PathBuf>> {
    STAGED.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Removes a staged file, or a folder of them.
fn remove_any(path: &Path) -> io::Result<()> {
    if fs::symlink_metadata(path)?.is_dir() { fs::remove_dir_all(path) } else { fs::remove_file(path) }
}

/// Removes the staged files of this process, which is about to end without unwinding. A thread that would stage another
/// file, or put one in place, waits from then on.
pub fn remove_staged() {
    let mut all = all_staged();
    remove_all(&mut all);
    mem::forget(all);
}

fn remove_all(staged: &mut Vec<PathBuf>) {
    for path in staged.drain(..) {
        // Another thread may add to a folder while it is being emptied.
        let _ = remove_any(&path).or_else(|_| remove_any(&path)).or_else(|_| remove_any(&path));
    }
}

/// Removes the staged files that a killed run left in its folder and in the folders `below` it. No other process may be
/// writing there, except commands that write their own files, whose names contain their process id.
pub(crate) fn remove_left(folder: &Path, below: &[&str]) -> io::Result<()> {
    for folder in std::iter::once(folder.to_path_buf()).chain(below.iter().map(|name| folder.join(name))) {
        let entries = match fs::read_dir(&folder) {
            Ok(entries) => entries,
            Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => continue,
            Err(error) => return Err(error),
        };
        for entry in entries {
            let entry = entry?;
            let name = entry.file_name();
            let Some(name) = name.to_str().and_then(|name| name.strip_prefix(STAGED_NAME)) else { continue };
            let is_of_process = name.split_once('-').is_some_and(|(process, _)| is_number(process));
            if !is_of_process {
                remove_any(&entry.path())?;
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::TrainError;
    use crate::saving::{replace, save_text};

    #[test]
    fn only_staged_files_of_a_killed_run_are_removed() {
        let folder = tempfile::tempdir().unwrap();
        fs::create_dir(folder.path().join("pretrained")).unwrap();
        for name in [".staged-best.safetensors", ".staged-12-answers.jsonl", "best.safetensors"] {
            fs::write(folder.path().join(name), "").unwrap();
            fs::write(folder.path().join("pretrained").join(name), "").unwrap();
        }
        fs::create_dir(folder.path().join(".staged-model.safetensors")).unwrap();
        fs::write(folder.path().join(".staged-model.safetensors/.tmp7Pq"), "half").unwrap();
        remove_left(folder.path(), &["pretrained", "missing", "best.safetensors"]).unwrap();
        let left = [".staged-12-answers.jsonl", "best.safetensors"];
        assert_eq!(names(&folder.path().join("pretrained")), left);
        assert_eq!(names(folder.path()), [".staged-12-answers.jsonl", "best.safetensors", "pretrained"]);
    }

    fn names(folder: &Path) -> Vec<String> {
        let names = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name());
        let mut names: Vec<_> = names.map(|name| name.into_string().unwrap()).collect();
        names.sort();
        names
    }

    #[test]
    fn a_failed_write_leaves_the_file_as_it_was() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("model.txt");
        save_text("first", &path).unwrap();
        let failed = replace(&path, |staged| {
            fs::write(staged, "half").unwrap();
            // A library may write a file of its own first.
            fs::write(staged.with_file_name(".tmp7Pq"), "half").unwrap();
            Err(TrainError::file("x", "writing", "disk full"))
        });
        assert!(failed.is_err());
        assert_eq!(fs::read_to_string(&path).unwrap(), "first");
        assert_eq!(names(folder.path()), ["model.txt"]);
    }

    #[test]
    fn a_staged_file_takes_its_name_when_it_is_whole() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("answers.jsonl");
        let mut file = Staged::create(&path).unwrap();
        file.write_all(b"whole").unwrap();
        assert!(!path.exists());
        file.finish().unwrap();
        let mut file = Staged::create(&path).unwrap();
        file.write_all(b"half").unwrap();
        file.flush().unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "whole");
        drop(file);
        assert_eq!(fs::read_to_string(&path).unwrap(), "whole");
        assert_eq!(names(folder.path()), ["answers.jsonl"]);
        assert!(Staged::create(folder.path()).is_err());
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn the_next_writer_of_a_file_removes_what_killed_ones_staged() {
        let folder = tempfile::tempdir().unwrap();
        let staged = |process: &str, name: &str| folder.path().join(format!(".staged-{process}-{name}"));
        // No process has such a number.
        let (killed, writes) = (staged("4294967295", "answers.jsonl"), staged("4294967294", "answers.jsonl"));
        let alive = staged(&std::os::unix::process::parent_id().to_string(), "answers.jsonl");
        let others = [staged("4294967295", "more-answers.jsonl"), staged("best", "answers.jsonl"), alive];
        for path in others.iter().chain([&killed, &writes]) {
            fs::write(path, "half").unwrap();
        }
        let locked = File::open(&writes).unwrap();
        locked.try_lock().unwrap();
        Staged::create(&folder.path().join("answers.jsonl")).unwrap().finish().unwrap();
        assert!(!killed.exists() && writes.exists());
        assert!(others.iter().all(|path| path.exists()));
    }

    #[cfg(unix)]
    #[test]
    fn links_are_followed_and_permissions_kept() {
        use std::os::unix::fs::{PermissionsExt, symlink};
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        fs::write(at("own"), "old").unwrap();
        fs::set_permissions(at("own"), Permissions::from_mode(0o640)).unwrap();
        symlink("own", at("link")).unwrap();
        symlink("later", at("dangling")).unwrap();
        for (link, target) in [("link", "own"), ("dangling", "later")] {
            let mut file = Staged::create(&at(link)).unwrap();
            file.write_all(b"new").unwrap();
            file.finish().unwrap();
            assert!(at(link).is_symlink());
            assert_eq!(fs::read_to_string(at(target)).unwrap(), "new");
        }
        assert_eq!(fs::metadata(at("own")).unwrap().permissions().mode() & 0o777, 0o640);
    }

    #[test]
    fn a_folder_that_is_gone_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let out = folder.path().join("out");
        let error = save_text("text", &out.join("run.ron")).unwrap_err().to_string();
        assert!(error.contains(&format!("the folder {} does not exist", out.display())), "{error}");
    }

    #[test]
    fn the_files_of_a_folder_take_their_places_together() {
        let above = tempfile::tempdir().unwrap();
        let folder = above.path().join("a/exported");
        let failed = |error: io::Error| error.to_string();
        let write = |staged: &Path, text: &str| {
            // A file within is staged too.
            save_text(text, &staged.join("model.txt")).unwrap();
            fs::write(staged.join(".made_of"), text).unwrap();
            Ok(())
        };
        let read = |name: &str| fs::read_to_string(folder.join(name)).unwrap_or_default();
        let broken = |staged: &Path| {
            assert!(staged.starts_with(above.path().join("a")));
            write(staged, "half")?;
            Err("disk full".to_owned())
        };
        assert_eq!(replace_folder(&folder, broken, failed).unwrap_err(), "disk full");
        assert!(names(&above.path().join("a")).is_empty());
        // What a killed process left is replaced.
        let left = above.path().join("a/.staged-4294967295-exported");
        fs::create_dir(&left).unwrap();
        fs::write(left.join("left"), "half").unwrap();
        replace_folder(&folder, |staged| write(staged, "first"), failed).unwrap();
        assert_eq!(names(&above.path().join("a")), ["exported"]);
        assert_eq!(
            (names(&folder), read("model.txt")),
            (vec![".made_of".into(), "model.txt".into()], "first".into())
        );

        fs::write(folder.join("README.md"), "mine").unwrap();
        assert!(replace_folder(&folder, broken, failed).is_err());
        assert_eq!([read("model.txt"), read(".made_of")], ["first", "first"]);
        replace_folder(&folder, |staged| write(staged, "second"), failed).unwrap();
        assert_eq!([read("model.txt"), read(".made_of"), read("README.md")], ["second", "second", "mine"]);
        assert_eq!(names(&folder), [".made_of", "README.md", "model.txt"]);
        // Another process was first.
        fs::remove_dir_all(&folder).unwrap();
        let second = |staged: &Path| {
            fs::create_dir(&folder).unwrap();
            fs::write(folder.join("model.txt"), "of another").unwrap();
            write(staged, "third")
        };
        replace_folder(&folder, second, failed).unwrap();
        assert_eq!([read("model.txt"), read(".made_of")], ["third", "third"]);
        assert_eq!(names(&above.path().join("a")), ["exported"]);
        // A file is no folder.
        let error = replace_folder(&folder.join("model.txt"), |_| Ok(()), failed).unwrap_err();
        assert!(error.contains("there is a file in its place"), "{error}");
    }

    #[cfg(unix)]
    #[test]
    fn a_device_file_is_written_directly() {
        let mut file = Staged::create(Path::new("/dev/null")).unwrap();
        file.write_all(b"gone").unwrap();
        file.finish().unwrap();
    }
}
