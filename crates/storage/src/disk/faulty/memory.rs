//! What the files of the faulty disk hold, in memory and on the disk, and what a power cut makes of
//! it.
//!
//! Invariant: a page's `before` begins with what the disk surely has; without it the page is clean.
//! A file's length has a durable twin of its own, as on a real file system.

use std::collections::BTreeMap;

use super::SurvivalUnit;

pub(super) const PAGE_BYTES: usize = 4096;
pub(super) const SECTOR_BYTES: usize = 512;

/// Versions of a page kept between two syncs. More overwrites than this between syncs lose the
/// middle ones, never the first or last.
const PAGE_VERSIONS_MAX: usize = 4;

/// One torn sector in so many that changed.
const TORN_SECTOR_ODDS: u64 = 16;

/// One page in so many that were being written has a sector destroyed, changed or not: disks keep
/// larger sectors inside than they show.
const DESTROYED_SECTOR_ODDS: u64 = 32;

type PageBytes = Box<[u8; PAGE_BYTES]>;

#[derive(Debug, Default)]
pub(super) struct Inode {
    pub(super) pages: BTreeMap<u64, Page>,
    pub(super) bytes: u64,
    pub(super) bytes_durable: u64,
    pub(super) bytes_reserved: u64,
}

#[derive(Debug)]
pub(super) struct Page {
    pub(super) now: PageBytes,
    /// Versions before `now` since the last sync; the first one is what the disk surely holds.
    /// Empty: the page is clean.
    pub(super) before: Vec<PageBytes>,
    /// A sync failed while the page was dirty, so the system believes it is clean.
    pub(super) lost: bool,
}

impl Inode {
    pub(super) fn page(&mut self, index: u64) -> &mut Page {
        self.pages.entry(index).or_insert_with(|| Page { now: zero_page(), before: Vec::new(), lost: false })
    }

    pub(super) fn charged_bytes(&self) -> u64 {
        let reserved_pages = self.bytes_reserved.div_ceil(PAGE_BYTES as u64);
        let beyond = self.pages.range(reserved_pages..).count() as u64;
        (reserved_pages + beyond) * PAGE_BYTES as u64
    }

    /// Pages that a write would add to the charge.
    pub(super) fn new_bytes(&self, offset: u64, bytes: u64) -> u64 {
        if bytes == 0 {
            return 0;
        }
        let reserved_pages = self.bytes_reserved.div_ceil(PAGE_BYTES as u64);
        let first = (offset / PAGE_BYTES as u64).max(reserved_pages);
        let limit = (offset + bytes).div_ceil(PAGE_BYTES as u64);
        let pages = (first..limit).filter(|index| !self.pages.contains_key(index)).count();
        (pages * PAGE_BYTES) as u64
    }

    pub(super) fn read(&self, buffer: &mut [u8], offset: u64) -> usize {
        let bytes = (buffer.len() as u64).min(self.bytes.saturating_sub(offset)) as usize;
        for_each_page(offset, bytes, |index, at, range| match self.pages.get(&index) {
            Some(page) => buffer[range.clone()].copy_from_slice(&page.now[at..at + range.len()]),
            None => buffer[range].fill(0),
        });
        bytes
    }

    pub(super) fn write(&mut self, bytes: &[u8], offset: u64) {
        for_each_page(offset, bytes.len(), |index, at, range| {
            let page = self.page(index);
            page.keep_version();
            page.now[at..at + range.len()].copy_from_slice(&bytes[range]);
        });
        self.bytes = self.bytes.max(offset + bytes.len() as u64);
    }

    pub(super) fn set_len(&mut self, bytes: u64) {
        if bytes < self.bytes {
            // The cut pages keep their old versions: without a sync the old length may come back,
            // and the bytes with it.
            let zeroes = vec![0; (self.bytes - bytes) as usize];
            let was = self.bytes;
            self.write(&zeroes, bytes);
            assert_eq!(self.bytes, was, "zeroing stays inside the file");
        }
        self.bytes = bytes;
        self.bytes_reserved = self.bytes_reserved.min(bytes);
    }

    pub(super) fn sync(&mut self) {
        for page in self.pages.values_mut().filter(|page| !page.lost) {
            page.before.clear();
        }
        self.bytes_durable = self.bytes;
    }

    pub(super) fn fail_sync(&mut self) {
        for page in self.pages.values_mut().filter(|page| !page.before.is_empty()) {
            page.lost = true;
        }
    }

    pub(super) fn cut_power(&mut self, survival: SurvivalUnit, random: &mut Random) {
        self.bytes = match survival {
            SurvivalUnit::Nothing => self.bytes_durable,
            SurvivalUnit::Everything => self.bytes,
            SurvivalUnit::Page | SurvivalUnit::Sector if random.coin() => self.bytes,
            SurvivalUnit::Page | SurvivalUnit::Sector => self.bytes_durable,
        };
        self.bytes_durable = self.bytes;
        for page in self.pages.values_mut().filter(|page| !page.before.is_empty()) {
            page.cut_power(survival, random);
        }
        // What lies beyond the length never comes back when the file grows again.
        let length = self.bytes;
        self.pages.retain(|index, _| index * (PAGE_BYTES as u64) < length);
        if let Some(page) = self.pages.get_mut(&(length / PAGE_BYTES as u64)) {
            page.now[(length % PAGE_BYTES as u64) as usize..].fill(0);
        }
    }
}

impl Page {
    pub(super) fn keep_version(&mut self) {
        self.lost = false;
        if self.before.len() == PAGE_VERSIONS_MAX {
            self.before.remove(1);
        }
        self.before.push(self.now.clone());
    }

    pub(super) fn cut_power(&mut self, survival: SurvivalUnit, random: &mut Random) {
        let before = std::mem::take(&mut self.before);
        // A page whose sync failed was dropped from the system's list of dirty pages: only luck
        // brought its bytes to the disk before that, and no write of it was under way when the
        // power went.
        let cause_is_lost = std::mem::take(&mut self.lost);
        match survival {
            SurvivalUnit::Everything => {}
            SurvivalUnit::Nothing => self.now.copy_from_slice(&before[0][..]),
            SurvivalUnit::Page => {
                if let Some(version) = before.get(random.below(before.len() as u64 + 1) as usize) {
                    self.now.copy_from_slice(&version[..]);
                }
            }
            SurvivalUnit::Sector => {
                for sector in 0..PAGE_BYTES / SECTOR_BYTES {
                    let range = sector * SECTOR_BYTES..(sector + 1) * SECTOR_BYTES;
                    if before.iter().all(|version| version[range.clone()] == self.now[range.clone()]) {
                        continue;
                    }
                    let chosen = random.below(before.len() as u64 + 1) as usize;
                    let torn = random.below(TORN_SECTOR_ODDS) == 0;
                    let keep = if torn { random.below(SECTOR_BYTES as u64) as usize } else { 0 };
                    if let Some(version) = before.get(chosen) {
                        let range = range.start + keep..range.end;
                        self.now[range.clone()].copy_from_slice(&version[range]);
                    }
                }
                if !cause_is_lost && random.below(DESTROYED_SECTOR_ODDS) == 0 {
                    let at = random.below((PAGE_BYTES / SECTOR_BYTES) as u64) as usize * SECTOR_BYTES;
                    for byte in &mut self.now[at..at + SECTOR_BYTES] {
                        *byte = random.next() as u8;
                    }
                }
            }
        }
    }
}

fn zero_page() -> PageBytes {
    Box::new([0; PAGE_BYTES])
}

/// Calls `each` with the page number, the place in the page and the range of the buffer, for every
/// page a range touches.
fn for_each_page(offset: u64, bytes: usize, mut each: impl FnMut(u64, usize, std::ops::Range<usize>)) {
    let mut done = 0;
    while done < bytes {
        let position = offset + done as u64;
        let at = (position % PAGE_BYTES as u64) as usize;
        let count = (PAGE_BYTES - at).min(bytes - done);
        each(position / PAGE_BYTES as u64, at, done..done + count);
        done += count;
    }
}

/// SplitMix64: small, seedable, good enough to choose faults.
#[derive(Debug)]
pub(super) struct Random(pub(super) u64);

impl Random {
    pub(super) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    pub(super) fn below(&mut self, limit: u64) -> u64 {
        assert!(limit > 0, "a choice among nothing");
        self.next() % limit
    }

    pub(super) fn coin(&mut self) -> bool {
        self.next() & 1 == 1
    }
}
