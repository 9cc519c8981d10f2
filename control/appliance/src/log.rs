//! The log of `pollux run`: a line for each notice, on standard output, where a service manager
//! takes it. As JSON, a line has the keys `time` (RFC 3339), `level`, `about` and `message`. Text
//! lines begin with the time, except in the journal of systemd, which records it itself.

use crate::output::say;
use clap::ValueEnum;
use pollux_node::node::notice::NodeNotice;
use serde::Serialize;
use std::env;
use std::fs::File;
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;
use std::sync::LazyLock;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

#[derive(Clone, Copy, Debug, Default, ValueEnum)]
pub enum LogFormat {
    /// Time, subject and message: `2026-11-26T14:05:09.123456Z ib0: up: the broadcast group is
    /// joined`
    #[default]
    Text,
    /// A JSON object
    Json,
}

#[derive(Serialize)]
struct Line<'a> {
    time: String,
    #[serde(flatten)]
    notice: &'a NodeNotice,
}

#[expect(clippy::disallowed_methods, reason = "lines of a log have the time of day")]
pub fn log(format: LogFormat, notice: &NodeNotice) {
    static IS_JOURNAL: LazyLock<bool> = LazyLock::new(is_journal);
    let time = rfc_3339(SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default());
    match format {
        LogFormat::Text if *IS_JOURNAL => say(&notice.to_string()),
        LogFormat::Text => say(&format!("{time} {notice}")),
        LogFormat::Json => say(&json_line(notice, time)),
    }
}

fn json_line(notice: &NodeNotice, time: String) -> String {
    serde_json::to_string(&Line { time, notice }).expect("texts are JSON")
}

/// Whether standard output is the socket of the journal, by `JOURNAL_STREAM` (systemd.exec(5)).
#[expect(clippy::disallowed_methods, reason = "systemd passes it by the environment")]
fn is_journal() -> bool {
    let Ok(journal) = env::var("JOURNAL_STREAM") else { return false };
    let output = std::io::stdout().as_fd().try_clone_to_owned().map(File::from);
    let found = output.and_then(|output| output.metadata());
    found.is_ok_and(|found| journal == format!("{}:{}", found.dev(), found.ino()))
}

/// A time since the epoch, in UTC.
fn rfc_3339(since_epoch: Duration) -> String {
    let seconds = since_epoch.as_secs();
    let (year, month, day) = date_of(seconds / 86_400);
    let (hour, minute, second) = (seconds / 3600 % 24, seconds / 60 % 60, seconds % 60);
    let micros = since_epoch.subsec_micros();
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{micros:06}Z")
}

/// The Gregorian date `days_since_epoch` days after 1970-01-01: year, month and day. In the
/// calculation years begin on 1 March, so that the leap day is the last of a year.
fn date_of(days_since_epoch: u64) -> (u64, u64, u64) {
    const DAYS_OF_400_YEARS: u64 = 146_097;
    const DAYS_FROM_0000_03_01: u64 = 719_468;
    let days = days_since_epoch + DAYS_FROM_0000_03_01;
    let (era, day_of_era) = (days / DAYS_OF_400_YEARS, days % DAYS_OF_400_YEARS);
    let leap_days = day_of_era / 1460 - day_of_era / 36_524 + day_of_era / 146_096;
    let year_of_era = (day_of_era - leap_days) / 365;
    let days_before_year = 365 * year_of_era + year_of_era / 4 - year_of_era / 100;
    let day_of_year = day_of_era - days_before_year;
    // Month 0 is March. Five months from March or August have 153 days.
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

    #[test]
    fn a_line_of_json_has_time_level_about_and_message() {
        let notice = NodeNotice::warning("ib0", "missing: there is no fabric at /a");
        let line = json_line(&notice, rfc_3339(Duration::from_micros(1)));
        let expected = "{'time':'1970-01-01T00:00:00.000001Z','level':'warning','about':'ib0',\
                        'message':'missing: there is no fabric at /a'}";
        assert_eq!(line, expected.replace('\'', "\""));
    }
}
