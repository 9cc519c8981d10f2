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
//! A table is measured in every combination of the values of its lists. Invalid combinations, such
//! as a datagram of 1 MiB, are skipped and reported. A table without a valid combination is an
//! error.

use crate::error::PerfError;
use crate::plan::{Layer, MeasuredTransport, Plan, ProgramSockets, RouterPlan, What};
use crate::verbs_plan::{VerbsOp, VerbsPlan};
use serde::Deserialize;
use std::time::Duration;

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Campaign {
    #[serde(default = "seven")]
    pub rounds: u16,
    /// Whether disturbed rounds count.
    #[serde(default)]
    pub keep_disturbed: bool,
    /// The duration of each measurement in seconds.
    #[serde(default = "half")]
    duration: f64,
    #[serde(default = "first_two")]
    pub cores: [usize; 2],
    pub fifo: Option<u8>,
    /// The device of the client.
    pub device: Option<String>,
    /// The device of the server, on the same machine.
    pub peer: Option<String>,
    /// The host of the server, where `pollux-perf serve` runs.
    pub connect: Option<String>,
    measure: Vec<Table>,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Table {
    what: OneOrMany<What>,
    layer: Option<OneOrMany<Layer>>,
    transport: Option<OneOrMany<MeasuredTransport>>,
    /// This field and the next seven are for the layer verbs.
    op: Option<OneOrMany<VerbsOp>>,
    #[serde(default)]
    bidirectional: bool,
    qp: Option<OneOrMany<u16>>,
    tx_depth: Option<OneOrMany<u16>>,
    post_list: Option<OneOrMany<u16>>,
    cq_mod: Option<OneOrMany<u16>>,
    inline_size: Option<OneOrMany<u16>>,
    #[serde(default)]
    events: bool,
    size: Option<Sizes>,
    /// Sockets of a program that makes blocking calls; without it, sockets are polled.
    sockets: Option<OneOrMany<ProgramSockets>>,
    /// This field and the next two are for the layer forward.
    routes: Option<OneOrMany<u32>>,
    flows: Option<u32>,
    #[serde(default)]
    ipv6: bool,
    rate: Option<OneOrMany<u32>>,
    #[serde(default)]
    sleep: bool,
    #[serde(default)]
    unchecked: bool,
    #[serde(default)]
    processes: bool,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(untagged, expecting = "write a value that there is, or several in brackets")]
enum OneOrMany<T> {
    One(T),
    Many(Vec<T>),
}

impl<T> OneOrMany<T> {
    fn as_slice(&self) -> &[T] {
        match self {
            Self::One(one) => std::slice::from_ref(one),
            Self::Many(all) => all,
        }
    }
}

/// Message sizes: numbers, or a text in the format of `--size`.
#[derive(Clone, Debug, Deserialize)]
#[serde(untagged, expecting = "write sizes as numbers, or as for --size: \"64,2k\" or \"sweep\"")]
enum Sizes {
    Numbers(OneOrMany<u32>),
    Text(String),
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

    /// Returns all distinct measurements, and for each skipped combination the reason.
    pub fn plans(&self) -> Result<(Vec<Plan>, Vec<String>), PerfError> {
        let (mut plans, mut left_out): (Vec<Plan>, _) = (Vec::new(), Vec::new());
        for (table, number) in self.measure.iter().zip(1..) {
            let mut why = "it is empty".into();
            let (before, checked) = (plans.len(), self.combine(table)?);
            let mut is_repeated = false;
            for plan in checked {
                match plan.check() {
                    Err(error) => {
                        why = error.to_string();
                        left_out.push(format!("{plan}: {why}"));
                    }
                    Ok(()) if plans.contains(&plan) => is_repeated = true,
                    Ok(()) => plans.push(plan),
                }
            }
            if plans.len() == before && !is_repeated {
                return Err(PerfError::Plan(format!("[[measure]] number {number}: {why}")));
            }
        }
        Ok((plans, left_out))
    }

    fn combine(&self, table: &Table) -> Result<Vec<Plan>, PerfError> {
        let devices = self
            .device
            .as_ref()
            .map(|device| [device.clone(), self.peer.clone().unwrap_or_default()]);
        let mut plans = vec![Plan {
            duration: Duration::from_secs_f64(self.duration),
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
        each(&mut plans, Some(&table.what), |plan, what| plan.what = what);
        each(&mut plans, table.layer.as_ref(), |plan, layer| plan.layer = layer);
        each(&mut plans, table.transport.as_ref(), |plan, it| plan.transport = it);
        each(&mut plans, table.op.as_ref(), |plan, op| plan.verbs.op = op);
        each(&mut plans, table.qp.as_ref(), |plan, qps| plan.verbs.qps = qps);
        each(&mut plans, table.tx_depth.as_ref(), |plan, it| plan.verbs.depth = Some(it));
        each(&mut plans, table.post_list.as_ref(), |plan, it| plan.verbs.post_list = Some(it));
        each(&mut plans, table.cq_mod.as_ref(), |plan, it| {
            plan.verbs.completion_every = Some(it);
        });
        each(&mut plans, table.inline_size.as_ref(), |plan, it| {
            plan.verbs.inline_bytes = Some(it);
        });
        each(&mut plans, table.rate.as_ref(), |plan, rate| plan.per_second = Some(rate));
        each(&mut plans, table.sockets.as_ref(), |plan, it| plan.program = Some(it));
        let router = |routes| RouterPlan { routes, flows: table.flows, ipv6: table.ipv6 };
        each(&mut plans, table.routes.as_ref(), |plan, it| {
            // A router runs between null ports, so it uses no devices.
            (plan.router, plan.devices) = (Some(router(it)), None);
        });
        Ok(match &table.size {
            None => plans,
            Some(Sizes::Text(text)) => of_sizes(plans, text)?,
            Some(Sizes::Numbers(numbers)) => {
                each(&mut plans, Some(numbers), |plan, bytes| plan.bytes = bytes);
                plans
            }
        })
    }
}

/// Combines each plan with each size of a text. The text is a list of numbers separated by commas,
/// with the suffixes `k` (1,024) and `m` (1,024 squared); or it is `sweep`, for sizes up to the
/// longest message of the plan.
pub fn of_sizes(plans: Vec<Plan>, text: &str) -> Result<Vec<Plan>, PerfError> {
    let size = |text: &str| {
        let text = text.trim().to_lowercase();
        let (digits, factor) = match (text.strip_suffix('k'), text.strip_suffix('m')) {
            (Some(digits), _) => (digits, 1 << 10),
            (_, Some(digits)) => (digits, 1 << 20),
            _ => (text.as_str(), 1),
        };
        digits.parse::<u32>().ok()?.checked_mul(factor)
    };
    let listed = text.split(',').map(size).collect::<Option<Vec<_>>>();
    if text != "sweep" && listed.is_none() {
        let why = format!("--size {text:?}: write numbers such as 64,2k,1m, or sweep");
        return Err(PerfError::Plan(why));
    }
    let of_plan = |plan: Plan| {
        let sizes = listed.clone().unwrap_or_else(|| plan.sweep());
        sizes.into_iter().map(move |bytes| Plan { bytes, ..plan.clone() })
    };
    Ok(plans.into_iter().flat_map(of_plan).collect())
}

/// Replaces `plans` by their combinations with `values`. `None` leaves them unchanged.
fn each<T: Copy>(plans: &mut Vec<Plan>, values: Option<&OneOrMany<T>>, set: impl Fn(&mut Plan, T)) {
    let with = |plan: &Plan, value: T| {
        let mut plan = plan.clone();
        set(&mut plan, value);
        plan
    };
    if let Some(values) = values {
        let all = plans.iter().flat_map(|plan| values.as_slice().iter().map(|it| with(plan, *it)));
        *plans = all.collect();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(text: &str) -> Result<Vec<String>, String> {
        let plans = Campaign::parse(text).and_then(|campaign| campaign.plans());
        let (plans, _) = plans.map_err(|error| error.to_string())?;
        Ok(plans.iter().map(ToString::to_string).collect())
    }

    #[test]
    fn every_list_is_combined_with_every_other() {
        let text = "[[measure]]\nwhat = [\"lat\", \"bw\"]\ntransport = [\"rc\", \"ud\"]\n\
                    size = [64, 4096]\n[[measure]]\nwhat = [\"lat\"]\n";
        // UD carries at most 2,048 bytes, and the second table repeats a plan of the first.
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
    fn a_value_needs_no_brackets_and_sizes_are_as_for_the_command() {
        let sizes = |text: &str| {
            names(&format!("[[measure]]\nwhat = \"lat\"\ntransport = \"ud\"\nsize = {text}\n"))
                .map(|names| names.len())
        };
        assert_eq!(sizes("64"), Ok(1));
        assert_eq!(sizes("\"64,1k,2K\""), Ok(3));
        assert_eq!(sizes("\"sweep\""), Ok(7), "from 1 to 2,048 bytes");
        assert!(sizes("\"much\"").is_err_and(|why| why.contains("64,2k,1m, or sweep")));
        assert!(sizes("\"4096m\"").is_err() && sizes("\"\"").is_err());
    }

    #[test]
    fn what_is_left_out_is_named() {
        let text = "[[measure]]\nwhat = [\"lat\", \"rate\"]\nlayer = \"tcp\"\n";
        let plans = Campaign::parse(text).and_then(|campaign| campaign.plans());
        let (plans, left_out) = plans.expect("one of them is measured");
        assert_eq!((plans.len(), left_out.len()), (1, 1));
        assert!(left_out[0].contains("rate of tcp") && left_out[0].contains("write bw"));
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
