//! Echo: the smallest possible work of a worker, which returns each IPv4 packet for it. It
//! measures the engine with all steps of a packet: the receive, the verdict, the lookup in the
//! neighbor table, and the send in a batch.

use super::Work;
use crate::ipoib::{LinkAttributes, Netdev, NetdevConfig, Outgoing, Received, Refused};
use crate::neighbor::{DatagramRoute, Route, RouteTable, Routes};
use crate::packet_memory::PacketMemory;
use crate::verdict::{Destinations, Verdict};
use pollux_mem::snapshot::Snapshot;
use pollux_verbs::time::Time;
use pollux_verbs::{AddressVector, Device, VerbsError};
use pollux_wire::address::{Lid, Qpn, Scope};
use pollux_wire::ethernet::EtherType;
use pollux_wire::keys::{PKey, QKey};
use std::net::{IpAddr, Ipv4Addr};
use std::time::Duration;

/// The number of buffers for receives, sends and the buffer cache.
const BUFFERS: u32 = 1024;
const PACKET_BYTES: u32 = 4092;

pub struct Echo<D> {
    device: D,
    netdev: Netdev,
    own: Destinations,
    received: Vec<Received>,
    batch: Vec<Outgoing>,
    refused: Vec<Refused>,
    echoed: u64,
    /// The worker is stopping, so received packets are dropped.
    is_ending: bool,
    // Dropped after the fields that hold buffers, which return to these pools.
    _memory: [PacketMemory; 2],
    _table: RouteTable,
    routes: Snapshot<Routes>,
}

impl<D: Device> Echo<D> {
    /// Creates the work with the local address `ip`. The neighbors have the addresses after it, and
    /// all are resolved.
    pub fn new(mut device: D, ip: Ipv4Addr, neighbors: u32) -> Result<Self, VerbsError> {
        let memory = |buffers| {
            PacketMemory::new(buffers, PACKET_BYTES).map_err(|error| VerbsError::Invalid {
                verb: "echo",
                argument: "memory",
                reason: error.to_string(),
            })
        };
        let (small, large) = (memory(BUFFERS)?, memory(1)?);
        let pd = device.create_pd()?;
        let config = NetdevConfig { connected_receives: 0, ..NetdevConfig::default() };
        let mut netdev = Netdev::new(&mut device, pd, config, &small, &large)?;
        let gid = device.gid(1, 0)?;
        netdev.start(
            &mut device,
            LinkAttributes { qkey: QKey(1), lid: Lid(1), gid, ..LinkAttributes::default() },
        )?;
        let path = AddressVector::to_lid(Lid(2), 1);
        let ah = device.create_ah(pd, &path)?;
        let mut table = RouteTable::new(PKey::DEFAULT, Scope::LINK_LOCAL, 7);
        for nth in 1..=neighbors {
            let route = DatagramRoute { ah, qpn: Qpn(0x99), mtu: PACKET_BYTES };
            let ip = Ipv4Addr::from(u32::from(ip).wrapping_add(nth));
            if let Some(peer) = table.add_peer(Route::Datagram(route)) {
                table.bind(ip.into(), peer);
            }
        }
        table.publish();
        let mut own = Destinations::new();
        own.insert(ip.into());
        Ok(Self {
            device,
            netdev,
            own,
            received: Vec::new(),
            batch: Vec::new(),
            refused: Vec::new(),
            echoed: 0,
            is_ending: false,
            _memory: [small, large],
            routes: table.reader(),
            _table: table,
        })
    }

    pub fn echoed(&self) -> u64 {
        self.echoed
    }
}

/// Swaps the addresses of an IPv4 packet, which leaves its checksum valid. Returns the new
/// destination.
fn swap_addresses(packet: &mut [u8]) -> Option<IpAddr> {
    let header = packet.first_chunk_mut::<20>()?;
    let (from, to) = header[12..].split_at_mut(4);
    from.swap_with_slice(to);
    let to: [u8; 4] = header[16..].try_into().ok()?;
    Some(to.into())
}

impl<D: Device> Work for Echo<D> {
    type Command = ();

    fn breathe(&mut self, _: Time) -> bool {
        let Self { device, netdev, own, received, batch, refused, routes, .. } = self;
        // If the device fails, it delivers no more packets, which shows in the measurement.
        let busy = netdev.poll(device, own, received).is_ok_and(|count| count > 0);
        let routes = routes.refresh();
        for Received { mut packet, headers, verdict, .. } in received.drain(..) {
            let ether_type = headers.ether_type;
            let is_ours = verdict == Verdict::Local && ether_type == EtherType::IPV4;
            let is_ours = is_ours && !self.is_ending;
            match swap_addresses(packet.bytes_mut()).filter(|_| is_ours) {
                Some(to) => batch.push(Outgoing { packet, ether_type, route: routes.route(to) }),
                None => netdev.recycle(packet),
            }
        }
        if !batch.is_empty() {
            self.echoed += batch.len() as u64;
            netdev.send(device, batch, refused);
            for refused in refused.drain(..) {
                self.echoed -= 1;
                netdev.recycle(refused.outgoing.packet);
            }
        }
        busy
    }

    fn housekeeping(&mut self, _: Time) {}

    fn packets(&mut self) -> u64 {
        let traffic = self.netdev.traffic();
        traffic.datagrams_received + traffic.datagrams_sent
    }

    fn poll_timeout(&self) -> Option<Time> {
        None
    }

    fn handle_command(&mut self, _: Time, (): ()) {}

    fn arm(&mut self) -> bool {
        self.device.arm(self.netdev.cq(), pollux_verbs::Arm::Any).is_ok()
            && self.device.attributes().can.sleep
    }

    fn wait(&mut self, longest: Duration) {
        let _ = self.device.wait(longest);
    }

    fn end(&mut self, _: Time) -> bool {
        self.is_ending = true;
        self.netdev.has_sent()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::counts::CountsSegment;
    use crate::engine::idle::Idle;
    use crate::engine::{Turn, worker};
    use pollux_fabric::null::NullDevice;

    #[test]
    fn packets_to_the_own_address_are_echoed() {
        let own = Ipv4Addr::new(10, 0, 0, 1);
        let mut echo = Echo::new(NullDevice::new(), own, 1000).unwrap();
        let (counts, mut writers) = CountsSegment::create(1).unwrap();
        let (mut worker, handle) = worker(Idle::Adaptive, writers.remove(0), 7);
        let mut now = Time::START;
        let mut turn = |echo: &mut Echo<NullDevice>| {
            now = now + Duration::from_micros(2);
            worker.turn(now, echo)
        };
        for _ in 0..1000 {
            assert_eq!(turn(&mut echo), Turn::Again, "there is always another packet");
        }
        assert!(echo.echoed() > 60_000, "{}", echo.echoed());
        assert_eq!(echo.packets(), 2 * echo.echoed(), "each received packet is sent");
        handle.stop();
        let turns = (0..1000).take_while(|_| turn(&mut echo) != Turn::Over).count();
        assert!(turns < 1000, "it ends when the accepted packets are sent");
        let sent = echo.netdev.traffic().datagrams_sent;
        assert!(sent == echo.echoed() && echo.netdev.has_sent());
        let counted = counts.read().next().unwrap().unwrap();
        assert_eq!((counted.packets, counted.busy_breaths), (echo.packets(), counted.breaths));

        let other = Ipv4Addr::new(10, 0, 0, 3);
        let mut echo = Echo::new(NullDevice::new(), other, 1000).unwrap();
        assert!(echo.breathe(Time::START));
        assert_eq!(echo.echoed(), 0);
    }
}
