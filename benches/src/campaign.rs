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
use crate::plan::{Layer, MeasuredTransport, Plan, ProgramSockets, VerbsOp, What};
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
        let sockets: Vec<Option<ProgramSockets>> = match table.sockets.is_empty() {
            true => vec![None],
            false => table.sockets.iter().copied().map(Some).collect(),
        };
        let devices = self
            .device
            .as_ref()
            .map(|device| [device.clone(), self.peer.clone().unwrap_or_default()]);
        let mut plans = Vec::new();
        for &what in &table.what {
            for &layer in &table.layer {
                for &transport in &table.transport {
                    for (&op, &program) in
                        table.op.iter().flat_map(|op| sockets.iter().map(move |it| (op, it)))
                    {
                        plans.extend(table.size.iter().map(|bytes| Plan {
                            op,
                            bidirectional: table.bidirectional,
                            duration: Duration::from_secs_f64(self.duration),
                            per_second: table.rate,
                            sleeps: table.sleep,
                            program,
                            unchecked: table.unchecked,
                            devices: devices.clone(),
                            processes: table.processes,
                            fifo: self.fifo,
                            cores: self.cores,
                            ..Plan::new(what, layer, transport, *bytes)
                        }));
                    }
                }
            }
        }
        plans
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
