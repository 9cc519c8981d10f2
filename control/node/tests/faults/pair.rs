//! A node, and a peer that sends it echo requests: its workers receive them and control answers. So
//! each of them either is answered or has found no space somewhere, and that is counted.

use crate::host::{Hosts, TIMEOUT};
use crate::running_node::{RunningNode, pause};
use pollux_dataplane::headers::PacketHeaders;
use pollux_node::admin::rows::{ConnectionStatus, DropCount, NeighborStatus};
use pollux_node::config::{Neighbor, NodeConfig};
use pollux_node::fabric::Embedded;
use pollux_node::interface::InterfaceWorker;
use pollux_verbs::time::Time;
use pollux_wire::ip::IpProtocol;
use pollux_wire::ip::icmp::IcmpEcho;
use pollux_wire::ip::icmpv4::{self, Icmpv4Message};
use pollux_wire::ip::ipv4::{Ipv4Header, Ipv4Packet};
use std::net::Ipv4Addr;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// A node is silent for so long when everything has been answered.
pub const SILENCE: Duration = Duration::from_millis(300);
/// Control handles a packet in a tenth of this.
const PACE: Duration = Duration::from_micros(200);

/// Packets and events that no request has caused, at most.
pub const OTHERS: usize = 64;

const NODE: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 1);
const PEER: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 2);
/// What tells our requests from others.
const IDENTIFIER: u16 = 0x4242;

/// A node, and a peer in the thread of the test.
pub struct Pair {
    pub peer: Hosts,
    /// The peer's workers but the first.
    others: Vec<InterfaceWorker>,
    pub node: RunningNode,
    /// Sequence numbers of replies, in their order.
    pub answered: Vec<u16>,
    _fabric: Embedded,
    _alone: MutexGuard<'static, ()>,
}

/// Threads are found by their names, of which each node has the same.
static ALONE: Mutex<()> = Mutex::new(());

/// Waits until no other test has a node.
pub fn alone() -> MutexGuard<'static, ()> {
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Pair {
    pub fn new(test: &str, mode: &str, workers: u8) -> Self {
        Self::with(test, mode, workers, Vec::new())
    }

    /// The node has these neighbors in its configuration.
    pub fn with(test: &str, mode: &str, workers: u8, neighbors: Vec<Neighbor>) -> Self {
        let alone = alone();
        let fabric = Embedded::start("single:2").expect("it starts");
        let keys = format!("mode = {mode:?}\nworkers = {workers}\n");
        let device = fabric.port("host1");
        let text = format!(
            "[workers]\ncores = {:?}\n[interface.ib0]\ndevice = {device:?}\n\
             address = [\"{NODE}/8\"]\nipv6 = false\n{keys}",
            &[0, 1][..usize::from(workers)]
        );
        let mut config = NodeConfig::read("test", &text).expect("it is valid");
        config.interfaces.get_mut("ib0").expect("it is there").neighbor = neighbors;
        let socket = std::env::temp_dir().join(format!("pollux-{}-{test}", std::process::id()));
        let node = RunningNode::start(&socket, config);
        let mut peer = Hosts::with(&[], "");
        let keys = format!("{keys}ipv6 = false\n");
        let (host, others) =
            Hosts::with_workers(&fabric.port("host2"), &format!("{PEER}/8"), &keys);
        peer.hosts.push(host);
        let answered = Vec::new();
        let mut pair = Self { peer, others, node, answered, _fabric: fabric, _alone: alone };
        pair.until("up", |pair| pair.peer.hosts[0].control().is_up());
        for worker in 0..workers {
            pair.reach(worker, mode);
        }
        pair
    }

    /// Sends requests by a worker until one is answered; in connected mode, by its connection.
    fn reach(&mut self, worker: u8, mode: &str) {
        let is_connected = |pair: &Self| {
            let mut rows = pair.peer.hosts[0].control().connection_rows();
            rows.any(|row| row.worker.0 == worker && row.state == "open")
        };
        self.until("reached", |pair| {
            pair.send(worker, 0);
            pair.listen(Duration::from_millis(20));
            !pair.answered.is_empty() && (mode == "ud" || is_connected(pair))
        });
        self.listen(SILENCE);
        self.answered.clear();
    }

    fn step(&mut self) {
        let now = self.peer.now();
        let Self { peer, others, answered, .. } = self;
        let mut take = |_: &PacketHeaders, packet: &[u8]| {
            let sequence = reply(packet);
            answered.extend(sequence);
            sequence.is_some()
        };
        let host = &mut peer.hosts[0];
        host.0.breathe(now, &mut take);
        for worker in others {
            worker.breathe(now, &mut take);
        }
        host.0.step_control(now);
        assert_eq!(host.failed(), None);
    }

    pub fn until(&mut self, what: &str, mut is: impl FnMut(&mut Self) -> bool) {
        let end = self.peer.now() + TIMEOUT;
        while !is(self) {
            assert!(self.peer.now() < end, "{what}: never");
            self.step();
        }
    }

    /// Polls until nothing was received for this long.
    pub fn listen(&mut self, silence: Duration) {
        let mut last = (self.answered.len(), self.peer.now());
        while self.peer.now() < last.1 + silence {
            self.step();
            if self.answered.len() > last.0 {
                last = (self.answered.len(), self.peer.now());
            }
        }
    }

    fn send(&mut self, worker: u8, sequence: u16) {
        let now = self.peer.now();
        let sent = self.worker(worker).send(now, &request(sequence));
        sent.expect("there is space");
        self.worker(worker).flush();
    }

    fn worker(&mut self, worker: u8) -> &mut InterfaceWorker {
        match worker.checked_sub(1) {
            Some(other) => &mut self.others[usize::from(other)],
            None => &mut self.peer.hosts[0].0.worker,
        }
    }

    /// Sends so many requests by a worker at a pace at which control answers them all.
    pub fn send_paced(&mut self, worker: u8, count: u16) {
        for sequence in 0..count {
            self.until("room", |pair| pair.worker(worker).has_room());
            self.send(worker, sequence);
            let soon = self.peer.now() + PACE;
            self.pass(soon);
        }
    }

    /// Sends so many requests by a worker, each once the queue pair has space and the node's worker
    /// has had time for the last.
    pub fn send_all(&mut self, worker: u8, count: u16) {
        for sequence in 0..count {
            self.until("room", |pair| pair.worker(worker).has_room());
            self.send(worker, sequence);
            (0..4).for_each(|_| self.step());
        }
    }

    pub fn pass(&mut self, until: Time) {
        while self.peer.now() < until {
            self.step();
        }
    }

    /// A counter of the node.
    pub fn dropped(&self, why: &str) -> usize {
        let rows: Vec<DropCount> = self.node.client().show(&mut pause).expect("it answers");
        let counts = rows.iter().filter(|row| row.of == "port_driver" && row.why == why);
        counts.map(|row| row.count as usize).sum()
    }

    /// Waits until each of so many requests was answered or is counted as dropped for this reason;
    /// a few packets of protocols may be dropped beside them.
    pub fn account_for(&mut self, count: usize, why: &str) {
        let (end, mut outcome) = (self.peer.now() + TIMEOUT, (0, 0));
        while outcome.0 + outcome.1 < count {
            assert!(self.peer.now() < end, "{outcome:?} of {count} are answered or dropped: {why}");
            self.listen(SILENCE);
            outcome = (self.answered.len(), self.dropped(why));
        }
        assert!(
            outcome.0 + outcome.1 <= count + OTHERS,
            "{outcome:?} are more than {count}: {why}"
        );
    }

    /// What would not be the same if the node or the peer had given the other up.
    pub fn links(&self) -> Vec<[String; 2]> {
        let connections: Vec<ConnectionStatus> =
            self.node.client().show(&mut pause).expect("it answers");
        let neighbors: Vec<NeighborStatus> =
            self.node.client().show(&mut pause).expect("it answers");
        let connections = connections
            .into_iter()
            .map(|row| [row.peer, format!("{:?} {} {:?}", row.qpn, row.state, row.role)]);
        let neighbors =
            neighbors.into_iter().map(|row| [row.address.to_string(), format!("{:?}", row.link)]);
        connections.chain(neighbors).collect()
    }
}

fn request(sequence: u16) -> Vec<u8> {
    let echo = IcmpEcho { identifier: IDENTIFIER, sequence, data: &[7; 56] };
    let message = Icmpv4Message::EchoRequest(echo);
    let header = Ipv4Header {
        ttl: 64,
        protocol: IpProtocol::ICMPV4,
        source: PEER,
        destination: NODE,
        ..Ipv4Header::default()
    };
    let mut packet = vec![0; Ipv4Header::LEN + message.wire_len()];
    let room = header.write_packet(&[], message.wire_len(), &mut packet).expect("it fits");
    message.write(room).expect("it fits");
    icmpv4::fill_checksum(room).expect("it is a message");
    packet
}

/// The number of the request that a packet replies to.
fn reply(packet: &[u8]) -> Option<u16> {
    let packet = Ipv4Packet::parse(packet).ok()?;
    match Icmpv4Message::parse(packet.payload()).ok()? {
        Icmpv4Message::EchoReply(echo) if echo.identifier == IDENTIFIER => Some(echo.sequence),
        _ => None,
    }
}
