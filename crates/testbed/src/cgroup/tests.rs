//! Boxes against folders that stand in for the kernel's, and against the kernel where it lets us.
//!
//! Invariant: a stand-in has the files that the kernel would make, so that a file the code makes
//! itself is a mistake that shows.

#![allow(clippy::unwrap_used)]

use super::*;

const CORES: f64 = 8.0;

fn make(root: &Path, made: &dyn Fn(&Path), limits: &Limits) -> Cgroup {
    Making { root, made, name: "box", cores: CORES }.of(limits)
}

fn cpu_and_memory(cpu: f64, memory_bytes: u64) -> Limits {
    Limits { cpu: Some(cpu), memory_bytes: Some(memory_bytes), disk: None }
}

fn everything(folder: &Path) -> Limits {
    let disk = DiskLimits { folder: folder.to_owned(), bytes_s: Some(52_428_800), operations_s: Some(3000) };
    Limits { disk: Some(disk), ..cpu_and_memory(0.5, 1 << 28) }
}

fn read(path: impl AsRef<Path>) -> String {
    fs::read_to_string(path).unwrap()
}

/// A folder that looks like version 2 offering these controllers, and handing down those.
fn version_2(offered: &str, handed: &str) -> tempfile::TempDir {
    let root = tempfile::tempdir().unwrap();
    fs::write(root.path().join("cgroup.controllers"), offered).unwrap();
    fs::write(root.path().join("cgroup.subtree_control"), handed).unwrap();
    root
}

/// What the kernel does when a group of version 2 is made: it has the files of the controllers that
/// are handed down.
fn kernel_of_two(group: &Path) {
    let handed = read(group.parent().unwrap().join("cgroup.subtree_control"));
    fs::write(group.join("cgroup.procs"), "").unwrap();
    for controller in handed.split_whitespace() {
        fs::write(group.join(format!("{}.max", controller.trim_start_matches('+'))), "max").unwrap();
    }
}

fn kernel_of_one(group: &Path) {
    let files = match group.parent().unwrap().file_name().unwrap().to_str().unwrap() {
        "cpu" => &["cpu.cfs_period_us", "cpu.cfs_quota_us"][..],
        "memory" => &["memory.limit_in_bytes"],
        _ => &[
            "blkio.throttle.read_bps_device",
            "blkio.throttle.write_bps_device",
            "blkio.throttle.read_iops_device",
            "blkio.throttle.write_iops_device",
        ],
    };
    files.iter().chain(&["cgroup.procs"]).for_each(|name| fs::write(group.join(name), "-1").unwrap());
}

/// Groups of a stand-in are plain folders with files: they do not go by themselves.
fn remove(cgroup: &Cgroup) {
    cgroup.folders.iter().for_each(|folder| fs::remove_dir_all(folder).unwrap());
}

#[test]
fn version_2_has_one_group_and_version_1_one_for_each_controller() {
    let two = version_2("cpuset cpu memory pids", "cpu memory");
    let cgroup = make(two.path(), &kernel_of_two, &cpu_and_memory(0.9, 1 << 29));
    assert_eq!((cgroup.folders.len(), &cgroup.refused[..]), (1, &[][..]));
    assert_eq!(read(cgroup.folders[0].join("cpu.max")), "90000 100000");
    assert_eq!(read(cgroup.folders[0].join("memory.max")), "536870912");
    remove(&cgroup);

    let one = tempfile::tempdir().unwrap();
    ["cpu", "memory"].iter().for_each(|name| fs::create_dir(one.path().join(name)).unwrap());
    let cgroup = make(one.path(), &kernel_of_one, &cpu_and_memory(0.9, 1 << 29));
    assert_eq!((cgroup.folders.len(), &cgroup.refused[..]), (2, &[][..]));
    assert_eq!(read(cgroup.folders[0].join("cpu.cfs_quota_us")), "90000");
    assert_eq!(read(cgroup.folders[1].join("memory.limit_in_bytes")), "536870912");
    assert_eq!(cgroup.doors(), ["cpu", "memory"].map(|name| one.path().join(name).join("box/cgroup.procs")));
    remove(&cgroup);
}

#[test]
fn version_2_hands_a_controller_down_before_it_limits_with_it() {
    let two = version_2("cpu memory", "");
    let cgroup = make(two.path(), &kernel_of_two, &Limits { cpu: Some(1.8), ..Limits::default() });
    assert_eq!(read(two.path().join("cgroup.subtree_control")), "+cpu");
    assert_eq!(read(cgroup.folders[0].join("cpu.max")), "180000 100000");
    remove(&cgroup);
}

#[test]
fn beside_version_1_version_2_is_used_for_what_it_offers() {
    let root = tempfile::tempdir().unwrap();
    let both = root.path().join("unified");
    fs::create_dir(root.path().join("cpu")).unwrap();
    fs::create_dir(&both).unwrap();
    fs::write(both.join("cgroup.controllers"), "memory").unwrap();
    fs::write(both.join("cgroup.subtree_control"), "").unwrap();
    let kernel = |group: &Path| match group.starts_with(&both) {
        true => kernel_of_two(group),
        false => kernel_of_one(group),
    };
    let cgroup = make(root.path(), &kernel, &cpu_and_memory(0.5, 1 << 28));
    assert_eq!(cgroup.folders, [root.path().join("cpu/box"), both.join("box")]);
    remove(&cgroup);
}

#[test]
fn a_machine_without_a_controller_is_told_which_one_and_the_other_limits_hold() {
    let none = tempfile::tempdir().unwrap();
    let cgroup = make(none.path(), &|_| (), &Limits { cpu: Some(1.0), ..Limits::default() });
    let told = cgroup.refused[0].to_string();
    assert!(told.starts_with("CPU could not be limited: ") && told.contains("the controller cpu"), "{told}");

    // Memory is not offered, nor is the disk; the share of CPU is set all the same.
    let two = version_2("cpu", "cpu");
    let cgroup = make(two.path(), &kernel_of_two, &everything(two.path()));
    assert_eq!(read(two.path().join("box/cpu.max")), "50000 100000");
    assert_eq!(cgroup.refused.iter().map(|refused| refused.what).collect::<Vec<_>>(), ["memory", "the disk"]);
    remove(&cgroup);
}

#[test]
fn a_file_that_the_kernel_did_not_make_is_named_and_not_made() {
    let two = version_2("memory", "memory");
    let cgroup = make(two.path(), &|_| (), &Limits { memory_bytes: Some(1 << 28), ..Limits::default() });
    let told = &cgroup.refused[0].why;
    assert!(told.contains("memory.max") && told.contains("No such file"), "{told}");
    assert!(!two.path().join("box/memory.max").exists());
}

#[test]
fn a_limit_that_reads_otherwise_afterwards_does_not_hold() {
    // A device keeps nothing of what is written to it, like a file of the kernel's that ignores a
    // limit.
    let two = version_2("memory", "memory");
    let kernel = |group: &Path| std::os::unix::fs::symlink("/dev/null", group.join("memory.max")).unwrap();
    let cgroup = make(two.path(), &kernel, &Limits { memory_bytes: Some(1 << 28), ..Limits::default() });
    assert!(cgroup.refused[0].why.contains("after 268435456 was written"), "{:?}", cgroup.refused);
    remove(&cgroup);
}

#[test]
fn more_cores_than_the_machine_has_are_refused() {
    let two = version_2("cpu", "cpu");
    let cgroup = make(two.path(), &kernel_of_two, &Limits { cpu: Some(CORES + 0.5), ..Limits::default() });
    assert!(cgroup.refused[0].why.contains("8.5 cores are more than this machine has, which is 8"));
    assert!(cgroup.folders.is_empty(), "no box that would hold nobody back");
}

#[test]
fn what_a_box_leaves_its_processes_and_has_counted_is_read_in_both_versions() {
    let root = tempfile::tempdir().unwrap();
    let put = |path: &str, text: &str| {
        let path = root.path().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    };
    let of = |groups: &[&str]| {
        let groups: Vec<String> = groups.iter().map(|told| (*told).to_owned()).collect();
        Share::of_groups(root.path(), &groups)
    };
    let ms = |ms| Some(Duration::from_millis(ms));
    put("cpu/a/cpu.cfs_quota_us", "90000\n");
    put("cpu/a/cpu.cfs_period_us", "100000\n");
    put("cpu/a/cpu.stat", "nr_periods 9\nnr_throttled 3\nthrottled_time 7000000\n");
    put("blkio/a/blkio.throttle.io_serviced", "254:0 Read 3\n254:0 Write 12\n254:0 Sync 9\nTotal 15\n");
    let one = "4:memory:/a\n7:blkio:/a\n1:cpu,cpuacct:/a\n0::/\n";
    assert_eq!(of(&[one, one]), Share { cores: Some(0.9), throttled: ms(7), operations: Some(15) }, "each group once");
    put("b/cpu.max", "180000 100000\n");
    put("b/cpu.stat", "usage_usec 5\nnr_throttled 3\nthrottled_usec 5000\n");
    put("b/io.stat", "8:0 rbytes=4096 wbytes=0 rios=1 wios=7 dbytes=0 dios=0\n");
    assert_eq!(of(&[one, "0::/b\n"]), Share { cores: Some(2.7), throttled: ms(12), operations: Some(23) });
    put("unified/c/cpu.max", "100000 100000\n");
    assert_eq!(of(&["0::/c\n"]).cores, Some(1.0), "where both versions are mounted");
    // Nobody is limited, or everybody is in it.
    put("free/cpu.max", "max 100000\n");
    put("free/cpu.stat", "throttled_usec 5000\n");
    put("cpu/cpu.stat", "throttled_time 9\n");
    assert_eq!(of(&["0::/free\n", "1:cpu:/\n", "1:cpu:/gone\n"]), Share::default());
}

#[test]
fn a_disk_is_limited_in_both_versions() {
    // Where temporary files lie on no disk of their own, the disk is what cannot be limited.
    let two = version_2("cpu memory io", "cpu memory io");
    let limits = everything(two.path());
    let Ok(device) = disk::device(two.path()) else {
        let cgroup = make(two.path(), &kernel_of_two, &limits);
        assert_eq!(cgroup.refused[0].what, "the disk");
        return remove(&cgroup);
    };
    let cgroup = make(two.path(), &kernel_of_two, &limits);
    let line = format!("{device} rbps=52428800 wbps=52428800 riops=3000 wiops=3000");
    assert_eq!((read(two.path().join("box/io.max")), &cgroup.refused[..]), (line, &[][..]));
    assert!(cgroup.caveats.is_empty());
    fs::write(two.path().join("box/io.stat"), format!("{device} rbytes=1 wbytes=2 rios=3 wios=4")).unwrap();
    assert_eq!(Share::of_groups(two.path(), &["0::/box".to_owned()]).operations, Some(7));
    remove(&cgroup);

    let one = tempfile::tempdir().unwrap();
    fs::create_dir(one.path().join("blkio")).unwrap();
    let cgroup = make(one.path(), &kernel_of_one, &Limits { disk: limits.disk, ..Limits::default() });
    let of = |name: &str| read(one.path().join("blkio/box").join(name));
    assert_eq!(of("blkio.throttle.write_bps_device"), format!("{device} 52428800"));
    assert_eq!(of("blkio.throttle.read_iops_device"), format!("{device} 3000"));
    assert!(cgroup.refused.is_empty() && cgroup.caveats[0].contains("synced and direct writes only"));
    remove(&cgroup);
}

#[test]
fn without_limits_nothing_is_made() {
    let cgroup = Cgroup::create("leveret-cgroup-test-nothing", &Limits::default());
    assert!(cgroup.doors().is_empty() && cgroup.refused.is_empty());
    let free = DiskLimits { folder: "/".into(), ..DiskLimits::default() };
    let cgroup = Cgroup::create("leveret-cgroup-test-nothing", &Limits { disk: Some(free), ..Limits::default() });
    assert!(cgroup.doors().is_empty() && cgroup.refused.is_empty());
}

/// A process is in every group before it becomes the command, and words keep their blanks.
#[test]
fn a_command_goes_through_every_door_and_keeps_its_words() {
    let place = tempfile::tempdir().unwrap();
    let folders = ["a b", "c'd"].map(|name| place.path().join(name));
    folders.iter().for_each(|folder| fs::create_dir(folder).unwrap());
    let cgroup = Cgroup { folders: folders.to_vec(), refused: Vec::new(), caveats: Vec::new() };
    let run = |words: &[&str]| {
        let words = cgroup.wrapped(&words.iter().map(|word| (*word).to_owned()).collect::<Vec<_>>());
        std::process::Command::new(&words[0]).args(&words[1..]).output().unwrap()
    };
    let output = run(&["sh", "-c", "echo \"$$ $1\"", "sh", "x  --  y"]);
    let told = String::from_utf8(output.stdout).unwrap();
    let (pid, rest) = told.trim_end().split_once(' ').unwrap();
    assert_eq!(rest, "x  --  y");
    folders.iter().for_each(|folder| assert_eq!(read(folder.join("cgroup.procs")).trim(), pid));
    remove(&cgroup);
    assert_eq!(run(&["true"]).status.code(), Some(97), "a door that is shut ends it");
}

/// The kernel's own version 2, where this machine has it and lets us: a process enters a group, and
/// limits that version 2 does not offer there are refused by name.
#[test]
fn a_process_enters_a_group_of_the_kernels_version_2() {
    let places = [Path::new(ROOT), Path::new("/sys/fs/cgroup/unified")];
    let Some(place) = places.into_iter().find(|place| place.join("cgroup.procs").exists()) else { return };
    let name = format!("leveret-cgroup-test-{}", std::process::id());
    let making = Making { root: place, made: &|_| (), name: &name, cores: CORES };
    let mut cgroup = Cgroup { folders: Vec::new(), refused: Vec::new(), caveats: Vec::new() };
    // Without the right to make groups there is nothing to see.
    if making.folder(&mut cgroup, place).is_err() {
        return;
    }
    let words = cgroup.wrapped(&["cat", "/proc/self/cgroup"].map(str::to_owned));
    let output = std::process::Command::new(&words[0]).args(&words[1..]).output().unwrap();
    let told = String::from_utf8(output.stdout).unwrap();
    assert!(told.lines().any(|line| line.starts_with("0::") && line.ends_with(&name)), "{told}");
    let folder = cgroup.folders[0].clone();
    drop(cgroup);
    assert!(!folder.exists(), "an empty group goes with its box");
    if !read(place.join("cgroup.controllers")).contains("memory") {
        let refused = &making.of(&Limits { memory_bytes: Some(1 << 28), ..Limits::default() }).refused;
        assert!(refused[0].why.contains("does not offer the controller memory"), "{refused:?}");
    }
}
