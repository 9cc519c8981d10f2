//! What stands beside what, and how it is to be.

use crate::bring_up;
use crate::echo;
use crate::machine;
use crate::pair::{Outcome, run};
use crate::peers::{RunConfig, iperf3, opensm, sockperf, testpmd, ucx};
use crate::plan::{Layer, Plan, Transport, What};
use std::fmt;
use std::process::Command;

/// What a ratio has to be.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Budget {
    /// Not more.
    AtMost(f64),
    /// Not less.
    AtLeast(f64),
}

impl Budget {
    /// Whether this ratio is so.
    pub fn is_met(self, ratio: f64) -> bool {
        match self {
            Self::AtMost(bound) => ratio <= bound,
            Self::AtLeast(bound) => ratio >= bound,
        }
    }
}

/// A row of the table.
#[derive(Clone, Copy, Debug)]
pub struct Row {
    /// Its name.
    pub id: &'static str,
    /// What is measured.
    pub what: &'static str,
    /// In what.
    pub unit: &'static str,
    /// What the ratio has to be; our figure, where there is no peer.
    pub budget: Budget,
}

/// Figures for the rows of a case, or why there are none.
pub type Figures = Result<Vec<f64>, String>;

/// Something that we and a peer do. One measurement of either gives figures for all its rows.
pub struct ComparisonCase {
    /// What comes of it.
    pub rows: &'static [Row],
    /// Who the peer is, and how it runs.
    pub beside: &'static str,
    /// How we do it.
    pub ours: fn(&RunConfig) -> Figures,
    /// How the peer does, if there is one.
    pub peer: Option<fn(&RunConfig) -> Figures>,
}

/// All cases.
pub const CASES: &[ComparisonCase] = &[
    ComparisonCase {
        rows: &[Row {
            id: "rc-64-lat-threads",
            what: "RC, 64 bytes, one way, two threads",
            unit: "ns",
            budget: Budget::AtMost(1.5),
        }],
        beside: "half a cache line to and fro",
        ours: |config| median_of(&Plan { processes: false, ..verbs(config, What::Lat, 64) }),
        peer: Some(|config| Ok(vec![machine::lines(config.cores, false)])),
    },
    ComparisonCase {
        rows: &[Row {
            id: "rc-64-lat-processes",
            what: "RC, 64 bytes, one way, two processes",
            unit: "ns",
            budget: Budget::AtMost(1.0),
        }],
        beside: "ucx_perftest tag_lat, posix",
        ours: |config| median_of(&verbs(config, What::Lat, 64)),
        peer: Some(|config| one(ucx::tag_lat(config, 64))),
    },
    ComparisonCase {
        rows: &[Row {
            id: "bw-1m-processes",
            what: "RC, 1 MiB messages, two processes",
            unit: "GB/s",
            budget: Budget::AtLeast(1.0),
        }],
        beside: "ucx_perftest tag_bw, posix",
        ours: |config| scaled(1e-9, one_way(&verbs(config, What::Bw, 1 << 20))),
        peer: Some(|config| scaled(1e-9 * f64::from(1 << 20), one(ucx::tag_bw(config, 1 << 20)))),
    },
    ComparisonCase {
        rows: &[Row {
            id: "rate-64-processes",
            what: "RC, 64 bytes, messages a second, two processes",
            unit: "M/s",
            budget: Budget::AtLeast(2.0),
        }],
        beside: "ucx_perftest tag_bw -s 64, posix",
        ours: |config| scaled(1e-6 / 64.0, one_way(&verbs(config, What::Rate, 64))),
        peer: Some(|config| scaled(1e-6, one(ucx::tag_bw(config, 64)))),
    },
    ComparisonCase {
        rows: &[
            Row {
                id: "udp-lat",
                what: "UDP, 64 bytes, half a round trip, median",
                unit: "ns",
                budget: Budget::AtMost(0.25),
            },
            Row {
                id: "udp-lat-p99.9",
                what: "the same, 99.9 %",
                unit: "ns",
                budget: Budget::AtMost(0.1),
            },
        ],
        beside: "sockperf ping-pong --nonblocked",
        ours: |config| latency(&sockets(config, What::Lat, Layer::Udp, 64)),
        peer: Some(|config| two(sockperf::ping_pong(config, 64, false))),
    },
    ComparisonCase {
        rows: &[Row {
            id: "tcp-lat",
            what: "TCP, 64 bytes, half a round trip, median",
            unit: "ns",
            budget: Budget::AtMost(0.2),
        }],
        beside: "sockperf ping-pong --nonblocked --tcp",
        ours: |config| median_of(&sockets(config, What::Lat, Layer::Tcp, 64)),
        peer: Some(|config| two(sockperf::ping_pong(config, 64, true))),
    },
    ComparisonCase {
        rows: &[Row {
            id: "tcp-stream",
            what: "TCP, one flow, MTU of 65,520",
            unit: "Gb/s",
            budget: Budget::AtLeast(1.0),
        }],
        beside: "iperf3",
        ours: |config| scaled(8e-9, one_way(&sockets(config, What::Bw, Layer::Tcp, 128 << 10))),
        peer: Some(|config| scaled(1e-9, one(iperf3::stream(config)))),
    },
    ComparisonCase {
        rows: &[Row {
            id: "echo-64",
            what: "packets of 64 bytes that come, are turned round and go (echo), one core",
            unit: "Mpps",
            budget: Budget::AtLeast(0.6),
        }],
        beside: "dpdk-testpmd --forward-mode=mac, net_null, no huge pages",
        ours: |config| scaled(1e-6, one(echo::rate(config.cores[1], config.duration))),
        peer: Some(|config| scaled(1e-6, one(testpmd::forward(config)))),
    },
    ComparisonCase {
        rows: &[Row {
            id: "bring-up-1008",
            what: "1,008 hosts, 79 switches, all active",
            unit: "s",
            budget: Budget::AtMost(1.0),
        }],
        beside: "opensm -o over ibsim",
        ours: |_| Ok(vec![bring_up::bring_up(bring_up::THOUSAND).1.as_secs_f64()]),
        peer: Some(|_| {
            let took = opensm::bring_up(bring_up::THOUSAND).map_err(text)?;
            Ok(vec![took.as_secs_f64()])
        }),
    },
    ComparisonCase {
        rows: &[Row {
            id: "rc-idle-memory",
            what: "an idle RC queue pair, beside its share of the SRQ",
            unit: "bytes",
            budget: Budget::AtMost(4096.0),
        }],
        beside: "",
        ours: |_| idle_memory(),
        peer: None,
    },
];

fn verbs(config: &RunConfig, what: What, bytes: u32) -> Plan {
    plan(config, Plan::new(what, Layer::Verbs, Transport::Rc, bytes))
}

fn sockets(config: &RunConfig, what: What, layer: Layer, bytes: u32) -> Plan {
    plan(config, Plan::new(what, layer, Transport::Rc, bytes))
}

/// Between processes, as the peers are.
fn plan(config: &RunConfig, plan: Plan) -> Plan {
    let RunConfig { cores, fifo, duration } = *config;
    Plan { cores, fifo, duration, processes: true, ..plan }
}

fn text(error: impl fmt::Display) -> String {
    error.to_string()
}

fn one<E: fmt::Display>(figure: Result<f64, E>) -> Figures {
    figure.map(|figure| vec![figure]).map_err(text)
}

fn two<E: fmt::Display>(figures: Result<[f64; 2], E>) -> Figures {
    figures.map(Vec::from).map_err(text)
}

fn scaled(by: f64, figures: Figures) -> Figures {
    figures.map(|figures| figures.into_iter().map(|figure| figure * by).collect())
}

/// The median, and what 99.9 % did not exceed.
fn latency(plan: &Plan) -> Figures {
    match run(plan).map_err(text)? {
        Outcome::Latency(latency) => {
            let at = |part| latency.percentile(part).ok_or("no such percentile is kept");
            Ok(vec![at(50.0)?, at(99.9)?])
        }
        other => Err(format!("not a latency: {other:?}")),
    }
}

fn median_of(plan: &Plan) -> Figures {
    Ok(latency(plan)?[..1].to_vec())
}

/// Bytes a second.
fn one_way(plan: &Plan) -> Figures {
    let outcome = run(plan).map_err(text)?;
    let rate = outcome.bytes_per_second().ok_or(format!("not one way: {outcome:?}"))?;
    Ok(vec![rate])
}

/// In a process of its own: one that has done other things has memory to spare.
fn idle_memory() -> Figures {
    let program = std::env::current_exe().map_err(text)?;
    let output = Command::new(program).arg("idle-memory").output().map_err(text)?;
    let said = String::from_utf8_lossy(&output.stdout);
    one(said.trim().parse::<f64>())
}
