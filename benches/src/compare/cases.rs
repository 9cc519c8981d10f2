//! The cases of a comparison: our measurement, the measurement of a peer, and a budget for the
//! ratio.

use crate::judgement::Budget;
use crate::null_router::ForwardPlan;
use crate::pair::run;
use crate::peers::{RunConfig, iperf3, l3fwd, opensm, sockperf, testpmd, ucx};
use crate::plan::{Layer, MeasuredTransport, MeasurementOutcome, Plan, ProgramSockets, What};
use crate::verbs_plan::{VerbsOp, VerbsPlan};
use crate::{bring_up, forward, machine};
use std::fmt;
use std::process::Command;

#[derive(Clone, Copy, Debug)]
pub struct Row {
    pub id: &'static str,
    pub what: &'static str,
    pub unit: &'static str,
    /// Bounds the ratio of our figure to the peer's; without a peer, our figure itself.
    pub budget: Budget,
}

/// The figures of a case, one for each row in the order of the rows (further ones are ignored), or
/// the reason why there are none.
pub type Figures = Result<Vec<f64>, String>;

/// Our measurement and the measurement of a peer, which both return figures for all
/// rows.
pub struct ComparisonCase {
    pub rows: &'static [Row],
    /// The peer and its options, or another reference; empty without one.
    pub reference: &'static str,
    pub ours: fn(&RunConfig) -> Figures,
    pub peer: Option<fn(&RunConfig) -> Figures>,
}

pub const CASES: &[ComparisonCase] = &[
    ComparisonCase {
        rows: &[Row {
            id: "rc-64-lat-threads",
            what: "RC, 64 bytes, one way, two threads",
            unit: "ns",
            budget: Budget::AtMost(1.5),
        }],
        reference: "half the round trip of a cache line",
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
        reference: "ucx_perftest tag_lat, posix or cma",
        ours: |config| median_of(&verbs(config, What::Lat, 64)),
        peer: Some(|config| one(ucx::tag_lat(config, 64))),
    },
    ComparisonCase {
        rows: &[Row {
            id: "rc-64-lat-uct-am",
            what: "the same beside UCX's transport layer",
            unit: "ns",
            budget: Budget::AtMost(1.0),
        }],
        reference: "ucx_perftest am_lat, uct, posix",
        ours: |config| median_of(&verbs(config, What::Lat, 64)),
        peer: Some(|config| one(ucx::uct_lat(config, "am_lat", 64))),
    },
    ComparisonCase {
        rows: &[Row {
            id: "rc-64-write-lat-uct-put",
            what: "RC, RDMA write of 64 bytes, one way, two processes",
            unit: "ns",
            budget: Budget::AtMost(1.5),
        }],
        reference: "ucx_perftest put_lat, uct, posix",
        ours: |config| {
            let verbs_plan = VerbsPlan { op: VerbsOp::Write, ..VerbsPlan::SENDS };
            median_of(&Plan { verbs: verbs_plan, ..verbs(config, What::Lat, 64) })
        },
        peer: Some(|config| one(ucx::uct_lat(config, "put_lat", 64))),
    },
    ComparisonCase {
        rows: &[Row {
            id: "bw-1m-processes",
            what: "RC, 1 MiB messages, two processes",
            unit: "GB/s",
            budget: Budget::AtLeast(1.0),
        }],
        reference: "ucx_perftest tag_bw, posix or cma",
        ours: |config| scale(1e-9, one_way(&verbs(config, What::Bw, 1 << 20))),
        peer: Some(|config| scale(1e-9 * f64::from(1 << 20), one(ucx::tag_bw(config, 1 << 20)))),
    },
    ComparisonCase {
        rows: &[Row {
            id: "rate-64-processes",
            what: "RC, 64 bytes, messages per second, two processes",
            unit: "M/s",
            budget: Budget::AtLeast(2.0),
        }],
        reference: "ucx_perftest tag_bw -s 64, posix or cma",
        ours: |config| scale(1e-6 / 64.0, one_way(&verbs(config, What::Rate, 64))),
        peer: Some(|config| scale(1e-6, one(ucx::tag_bw(config, 64)))),
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
        reference: "sockperf ping-pong --nonblocked",
        ours: |config| latency(&sockets(config, What::Lat, Layer::Udp, 64)),
        peer: Some(|config| two(sockperf::ping_pong(config, 64, &["--nonblocked"]))),
    },
    ComparisonCase {
        rows: &[Row {
            id: "tcp-lat",
            what: "TCP, 64 bytes, half a round trip, median",
            unit: "ns",
            budget: Budget::AtMost(0.2),
        }],
        reference: "sockperf ping-pong --nonblocked --tcp",
        ours: |config| median_of(&sockets(config, What::Lat, Layer::Tcp, 64)),
        peer: Some(|config| two(sockperf::ping_pong(config, 64, &["--nonblocked", "--tcp"]))),
    },
    ComparisonCase {
        rows: &[Row {
            id: "tcp-stream",
            what: "TCP, one flow, MTU of 65,520",
            unit: "Gb/s",
            budget: Budget::AtLeast(1.0),
        }],
        reference: "iperf3",
        ours: |config| scale(8e-9, one_way(&sockets(config, What::Bw, Layer::Tcp, 128 << 10))),
        peer: Some(|config| scale(1e-9, one(iperf3::stream(config)))),
    },
    // Validates the harness: it measures the kernel's sockets, as sockperf does.
    ComparisonCase {
        rows: &[Row {
            id: "kernel-64-busy",
            what: "this harness: the kernel's TCP, 64 bytes, half a round trip, median",
            unit: "ns",
            budget: Budget::Within([0.95, 1.05]),
        }],
        reference: "sockperf ping-pong --tcp",
        ours: |config| median_of(&program(config, What::Lat, ProgramSockets::Kernel, 64)),
        peer: Some(|config| two(sockperf::ping_pong(config, 64, &["--tcp"]))),
    },
    ComparisonCase {
        rows: &[
            Row {
                id: "pinned-connect-64k",
                what: "a program on pinned sockets: connect, 64 KiB each way, close",
                unit: "us",
                budget: Budget::AtMost(0.5),
            },
            Row {
                id: "pinned-connect-64k-first",
                what: "the first of these",
                unit: "us",
                budget: Budget::AtMost(10.0),
            },
        ],
        reference: LOOPBACK,
        ours: |config| connections(config, ProgramSockets::Pinned),
        peer: Some(|config| connections(config, ProgramSockets::Kernel)),
    },
    ComparisonCase {
        rows: &[Row {
            id: "pinned-64k",
            what: "the same on an open connection: 64 KiB each way",
            unit: "us",
            budget: Budget::AtMost(1.0),
        }],
        reference: LOOPBACK,
        ours: |config| requests(config, ProgramSockets::Pinned, 64 << 10, None),
        peer: Some(|config| requests(config, ProgramSockets::Kernel, 64 << 10, None)),
    },
    ComparisonCase {
        rows: &[Row {
            id: "pinned-64-busy",
            what: "64 bytes each way, one after the other",
            unit: "us",
            budget: Budget::AtMost(0.45),
        }],
        reference: LOOPBACK,
        ours: |config| requests(config, ProgramSockets::Pinned, 64, None),
        peer: Some(|config| requests(config, ProgramSockets::Kernel, 64, None)),
    },
    ComparisonCase {
        rows: &[Row {
            id: "pinned-64-sparse",
            what: "64 bytes each way every 10 ms",
            unit: "us",
            budget: Budget::AtMost(1.0),
        }],
        reference: LOOPBACK,
        ours: |config| requests(config, ProgramSockets::Pinned, 64, SPARSE),
        peer: Some(|config| requests(config, ProgramSockets::Kernel, 64, SPARSE)),
    },
    ComparisonCase {
        rows: &[Row {
            id: "inline-64-sparse",
            what: "the same on inline sockets",
            unit: "us",
            budget: Budget::AtMost(0.7),
        }],
        reference: LOOPBACK,
        ours: |config| requests(config, ProgramSockets::Inline, 64, SPARSE),
        peer: Some(|config| requests(config, ProgramSockets::Kernel, 64, SPARSE)),
    },
    ComparisonCase {
        rows: &[
            Row {
                id: "forward-64-one-route",
                what: "forwarding of 64-byte packets, one route, one core",
                unit: "Mpps",
                budget: Budget::AtLeast(0.6),
            },
            Row {
                id: "forward-64-million",
                what: "the same, a million routes, random destinations",
                unit: "Mpps",
                budget: Budget::AtLeast(0.6),
            },
        ],
        reference: "dpdk-testpmd --forward-mode=mac, net_null, no huge pages",
        ours: |config| scale(1e-6, forwarding(config, &[1, 1_000_000])),
        // testpmd has no routes, so its rate serves both rows.
        peer: Some(|config| scale(1e-6, two(testpmd::forward(config).map(|rate| [rate; 2])))),
    },
    ComparisonCase {
        rows: &[Row {
            id: "forward-64-thousand",
            what: "the same, 1,000 routes, random destinations",
            unit: "Mpps",
            budget: Budget::AtLeast(1.0),
        }],
        reference: "dpdk-l3fwd --lookup=lpm, net_pcap, no huge pages",
        ours: |config| scale(1e-6, forwarding(config, &[l3fwd::ROUTES])),
        peer: Some(|config| scale(1e-6, one(l3fwd::forward(config)))),
    },
    ComparisonCase {
        rows: &[Row {
            id: "bring-up-1008",
            what: "1,008 hosts, 79 switches, all active; ours without sockets",
            unit: "s",
            budget: Budget::AtMost(1.0),
        }],
        reference: "opensm -o over ibsim",
        ours: |_| Ok(vec![bring_up::bring_up(bring_up::THOUSAND).1.as_secs_f64()]),
        peer: Some(|_| {
            let took = opensm::bring_up(bring_up::THOUSAND).map_err(text)?;
            Ok(vec![took.as_secs_f64()])
        }),
    },
    ComparisonCase {
        rows: &[Row {
            id: "rc-idle-memory",
            what: "an idle RC queue pair, without its share of the SRQ",
            unit: "bytes",
            budget: Budget::AtMost(4096.0),
        }],
        reference: "",
        ours: |_| idle_memory(),
        peer: None,
    },
];

const LOOPBACK: &str = "the same program on the kernel's sockets, loopback";
/// Requests per second.
const SPARSE: Option<u32> = Some(100);

fn verbs(config: &RunConfig, what: What, bytes: u32) -> Plan {
    plan(config, Plan::new(what, Layer::Verbs, MeasuredTransport::Rc, bytes))
}

fn sockets(config: &RunConfig, what: What, layer: Layer, bytes: u32) -> Plan {
    plan(config, Plan::new(what, layer, MeasuredTransport::Rc, bytes))
}

fn program(config: &RunConfig, what: What, program: ProgramSockets, bytes: u32) -> Plan {
    Plan { program: Some(program), ..sockets(config, what, Layer::Tcp, bytes) }
}

/// The median round trip of a request and its reply, in microseconds.
fn requests(
    config: &RunConfig,
    sockets: ProgramSockets,
    bytes: u32,
    per_second: Option<u32>,
) -> Figures {
    let plan = Plan { per_second, ..program(config, What::Lat, sockets, bytes) };
    // An open loop reports whole round trips; a closed loop reports half round trips.
    let parts = if per_second.is_some() { 1.0 } else { 2.0 };
    scale(parts * 1e-3, median_of(&plan))
}

/// The mean time of a connection that carries 64 KiB each way, and the time of the first
/// connection, in microseconds.
fn connections(config: &RunConfig, sockets: ProgramSockets) -> Figures {
    match run(&program(config, What::Connect, sockets, 64 << 10)).map_err(text)?.outcome {
        MeasurementOutcome::Connections { per_second, first_ns: Some(first) } => {
            Ok(vec![1e6 / per_second, first * 1e-3])
        }
        other => Err(format!("not connections: {other:?}")),
    }
}

/// Adapts a plan to the peers: two processes, which do not check payloads.
fn plan(config: &RunConfig, plan: Plan) -> Plan {
    let RunConfig { cores, fifo, duration } = *config;
    Plan { cores, fifo, duration, processes: true, unchecked: true, ..plan }
}

/// Packets per second between null ports, for each number of routes.
fn forwarding(config: &RunConfig, routes: &[usize]) -> Figures {
    let (core, duration) = (config.cores[1], config.duration);
    let plan = |routes: &usize| ForwardPlan::new(*routes, core, duration);
    routes.iter().map(|routes| forward::rate(&plan(routes)).map_err(text)).collect()
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

fn scale(by: f64, figures: Figures) -> Figures {
    figures.map(|figures| figures.into_iter().map(|figure| figure * by).collect())
}

/// The median and the 99.9th percentile, in nanoseconds.
fn latency(plan: &Plan) -> Figures {
    match run(plan).map_err(text)?.outcome {
        MeasurementOutcome::Latency(latency) => {
            let at = |part| latency.percentile(part).ok_or("the percentile is not recorded");
            Ok(vec![at(50.0)?, at(99.9)?])
        }
        other => Err(format!("not a latency: {other:?}")),
    }
}

fn median_of(plan: &Plan) -> Figures {
    Ok(latency(plan)?[..1].to_vec())
}

fn one_way(plan: &Plan) -> Figures {
    let outcome = run(plan).map_err(text)?.outcome;
    let rate = outcome.bytes_per_second().ok_or(format!("not one way: {outcome:?}"))?;
    Ok(vec![rate])
}

/// Measures in a new process. In this process, free heap memory would hide allocations.
fn idle_memory() -> Figures {
    let program = std::env::current_exe().map_err(text)?;
    let output = Command::new(program).arg("idle-memory").output().map_err(text)?;
    one(String::from_utf8_lossy(&output.stdout).trim().parse::<f64>())
}
