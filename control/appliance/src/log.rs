//! The log of `pollux run`: a line for each notice, on standard output, from which a service
//! manager reads it. A JSON line has the keys `time` (RFC 3339), `level`, `about` and `message`. A
//! text line begins with the time, except in the journal of systemd, which records the time itself.

use crate::output::say;
use clap::ValueEnum;
use pollux_node::calendar::{rfc_3339, since_epoch};
use pollux_node::node::notice::NodeNotice;
use serde::Serialize;
use std::env;
use std::fs::File;
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;
use std::sync::LazyLock;

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

pub fn log(format: LogFormat, notice: &NodeNotice) {
    static IS_JOURNAL: LazyLock<bool> = LazyLock::new(is_journal);
    let time = rfc_3339(since_epoch());
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

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn a_line_of_json_has_time_level_about_and_message() {
        let notice = NodeNotice::warning("ib0", "missing: there is no fabric at /a");
        let line = json_line(&notice, rfc_3339(Duration::from_micros(1)));
        let expected = "{'time':'1970-01-01T00:00:00.000001Z','level':'warning','about':'ib0',\
                        'message':'missing: there is no fabric at /a'}";
        assert_eq!(line, expected.replace('\'', "\""));
    }
}
