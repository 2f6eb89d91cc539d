//! Disks by their device numbers, and what control groups count about them.
//!
//! Invariant: a device that is told is a whole disk, because only that can be limited.

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

/// The disk of a folder as `major:minor`; of a partition the whole disk.
pub(crate) fn device(folder: &Path) -> Result<String, String> {
    let about = fs::metadata(folder).map_err(|why| format!("{}: {why}", folder.display()))?;
    let (major, minor) = (rustix::fs::major(about.dev()), rustix::fs::minor(about.dev()));
    let block = PathBuf::from(format!("/sys/dev/block/{major}:{minor}"));
    if !block.exists() {
        return Err(format!("{} is not on a disk of its own ({major}:{minor} is no block device)", folder.display()));
    }
    if !block.join("partition").exists() {
        return Ok(format!("{major}:{minor}"));
    }
    let whole = fs::canonicalize(&block).ok().and_then(|path| path.parent().map(|disk| disk.join("dev")));
    let text = whole.and_then(|path| fs::read_to_string(path).ok());
    text.map(|text| text.trim().to_owned())
        .ok_or_else(|| format!("the disk of partition {major}:{minor} was not found"))
}

/// Operations in one line of a group's counters. Version 1: `8:0 Write 12` a line. Version 2:
/// `8:0 rbytes=.. wbytes=.. rios=3 wios=12 ..`.
pub(crate) fn operations(line: &str) -> u64 {
    let words: Vec<&str> = line.split(' ').collect();
    if let [_, "Read" | "Write", count] = words.as_slice() {
        return count.parse().unwrap_or(0);
    }
    let counts = words.iter().filter_map(|word| word.strip_prefix("rios=").or_else(|| word.strip_prefix("wios=")));
    counts.filter_map(|count| count.parse::<u64>().ok()).sum()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn a_folder_of_no_disk_cannot_be_limited_and_says_so() {
        assert!(device(Path::new("/proc")).unwrap_err().contains("no block device"));
        assert!(device(Path::new("/nowhere/at/all")).unwrap_err().contains("/nowhere/at/all"));
    }

    #[test]
    fn operations_of_both_versions_are_counted() {
        let one = ["254:0 Read 3", "254:0 Write 12", "254:0 Sync 9", "254:0 Total 15", "Total 15"];
        assert_eq!(one.map(operations), [3, 12, 0, 0, 0]);
        assert_eq!(operations("8:0 rbytes=4096 wbytes=0 rios=1 wios=7 dbytes=0 dios=0"), 8);
    }
}
