//! Packets in transit between two ports without links, so that only the instructions of forwarding
//! are counted.

use super::{ip_packet, ip6_packet};
use pollux_dataplane::acl::{Acl, AclAction, AclFilter, AclRule};
use pollux_dataplane::fib::{Fib, FibBuilder, FibHop, FibTarget};
use pollux_dataplane::forward::{DomainId, ForwardTables, Forwarder, Ingress, ReversePath};
use pollux_dataplane::headers::PacketHeaders;
use pollux_dataplane::packet_memory::PacketMemory;
use pollux_dataplane::port::{PacketPort, PortId, TransitError, TransitPacket, TxPacket};
use pollux_dataplane::reason::ForwardDrop;
use pollux_mem::Buf;
use pollux_verbs::WakeSource;
use pollux_verbs::time::Time;
use pollux_wire::ip::IpProtocol;
use std::hint::black_box;
use std::sync::Arc;

/// The number of packets of a batch.
const BATCH: usize = 32;

/// A port with prepared received packets, which records sent packets.
struct BenchPort {
    arriving: Vec<TransitPacket>,
    sent: Vec<TxPacket>,
}

impl PacketPort for BenchPort {
    fn poll(&mut self, _: Time, transit: &mut Vec<TransitPacket>) -> bool {
        transit.append(&mut self.arriving);
        !transit.is_empty()
    }

    fn set_filter(&mut self, _: Option<AclFilter>) {}

    fn send(&mut self, _: Time, batch: &mut Vec<TxPacket>) {
        self.sent.append(batch);
    }

    fn reject(&mut self, _: Buf, why: TransitError) {
        panic!("{why:?}");
    }

    fn drop_transit(&mut self, _: Buf, why: ForwardDrop) {
        panic!("{why:?}");
    }

    fn copy(&mut self, _: &Buf) -> Option<Buf> {
        None
    }

    fn packets(&self) -> u64 {
        0
    }

    fn poll_timeout(&self) -> Option<Time> {
        None
    }

    fn arm(&mut self) -> bool {
        false
    }

    fn wake_source(&mut self) -> Option<WakeSource<'_>> {
        None
    }

    fn woken(&mut self) {}
}

/// What a router does in addition to routing.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum With {
    /// Nothing.
    Routes,
    /// An access control list of ten rules at the outgoing port, of which the last matches.
    Acl,
    /// Strict reverse path checks.
    ReversePath,
}

/// The tables of a node with one domain.
struct Tables {
    fib: Fib,
    reverse_path: ReversePath,
}

impl ForwardTables for Tables {
    type Routes = Fib;

    fn ingress(&self, _: PortId) -> Option<Ingress<'_, Fib>> {
        Some(Ingress { routes: &self.fib, reverse_path: self.reverse_path })
    }

    fn domain(&self, _: DomainId) -> Option<&Fib> {
        None
    }
}

/// Nine rules for UDP packets to ports that the bench does not use, and one for all other UDP
/// packets.
fn list() -> AclFilter {
    let rule = |port: u16| AclRule {
        action: if port < 9 { AclAction::Deny } else { AclAction::Permit },
        source: Some(([10, 0, 0, 0].into(), 8)),
        destination: None,
        protocol: Some(IpProtocol::UDP),
        source_ports: None,
        destination_ports: (port < 9).then_some(port..=port),
        icmp_type: None,
    };
    AclFilter::new(Arc::new(Acl::new(&(0..10).map(rule).collect::<Vec<_>>(), 1)), 0)
}

/// A router with two ports, and a received batch at the first.
pub struct Router {
    forwarder: Forwarder,
    ports: [BenchPort; 2],
    tables: Tables,
    // Dropped after the buffers in the other fields.
    memory: PacketMemory,
}

impl Router {
    /// A router that has forwarded one batch, so that its vectors have their capacity.
    pub fn new(is_v4: bool, with: With) -> Box<Self> {
        let mut fib = FibBuilder::new(16);
        for (port, prefix) in [(1, "10.0.0.2"), (1, "fd00::2"), (0, "10.0.0.1"), (0, "fd00::1")] {
            let hop = FibHop { port: PortId(port), gateway: None, weight: 1 };
            let group = fib.add_group(&[hop]);
            let ip = prefix.parse().expect("an address");
            fib.insert(ip, 128, FibTarget::Group(group)).expect("there is space");
        }
        let mut forwarder = Forwarder::new(7);
        forwarder.set_ports([PortId(0), PortId(1)].into_iter());
        let port = || BenchPort {
            arriving: Vec::with_capacity(BATCH),
            sent: Vec::with_capacity(2 * BATCH),
        };
        let memory = PacketMemory::new(256, 2044).expect("there is memory");
        if with == With::Acl {
            forwarder.set_filters([(PortId(1), list())].into_iter());
        }
        let reverse_path = match with {
            With::ReversePath => ReversePath::Strict(PortId(0)),
            With::Routes | With::Acl => ReversePath::Any,
        };
        let tables = Tables { fib: fib.publish(), reverse_path };
        let mut router = Self { forwarder, ports: [port(), port()], tables, memory };
        router.receive(is_v4);
        router.forward();
        router.receive(is_v4);
        Box::new(router)
    }

    fn receive(&mut self, is_v4: bool) {
        self.ports[1].sent.clear();
        let bytes = match is_v4 {
            true => ip_packet(IpProtocol::UDP, 64),
            false => ip6_packet(IpProtocol::UDP, 64),
        };
        let headers = PacketHeaders::parse_ip(&bytes).expect("it is one");
        for _ in 0..BATCH {
            let mut packet = self.memory.pool().alloc().expect("there are enough");
            packet.push_back(bytes.len()).expect("there is space").copy_from_slice(&bytes);
            self.ports[0].arriving.push(TransitPacket { packet, headers });
        }
    }

    /// Forwards the batch.
    pub fn forward(&mut self) {
        let Self { forwarder, ports, tables, .. } = self;
        assert!(forwarder.breathe(Time::START, black_box(ports), black_box(tables)));
        assert_eq!(self.ports[1].sent.len(), BATCH);
    }
}
