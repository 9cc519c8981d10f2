//! The plan of a measurement, which both ends receive, and the outcome of a measurement.

use crate::disturbance::Disturbance;
use crate::error::PerfError;
use crate::samples::{Latency, Timeline};
use crate::verbs_plan::{VerbsOp, VerbsPlan};
use clap::ValueEnum;
use pollux::Mode;
use pollux_verbs::QpType;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::net::IpAddr;
use std::time::Duration;

/// Routes and flows of the layer forward, at most.
const ROUTES_MAX: u32 = 2_000_000;
pub const MESSAGE_BYTES_MAX: u32 = 8 << 20;
/// The shortest and the longest forwarded packet, headers included.
const FORWARDED_BYTES: [u32; 2] = [40, 2048];
/// The longest UDP payload in connected mode (MTU 65,520) and in datagram mode (MTU 2,044), without
/// 28 bytes of IPv4 and UDP headers.
const UDP_BYTES_MAX: [u32; 2] = [65_520 - 28, 2_044 - 28];

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum What {
    /// Half the round trip of one message at a time.
    Lat,
    /// One-way throughput in bytes.
    Bw,
    /// One-way message rate.
    Rate,
    Connect,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ValueEnum, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Layer {
    /// Queue pairs.
    Verbs,
    /// UDP sockets of the library.
    Udp,
    /// TCP sockets of the library.
    Tcp,
    /// A router between two ports without a link, on the core of the client.
    Forward,
}

/// The table of a router, and its packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct RouterPlan {
    pub routes: u32,
    /// Destinations of the packets of each port; by default a million, or one with one route.
    pub flows: Option<u32>,
    pub ipv6: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ValueEnum, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum MeasuredTransport {
    /// Reliable connections.
    Rc,
    /// Unreliable connections.
    Uc,
    /// Unreliable datagrams.
    Ud,
}

impl MeasuredTransport {
    pub const fn qp_type(self) -> QpType {
        match self {
            Self::Rc => QpType::Rc,
            Self::Uc => QpType::Uc,
            Self::Ud => QpType::Ud,
        }
    }

    pub const fn mode(self) -> Mode {
        match self {
            Self::Rc => Mode::Rc,
            Self::Uc => Mode::Uc,
            Self::Ud => Mode::Ud,
        }
    }
}

/// Sockets of a program that makes blocking calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ValueEnum, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum ProgramSockets {
    /// The library's, served by the calling thread.
    Inline,
    /// The library's, served by workers.
    Pinned,
    /// The kernel's, over loopback or to the host of --connect.
    Kernel,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Plan {
    pub what: What,
    pub layer: Layer,
    pub transport: MeasuredTransport,
    /// Options of the layer verbs.
    #[serde(flatten)]
    pub verbs: VerbsPlan,
    /// The router of the layer forward.
    #[serde(default)]
    pub router: Option<RouterPlan>,
    /// Bytes of a message; for TCP, of a write.
    pub bytes: u32,
    /// The duration of the measurement, without the warm-up.
    #[serde(rename = "duration_seconds", with = "seconds")]
    #[schemars(with = "f64")]
    pub duration: Duration,
    /// Messages per second in an open loop, whether or not earlier messages were answered; without
    /// it, a closed loop.
    pub per_second: Option<u32>,
    /// Whether the server sleeps between messages, in blocking calls.
    pub sleeps: bool,
    /// Measures a program that makes blocking calls on these sockets, instead of polling.
    pub program: Option<ProgramSockets>,
    /// Whether receivers do not check payloads ([`crate::payload`]). Other harnesses do not either.
    pub unchecked: bool,
    /// The devices of client and server; by default, adapters of a software fabric of this process.
    pub devices: Option<[String; 2]>,
    /// The address of the server's host, where the kernel's sockets listen; by default loopback.
    pub host: Option<IpAddr>,
    pub processes: bool,
    pub fifo: Option<u8>,
    pub cores: [usize; 2],
}

/// Serializes a duration as a number of seconds.
mod seconds {
    use serde::{Deserialize, Deserializer, Serializer};
    use std::time::Duration;

    pub(super) fn serialize<S: Serializer>(it: &Duration, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_f64(it.as_secs_f64())
    }

    pub(super) fn deserialize<'a, D: Deserializer<'a>>(from: D) -> Result<Duration, D::Error> {
        let seconds = f64::deserialize(from)?;
        Duration::try_from_secs_f64(seconds).map_err(serde::de::Error::custom)
    }
}

impl Plan {
    /// A measurement between threads on cores 0 and 1, on a software fabric of this process.
    pub const fn new(what: What, layer: Layer, transport: MeasuredTransport, bytes: u32) -> Self {
        let duration = Duration::from_secs(1);
        let (per_second, program, devices, host, fifo) = (None, None, None, None, None);
        let (processes, sleeps, unchecked, cores) = (false, false, false, [0, 1]);
        let verbs = VerbsPlan::SENDS;
        Self {
            what,
            layer,
            transport,
            verbs,
            router: None,
            bytes,
            duration,
            per_second,
            sleeps,
            program,
            unchecked,
            devices,
            host,
            processes,
            fifo,
            cores,
        }
    }

    /// The device of an end.
    pub fn device(&self, role: EndRole) -> Result<&str, PerfError> {
        let devices = self.devices.as_ref();
        let device = devices.map(|devices| devices[role as usize].as_str());
        device.ok_or(PerfError::Plan("no device for an end".into()))
    }

    /// The longest message that the layer and transport can carry.
    pub const fn bytes_max(&self) -> u32 {
        match (self.layer, self.transport) {
            (Layer::Verbs, MeasuredTransport::Ud) => 2048,
            (Layer::Verbs | Layer::Tcp, _) => MESSAGE_BYTES_MAX,
            (Layer::Udp, MeasuredTransport::Ud) => UDP_BYTES_MAX[1],
            (Layer::Udp, _) => UDP_BYTES_MAX[0],
            (Layer::Forward, _) => FORWARDED_BYTES[1],
        }
    }

    /// The sizes of a sweep: powers of four from 1 byte, and the longest message. Atomics have only
    /// 8 bytes.
    pub fn sweep(&self) -> Vec<u32> {
        if self.verbs.op == VerbsOp::Atomic {
            return vec![8];
        }
        let most = self.bytes_max();
        let powers = (0..u32::BITS).step_by(2).map(|power| 1 << power);
        powers.take_while(|bytes| *bytes < most).chain([most]).collect()
    }

    /// Refuses an invalid plan. The error says what is valid instead.
    pub fn check(&self) -> Result<(), PerfError> {
        let refuse = |why: &str| Err(PerfError::Plan(why.into()));
        if self.bytes == 0 {
            return refuse("--size 0 is too small; write --size 1 or more");
        }
        self.check_router()?;
        if self.sleeps && (self.layer == Layer::Verbs || self.what != What::Lat) {
            return refuse("--sleep is for lat of the layers udp and tcp");
        }
        let is_for_programs =
            self.layer == Layer::Tcp && matches!(self.what, What::Lat | What::Connect);
        if self.program.is_some() && (self.sleeps || !is_for_programs) {
            return refuse("--sockets is for lat and connect of --layer tcp, without --sleep");
        }
        self.check_verbs()?;
        if self.bytes > self.bytes_max() {
            let why = format!("--size is above the maximum here, {} bytes", self.bytes_max());
            return refuse(&why);
        }
        match (self.what, self.layer) {
            (What::Rate, Layer::Tcp) => {
                refuse("TCP has no message boundaries to count; write bw instead")
            }
            (What::Connect, Layer::Verbs) if self.transport == MeasuredTransport::Ud => {
                refuse("datagrams have no connections; write --transport rc or uc")
            }
            (What::Connect, Layer::Udp) => {
                refuse("UDP has no connections; write --layer verbs or --layer tcp")
            }
            (What::Connect, _) if self.per_second.is_some() => {
                refuse("--rate is for lat, bw and rate")
            }
            _ if self.per_second == Some(0) => refuse("--rate has to be 1 or more"),
            _ => Ok(()),
        }
    }
}

impl Plan {
    fn check_router(&self) -> Result<(), PerfError> {
        let refuse = |why: &str| Err(PerfError::Plan(why.into()));
        let (is_forward, is_alone) =
            (self.layer == Layer::Forward, self.devices.is_none() && !self.processes);
        match self.router {
            None if is_forward => refuse("--layer forward needs --routes"),
            Some(_) if !is_forward => {
                refuse("--routes, --flows and --ipv6 are for --layer forward")
            }
            Some(_) if self.what != What::Rate || self.per_second.is_some() => refuse(
                "--layer forward is for rate, without --rate; pollux-perf forward --rfc2544 \
                        offers packets at a rate",
            ),
            Some(_) if !is_alone => refuse("--layer forward has neither devices nor processes"),
            Some(_) if self.bytes < FORWARDED_BYTES[0] => {
                refuse("a packet has its headers: write --size 40 or more")
            }
            Some(RouterPlan { routes, flows, .. })
                if !(1..=ROUTES_MAX).contains(&routes)
                    || !flows.is_none_or(|flows| (1..=ROUTES_MAX).contains(&flows)) =>
            {
                refuse("write 1 to 2000000 routes and flows")
            }
            _ => Ok(()),
        }
    }

    fn check_verbs(&self) -> Result<(), PerfError> {
        let refuse = |why: &str| Err(PerfError::Plan(why.into()));
        if self.layer != Layer::Verbs || self.what == What::Connect {
            return match self.verbs == VerbsPlan::SENDS {
                true => Ok(()),
                false => refuse(
                    "--op, --bidirectional, --qp, --tx-depth, --post-list, --cq-mod, \
                     --inline-size and --events are for lat, bw and rate of --layer verbs",
                ),
            };
        }
        let is_stream = self.what != What::Lat;
        self.verbs.check(self.bytes, is_stream)?;
        match (self.verbs.op, self.transport) {
            (VerbsOp::Write, MeasuredTransport::Ud) => {
                return refuse("datagrams cannot write; add --transport rc or uc");
            }
            (VerbsOp::Read | VerbsOp::Atomic, MeasuredTransport::Uc | MeasuredTransport::Ud) => {
                return refuse("only --transport rc can read, and has atomics");
            }
            (VerbsOp::Atomic, _) if self.bytes != 8 => {
                return refuse("an atomic has eight bytes; write --size 8");
            }
            _ => {}
        }
        let is_of_sends = is_stream && self.verbs.op == VerbsOp::Send;
        match self.verbs.bidirectional && !is_of_sends {
            true => refuse("--bidirectional is for bw and rate of sends of --layer verbs"),
            false => Ok(()),
        }
    }

    /// Whether latencies are whole round trips instead of halves. This is so for reads and atomics,
    /// to which the other end sends no reply message, and in an open loop, where latencies include
    /// the wait before a message is sent.
    pub const fn is_of_whole_round_trips(&self) -> bool {
        matches!(self.verbs.op, VerbsOp::Read | VerbsOp::Atomic) || self.per_second.is_some()
    }

    /// Describes the measurement without the message size.
    pub fn kind(&self) -> String {
        let text = |value: &dyn fmt::Debug| format!("{value:?}").to_lowercase();
        let [what, mut layer] = [text(&self.what), text(&self.layer)];
        if self.verbs.op != VerbsOp::Send {
            layer = format!("{layer} {}", text(&self.verbs.op));
        }
        let by = match self.program {
            Some(program) => format!("{what} of {layer}, {} sockets", text(&program)),
            None => match &self.router {
                Some(router) => format!("{what} of {layer}, {router}"),
                None => format!("{what} of {layer} over {}", text(&self.transport)),
            },
        };
        let rate = self.per_second.map(|rate| format!(", {rate}/s")).unwrap_or_default();
        let sleeps = if self.sleeps { ", server sleeps" } else { "" };
        let ends = if self.processes { ", processes" } else { "" };
        let unchecked = if self.unchecked { ", unchecked" } else { "" };
        let verbs = &self.verbs;
        format!("{by}{rate}{verbs}{sleeps}{ends}{unchecked}")
    }
}

impl fmt::Display for RouterPlan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let family = if self.ipv6 { "IPv6" } else { "IPv4" };
        write!(f, "{} routes of {family}", self.routes)?;
        self.flows.map_or(Ok(()), |flows| write!(f, ", {flows} flows"))
    }
}

impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}, {} bytes", self.kind(), self.bytes)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum EndRole {
    /// Starts the exchange, and measures.
    Client,
    /// Replies, or only receives.
    Server,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum MeasurementOutcome {
    Latency(Latency),
    OneWay {
        per_second: f64,
        bytes: u32,
        /// Sent messages, those of the warm-up included.
        sent: u64,
        lost: u64,
        /// With messages at fixed times, the largest delay of the sender.
        #[serde(default)]
        late_max_ns: Option<f64>,
        /// The rate in each part of the measurement.
        #[serde(default)]
        timeline: Timeline,
    },
    Connections {
        per_second: f64,
        /// The time of the first connection, if it was measured.
        first_ns: Option<f64>,
    },
}

/// The result of measuring a plan once.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Measured {
    pub outcome: MeasurementOutcome,
    /// The time until both ends were ready, with their devices, interfaces and queue pairs.
    pub setup_seconds: f64,
    /// CPU usage of the client and of the server, in cores.
    pub cores_busy: [Option<f64>; 2],
    /// Other load of the machine; `None` if it was not measured.
    pub disturbance: Option<Disturbance>,
}

impl Measured {
    pub fn is_disturbed(&self) -> bool {
        self.disturbance.is_some_and(|it| it.is_too_much())
    }
}

impl MeasurementOutcome {
    /// The outcome of one-way messages. Scales `per_second`, the rate of sent messages, by the
    /// share of messages that arrived.
    pub fn one_way(plan: &Plan, per_second: f64, sent: u64, received: u64) -> Self {
        let lost = sent.saturating_sub(received);
        let per_second = per_second * received as f64 / sent.max(1) as f64;
        let (bytes, late_max_ns, timeline) = (plan.bytes, None, Timeline::new());
        Self::OneWay { per_second, bytes, sent, lost, late_max_ns, timeline }
    }

    /// Adds the timeline of a stream, and the largest delay of its sender.
    pub fn with_course(mut self, course: Timeline, late: Option<Duration>) -> Self {
        if let Self::OneWay { late_max_ns, timeline, .. } = &mut self {
            *late_max_ns = late.map(|late| late.as_nanos() as f64);
            *timeline = course;
        }
        self
    }

    /// Returns `None` for latencies and connections.
    pub fn bytes_per_second(&self) -> Option<f64> {
        match self {
            Self::OneWay { per_second, bytes, .. } => Some(per_second * f64::from(*bytes)),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_invalid_plan_is_refused_with_advice() {
        let refusal = |what, layer, transport, bytes| {
            let plan = Plan::new(what, layer, transport, bytes);
            plan.check().err().map(|error| error.to_string()).unwrap_or_default()
        };
        assert_eq!(refusal(What::Lat, Layer::Verbs, MeasuredTransport::Rc, 64), "");
        assert!(refusal(What::Lat, Layer::Verbs, MeasuredTransport::Rc, 0).contains("--size 1"));
        assert!(refusal(What::Lat, Layer::Verbs, MeasuredTransport::Ud, 2049).contains("2048"));
        assert!(refusal(What::Bw, Layer::Udp, MeasuredTransport::Ud, 2017).contains("2016"));
        assert!(refusal(What::Rate, Layer::Tcp, MeasuredTransport::Rc, 64).contains("bw"));
        assert!(refusal(What::Connect, Layer::Udp, MeasuredTransport::Rc, 64).contains("tcp"));
        let plan = Plan::new(What::Connect, Layer::Tcp, MeasuredTransport::Rc, 64);
        assert!(Plan { per_second: Some(9), ..plan }.check().is_err());
        let plan = Plan::new(What::Bw, Layer::Tcp, MeasuredTransport::Rc, 64);
        assert!(Plan { program: Some(ProgramSockets::Kernel), ..plan }.check().is_err());
    }
}
