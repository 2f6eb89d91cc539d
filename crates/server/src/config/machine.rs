//! What this process may use of the machine, from which some defaults are taken.
//!
//! Invariant: detection never fails. What cannot be read counts as a small machine, so that a
//! default is rather too low than too high.

use std::fs;
use std::io::Read as _;
use std::net::{Ipv4Addr, Ipv6Addr, UdpSocket};
use std::num::NonZero;
use std::path::{Path, PathBuf};

/// What is assumed when the memory cannot be read.
const MEMORY_BYTES_ASSUMED: u64 = 512 << 20;
/// A control group without a limit shows a number near 2^63; no machine has this much.
const MEMORY_BYTES_UNLIMITED: u64 = 1 << 60;
/// Files of the kernel that are read here are short; more is not what we expect.
const KERNEL_FILE_BYTES_MAX: u64 = 64 * 1024;
/// What is assumed when there is no descriptor limit, or when it cannot be read.
const DESCRIPTORS_ASSUMED: u64 = 1024;
/// A node name has room for more, but a longer host name is not one.
const HOSTNAME_BYTES_MAX: usize = 64;

/// What this process may use of the machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Machine {
    /// Processors this process may use: affinity and quotas of control groups count.
    pub processors: usize,
    /// Memory of the machine, or of the tightest control group around this process.
    pub memory_bytes: u64,
    /// Open files this process may have. Raise the limit first.
    pub descriptors: u64,
    /// Whether it can listen on IPv4 addresses.
    pub ipv4: bool,
    /// Whether it can listen on IPv6 addresses.
    pub ipv6: bool,
    /// Name of the host up to its first dot, with other than letters, digits, `_` and `-` replaced
    /// by `-`.
    pub hostname: String,
}

impl Machine {
    /// Looks at this machine. Costs a few small reads; call it once.
    pub fn detect() -> Machine {
        let descriptors = rustix::process::getrlimit(rustix::process::Resource::Nofile).current;
        Machine {
            processors: std::thread::available_parallelism().map_or(1, NonZero::get),
            memory_bytes: memory_bytes(Path::new("/")),
            descriptors: descriptors.unwrap_or(DESCRIPTORS_ASSUMED),
            // Nothing is sent, and nobody can connect to it: it only shows whether the family
            // exists.
            ipv4: UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0)).is_ok(),
            ipv6: UdpSocket::bind((Ipv6Addr::UNSPECIFIED, 0)).is_ok(),
            hostname: hostname(&rustix::system::uname().nodename().to_string_lossy()),
        }
    }
}

/// The host part of a node name.
fn hostname(full: &str) -> String {
    let short = full.split('.').next().unwrap_or_default();
    let kept = short.chars().take(HOSTNAME_BYTES_MAX);
    let name: String = kept.map(|c| if c.is_ascii_alphanumeric() || c == '_' { c } else { '-' }).collect();
    if name.is_empty() { "localhost".to_owned() } else { name }
}

/// Memory under a root folder (`/`, or a made-up tree in tests): the smallest of all limits that
/// hold for this process.
fn memory_bytes(root: &Path) -> u64 {
    let installed = read(&root.join("proc/meminfo")).and_then(|text| installed_bytes(&text));
    let groups = read(&root.join("proc/self/cgroup")).unwrap_or_default();
    groups
        .lines()
        .filter_map(|line| group_limit_bytes(root, line))
        .chain(installed)
        .min()
        .unwrap_or(MEMORY_BYTES_ASSUMED)
}

/// `MemTotal:  24634524 kB`
fn installed_bytes(meminfo: &str) -> Option<u64> {
    let line = meminfo.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
    line.split_whitespace().next()?.parse::<u64>().ok()?.checked_mul(1024)
}

/// The limit of one line of `/proc/self/cgroup`: `0::/path` is version 2, `4:memory:/path` is
/// version 1.
///
/// Limits of all groups above count too. Inside a container the path may be the host's, which is
/// not mounted there; then only the mount itself, which is the container's group, is found.
fn group_limit_bytes(root: &Path, line: &str) -> Option<u64> {
    let mut fields = line.splitn(3, ':');
    let (hierarchy, controllers, group) = (fields.next()?, fields.next()?, fields.next()?);
    let (mount, limit_file) = match (hierarchy, controllers) {
        ("0", "") => ("sys/fs/cgroup", "memory.max"),
        (_, controllers) if controllers.split(',').any(|name| name == "memory") => {
            ("sys/fs/cgroup/memory", "memory.limit_in_bytes")
        }
        _ => return None,
    };
    let mount = root.join(mount);
    let inside: PathBuf = group.split('/').filter(|part| !part.is_empty() && *part != "..").collect();
    inside
        .ancestors()
        .filter_map(|group| read(&mount.join(group).join(limit_file))?.trim().parse::<u64>().ok())
        .filter(|bytes| *bytes < MEMORY_BYTES_UNLIMITED)
        .min()
}

fn read(path: &Path) -> Option<String> {
    let mut text = String::new();
    fs::File::open(path).ok()?.take(KERNEL_FILE_BYTES_MAX).read_to_string(&mut text).ok()?;
    Some(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A root folder with these files.
    fn root_with(files: &[(&str, &str)]) -> tempfile::TempDir {
        let root = tempfile::tempdir().expect("a folder for the test");
        for (name, contents) in files {
            let path = root.path().join(name);
            fs::create_dir_all(path.parent().expect("files stand in folders")).expect("made");
            fs::write(path, contents).expect("written");
        }
        root
    }

    const EIGHT_GIB: (&str, &str) = ("proc/meminfo", "MemTotal:        8388608 kB\nMemFree:         1000 kB\n");

    #[test]
    fn without_limits_the_installed_memory_counts() {
        let root = root_with(&[EIGHT_GIB, ("proc/self/cgroup", "0::/\n"), ("sys/fs/cgroup/memory.max", "max\n")]);
        assert_eq!(memory_bytes(root.path()), 8 << 30);
    }

    #[test]
    fn a_limit_of_version_2_counts_also_when_it_is_a_parents() {
        let root = root_with(&[
            EIGHT_GIB,
            ("proc/self/cgroup", "0::/system.slice/leveret.service\n"),
            ("sys/fs/cgroup/system.slice/memory.max", "536870912\n"),
            ("sys/fs/cgroup/system.slice/leveret.service/memory.max", "max\n"),
        ]);
        assert_eq!(memory_bytes(root.path()), 512 << 20);
    }

    #[test]
    fn a_limit_of_version_1_counts_and_its_unlimited_number_does_not() {
        let group = ("proc/self/cgroup", "5:cpu:/a\n4:memory:/a/b\n0::/\n");
        let unlimited = ("sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n");
        let limited = ("sys/fs/cgroup/memory/a/b/memory.limit_in_bytes", "1073741824\n");
        assert_eq!(memory_bytes(root_with(&[EIGHT_GIB, group, unlimited, limited]).path()), 1 << 30);
        assert_eq!(memory_bytes(root_with(&[EIGHT_GIB, group, unlimited]).path()), 8 << 30);
        assert_eq!(memory_bytes(root_with(&[group, unlimited]).path()), MEMORY_BYTES_ASSUMED);
    }

    #[test]
    fn in_a_container_the_mount_itself_has_the_limit() {
        let group = ("proc/self/cgroup", "4:memory:/docker/0123456789ab\n");
        let limit = ("sys/fs/cgroup/memory/memory.limit_in_bytes", "268435456\n");
        assert_eq!(memory_bytes(root_with(&[EIGHT_GIB, group, limit]).path()), 256 << 20);
    }

    #[test]
    fn nothing_readable_counts_as_a_small_machine() {
        assert_eq!(memory_bytes(root_with(&[]).path()), MEMORY_BYTES_ASSUMED);
        let garbage = root_with(&[("proc/meminfo", "MemTotal: lots\n"), ("proc/self/cgroup", "::::\nx\n0::/../..\n")]);
        assert_eq!(memory_bytes(garbage.path()), MEMORY_BYTES_ASSUMED);
    }

    #[test]
    fn a_host_name_becomes_part_of_a_node_name() {
        assert_eq!(hostname("rabbit-1.example.com"), "rabbit-1");
        assert_eq!(hostname("bücher"), "b-cher");
        assert_eq!(hostname(""), "localhost");
        assert_eq!(hostname(&"a".repeat(300)).len(), HOSTNAME_BYTES_MAX);
    }

    #[test]
    fn this_machine_has_something() {
        let machine = Machine::detect();
        assert!(machine.processors >= 1 && machine.memory_bytes > 0 && machine.descriptors > 0, "{machine:?}");
        assert!(machine.ipv4 || machine.ipv6, "{machine:?}");
    }
}
