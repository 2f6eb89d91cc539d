//! Processes and the ports that they listen on, found through /proc.
//!
//! Invariant: what may not be seen is left out and not guessed.

use std::collections::HashSet;
use std::fs;

/// All processes.
pub fn all() -> impl Iterator<Item = u32> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok())
}

/// The processes that listen on a port of this machine, found through /proc/net/tcp; empty when
/// there is none that we may see.
pub fn listeners(port: u16) -> Vec<u32> {
    let mut inodes = HashSet::new();
    for table in ["/proc/net/tcp", "/proc/net/tcp6"] {
        let text = fs::read_to_string(table).unwrap_or_default();
        inodes.extend(text.lines().skip(1).filter_map(|line| listening_inode(line, port)));
    }
    let mut pids: Vec<u32> = all().filter(|pid| holds_any(*pid, &inodes)).collect();
    pids.sort_unstable();
    pids
}

/// The value of a variable in the environment that a process was started with; `None` if it has
/// none or we may not see it.
pub fn variable(pid: u32, name: &str) -> Option<Vec<u8>> {
    let all = fs::read(format!("/proc/{pid}/environ")).ok()?;
    all.split(|byte| *byte == 0)
        .find_map(|line| line.strip_prefix(name.as_bytes())?.strip_prefix(b"=").map(<[u8]>::to_vec))
}

/// The ports on which a process listens.
pub fn ports_of(pid: u32) -> Vec<u16> {
    let mut ports = Vec::new();
    for table in ["/proc/net/tcp", "/proc/net/tcp6"] {
        for line in fs::read_to_string(table).unwrap_or_default().lines().skip(1) {
            let local = line.split_whitespace().nth(1).and_then(|local| local.rsplit_once(':'));
            let Some(port) = local.and_then(|(_, digits)| u16::from_str_radix(digits, 16).ok()) else { continue };
            let inode = listening_inode(line, port);
            if inode.is_some_and(|inode| holds_any(pid, &HashSet::from([inode]))) {
                ports.push(port);
            }
        }
    }
    ports.sort_unstable();
    ports.dedup();
    ports
}

/// The socket of a line of /proc/net/tcp that listens (state 0A) on `port`.
fn listening_inode(line: &str, port: u16) -> Option<u64> {
    let mut fields = line.split_whitespace();
    let local = fields.nth(1)?;
    let state = fields.nth(1)?;
    let inode = fields.nth(5)?;
    let (_, digits) = local.rsplit_once(':')?;
    (state == "0A" && u16::from_str_radix(digits, 16).ok()? == port).then(|| inode.parse().ok())?
}

fn holds_any(pid: u32, inodes: &HashSet<u64>) -> bool {
    if inodes.is_empty() {
        return false;
    }
    let files = fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten();
    files.filter_map(|file| fs::read_link(file.path()).ok()).any(|target| {
        let target = target.to_string_lossy();
        let inode = target.strip_prefix("socket:[").and_then(|rest| rest.strip_suffix(']'));
        inode.and_then(|digits| digits.parse().ok()).is_some_and(|inode: u64| inodes.contains(&inode))
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn our_own_process_is_found_by_its_port() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        assert_eq!(listeners(port), [std::process::id()]);
        assert!(ports_of(std::process::id()).contains(&port));
    }
}
