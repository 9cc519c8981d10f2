//! A campaign: many measurements from one file.
//!
//! ```toml
//! rounds = 7
//! duration = 0.5
//! cores = [0, 1]
//!
//! [[measure]]
//! what = ["lat", "bw"]
//! layer = ["verbs", "udp"]
//! transport = ["rc", "ud"]
//! size = [64, 2000]
//!
//! [[measure]]
//! what = ["lat"]
//! layer = ["tcp"]
//! sockets = ["pinned", "kernel"]
//! rate = 100
//! processes = true
//! ```
//!
//! Each list is measured with each other; combinations that there are not (a message of a megabyte
//! by datagram) are left out, but a table without any is an error.

use crate::error::PerfError;
use crate::plan::{Layer, MeasuredTransport, Plan, ProgramSockets, What};
use crate::verbs_plan::{VerbsOp, VerbsPlan};
use serde::Deserialize;
use std::time::Duration;

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Campaign {
    #[serde(default = "seven")]
    pub rounds: u16,
    /// Whether rounds that other programs disturbed count, too.
    #[serde(default)]
    pub keep_disturbed: bool,
    /// Seconds of each measurement.
    #[serde(default = "half")]
    duration: f64,
    #[serde(default = "first_two")]
    pub cores: [usize; 2],
    pub fifo: Option<u8>,
    /// The device of the client.
    pub device: Option<String>,
    /// That of the server, on the same machine; or a host where `pollux-perf serve` runs.
    pub peer: Option<String>,
    pub connect: Option<String>,
    measure: Vec<Table>,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Table {
    what: Vec<What>,
    #[serde(default = "verbs")]
    layer: Vec<Layer>,
    #[serde(default = "rc")]
    transport: Vec<MeasuredTransport>,
    /// Of the layer verbs.
    #[serde(default = "send")]
    op: Vec<VerbsOp>,
    #[serde(default)]
    bidirectional: bool,
    #[serde(default = "one")]
    qp: Vec<u16>,
    #[serde(default)]
    tx_depth: Vec<u16>,
    #[serde(default)]
    post_list: Vec<u16>,
    #[serde(default)]
    cq_mod: Vec<u16>,
    #[serde(default)]
    inline_size: Vec<u16>,
    #[serde(default)]
    events: bool,
    #[serde(default = "cache_line")]
    size: Vec<u32>,
    /// Of programs at their defaults; without it, of those that poll.
    #[serde(default)]
    sockets: Vec<ProgramSockets>,
    rate: Option<u32>,
    #[serde(default)]
    sleep: bool,
    #[serde(default)]
    unchecked: bool,
    #[serde(default)]
    processes: bool,
}

const fn seven() -> u16 {
    7
}

const fn half() -> f64 {
    0.5
}

const fn first_two() -> [usize; 2] {
    [0, 1]
}

fn verbs() -> Vec<Layer> {
    vec![Layer::Verbs]
}

fn rc() -> Vec<MeasuredTransport> {
    vec![MeasuredTransport::Rc]
}

fn send() -> Vec<VerbsOp> {
    vec![VerbsOp::Send]
}

fn one() -> Vec<u16> {
    vec![1]
}

fn cache_line() -> Vec<u32> {
    vec![64]
}

impl Campaign {
    pub fn parse(text: &str) -> Result<Self, PerfError> {
        let campaign: Self =
            toml::from_str(text).map_err(|error| PerfError::Plan(error.to_string()))?;
        let is_sensible = campaign.rounds > 0 && (0.001..=3600.0).contains(&campaign.duration);
        match is_sensible {
            true => Ok(campaign),
            false => Err(PerfError::Plan(
                "write 1 or more rounds, and a duration of 0.001 to 3600 seconds".into(),
            )),
        }
    }

    /// All measurements, each once.
    pub fn plans(&self) -> Result<Vec<Plan>, PerfError> {
        let mut plans: Vec<Plan> = Vec::new();
        for (table, number) in self.measure.iter().zip(1..) {
            let combined = self.combine(table);
            let checked = combined.iter().map(Plan::check).collect::<Vec<_>>();
            let possible = combined.into_iter().zip(&checked);
            let possible: Vec<_> =
                possible.filter(|(_, check)| check.is_ok()).map(|(plan, _)| plan).collect();
            if possible.is_empty() {
                let why = checked.into_iter().find_map(Result::err);
                let why = why.map_or("it is empty".into(), |error| error.to_string());
                return Err(PerfError::Plan(format!("[[measure]] number {number}: {why}")));
            }
            for plan in possible {
                if !plans.contains(&plan) {
                    plans.push(plan);
                }
            }
        }
        Ok(plans)
    }

    fn combine(&self, table: &Table) -> Vec<Plan> {
        let devices = self
            .device
            .as_ref()
            .map(|device| [device.clone(), self.peer.clone().unwrap_or_default()]);
        let mut plans = vec![Plan {
            duration: Duration::from_secs_f64(self.duration),
            per_second: table.rate,
            sleeps: table.sleep,
            unchecked: table.unchecked,
            devices,
            processes: table.processes,
            fifo: self.fifo,
            cores: self.cores,
            verbs: VerbsPlan {
                bidirectional: table.bidirectional,
                events: table.events,
                ..VerbsPlan::SENDS
            },
            ..Plan::new(What::Lat, Layer::Verbs, MeasuredTransport::Rc, 64)
        }];
        each(&mut plans, &table.what, |plan, what| plan.what = what);
        each(&mut plans, &table.layer, |plan, layer| plan.layer = layer);
        each(&mut plans, &table.transport, |plan, transport| plan.transport = transport);
        each(&mut plans, &table.op, |plan, op| plan.verbs.op = op);
        let chosen = |list: &[u16]| list.iter().copied().map(Some).collect::<Vec<_>>();
        each(&mut plans, &table.qp, |plan, qps| plan.verbs.qps = qps);
        or_default(&mut plans, &chosen(&table.tx_depth), |plan, it| plan.verbs.depth = it);
        or_default(&mut plans, &chosen(&table.post_list), |plan, it| plan.verbs.post_list = it);
        or_default(&mut plans, &chosen(&table.cq_mod), |plan, it| {
            plan.verbs.completion_every = it;
        });
        or_default(&mut plans, &chosen(&table.inline_size), |plan, it| {
            plan.verbs.inline_bytes = it;
        });
        or_default(&mut plans, &table.sockets, |plan, sockets| plan.program = Some(sockets));
        each(&mut plans, &table.size, |plan, bytes| plan.bytes = bytes);
        plans
    }
}

/// Each plan with each value.
fn each<T: Copy>(plans: &mut Vec<Plan>, values: &[T], set: impl Fn(&mut Plan, T)) {
    let with = |plan: &Plan, value: T| {
        let mut plan = plan.clone();
        set(&mut plan, value);
        plan
    };
    let all = plans.iter().flat_map(|plan| values.iter().map(|value| with(plan, *value)));
    *plans = all.collect();
}

/// As [`each`]; without values, plans stay as they are.
fn or_default<T: Copy>(plans: &mut Vec<Plan>, values: &[T], set: impl Fn(&mut Plan, T)) {
    if !values.is_empty() {
        each(plans, values, set);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(text: &str) -> Result<Vec<String>, String> {
        let plans = Campaign::parse(text).and_then(|campaign| campaign.plans());
        let plans = plans.map_err(|error| error.to_string())?;
        Ok(plans.iter().map(ToString::to_string).collect())
    }

    #[test]
    fn every_list_is_combined_with_every_other() {
        let text = "[[measure]]\nwhat = [\"lat\", \"bw\"]\ntransport = [\"rc\", \"ud\"]\n\
                    size = [64, 4096]\n[[measure]]\nwhat = [\"lat\"]\n";
        // Datagrams carry 2,048 bytes, and the second table repeats one of the first.
        let expected = [
            "lat of verbs over rc, 64 bytes",
            "lat of verbs over rc, 4096 bytes",
            "lat of verbs over ud, 64 bytes",
            "bw of verbs over rc, 64 bytes",
            "bw of verbs over rc, 4096 bytes",
            "bw of verbs over ud, 64 bytes",
        ];
        assert_eq!(names(text).expect("it is one"), expected);
    }

    #[test]
    fn a_table_may_say_how_queue_pairs_are_used() {
        let text = "[[measure]]\nwhat = [\"rate\"]\nqp = [1, 64]\ntx_depth = [16]\n\
                    post_list = [1]\ncq_mod = [1, 4]\ninline_size = [64]\nevents = true\n\
                    rate = 1000\n";
        let expected = [
            "rate of verbs over rc, 1000/s, depth 16, list 1, completion every 1",
            "rate of verbs over rc, 1000/s, depth 16, list 1, completion every 4",
            "rate of verbs over rc, 1000/s, 64 queue pairs, depth 16, list 1, completion every 1",
            "rate of verbs over rc, 1000/s, 64 queue pairs, depth 16, list 1, completion every 4",
        ];
        let expected = expected.map(|one| format!("{one}, inline up to 64, by events, 64 bytes"));
        assert_eq!(names(text).expect("it is one"), expected);
    }

    #[test]
    fn the_example_of_the_documentation_is_one() {
        let documentation = include_str!("campaign.rs").lines();
        let lines = documentation.skip_while(|line| !line.ends_with("```toml")).skip(1);
        let lines = lines.take_while(|line| !line.ends_with("```"));
        let text: String =
            lines.map(|line| line.trim_start_matches("//!").to_string() + "\n").collect();
        assert_eq!(names(&text).expect("it is one").len(), 18);
    }

    #[test]
    fn what_cannot_be_measured_is_an_error_that_says_where() {
        let error = |text| names(text).expect_err("it is none");
        let table = error("[[measure]]\nwhat = [\"rate\"]\nlayer = [\"tcp\"]\n");
        assert!(table.contains("[[measure]] number 1") && table.contains("write bw"), "{table}");
        assert!(error("[[measure]]\nwhat = [\"lag\"]\n").contains("lag"));
        assert!(error("[[measure]]\nwhat = [\"lat\"]\nsise = [1]\n").contains("sise"));
        assert!(error("rounds = 0\n[[measure]]\nwhat = [\"lat\"]\n").contains("1 or more rounds"));
        assert!(error("[[measure]]\nwhat = []\n").contains("it is empty"));
    }
}
