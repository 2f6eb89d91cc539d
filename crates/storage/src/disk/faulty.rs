//! A data folder in memory that fails on command, the same way every time for the same seed.
//!
//! It keeps what a process sees apart from what the disk holds. A process crash loses nothing that
//! was written; a power cut keeps of every unsynced page any mixture of the versions it went
//! through since its last sync, at the grain of [`SurvivalUnit`], tears or destroys single sectors,
//! and undoes folder changes that no `sync_folder` covered, newest first. After a failed sync the
//! pages count as clean though the disk never got them, as Linux does it: a second sync succeeds
//! and saves nothing.
//!
//! Invariant: no clock, no randomness of the system, no unordered map; two runs with the same calls
//! and the same seed are equal. Not modelled: a folder change that overtakes an older one of the
//! same folder, and a disk that loses what it confirmed as synced (flip bits or misdirect a sector
//! by hand for that).

mod disk;
mod memory;

use std::collections::BTreeMap;
use std::io::{self};
use std::sync::{Arc, Mutex, MutexGuard};

use memory::{Inode, PAGE_BYTES, Random, SECTOR_BYTES};

/// How the machine goes down.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Crash {
    /// The process dies, the system lives: everything written is still there.
    Process,
    /// The power goes: what was not synced survives in any subset.
    Power,
}

/// What to do to an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// Go down in the middle of the operation, whatever it is; a write is done in part, a sync or a
    /// folder change perhaps.
    Crash(Crash),
    /// The next write fails with an I/O error after some of its bytes.
    WriteError,
    /// The next sync of a file or folder fails, and its pages will never reach the disk.
    SyncError,
    /// The next write of new space, allocation or creation finds the disk full.
    Full,
}

/// The grain in which unsynced data survives a power cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SurvivalUnit {
    /// Nothing unsynced survives.
    Nothing,
    /// Pages of 4096 bytes, each old or new as a whole.
    Page,
    /// Sectors of 512 bytes, some of them torn inside.
    Sector,
    /// Everything survives.
    Everything,
}

/// The disk. Clones share it.
#[derive(Clone, Debug)]
pub struct FaultyDisk {
    state: Arc<Mutex<State>>,
}

/// A file of a [`FaultyDisk`].
#[derive(Debug)]
pub struct FaultyFile {
    state: Arc<Mutex<State>>,
    inode: u64,
    generation: u64,
    handle: u64,
    writable: bool,
}

#[derive(Debug)]
struct State {
    inodes: BTreeMap<u64, Inode>,
    names: BTreeMap<String, u64>,
    names_durable: BTreeMap<String, u64>,
    /// Per folder, in the order of their happening.
    names_pending: BTreeMap<String, Vec<NameChange>>,
    folders: Vec<String>,
    locks: BTreeMap<u64, u64>,
    /// Handles per inode.
    open: BTreeMap<u64, u64>,
    next_inode: u64,
    next_handle: u64,
    generation: u64,
    down: Option<Crash>,
    operations: u64,
    faults: Vec<(u64, Fault)>,
    survival: SurvivalUnit,
    capacity_bytes: u64,
    random: Random,
}

#[derive(Clone, Debug)]
enum NameChange {
    Set(String, u64),
    Remove(String),
    Rename(String, String),
}

fn down_error() -> io::Error {
    io::Error::other("the simulated machine is down")
}

fn injected(what: &str) -> io::Error {
    io::Error::other(format!("injected {what} error"))
}

impl FaultyDisk {
    /// An empty disk without faults. `seed` decides what survives crashes.
    pub fn new(seed: u64) -> FaultyDisk {
        let state = State {
            inodes: BTreeMap::new(),
            names: BTreeMap::new(),
            names_durable: BTreeMap::new(),
            names_pending: BTreeMap::new(),
            folders: Vec::new(),
            locks: BTreeMap::new(),
            open: BTreeMap::new(),
            next_inode: 1,
            next_handle: 1,
            generation: 1,
            down: None,
            operations: 0,
            faults: Vec::new(),
            survival: SurvivalUnit::Sector,
            capacity_bytes: u64::MAX,
            random: Random(seed),
        };
        FaultyDisk { state: Arc::new(Mutex::new(state)) }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }

    /// Changing operations so far (writes, syncs, allocations, length and name changes). The next
    /// one has this number.
    pub fn operations(&self) -> u64 {
        self.state().operations
    }

    /// Lets the first operation that suits the fault, from number `operation` on, fail so. Each
    /// scheduled fault fires once.
    pub fn schedule(&self, operation: u64, fault: Fault) {
        self.state().faults.push((operation, fault));
    }

    /// Forgets scheduled faults that have not fired.
    pub fn clear_faults(&self) {
        self.state().faults.clear();
    }

    /// Goes down now. Every call fails until [`FaultyDisk::restart`].
    pub fn crash(&self, crash: Crash) {
        self.state().down = Some(crash);
    }

    /// How the machine went down, if it is down.
    pub fn down(&self) -> Option<Crash> {
        self.state().down
    }

    /// Comes up again after a crash. Files opened before stay dead.
    pub fn restart(&self) {
        let mut state = self.state();
        if state.down == Some(Crash::Power) {
            state.cut_power();
        }
        state.down = None;
        state.generation += 1;
        state.locks.clear();
    }

    /// Sets what a power cut leaves of unsynced data; [`SurvivalUnit::Sector`] at first.
    pub fn set_survival(&self, unit: SurvivalUnit) {
        self.state().survival = unit;
    }

    /// Sets the size of the disk. Allocations and writes beyond it find it full.
    pub fn set_capacity(&self, bytes: u64) {
        self.state().capacity_bytes = bytes;
    }

    /// Whether it has a size and nothing is left of it.
    pub fn is_full(&self) -> bool {
        let state = self.state();
        state.used_bytes() >= state.capacity_bytes
    }

    /// Rots one bit of a file, on the disk and in what a process sees.
    pub fn flip_bit(&self, name: &str, offset: u64, bit: u8) {
        let mut state = self.state();
        let inode = state.named(name);
        let page = inode.page(offset / PAGE_BYTES as u64);
        let at = (offset % PAGE_BYTES as u64) as usize;
        page.now[at] ^= 1 << bit;
        for version in &mut page.before {
            version[at] ^= 1 << bit;
        }
    }

    /// Copies a sector over another of the same file, on the disk too, as a misdirected write does.
    /// Numbers count 512 bytes.
    pub fn misdirect_sector(&self, name: &str, source: u64, target: u64) {
        let mut state = self.state();
        let inode = state.named(name);
        let mut sector = [0; SECTOR_BYTES];
        inode.read(&mut sector, source * SECTOR_BYTES as u64);
        let page = inode.page(target * SECTOR_BYTES as u64 / PAGE_BYTES as u64);
        let at = target as usize * SECTOR_BYTES % PAGE_BYTES;
        page.now[at..at + SECTOR_BYTES].copy_from_slice(&sector);
        for version in &mut page.before {
            version[at..at + SECTOR_BYTES].copy_from_slice(&sector);
        }
    }

    /// What a process would read from a file, or `None` without the file. Works while the machine
    /// is down.
    pub fn contents(&self, name: &str) -> Option<Vec<u8>> {
        let state = self.state();
        let inode = &state.inodes[state.names.get(name)?];
        let mut contents = vec![0; inode.bytes as usize];
        inode.read(&mut contents, 0);
        Some(contents)
    }

    /// Puts a file in place, durable, for tests that start from given bytes.
    pub fn plant(&self, name: &str, contents: &[u8]) {
        let mut state = self.state();
        let number = state.next_inode;
        state.next_inode += 1;
        let mut inode = Inode::default();
        for (index, chunk) in contents.chunks(PAGE_BYTES).enumerate() {
            inode.page(index as u64).now[..chunk.len()].copy_from_slice(chunk);
        }
        inode.bytes = contents.len() as u64;
        inode.bytes_durable = inode.bytes;
        state.inodes.insert(number, inode);
        state.names.insert(name.to_owned(), number);
        state.names_durable.insert(name.to_owned(), number);
    }

    /// Bytes that files take, reservations included.
    pub fn used_bytes(&self) -> u64 {
        self.state().used_bytes()
    }
}

fn lock(state: &Mutex<State>) -> MutexGuard<'_, State> {
    // A test that panicked while it held the lock has already failed; what it left is good enough
    // to report on.
    state.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

/// What an operation meets.
enum Meeting {
    Nothing,
    Crash,
    Error(io::Error),
}

#[derive(Clone, Copy, PartialEq)]
enum Kind {
    Write,
    Sync,
    Space,
    Name,
}

impl State {
    fn check_up(&self, generation: u64) -> io::Result<()> {
        if self.down.is_some() || generation != self.generation { Err(down_error()) } else { Ok(()) }
    }

    /// Counts a changing operation and says what befalls it.
    fn meet(&mut self, kind: Kind) -> Meeting {
        let operation = self.operations;
        self.operations += 1;
        let found = self.faults.iter().position(|&(from, fault)| {
            from <= operation
                && match fault {
                    Fault::Crash(_) => true,
                    Fault::WriteError => kind == Kind::Write,
                    Fault::SyncError => kind == Kind::Sync,
                    Fault::Full => matches!(kind, Kind::Write | Kind::Space),
                }
        });
        let Some(found) = found else { return Meeting::Nothing };
        match self.faults.remove(found).1 {
            Fault::Crash(crash) => {
                self.down = Some(crash);
                Meeting::Crash
            }
            Fault::WriteError => Meeting::Error(injected("write")),
            Fault::SyncError => Meeting::Error(injected("sync")),
            Fault::Full => Meeting::Error(io::ErrorKind::StorageFull.into()),
        }
    }

    /// An operation that happens whole or, in a crash, perhaps; errors prevent it.
    fn whole(&mut self, kind: Kind, change: impl FnOnce(&mut State)) -> io::Result<()> {
        match self.meet(kind) {
            Meeting::Nothing => {
                change(self);
                Ok(())
            }
            Meeting::Crash => {
                if self.random.coin() {
                    change(self);
                }
                Err(down_error())
            }
            Meeting::Error(error) => Err(error),
        }
    }

    fn named(&mut self, name: &str) -> &mut Inode {
        let number = self.names.get(name).unwrap_or_else(|| panic!("no file {name}"));
        self.inodes.get_mut(number).expect("names lead to inodes")
    }

    fn inode(&mut self, number: u64) -> &mut Inode {
        self.inodes.get_mut(&number).expect("an open file keeps its inode")
    }

    fn change_name(&mut self, folder: &str, change: NameChange) {
        apply_name(&mut self.names, &change);
        self.names_pending.entry(folder.to_owned()).or_default().push(change);
    }

    /// Forgets files that have no name, on the disk or off it, and that nobody has open.
    fn forget_nameless(&mut self) {
        let State { inodes, names, names_durable, names_pending, open, .. } = self;
        inodes.retain(|number, _| {
            let pending = || {
                names_pending
                    .values()
                    .flatten()
                    .any(|change| matches!(change, NameChange::Set(_, set) if set == number))
            };
            let named = || names.values().chain(names_durable.values()).any(|named| named == number);
            open.contains_key(number) || named() || pending()
        });
    }

    fn sync_names(&mut self, folder: &str) {
        for change in self.names_pending.remove(folder).unwrap_or_default() {
            apply_name(&mut self.names_durable, &change);
        }
        self.forget_nameless();
    }

    fn used_bytes(&self) -> u64 {
        // A file without a name has its room until nobody has it open.
        let nameless = self.open.keys().filter(|number| !self.names.values().any(|named| named == *number));
        self.names.values().chain(nameless).map(|number| self.inodes[number].charged_bytes()).sum()
    }

    fn cut_power(&mut self) {
        for (_, changes) in std::mem::take(&mut self.names_pending) {
            let kept = match self.survival {
                SurvivalUnit::Nothing => 0,
                SurvivalUnit::Everything => changes.len() as u64,
                SurvivalUnit::Page | SurvivalUnit::Sector => self.random.below(changes.len() as u64 + 1),
            };
            for change in &changes[..kept as usize] {
                apply_name(&mut self.names_durable, change);
            }
        }
        self.names = self.names_durable.clone();
        let survival = self.survival;
        let State { inodes, names, random, .. } = self;
        for (number, inode) in inodes.iter_mut() {
            if names.values().any(|named| named == number) {
                inode.cut_power(survival, random);
            }
        }
        self.forget_nameless();
    }
}

fn apply_name(names: &mut BTreeMap<String, u64>, change: &NameChange) {
    match change {
        NameChange::Set(name, inode) => {
            names.insert(name.clone(), *inode);
        }
        NameChange::Remove(name) => {
            names.remove(name);
        }
        NameChange::Rename(source, target) => {
            if let Some(inode) = names.remove(source) {
                names.insert(target.clone(), inode);
            }
        }
    }
}
