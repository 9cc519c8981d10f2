//! Membership reports of a host. IGMPv3 and MLDv2 are one protocol with two address lengths (RFC
//! 3376 5, RFC 3810 6). IGMPv3 can fall back to two older versions, MLDv2 to one.
//!
//! A change is reported at once, and as often in all as the querier's robustness variable says. A
//! query is answered after a random delay: a general query by a report of all groups, a query about
//! a group by a report of that group. While a querier of an older version is present, this host
//! uses that version (RFC 3376 7.2, RFC 3810 8.2).
//!
//! Sources are not filtered: a listener receives a group from all sources. So a joined group is
//! reported as EXCLUDE with no sources, and a group that was left as INCLUDE with no sources. The
//! answer to a query about sources includes all of these sources.

use pollux_verbs::rng::SeededRng;
use pollux_verbs::time::Time;
use pollux_wire::ip::group_record::RecordType;
use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::Duration;

/// With this limit, a report fits the smallest MTU of IPv6.
const RECORDS_PER_REPORT_MAX: usize = 48;
/// The sources of a query, at most; a query about more is answered as if it were about all.
pub(super) const SOURCES_MAX: usize = 48;
/// Joined groups, and groups with a leave that is still to be reported. Beyond this limit a leave
/// is not reported, and routers detect it by timeout.
const REPORTED_GROUPS_MAX: usize = 2 * super::GROUPS_MAX;
const ROBUSTNESS: u8 = 2;
const REPORT_INTERVAL: Duration = Duration::from_secs(1);
/// The interval of repeated reports in older versions (RFC 2236 8.10, RFC 2710 7.10).
const OLD_REPORT_INTERVAL: Duration = Duration::from_secs(10);
/// How long an older querier counts as present (RFC 3376 8.12).
const OLD_QUERIER_TIME: Duration = Duration::from_secs(260);

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Version {
    /// IGMPv1.
    Oldest,
    /// IGMPv2, MLDv1.
    Older,
    /// IGMPv3, MLDv2.
    Current,
}

#[derive(Clone, Debug)]
pub(super) struct Query {
    pub(super) version: Version,
    /// `None`: all groups (a general query).
    pub(super) group: Option<IpAddr>,
    pub(super) within: Duration,
    /// Empty: all sources.
    pub(super) sources: Vec<IpAddr>,
    pub(super) robustness: Option<u8>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Report {
    /// A report of the current version: record type, group and sources.
    Records(Vec<(RecordType, IpAddr, Vec<IpAddr>)>),
    /// A membership report of an older version.
    Joined(Version, IpAddr),
    /// A leave message of IGMPv2 or MLDv1.
    Done(IpAddr),
}

/// A change that must be reported `times` more times, next at `due`.
#[derive(Clone, Copy, Debug)]
struct Change {
    times: u8,
    due: Time,
}

#[derive(Clone, Debug)]
struct Answer {
    due: Time,
    sources: Vec<IpAddr>,
}

#[derive(Clone, Debug)]
struct Group {
    is_joined: bool,
    change: Option<Change>,
    answer: Option<Answer>,
    /// This host was the last to report the group, so it sends the leave message.
    reported_last: bool,
}

pub(super) struct Reporter {
    groups: BTreeMap<IpAddr, Group>,
    /// When to answer a general query.
    general: Option<Time>,
    oldest_until: Option<Time>,
    older_until: Option<Time>,
    robustness: u8,
}

impl Reporter {
    pub(super) const fn new() -> Self {
        Self {
            groups: BTreeMap::new(),
            general: None,
            oldest_until: None,
            older_until: None,
            robustness: ROBUSTNESS,
        }
    }

    pub(super) fn version(&self, now: Time) -> Version {
        let is_present = |until: Option<Time>| until.is_some_and(|until| now < until);
        match (is_present(self.oldest_until), is_present(self.older_until)) {
            (true, _) => Version::Oldest,
            (false, true) => Version::Older,
            _ => Version::Current,
        }
    }

    pub(super) fn set(&mut self, now: Time, group: IpAddr, is_joined: bool) {
        if !is_joined && self.groups.len() >= REPORTED_GROUPS_MAX {
            self.groups.remove(&group);
            return;
        }
        let change = Some(Change { times: self.robustness, due: now });
        let reported_last = self.groups.get(&group).is_some_and(|group| group.reported_last);
        self.groups.insert(group, Group { is_joined, change, answer: None, reported_last });
    }

    pub(super) fn handle_query(&mut self, now: Time, query: Query, rng: &mut SeededRng) {
        let before = self.version(now);
        match query.version {
            Version::Oldest => self.oldest_until = Some(now + OLD_QUERIER_TIME),
            Version::Older => self.older_until = Some(now + OLD_QUERIER_TIME),
            Version::Current => self.robustness = query.robustness.unwrap_or(ROBUSTNESS),
        }
        if self.version(now) != before {
            self.forget_timers();
        }
        let due = now + rng.duration(query.within);
        if self.general.is_some_and(|general| general <= due) {
            return;
        }
        match query.group {
            None if self.version(now) == Version::Current => self.general = Some(due),
            None => {
                for group in self.groups.values_mut().filter(|group| group.is_joined) {
                    group.ask(now + rng.duration(query.within), Vec::new());
                }
            }
            Some(group) => {
                if let Some(group) = self.groups.get_mut(&group).filter(|group| group.is_joined) {
                    group.ask(due, query.sources);
                }
            }
        }
    }

    /// Another host reported a group: in older versions one report suppresses the others.
    pub(super) fn handle_report(&mut self, now: Time, group: IpAddr) {
        if self.version(now) == Version::Current {
            return;
        }
        if let Some(group) = self.groups.get_mut(&group) {
            (group.answer, group.reported_last) = (None, false);
        }
    }

    pub(super) fn due(&self) -> Option<Time> {
        let groups = self.groups.values().flat_map(|group| {
            [group.change.map(|change| change.due), group.answer.as_ref().map(|answer| answer.due)]
        });
        groups.flatten().chain(self.general).min()
    }

    pub(super) fn next(&mut self, now: Time, rng: &mut SeededRng) -> Vec<Report> {
        let version = self.version(now);
        let mut reports = match version {
            Version::Current => self.changed_records(now, rng),
            _ => self.changed_in_old(now, version, rng),
        };
        reports.extend(self.answers(now, version));
        self.groups.retain(|_, group| group.is_joined || group.change.is_some());
        reports
    }

    fn changed_records(&mut self, now: Time, rng: &mut SeededRng) -> Vec<Report> {
        let mut records = Vec::new();
        for (&ip, group) in &mut self.groups {
            if group.take_change(now, rng.duration(REPORT_INTERVAL)) {
                let kind = match group.is_joined {
                    true => RecordType::CHANGE_TO_EXCLUDE_MODE,
                    false => RecordType::CHANGE_TO_INCLUDE_MODE,
                };
                records.push((kind, ip, Vec::new()));
            }
        }
        in_reports(records)
    }

    fn changed_in_old(&mut self, now: Time, version: Version, rng: &mut SeededRng) -> Vec<Report> {
        let mut reports = Vec::new();
        for (&ip, group) in &mut self.groups {
            if !group.take_change(now, rng.duration(OLD_REPORT_INTERVAL)) {
                continue;
            }
            if group.is_joined {
                group.reported_last = true;
                reports.push(Report::Joined(version, ip));
            } else {
                group.change = None;
                if version == Version::Older && group.reported_last {
                    reports.push(Report::Done(ip));
                }
            }
        }
        reports
    }

    fn answers(&mut self, now: Time, version: Version) -> Vec<Report> {
        let is_general = self.general.is_some_and(|general| general <= now);
        if is_general {
            self.general = None;
        }
        let mut records = Vec::new();
        for (&ip, group) in self.groups.iter_mut().filter(|(_, group)| group.is_joined) {
            let is_asked = group.answer.as_ref().is_some_and(|answer| answer.due <= now);
            let asked = if is_asked { group.answer.take() } else { None };
            if !is_general && !is_asked {
                continue;
            }
            group.reported_last = true;
            let sources = asked.filter(|_| !is_general).map_or(Vec::new(), |asked| asked.sources);
            let kind = match sources.is_empty() {
                true => RecordType::MODE_IS_EXCLUDE,
                // All sources of the query are received (RFC 3376 5.2).
                false => RecordType::MODE_IS_INCLUDE,
            };
            records.push((kind, ip, sources));
        }
        match version {
            Version::Current => in_reports(records),
            _ => records.into_iter().map(|(_, ip, _)| Report::Joined(version, ip)).collect(),
        }
    }

    /// Drops pending reports, which are for the version before.
    fn forget_timers(&mut self) {
        self.general = None;
        for group in self.groups.values_mut() {
            (group.change, group.answer) = (None, None);
        }
        self.groups.retain(|_, group| group.is_joined);
    }
}

impl Group {
    /// Whether a change must be reported now. If so, the next repetition is due after `interval`.
    fn take_change(&mut self, now: Time, interval: Duration) -> bool {
        let Some(Change { times, due }) = self.change.filter(|change| change.due <= now) else {
            return false;
        };
        let again = Change { times: times.saturating_sub(1), due: due.max(now) + interval };
        self.change = (again.times > 0).then_some(again);
        true
    }

    /// Schedules the answer to a query about this group; empty `sources` means all.
    fn ask(&mut self, due: Time, sources: Vec<IpAddr>) {
        let answer = match self.answer.take() {
            None => Answer { due, sources },
            Some(waiting) => {
                let all = waiting.sources.is_empty() || sources.is_empty();
                let mut merged = waiting.sources;
                merged.extend(sources);
                merged.sort_unstable();
                merged.dedup();
                Answer { due: waiting.due.min(due), sources: if all { Vec::new() } else { merged } }
            }
        };
        let is_too_much = answer.sources.len() > SOURCES_MAX;
        let sources = if is_too_much { Vec::new() } else { answer.sources };
        self.answer = Some(Answer { sources, ..answer });
    }
}

/// Distributes records over as many reports as needed; a record with sources has a report of its
/// own.
fn in_reports(records: Vec<(RecordType, IpAddr, Vec<IpAddr>)>) -> Vec<Report> {
    let (alone, together): (Vec<_>, Vec<_>) =
        records.into_iter().partition(|(_, _, sources)| !sources.is_empty());
    let together = together.chunks(RECORDS_PER_REPORT_MAX).map(<[_]>::to_vec);
    let alone = alone.into_iter().map(|record| vec![record]);
    together.chain(alone).map(Report::Records).collect()
}
