//! A moment as text: UTC with milliseconds, in the form of RFC 3339.
//!
//! Invariant: every text has the same length, so that columns of a log line up.

use std::fmt;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::time::FormatTime;

const SECONDS_A_DAY: u64 = 86_400;
/// Days from 0000-03-01, where the reckoning below starts, to 1970-01-01.
const DAYS_BEFORE_UNIX: u64 = 719_468;
/// Days in 400 years, after which the calendar repeats itself.
const DAYS_AN_ERA: u64 = 146_097;

/// The present time for the JSON log.
pub(super) struct UtcTime;

impl FormatTime for UtcTime {
    fn format_time(&self, out: &mut Writer<'_>) -> fmt::Result {
        write_now(out)
    }
}

/// Writes the present time.
pub(super) fn write_now(out: &mut impl fmt::Write) -> fmt::Result {
    // A clock before 1970 is not set at all; the log starts anyway.
    write(SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default(), out)
}

fn write(since_unix: Duration, out: &mut impl fmt::Write) -> fmt::Result {
    let seconds = since_unix.as_secs();
    let (year, month, day) = date(seconds / SECONDS_A_DAY);
    let second_of_day = seconds % SECONDS_A_DAY;
    let (hour, minute, second) = (second_of_day / 3600, second_of_day / 60 % 60, second_of_day % 60);
    write!(out, "{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{:03}Z", since_unix.subsec_millis())
}

/// The Gregorian date of a day, counted from 1970-01-01. Years are reckoned from March, so that the
/// leap day is the last of its year.
fn date(day: u64) -> (u64, u64, u64) {
    let day = day + DAYS_BEFORE_UNIX;
    let (era, day_of_era) = (day / DAYS_AN_ERA, day % DAYS_AN_ERA);
    // Take out the leap days of 4, 100 and 400 years; what is left divides evenly into years.
    let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    // Months from March have 31, 30, 31, 30, 31 days, twice and a half: 153 days for five.
    let month_from_march = (5 * day_of_year + 2) / 153;
    let day_of_month = day_of_year - (153 * month_from_march + 2) / 5 + 1;
    let month = if month_from_march < 10 { month_from_march + 3 } else { month_from_march - 9 };
    let year = era * 400 + year_of_era + u64::from(month <= 2);
    (year, month, day_of_month)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(milliseconds: u64) -> String {
        let mut text = String::new();
        write(Duration::from_millis(milliseconds), &mut text).expect("a string takes everything");
        text
    }

    #[test]
    fn moments_read_as_the_calendar_says() {
        assert_eq!(text(0), "1970-01-01T00:00:00.000Z");
        assert_eq!(text(951_782_399_999), "2000-02-28T23:59:59.999Z");
        assert_eq!(text(951_782_400_000), "2000-02-29T00:00:00.000Z");
        assert_eq!(text(951_868_800_000), "2000-03-01T00:00:00.000Z");
        assert_eq!(text(1_795_249_763_123), "2026-11-21T08:29:23.123Z");
        assert_eq!(text(4_107_542_399_000), "2100-02-28T23:59:59.000Z");
        assert_eq!(text(4_107_542_400_000), "2100-03-01T00:00:00.000Z", "2100 is no leap year");
    }

    #[test]
    fn days_follow_each_other_through_four_hundred_years() {
        let lengths = |year: u64| {
            let leap = u64::from(year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400)));
            [31, 28 + leap, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31]
        };
        let mut day = 0;
        for year in 1970..2370 {
            for (month, length) in (1..).zip(lengths(year)) {
                for day_of_month in 1..=length {
                    assert_eq!(date(day), (year, month, day_of_month));
                    day += 1;
                }
            }
        }
    }
}
