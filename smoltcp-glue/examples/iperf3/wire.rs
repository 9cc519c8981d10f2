//! The protocol of iperf3, according to its manual and to captures of version 3.12.
//!
//! ```text
//!   client   connects; cookie                          parameters   opens the stream; cookie
//!   server                     ParamExchange                        CreateStreams
//!
//!   client                           the stream        TestEnd      results
//!   server   TestStart, TestRunning                    ExchangeResults     results, DisplayResults
//! ```
//!
//! A state is one byte. Parameters and results are JSON, after four bytes with the length. The
//! stream is a second connection to the same port; both connections begin with the cookie of the
//! test. A UDP stream begins with a datagram of four bytes in each direction.

use serde_json::{Value, json};
use std::time::Duration;

/// The port of a server.
pub const PORT: u16 = 5201;
/// Bytes of a cookie: letters and digits, then a zero byte.
pub const COOKIE_LEN: usize = 37;
/// The client's first datagram of a UDP stream.
pub const HELLO: [u8; 4] = *b"9876";
/// The server's answer.
pub const WELCOME: [u8; 4] = *b"6789";
/// The maximum length of parameters or results.
pub const JSON_BYTES_MAX: usize = 1 << 16;
/// Bytes of the header of a datagram: the time of sending in seconds and microseconds, and the
/// number of the datagram, from 1.
pub const STAMP_LEN: usize = 12;
/// The maximum bytes of a block.
const TCP_BLOCK_MAX: u64 = 1 << 20;
const UDP_BLOCK_MAX: u64 = 65_507;

/// The state byte of the control connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum State {
    TestStart = 1,
    TestRunning = 2,
    TestEnd = 4,
    ParamExchange = 9,
    CreateStreams = 10,
    ServerTerminate = 11,
    ClientTerminate = 12,
    ExchangeResults = 13,
    DisplayResults = 14,
    IperfDone = 16,
    ServerError = 0xfe,
    AccessDenied = 0xff,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protocol {
    Tcp,
    Udp,
}

/// The end of a test.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Amount {
    Bytes(u64),
    Time(Duration),
}

/// The parameters of a test.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Test {
    pub protocol: Protocol,
    /// Whether the server sends.
    pub is_reverse: bool,
    pub amount: Amount,
    /// Bytes of a datagram, or of a write.
    pub block: usize,
    /// Maximum rate in bits per second.
    pub rate: Option<u64>,
}

/// The counts of one end of a stream.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Count {
    pub bytes: u64,
    /// The number of datagrams: sent ones at the sender, received and lost ones at the receiver.
    pub datagrams: u64,
    pub lost: u64,
    /// The jitter of the transit time of datagrams, in seconds (RFC 3550 6.4.1).
    pub jitter_s: f64,
    pub seconds: f64,
}

impl State {
    pub const fn of(byte: u8) -> Option<Self> {
        Some(match byte {
            1 => Self::TestStart,
            2 => Self::TestRunning,
            4 => Self::TestEnd,
            9 => Self::ParamExchange,
            10 => Self::CreateStreams,
            11 => Self::ServerTerminate,
            12 => Self::ClientTerminate,
            13 => Self::ExchangeResults,
            14 => Self::DisplayResults,
            16 => Self::IperfDone,
            0xfe => Self::ServerError,
            0xff => Self::AccessDenied,
            _ => return None,
        })
    }
}

impl Test {
    /// The defaults of iperf3.
    pub const fn of(protocol: Protocol) -> Self {
        let (block, rate) = match protocol {
            Protocol::Tcp => (128 << 10, None),
            Protocol::Udp => (1460, Some(1 << 20)),
        };
        let amount = Amount::Time(Duration::from_secs(10));
        Self { protocol, is_reverse: false, amount, block, rate }
    }

    pub fn to_json(self) -> Value {
        let (bytes, seconds) = match self.amount {
            Amount::Bytes(bytes) => (bytes, 0),
            Amount::Time(time) => (0, time.as_secs()),
        };
        let protocol = if self.protocol == Protocol::Tcp { "tcp" } else { "udp" };
        let mut json = json!({
            protocol: true, "omit": 0, "time": seconds, "num": bytes, "blockcount": 0,
            "parallel": 1, "len": self.block, "pacing_timer": 1000, "client_version": "3.12",
        });
        if self.is_reverse {
            json["reverse"] = true.into();
        }
        if let Some(rate) = self.rate {
            json["bandwidth"] = rate.into();
        }
        json
    }

    /// `None` for an unsupported test: more than one stream, or both directions.
    pub fn of_json(json: &Value) -> Option<Self> {
        let number = |key: &str| json[key].as_u64().unwrap_or_default();
        let is = |key: &str| json[key].as_bool().unwrap_or_default();
        let unknown = ["bidirectional", "udp_counters_64bit", "authtoken"];
        if number("parallel") != 1
            || number("omit") + number("blockcount") != 0
            || unknown.iter().any(|key| !json[key].is_null())
        {
            return None;
        }
        let (protocol, blocks) = match (is("tcp"), is("udp")) {
            (true, false) => (Protocol::Tcp, 1..=TCP_BLOCK_MAX),
            (false, true) => (Protocol::Udp, STAMP_LEN as u64..=UDP_BLOCK_MAX),
            _ => return None,
        };
        let amount = match (number("num"), number("time")) {
            (0, seconds) => Amount::Time(Duration::from_secs(seconds)),
            (bytes, _) => Amount::Bytes(bytes),
        };
        let block = blocks.contains(&number("len")).then_some(number("len") as usize)?;
        let rate = Some(number("bandwidth")).filter(|rate| *rate > 0);
        Some(Self { protocol, is_reverse: is("reverse"), amount, block, rate })
    }
}

impl Count {
    pub fn to_json(self) -> Value {
        json!({
            "cpu_util_total": 0, "cpu_util_user": 0, "cpu_util_system": 0,
            "sender_has_retransmits": 0,
            "streams": [{
                "id": 1, "bytes": self.bytes, "retransmits": 0, "jitter": self.jitter_s,
                "errors": self.lost, "packets": self.datagrams,
                "start_time": 0, "end_time": self.seconds,
            }],
        })
    }

    pub fn of_json(json: &Value) -> Option<Self> {
        let stream = &json["streams"][0];
        Some(Self {
            bytes: stream["bytes"].as_u64()?,
            datagrams: stream["packets"].as_u64()?,
            lost: stream["errors"].as_u64()?,
            jitter_s: stream["jitter"].as_f64()?,
            seconds: stream["end_time"].as_f64()?,
        })
    }
}

/// Writes the header of a datagram.
pub fn stamp(datagram: &mut [u8], at: Duration, number: u32) {
    let words = [at.as_secs() as u32, at.subsec_micros(), number];
    for (room, word) in datagram.chunks_exact_mut(4).zip(words) {
        room.copy_from_slice(&word.to_be_bytes());
    }
}

/// Reads the header of a datagram.
pub fn stamped(datagram: &[u8]) -> Option<(Duration, u32)> {
    let (stamp, _) = datagram.split_first_chunk::<STAMP_LEN>()?;
    let word = |at: usize| u32::from_be_bytes([0, 1, 2, 3].map(|byte| stamp[at + byte]));
    let at = Duration::from_secs(word(0).into()) + Duration::from_micros(word(4).into());
    Some((at, word(8)))
}
