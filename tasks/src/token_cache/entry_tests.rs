//! Tests of entries: damage, the limit, and folders that cannot be written.

use std::time::Duration;

use super::*;

fn cache(folder: &Path) -> TokenCache {
    TokenCache { folder: folder.join("tokens"), limit: 10_000, adds: true }
}

fn add(cache: &TokenCache, name: &str, bytes: usize) -> Result<(), TokenCacheError> {
    cache.add(Fingerprint::of(name), name, |writer| {
        writer.frame(&vec![7; bytes])?;
        writer.frame(b"")
    })
}

fn names(cache: &TokenCache) -> Vec<String> {
    let mut names: Vec<_> = cache.entries().unwrap().into_iter().map(|entry| entry.name).collect();
    names.sort();
    names
}

#[test]
fn frames_come_back() {
    let folder = tempfile::tempdir().unwrap();
    let cache = cache(folder.path());
    assert!(cache.open(Fingerprint::of("a")).unwrap().is_none());
    assert!(cache.entries().unwrap().is_empty());
    add(&cache, "a", 5).unwrap();
    let mut entry = cache.open(Fingerprint::of("a")).unwrap().unwrap();
    assert_eq!(entry.frame().unwrap().unwrap(), [7; 5]);
    assert_eq!(entry.frame().unwrap().unwrap(), [0; 0]);
    assert!(entry.frame().unwrap().is_none());
    assert_eq!(names(&cache), ["a"]);
    assert_eq!(fs::read_dir(&cache.folder).unwrap().count(), 1);
}

#[test]
fn every_damage_is_noticed() {
    let folder = tempfile::tempdir().unwrap();
    let cache = cache(folder.path());
    let key = Fingerprint::of("a");
    add(&cache, "a", 40).unwrap();
    let path = cache.path(key);
    let good = fs::read(&path).unwrap();
    for at in 0..good.len() {
        let mut bytes = good.clone();
        bytes[at] ^= 1;
        fs::write(&path, bytes).unwrap();
        assert!(cache.open(key).is_err(), "byte {at}");
        fs::write(&path, &good[..at]).unwrap();
        assert!(cache.open(key).is_err(), "{at} bytes");
        let _ = what(&path);
    }
    fs::write(&path, [&good[..], b"x"].concat()).unwrap();
    assert!(cache.open(key).is_err());
    // The entry of another key, under this one's name.
    add(&cache, "b", 40).unwrap();
    fs::rename(cache.path(Fingerprint::of("b")), &path).unwrap();
    assert!(cache.open(key).is_err());
    // A new entry takes the place of a damaged one.
    add(&cache, "a", 40).unwrap();
    assert_eq!(fs::read(&path).unwrap(), good);
}

#[test]
fn what_was_not_read_for_longest_is_removed() {
    let folder = tempfile::tempdir().unwrap();
    let cache = cache(folder.path());
    let age = |name: &str, seconds| {
        let file = File::options().write(true).open(cache.path(Fingerprint::of(name))).unwrap();
        file.set_modified(SystemTime::now() - Duration::from_secs(seconds)).unwrap();
    };
    for (name, seconds) in [("a", 30), ("b", 20), ("c", 10)] {
        add(&cache, name, 3000).unwrap();
        age(name, seconds);
    }
    cache.open(Fingerprint::of("a")).unwrap();
    for (file, seconds) in [(".staged-1-1", 100_000), (".staged-1-2", 10), ("mine", 100_000)] {
        let file = File::create(cache.folder.join(file)).unwrap();
        file.set_modified(SystemTime::now() - Duration::from_secs(seconds)).unwrap();
    }
    add(&cache, "d", 3000).unwrap();
    assert_eq!(names(&cache), ["a", "c", "d"]);
    assert!(!cache.folder.join(".staged-1-1").exists() && cache.folder.join(".staged-1-2").exists());
    cache.clear().unwrap();
    let left: Vec<_> = fs::read_dir(&cache.folder).unwrap().map(|file| file.unwrap().file_name()).collect();
    assert_eq!(left, ["mine"]);
}

#[test]
fn an_entry_that_cannot_be_written_leaves_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let cache = cache(folder.path());
    add(&cache, "a", 100).unwrap();
    let error = add(&cache, "b", 20_000).unwrap_err().to_string();
    assert!(error.contains("FIREBRICK_CACHE_LIMIT"), "{error}");
    let failing = |_: &mut EntryWriter| Err(ErrorKind::StorageFull.into());
    assert!(cache.add(Fingerprint::of("c"), "c", failing).is_err());
    assert_eq!(names(&cache), ["a"]);
    assert_eq!(fs::read_dir(&cache.folder).unwrap().count(), 1);
    add(&cache.clone().adding(false), "d", 1).unwrap();
    assert_eq!(names(&cache), ["a"]);

    fs::write(folder.path().join("file"), "").unwrap();
    let blocked = TokenCache { folder: folder.path().join("file/tokens"), ..cache };
    let error = add(&blocked, "a", 1).unwrap_err().to_string();
    assert!(error.contains("file/tokens: ") && error.contains("FIREBRICK_CACHE"), "{error}");
}
