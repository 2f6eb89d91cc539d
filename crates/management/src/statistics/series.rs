//! Some counts over a day, sampled: the newest every five seconds, the oldest every half hour.
//!
//! ```text
//!   oldest                                                          newest
//!   [tier 3: 30 min] .. [tier 2: 10 min] .. [tier 1: 1 min] .. [tier 0: each sample]
//!
//!   a row:  mask of the columns that changed (varint) | per changed column its change (zigzag
//!           varint; a single 0 is: the same as the changed column before it)
//! ```
//!
//! A row that is too old for its tier is added to the one that the next tier is gathering. So a
//! thing at rest costs one byte a row, about 250 bytes a day, and one through which messages flow
//! evenly about six times that. Invariant: all series take their rows from one [`Timeline`], so a
//! series keeps no times: its rows are the newest of each tier.

use std::collections::VecDeque;

struct Tier {
    /// Rows are this far apart; 0 is each sample.
    every_ms: u64,
    /// And at most so old.
    age_ms: u64,
}

/// As RabbitMQ keeps samples of a node as a whole: ten minutes, an hour, eight hours, a day, and in
/// each a row more than that needs.
const TIERS: [Tier; 4] = [
    Tier { every_ms: 0, age_ms: 605_000 },
    Tier { every_ms: 60_000, age_ms: 3_660_000 },
    Tier { every_ms: 600_000, age_ms: 29_400_000 },
    Tier { every_ms: 1_800_000, age_ms: 88_200_000 },
];

const TIER_COUNT: usize = TIERS.len();

/// What a new sample does to every series.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    /// The oldest row of a tier goes to the one that the next tier gathers. So many stay.
    Age { tier: usize, left: usize },
    /// What a tier gathered becomes its newest row.
    Close { tier: usize },
}

/// The times of samples, in milliseconds since the epoch.
#[derive(Debug, Default)]
pub(crate) struct Timeline {
    /// By tier, the end of each row.
    rows: [VecDeque<u64>; TIER_COUNT],
    /// By tier, the end of what it gathers.
    gathered: [Option<u64>; TIER_COUNT],
    /// By tier, the end of its newest row.
    closed: [u64; TIER_COUNT],
    steps: Vec<Step>,
}

impl Timeline {
    /// A sample is taken now. To be followed by [`Series::record`] of each series.
    pub(crate) fn advance(&mut self, now_ms: u64) {
        self.steps.clear();
        self.rows[0].push_back(now_ms);
        for (tier, Tier { age_ms, .. }) in TIERS.iter().enumerate() {
            while let Some(end) = self.rows[tier].front().copied().filter(|end| end + age_ms < now_ms) {
                self.rows[tier].pop_front();
                self.steps.push(Step::Age { tier, left: self.rows[tier].len() });
                let Some(Tier { every_ms, .. }) = TIERS.get(tier + 1) else { continue };
                self.gathered[tier + 1] = Some(end);
                if end / every_ms > self.closed[tier + 1] / every_ms {
                    self.closed[tier + 1] = end;
                    self.gathered[tier + 1] = None;
                    self.rows[tier + 1].push_back(end);
                    self.steps.push(Step::Close { tier: tier + 1 });
                }
            }
        }
    }

    /// When the newest sample was taken.
    pub(crate) fn newest(&self) -> Option<u64> {
        self.rows[0].back().copied()
    }

    /// How long before the newest the one before it was taken.
    pub(crate) fn step_ms(&self) -> Option<u64> {
        let mut newest = self.rows[0].iter().rev();
        Some(newest.next()? - newest.next()?)
    }
}

/// See the module.
#[derive(Clone, Debug)]
pub(crate) struct Series {
    /// The values at the newest sample.
    values: Box<[u64]>,
    /// How they changed with it.
    changes: Box<[i64]>,
    rows: [VecDeque<u8>; TIER_COUNT],
    counts: [u16; TIER_COUNT],
    /// What a tier gathers: absent where nothing changed.
    gathered: [Option<Box<[i64]>>; TIER_COUNT],
    /// Tiers that have gathered something, one bit each.
    gathers: u8,
}

impl Series {
    /// A series that begins with these values: they are no change.
    pub(crate) fn new(values: &[u64]) -> Series {
        Series {
            values: values.into(),
            changes: vec![0; values.len()].into(),
            rows: Default::default(),
            counts: [0; TIER_COUNT],
            gathered: Default::default(),
            gathers: 0,
        }
    }

    /// Takes the sample that `timeline` advanced to.
    pub(crate) fn record(&mut self, values: &[u64], timeline: &Timeline) {
        for (change, (new, old)) in self.changes.iter_mut().zip(values.iter().zip(&self.values)) {
            *change = new.wrapping_sub(*old) as i64;
        }
        self.values.copy_from_slice(values);
        push_row(&mut self.rows[0], &self.changes);
        self.counts[0] += 1;
        for step in &timeline.steps {
            match *step {
                Step::Age { tier, left } if usize::from(self.counts[tier]) > left => self.age(tier),
                Step::Close { tier } if self.gathers & 1 << tier != 0 => self.close(tier),
                // It had not begun then.
                _ => {}
            }
        }
    }

    fn age(&mut self, tier: usize) {
        self.counts[tier] -= 1;
        let (row, next) = (&mut self.rows[tier], tier + 1);
        if next == TIER_COUNT {
            return pop_row(row, |_, _| {});
        }
        let (gathered, width) = (&mut self.gathered[next], self.values.len());
        pop_row(row, |column, change| {
            gathered.get_or_insert_with(|| vec![0; width].into())[column] += change;
        });
        self.gathers |= 1 << next;
    }

    fn close(&mut self, tier: usize) {
        match self.gathered[tier].take() {
            Some(changes) => push_row(&mut self.rows[tier], &changes),
            None => push_row(&mut self.rows[tier], &[]),
        }
        self.counts[tier] += 1;
        self.gathers &= !(1 << tier);
    }

    /// The values at the newest sample.
    pub(crate) fn values(&self) -> &[u64] {
        &self.values
    }

    /// How they changed with it.
    pub(crate) fn changes(&self) -> &[i64] {
        &self.changes
    }

    /// All that is known of one column, the oldest first: times and values. Before the first of them
    /// the value was that of the first.
    pub(crate) fn points(&self, column: usize, timeline: &Timeline) -> Vec<(u64, u64)> {
        let mut changes: Vec<(u64, i64)> = Vec::new();
        let mut begin = None;
        for tier in (0..TIER_COUNT).rev() {
            let times = &timeline.rows[tier];
            let mut bytes = self.rows[tier].iter().copied();
            let width_ms = TIERS[tier].every_ms.max(timeline.step_ms().unwrap_or(1));
            for time in times.iter().skip(times.len() - usize::from(self.counts[tier])) {
                begin.get_or_insert(time.saturating_sub(width_ms));
                changes.push((*time, read_row(&mut bytes, column)));
            }
            // What this tier gathers is between its newest row and the oldest of the tier before.
            if let Some(end) = timeline.gathered[tier].filter(|_| self.gathers & 1 << tier != 0) {
                begin.get_or_insert(end.saturating_sub(width_ms));
                changes.push((end, self.gathered[tier].as_ref().map_or(0, |changes| changes[column])));
            }
        }
        let mut value = self.values[column];
        let mut points: Vec<(u64, u64)> = Vec::with_capacity(changes.len() + 1);
        for (time, change) in changes.iter().rev() {
            points.push((*time, value));
            value = value.wrapping_sub(*change as u64);
        }
        // Where the first change began.
        points.extend(begin.map(|time| (time, value)));
        points.reverse();
        points
    }

    /// Memory that it takes.
    #[cfg(test)]
    fn bytes(&self) -> usize {
        let gathered = self.gathered.iter().flatten().map(|changes| changes.len() * 8).sum::<usize>();
        let rows = self.rows.iter().map(VecDeque::capacity).sum::<usize>();
        size_of::<Series>() + self.values.len() * 16 + gathered + rows
    }
}

fn push_row(row: &mut VecDeque<u8>, changes: &[i64]) {
    // An eighth more than there is, and not twice as much: there are thousands of these.
    if row.capacity() - row.len() < 16 {
        row.reserve_exact(16 + row.len() / 8);
    }
    let mask =
        changes.iter().enumerate().filter(|(_, change)| **change != 0).fold(0u64, |mask, (at, _)| mask | 1 << at);
    push_varint(row, mask);
    let mut before = 0;
    for change in changes.iter().copied().filter(|change| *change != 0) {
        if change == before {
            row.push_back(0);
        } else {
            push_varint(row, (change << 1 ^ change >> 63) as u64);
        }
        before = change;
    }
}

fn push_varint(row: &mut VecDeque<u8>, mut value: u64) {
    while value >= 0x80 {
        row.push_back(value as u8 | 0x80);
        value >>= 7;
    }
    row.push_back(value as u8);
}

fn varint(bytes: &mut impl Iterator<Item = u8>) -> u64 {
    let (mut value, mut shift) = (0, 0);
    for byte in bytes {
        value |= u64::from(byte & 0x7f) << shift;
        if byte < 0x80 {
            break;
        }
        shift += 7;
    }
    value
}

/// Reads a row, and hands out each column that changed.
fn each_change(bytes: &mut impl Iterator<Item = u8>, mut take: impl FnMut(usize, i64)) {
    let (mut mask, mut before) = (varint(bytes), 0);
    while mask != 0 {
        let change = match varint(bytes) {
            0 => before,
            zigzag => (zigzag >> 1) as i64 ^ -((zigzag & 1) as i64),
        };
        take(mask.trailing_zeros() as usize, change);
        before = change;
        mask &= mask - 1;
    }
}

fn read_row(bytes: &mut impl Iterator<Item = u8>, wanted: usize) -> i64 {
    let mut found = 0;
    each_change(bytes, |column, change| {
        if column == wanted {
            found = change;
        }
    });
    found
}

fn pop_row(row: &mut VecDeque<u8>, take: impl FnMut(usize, i64)) {
    each_change(&mut std::iter::from_fn(|| row.pop_front()), take);
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1000;
    const DAY: u64 = 86_400 * SECOND;

    /// A day and more of samples, `values` at each time.
    fn day(mut series: Series, start: u64, values: impl Fn(u64) -> Vec<u64>) -> (Series, Timeline) {
        let mut timeline = Timeline::default();
        for at in (0..DAY + DAY / 2).step_by(5 * SECOND as usize) {
            timeline.advance(start + at);
            series.record(&values(at / SECOND), &timeline);
        }
        (series, timeline)
    }

    #[test]
    fn every_value_of_a_day_is_what_it_was_at_the_time_of_its_row() {
        let values = |second: u64| vec![second * 3, 1000 - second % 700, 7];
        let start = 1_700_000_000 * SECOND;
        let (series, timeline) = day(Series::new(&values(0)), start, values);
        let age = |index: usize| TIERS[index].age_ms;
        for (column, wanted) in [(0, 0), (1, 1), (2, 2)] {
            let points = series.points(column, &timeline);
            assert!(points.windows(2).all(|two| two[0].0 < two[1].0), "{points:?}");
            let newest = points.last().expect("there are some").0;
            for (time, value) in &points[1..] {
                assert_eq!(*value, values((time - start) / SECOND)[wanted], "{time}");
            }
            let within = |ms: u64| points.iter().filter(|(time, _)| time + ms >= newest).count();
            assert!(within(age(0)) >= 121 && within(age(3)) <= 260, "{}", within(age(3)));
            assert!(newest - points[0].0 >= DAY);
        }
    }

    #[test]
    fn a_series_that_begins_late_knows_nothing_of_before() {
        let (mut timeline, mut late) = (Timeline::default(), None);
        for at in (0..DAY).step_by(5 * SECOND as usize) {
            timeline.advance(at);
            if at == DAY / 2 {
                late = Some(Series::new(&[5]));
            }
            if let Some(series) = &mut late {
                series.record(&[5 + (at - DAY / 2) / SECOND], &timeline);
            }
        }
        let points = late.expect("it has begun").points(0, &timeline);
        assert!(points[0].0 >= DAY / 2 - 3_600 * SECOND && points[0].1 <= 3_605, "{:?}", points[0]);
        assert_eq!(points.last().map(|(_, value)| *value), Some(5 + DAY / 2 / SECOND - 5));
        for (time, value) in points.iter().filter(|(time, _)| *time >= DAY / 2) {
            assert_eq!(*value, 5 + (time - DAY / 2) / SECOND);
        }
    }

    #[test]
    fn ten_thousand_queues_take_less_than_32_mib_for_a_day() {
        let (idle, _) = day(Series::new(&[0; 10]), 0, |_| vec![0; 10]);
        assert!(idle.bytes() < 900, "{}", idle.bytes());
        // A hundred a second in and out, a few on their way, of another number at each look.
        let busy = |second: u64| {
            let (n, noise) = (second * 100, second / 5 * 7919 % 31);
            vec![n + noise, n, n, noise, 40 + noise % 3, 0, 0, 0, 0, 0]
        };
        let (busy, _) = day(Series::new(&busy(0)), 0, busy);
        assert!(busy.bytes() * 10_000 < 32 << 20, "{}", busy.bytes());
    }
}
