//! What is to be measured, as the two ends are told it.

use crate::error::PerfError;
use clap::ValueEnum;
use pollux::Mode;
use pollux_verbs::QpType;
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// The longest message between two adapters.
pub const MESSAGE_BYTES_MAX: u32 = 8 << 20;
/// The longest payload of UDP over a connection of 65,520 bytes, and over datagrams of 2,044.
const UDP_BYTES_MAX: [u32; 2] = [65_520 - 28, 2_044 - 28];

/// What is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum What {
    /// Half the round trip of one message at a time.
    Lat,
    /// Bytes that go one way.
    Bw,
    /// Messages that go one way.
    Rate,
    /// Connections that are made and ended.
    Connect,
}

/// By what the ends talk.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Layer {
    /// Queue pairs of an adapter.
    Verbs,
    /// Datagrams of the library's sockets.
    Udp,
    /// Streams of the library's sockets.
    Tcp,
}

/// What carries the layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Transport {
    /// Reliable connections.
    Rc,
    /// Unreliable connections.
    Uc,
    /// Datagrams.
    Ud,
}

impl Transport {
    /// As verbs call it.
    pub const fn qp_type(self) -> QpType {
        match self {
            Self::Rc => QpType::Rc,
            Self::Uc => QpType::Uc,
            Self::Ud => QpType::Ud,
        }
    }

    /// As interfaces call it.
    pub const fn mode(self) -> Mode {
        match self {
            Self::Rc => Mode::Rc,
            Self::Uc => Mode::Uc,
            Self::Ud => Mode::Ud,
        }
    }
}

/// One measurement between two ends.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Plan {
    /// What is measured.
    pub what: What,
    /// By what the ends talk.
    pub layer: Layer,
    /// What carries that.
    pub transport: Transport,
    /// Bytes of a message; for TCP, of a write.
    pub bytes: u32,
    /// How long it is measured, after a while that does not count.
    pub duration: Duration,
    /// Open loop: messages that fall due in a second, whether or not the one before is answered.
    pub per_second: Option<u32>,
    /// The devices of the ends; without them, adapters on a fabric of the harness's own.
    pub devices: Option<[String; 2]>,
    /// Whether each end is a process; else a thread.
    pub processes: bool,
    /// The real-time priority (SCHED_FIFO) of processes.
    pub fifo: Option<u8>,
    /// The cores of the ends.
    pub cores: [usize; 2],
}

impl Plan {
    /// A measurement between threads, on the first two cores and a fabric of the harness's own.
    pub const fn new(what: What, layer: Layer, transport: Transport, bytes: u32) -> Self {
        let duration = Duration::from_secs(1);
        let (per_second, devices, fifo) = (None, None, None);
        let (processes, cores) = (false, [0, 1]);
        Self {
            what,
            layer,
            transport,
            bytes,
            duration,
            per_second,
            devices,
            processes,
            fifo,
            cores,
        }
    }

    /// Refuses what nobody can measure, and says what can be.
    pub fn check(&self) -> Result<(), PerfError> {
        let refuse = |why: &str| Err(PerfError::Plan(why.into()));
        if self.bytes == 0 {
            return refuse("a message has one byte at least; write --size 1");
        }
        let bytes_max = match (self.layer, self.transport) {
            (Layer::Verbs, Transport::Ud) => 2048,
            (Layer::Verbs | Layer::Tcp, _) => MESSAGE_BYTES_MAX,
            (Layer::Udp, Transport::Ud) => UDP_BYTES_MAX[1],
            (Layer::Udp, _) => UDP_BYTES_MAX[0],
        };
        if self.bytes > bytes_max {
            let why = format!("no message here is longer than {bytes_max} bytes; lower --size");
            return refuse(&why);
        }
        match (self.what, self.layer) {
            (What::Rate, Layer::Tcp) => {
                refuse("a stream has no messages that could be counted; write bw")
            }
            (What::Connect, Layer::Udp) => {
                refuse("UDP connects nothing; write --layer verbs or --layer tcp")
            }
            (What::Bw | What::Rate | What::Connect, _) if self.per_second.is_some() => {
                refuse("--rate is for lat; the others go as fast as they can")
            }
            _ if self.per_second == Some(0) => refuse("--rate counts from 1"),
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_cannot_be_measured_is_refused_with_advice() {
        let refusal = |what, layer, transport, bytes| {
            let plan = Plan::new(what, layer, transport, bytes);
            plan.check().err().map(|error| error.to_string()).unwrap_or_default()
        };
        assert_eq!(refusal(What::Lat, Layer::Verbs, Transport::Rc, 64), "");
        assert!(refusal(What::Lat, Layer::Verbs, Transport::Rc, 0).contains("--size 1"));
        assert!(refusal(What::Lat, Layer::Verbs, Transport::Ud, 2049).contains("2048"));
        assert!(refusal(What::Bw, Layer::Udp, Transport::Ud, 2017).contains("2016"));
        assert!(refusal(What::Rate, Layer::Tcp, Transport::Rc, 64).contains("bw"));
        assert!(refusal(What::Connect, Layer::Udp, Transport::Rc, 64).contains("tcp"));
        let plan = Plan::new(What::Bw, Layer::Tcp, Transport::Rc, 64);
        assert!(Plan { per_second: Some(9), ..plan }.check().is_err());
    }
}
