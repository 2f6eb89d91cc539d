//! Files of the kernel's control groups: written, and read back.
//!
//! Invariant: no file is made here. One that is not there says that its controller was not handed
//! down, and is told by its name.

use std::fs;
use std::io::{Error, ErrorKind, Write as _};
use std::path::Path;

/// The kernel rounds memory to pages and shares of CPU to microseconds: so much, or a thousandth,
/// may differ.
const ROUNDED: f64 = 4096.0;

/// Writes a limit and reads back whether it holds.
pub(crate) fn limit(path: &Path, value: &str) -> Result<(), String> {
    told(path, put(path, value))?;
    let read = told(path, fs::read_to_string(path))?;
    let first = |text: &str| text.split_whitespace().next().and_then(|word| word.parse::<f64>().ok());
    match (first(value), first(&read)) {
        (Some(wanted), Some(is)) if (wanted - is).abs() <= ROUNDED.max(wanted * 0.001) => Ok(()),
        _ => Err(format!("{} reads {} after {value} was written", path.display(), read.trim())),
    }
}

/// Writes the line of a device into a file that has one a device, and reads back whether the device
/// is in it.
pub(crate) fn line(path: &Path, value: &str, device: &str) -> Result<(), String> {
    told(path, put(path, value))?;
    let read = told(path, fs::read_to_string(path))?;
    match read.lines().any(|line| line.split(' ').next() == Some(device)) {
        true => Ok(()),
        false => Err(format!("{} does not hold {value} after it was written", path.display())),
    }
}

/// Makes a controller of version 2 apply to the groups below `place`, if it does not yet.
pub(crate) fn hand_down(place: &Path, controller: &str) -> Result<(), String> {
    let path = place.join("cgroup.subtree_control");
    let handed = fs::read_to_string(&path).unwrap_or_default();
    if handed.split_whitespace().any(|name| name == controller) {
        return Ok(());
    }
    told(&path, put(&path, &format!("+{controller}"))).map_err(|why| format!("+{controller} to {why}"))
}

fn put(path: &Path, text: &str) -> std::io::Result<()> {
    fs::OpenOptions::new().write(true).truncate(true).open(path)?.write_all(text.as_bytes())
}

/// An error with the file it is about, and what a person can do about it.
pub(crate) fn told<T>(path: &Path, done: std::io::Result<T>) -> Result<T, String> {
    done.map_err(|why: Error| {
        let hint = match why.kind() {
            ErrorKind::PermissionDenied => "; it takes root",
            ErrorKind::ReadOnlyFilesystem => "; cgroups are mounted read-only here, as in most containers",
            ErrorKind::ResourceBusy => {
                "; a cgroup that has processes of its own cannot hand controllers down: move them into a group below it"
            }
            _ => "",
        };
        format!("{}: {why}{hint}", path.display())
    })
}
