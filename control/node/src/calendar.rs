//! The time of day as text.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

#[expect(clippy::disallowed_methods, reason = "logs, pages and runs have the time of day")]
pub fn since_epoch() -> Duration {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()
}

/// The time now, for people: `2026-11-28 09:31:02 UTC`.
pub fn now() -> String {
    let text = rfc_3339(since_epoch());
    let seconds = text.split('.').next().unwrap_or_default();
    seconds.replace('T', " ") + " UTC"
}

/// Formats a time since the epoch as an RFC 3339 timestamp in UTC, with microseconds.
pub fn rfc_3339(since_epoch: Duration) -> String {
    let seconds = since_epoch.as_secs();
    let (year, month, day) = date_of(seconds / 86_400);
    let (hour, minute, second) = (seconds / 3600 % 24, seconds / 60 % 60, seconds % 60);
    let micros = since_epoch.subsec_micros();
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{micros:06}Z")
}

/// The Gregorian date `days_since_epoch` days after 1970-01-01: year, month and day. The
/// calculation begins each year on 1 March, so that the leap day is the last day of the year.
fn date_of(days_since_epoch: u64) -> (u64, u64, u64) {
    const DAYS_OF_400_YEARS: u64 = 146_097;
    const DAYS_FROM_0000_03_01: u64 = 719_468;
    let days = days_since_epoch + DAYS_FROM_0000_03_01;
    let (era, day_of_era) = (days / DAYS_OF_400_YEARS, days % DAYS_OF_400_YEARS);
    let leap_days = day_of_era / 1460 - day_of_era / 36_524 + day_of_era / 146_096;
    let year_of_era = (day_of_era - leap_days) / 365;
    let days_before_year = 365 * year_of_era + year_of_era / 4 - year_of_era / 100;
    let day_of_year = day_of_era - days_before_year;
    // Month 0 is March. The five months from March have 153 days, and so have the five from August.
    let month_from_march = (5 * day_of_year + 2) / 153;
    let day_of_month = day_of_year - (153 * month_from_march + 2) / 5 + 1;
    let (month, next_year) = match month_from_march {
        0..10 => (month_from_march + 3, 0),
        _ => (month_from_march - 9, 1),
    };
    (400 * era + year_of_era + next_year, month, day_of_month)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_those_of_date() {
        // By `date --utc --date=@SECONDS`.
        for (seconds, text) in [
            (0, "1970-01-01T00:00:00.000000Z"),
            (951_782_399, "2000-02-28T23:59:59.000000Z"),
            (951_827_696, "2000-02-29T12:34:56.000000Z"),
            (1_709_164_800, "2024-02-29T00:00:00.000000Z"),
            (1_798_761_599, "2026-12-31T23:59:59.000000Z"),
            (4_107_542_400, "2100-03-01T00:00:00.000000Z"),
        ] {
            assert_eq!(rfc_3339(Duration::from_secs(seconds)), text);
        }
    }
}
