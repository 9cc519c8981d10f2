//! Our own end: an adapter in software, on Ethernet.

use crate::peer::Peer;
use pollux_conformance::end::RemoteEnd;
use pollux_conformance::end::line::{Command, Reply};
use pollux_fabric::link::fault::Faults;
use pollux_fabric::{Adapter, Port, SoftDevice, Time};
use pollux_roce::RoceLink;
use pollux_roce::middle::{Faulty, FrameDirection, FrameTap, Tapped};
use pollux_roce::packet::gid_of_ipv4;
use pollux_roce::station::Station;
use pollux_roce::stream::StreamWire;
use pollux_wire::address::Gid;
use pollux_wire::ethernet::MacAddress;
use pollux_wire::keys::PKey;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::{Duration, Instant};

type Wire = Faulty<Tapped<StreamWire<UnixStream>>>;

pub struct Own {
    end: RemoteEnd<Box<SoftDevice<RoceLink<Wire>>>>,
    started: Instant,
}

/// A P_Key of another than the default partition, second in the table.
pub const OTHER_PKEY: PKey = PKey(0x8123);

impl Own {
    /// An end with addresses that end in `last`, at one end of a stream of frames.
    #[expect(clippy::disallowed_methods, reason = "the other end may be a machine with a clock")]
    pub fn new(last: u8, stream: UnixStream, seed: u64, tap: FrameTap) -> Self {
        stream.set_nonblocking(true).expect("a socket can be told not to block");
        let mac = MacAddress([2, 0, 0, 0, 0, last]);
        let gids = vec![
            Gid(Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0xff, 0xfe00, last.into()).octets()),
            gid_of_ipv4(Ipv4Addr::new(10, 1, 0, last)),
        ];
        let mut port = Port::ethernet(gids.clone());
        port.pkeys.push(OTHER_PKEY);
        let started = Instant::now();
        let clock = Arc::new(move || Time::from_nanos(started.elapsed().as_nanos() as u64));
        let wire = Faulty::new(Tapped::new(StreamWire::new(stream), tap), seed);
        let link = RoceLink::new(Station::new(mac, gids), wire, clock);
        let device = SoftDevice::new(format!("own {last}"), Adapter::new(port), link);
        Self {
            end: RemoteEnd::new(Box::new(device)).expect("an adapter in software has all of it"),
            started,
        }
    }

    /// The faults of the wire, in each direction.
    pub fn set_faults(&mut self, out: Faults, back: Faults) {
        let wire = self.end.device_mut().link.wire_mut();
        wire.set_faults(FrameDirection::Out, out);
        wire.set_faults(FrameDirection::In, back);
    }

    /// Drops, for the analysis of failures.
    pub fn drops(&mut self) -> String {
        let device = self.end.device_mut();
        let port: Vec<_> = device.adapter.port().drops.iter().collect();
        let station: Vec<_> = device.link.station().drops().collect();
        format!("port {port:?}, station {station:?}")
    }

    fn now(&self) -> Duration {
        self.started.elapsed()
    }
}

impl Peer for Own {
    fn begin(&mut self, command: Command) {
        self.end.begin(self.now(), command);
    }

    fn step(&mut self) -> Option<Result<Reply, String>> {
        let now = self.now();
        self.end.device_mut().progress();
        self.end.step(now)
    }
}
