//! Captures of a node: `pollux capture`. Taps are in the workers ([`pollux_dataplane::capture`]);
//! their readers are here, until the client ends the capture or no longer reads it.
//!
//! An interface that starts again gets new taps at the next read.

use super::opening::Interfaces;
use super::report::no_interface;
use crate::admin::capture::{
    CAPTURE_TIMEOUT, CaptureRequest, CaptureStatus, CapturedPacket, CapturedPackets,
};
use pollux_dataplane::capture::{
    CaptureEvent, CaptureReader, CaptureTerms, CapturedBytes, SNAP_BYTES_MAX, capture_reasons,
};
use pollux_dataplane::filter::PacketFilter;
use pollux_verbs::time::Time;
use std::collections::BTreeMap;
use std::fmt::Write;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

const CAPTURES_MAX: usize = 8;
/// Maximum number of packet bytes in a reply, which limits the time that the control thread spends
/// on it.
const REPLY_BYTES_MAX: usize = 256 << 10;

#[derive(Default)]
pub(super) struct Captures {
    all: BTreeMap<u64, Capture>,
    begun: u64,
}

struct Capture {
    interface: Option<String>,
    terms: CaptureTerms,
    points: BTreeMap<String, CapturePoint>,
    /// Packets that were missed before their interfaces started again.
    missed_before: u64,
    /// The start of the node's clock, as the time since 1970.
    epoch: Duration,
    /// When the capture ends unless it is read before.
    until: Time,
}

/// The readers of an interface.
struct CapturePoint {
    /// Which start of the interface the readers belong to.
    starts: u64,
    readers: Vec<CaptureReader>,
}

impl Captures {
    pub(super) fn begin(
        &mut self,
        now: Time,
        request: &CaptureRequest,
        interfaces: &mut Interfaces,
    ) -> Result<CaptureStatus, String> {
        if self.all.len() >= CAPTURES_MAX {
            return Err(format!("{CAPTURES_MAX} captures run already; end one of them"));
        }
        let CaptureRequest { interface, reason, filter, snap_bytes } = request;
        if let Some(name) = interface
            && !interfaces.all.contains_key(name)
        {
            return Err(no_interface(name));
        }
        let reason = reason.as_deref().map(known_reason).transpose()?;
        let filter = PacketFilter::parse(filter).map_err(|error| error.to_string())?;
        let snap_bytes = snap_bytes.unwrap_or(SNAP_BYTES_MAX).min(SNAP_BYTES_MAX);
        let mut capture = Capture {
            interface: interface.clone(),
            terms: CaptureTerms { filter, snap_bytes, reason },
            points: BTreeMap::new(),
            missed_before: 0,
            epoch: epoch(now),
            until: now + CAPTURE_TIMEOUT,
        };
        capture.attach(interfaces);
        self.begun += 1;
        let interfaces = capture.points.keys().cloned().collect();
        self.all.insert(self.begun, capture);
        Ok(CaptureStatus { capture: self.begun, interfaces })
    }

    /// Takes the packets since the last read.
    pub(super) fn read(
        &mut self,
        now: Time,
        number: u64,
        interfaces: &mut Interfaces,
    ) -> Result<CapturedPackets, String> {
        let capture = self.all.get_mut(&number).ok_or_else(|| over(number))?;
        capture.until = now + CAPTURE_TIMEOUT;
        let packets = capture.read();
        capture.attach(interfaces);
        Ok(packets)
    }

    pub(super) fn end(&mut self, number: u64) -> Result<(), String> {
        self.all.remove(&number).map(drop).ok_or_else(|| over(number))
    }

    /// Ends captures that no client reads.
    pub(super) fn handle_timeout(&mut self, now: Time) {
        self.all.retain(|_, capture| now < capture.until);
    }

    pub(super) fn poll_timeout(&self) -> Option<Time> {
        self.all.values().map(|capture| capture.until).min()
    }
}

fn over(number: u64) -> String {
    let seconds = CAPTURE_TIMEOUT.as_secs();
    format!("there is no capture {number}: it has ended, or was not read for {seconds} s")
}

fn known_reason(name: &str) -> Result<&'static str, String> {
    capture_reasons().find(|reason| *reason == name).ok_or_else(|| {
        let all: Vec<_> = capture_reasons().collect();
        format!("{name:?} is no reason that is captured; write one of {}", all.join(", "))
    })
}

/// The start of the node's clock, as the time since 1970.
#[expect(clippy::disallowed_methods, reason = "what time packets are of is the machine's to say")]
fn epoch(now: Time) -> Duration {
    let wall = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    wall.saturating_sub(now.since_start())
}

impl Capture {
    /// Attaches readers to interfaces that have started since the last call.
    fn attach(&mut self, interfaces: &mut Interfaces) {
        for (name, named) in &mut interfaces.all {
            let is_wanted = self.interface.as_ref().is_none_or(|wanted| wanted == name);
            let starts = named.starts;
            if !is_wanted || self.points.get(name).is_some_and(|point| point.starts == starts) {
                continue;
            }
            let Ok(interface) = &mut named.interface else { continue };
            let readers = interface.capture(&self.terms);
            let point = CapturePoint { starts, readers };
            if let Some(before) = self.points.insert(name.clone(), point) {
                self.missed_before += before.missed();
            }
        }
    }

    fn read(&mut self) -> CapturedPackets {
        let (mut packets, mut bytes) = (Vec::new(), 0);
        for (name, point) in &mut self.points {
            for reader in &mut point.readers {
                while bytes < REPLY_BYTES_MAX
                    && let Some(one) = reader.read()
                {
                    bytes += one.packet.len();
                    packets.push(packet(name, self.epoch, &one));
                }
            }
        }
        packets.sort_by_key(|one| one.nanos);
        let missed = self.points.values().map(CapturePoint::missed).sum::<u64>();
        let has_more = bytes >= REPLY_BYTES_MAX;
        CapturedPackets { packets, missed: self.missed_before + missed, has_more }
    }
}

impl CapturePoint {
    fn missed(&self) -> u64 {
        self.readers.iter().map(CaptureReader::missed).sum()
    }
}

fn packet(interface: &str, epoch: Duration, one: &CapturedBytes) -> CapturedPacket {
    let mut data = String::with_capacity(one.packet.len() * 2);
    for byte in &one.packet {
        let _ = write!(data, "{byte:02x}");
    }
    CapturedPacket {
        interface: interface.into(),
        is_sent: one.event == CaptureEvent::Sent,
        dropped: match one.event {
            CaptureEvent::Dropped(reason) => Some(reason.into()),
            CaptureEvent::Received | CaptureEvent::Sent => None,
        },
        nanos: (epoch + one.time.since_start()).as_nanos() as u64,
        bytes: one.bytes,
        data,
    }
}
