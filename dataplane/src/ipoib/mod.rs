//! The IPoIB network device (netdev): encapsulation, and the queue pairs that carry packets
//! (RFC 4391 6, RFC 4755 2.2 and 4).
//!
//! A [`Netdev`] has one UD queue pair and any number of connected ones. Control creates and ends
//! connections and sets their attributes. The netdev moves packets and reports connection events.
//! It has no clock and queues no packet: it returns a packet that cannot be sent now, with the
//! reason.
//!
//! ```text
//!   send      packets with their routes --> prepend 4 bytes in the same buffer --> UD, RC or UC
//!   poll      completions --> strip 4 bytes (and the GRH) --> packets with type and source
//!             buffers of completed sends return to the stock and are posted as receives again
//! ```
//!
//! Why one completion queue for sends and receives: an empty poll costs as much as a message, so
//! one queue halves the cost of polling. The queue holds all completions that can be outstanding at
//! once, so it cannot overrun.
//!
//! Memory: `datagram_receives` buffers of the first memory and `connected_receives` of the second,
//! independent of the number of connections, because connections share an SRQ (RFC 4755 leaves that
//! open; with 65,524 bytes a receive, 256 receives take 16.8 MB). Where UC connections cannot use
//! the SRQ, each has `own_receives` buffers of its own. The netdev caches up to 64 free buffers of
//! each memory. A connection has a ring of its outstanding sends, of 16 bytes each: 1 KiB for 64.

mod connections;
mod queue;
mod receive;
mod request;
mod send;

pub use crate::neighbor::ConnectionId;
pub use connections::{ConnectionUse, Peering};
pub use receive::{Received, RxSource};
pub use send::{Outgoing, Refused};

use crate::packet_memory::{PacketMemory, Stock};
use crate::reason::{PacketDrops, Refusals};
use connections::Connections;
use pollux_verbs::*;
use pollux_wire::address::{Gid, Lid, Qpn};
use pollux_wire::ip::ipoib::{IpoibHeader, ip_mtu};
use pollux_wire::keys::QKey;
use pollux_wire::packet::Grh;
use pollux_wire::psn::Psn;
use queue::{Receives, SendQueue};
use request::Request;
use send::free;
use std::collections::VecDeque;

/// The maximum number of completions that one [`Netdev::poll`] takes, and so of packets that it
/// returns.
pub const POLL_MAX: usize = 64;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NetdevConfig {
    pub port: u8,
    /// Receives to keep posted at the UD queue pair.
    pub datagram_receives: u32,
    /// The maximum number of outstanding sends of the UD queue pair.
    pub datagram_sends: u32,
    /// Receives to keep posted at the SRQ of all connections; 0 disables connections.
    pub connected_receives: u32,
    /// Receives to keep posted for each UC connection that cannot use the SRQ.
    pub own_receives: u32,
    /// The maximum number of outstanding sends of each connection.
    pub connected_sends: u32,
    /// The maximum number of connections. The maximum completion queue size of the adapter may
    /// lower it.
    pub connections_max: u32,
    /// The longest message in bytes that a connection receives, with its header (RFC 4755 5.1).
    pub receive_mtu: u32,
    /// Packets up to this length in bytes, encapsulation header included, are sent inline. The
    /// limit of the adapter may lower it.
    pub inline_bytes_max: u32,
    /// Whether UC connections use the SRQ, if the adapter supports that.
    pub uc_shares: bool,
}

impl Default for NetdevConfig {
    fn default() -> Self {
        Self {
            port: 1,
            datagram_receives: 256,
            datagram_sends: 256,
            connected_receives: 256,
            own_receives: 32,
            connected_sends: 64,
            connections_max: 1024,
            receive_mtu: RECEIVE_MTU_MAX,
            inline_bytes_max: 128,
            uc_shares: true,
        }
    }
}

/// The longest message of a connection: 65,520 bytes of IP and the encapsulation header.
pub const RECEIVE_MTU_MAX: u32 = 65_524;

/// The longest datagram at the largest IB MTU.
const DATAGRAM_BYTES_MAX: usize = 4096;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LinkAttributes {
    /// The index of the partition in the port's P_Key table.
    pub pkey_index: u16,
    /// The Q_Key of the broadcast group, which all datagrams use (RFC 4391 4.1).
    pub qkey: QKey,
    pub lid: Lid,
    /// The number of low LID bits that select a path.
    pub lmc: u8,
    pub gid: Gid,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Traffic {
    /// Packets posted as datagrams.
    pub datagrams_sent: u64,
    /// Packets posted on connections.
    pub connected_sent: u64,
    pub datagrams_received: u64,
    pub connected_received: u64,
    /// Bytes of the posted packets, without the encapsulation header.
    pub bytes_sent: u64,
    /// Bytes of the received packets, without the encapsulation header.
    pub bytes_received: u64,
    /// How often no buffer was free for a receive.
    pub starved: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NetdevEvent {
    /// A connection failed. Its packets are sent as datagrams or refused until control makes
    /// another connection; [`Netdev::disconnect`] ends the failed one.
    ConnectionFailed {
        connection: ConnectionId,
        peering: Peering,
        /// The status of the first failed request. `None` if an async event reported the failure,
        /// for example an invalid request of the peer.
        status: Option<CompletionStatus>,
    },
    /// The UD queue pair failed and is stopping. Start the netdev again once
    /// [`Netdev::is_stopped`].
    DatagramsFailed { status: CompletionStatus },
    /// A disconnected connection was destroyed. Its buffers are returned, except for those that
    /// [`Netdev::give_up`] left with the adapter.
    ConnectionEnded { connection: ConnectionId, peering: Peering },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Stopped,
    Started,
    /// In SQE after a failed send, until all outstanding sends have completed.
    Stalled,
    /// In ERR, until all outstanding requests have completed.
    Stopping,
}

#[derive(Debug)]
struct Datagrams {
    qp: Qp,
    qpn: Qpn,
    state: State,
    sends: SendQueue,
    receives: Receives,
}

#[derive(Debug)]
pub struct Netdev {
    config: NetdevConfig,
    pd: Pd,
    cq: Cq,
    small: Stock,
    large: Stock,
    datagrams: Datagrams,
    connections: Connections,
    link: LinkAttributes,
    /// The UD queue pairs of the interface's other workers on this port.
    siblings: Vec<Qpn>,
    /// Whether the link is an InfiniBand subnet, with LIDs (not RoCE).
    is_subnet: bool,
    /// The longest datagram in bytes, encapsulation header included.
    datagram_bytes: usize,
    traffic: Traffic,
    drops: PacketDrops,
    refusals: Refusals,
    events: VecDeque<NetdevEvent>,
    completions: Box<[Completion]>,
}

impl Netdev {
    /// Creates a stopped netdev. The address handles of its routes must be of protection domain
    /// `pd`. The netdev receives datagrams into `small` and messages of connections into `large`.
    /// It can send packets in either. Several netdevs may share both memories.
    pub fn new<D: Device + ?Sized>(
        device: &mut D,
        pd: Pd,
        config: NetdevConfig,
        small: &PacketMemory,
        large: &PacketMemory,
    ) -> Result<Self, VerbsError> {
        let attributes = device.attributes();
        let mtu = device.port(config.port)?.mtu_max;
        let datagram_bytes = mtu.bytes().unwrap_or(DATAGRAM_BYTES_MAX);
        check_capacity("small", small, datagram_bytes as u32)?;
        if config.receive_mtu > RECEIVE_MTU_MAX {
            let (limit, max) = ("receive_mtu", RECEIVE_MTU_MAX.into());
            return Err(VerbsError::Limit { verb: "netdev", limit, max });
        }
        if config.connected_receives > 0 {
            check_capacity("large", large, config.receive_mtu)?;
        }
        let inline_bytes_max = config.inline_bytes_max.min(attributes.limits.inline_bytes_max);
        let uc_shares = config.uc_shares && attributes.can.uc_srq;
        let config = NetdevConfig { inline_bytes_max, uc_shares, ..config };
        let config = limit_connections(config, attributes.limits.completions_max);
        let cq = device.create_cq(completions_max(&config))?;
        let small = Stock::new(device, pd, small)?;
        let large = Stock::new(device, pd, large)?;
        let qp = device.create_qp(&QpInit {
            qp_type: QpType::Ud,
            pd,
            send_cq: cq,
            recv_cq: cq,
            srq: None,
            send_requests_max: SendQueue::capacity(config.datagram_sends),
            recv_requests_max: config.datagram_receives,
            send_sges_max: 1,
            recv_sges_max: 1,
            inline_bytes_max,
            signal_all: false,
        })?;
        let datagrams = Datagrams {
            qp,
            qpn: device.qpn(qp)?,
            state: State::Stopped,
            sends: SendQueue::new(config.datagram_sends),
            receives: Receives::new(config.datagram_receives),
        };
        let connections = Connections::new(device, pd, &config)?;
        Ok(Self {
            config,
            pd,
            cq,
            small,
            large,
            datagrams,
            connections,
            link: LinkAttributes::default(),
            siblings: Vec::new(),
            is_subnet: attributes.can.subnet,
            datagram_bytes,
            traffic: Traffic::default(),
            drops: PacketDrops::default(),
            refusals: Refusals::default(),
            events: VecDeque::new(),
            completions: vec![Completion::NOTHING; POLL_MAX].into(),
        })
    }

    /// The QPN of the UD queue pair, which is part of the interface's link-layer address and never
    /// changes.
    pub fn qpn(&self) -> Qpn {
        self.datagrams.qpn
    }

    /// The UD queue pair, to attach it to multicast groups.
    pub fn datagram_qp(&self) -> Qp {
        self.datagrams.qp
    }

    /// Registers the UD queue pair of another worker of this interface: its multicast packets are
    /// dropped as echoes.
    pub fn add_sibling(&mut self, qpn: Qpn) {
        self.siblings.push(qpn);
    }

    /// The completion queue, which the caller arms before a sleep.
    pub fn cq(&self) -> Cq {
        self.cq
    }

    /// The longest message that connections receive, for the REQ or REP private data.
    pub fn receive_mtu(&self) -> u32 {
        self.config.receive_mtu
    }

    pub fn traffic(&self) -> Traffic {
        self.traffic
    }

    /// The number of buffers that are neither free nor posted as receives, for tests of leaks.
    pub fn buffers_in_use(&self) -> usize {
        self.small.in_use() + self.large.in_use()
    }

    pub fn drops(&self) -> &PacketDrops {
        &self.drops
    }

    pub fn refusals(&self) -> &Refusals {
        &self.refusals
    }

    /// The next event: at most two for each connection, and one for each start.
    pub fn poll_event(&mut self) -> Option<NetdevEvent> {
        self.events.pop_front()
    }

    /// Starts a stopped netdev: brings the UD queue pair to RTS. If this fails, the netdev stops
    /// again.
    pub fn start<D: Device + ?Sized>(
        &mut self,
        device: &mut D,
        link: LinkAttributes,
    ) -> Result<(), VerbsError> {
        if self.datagrams.state != State::Stopped {
            return Err(VerbsError::Busy { verb: "start", by: "a netdev that is not stopped" });
        }
        let started = self.bring_up(device, &link);
        (self.link, self.datagrams.state) = (link, State::Started);
        if started.is_err() {
            self.stop(device)?;
        }
        self.replenish(device);
        started
    }

    /// Takes the UD queue pair from RESET to RTS.
    fn bring_up<D: Device + ?Sized>(
        &mut self,
        device: &mut D,
        link: &LinkAttributes,
    ) -> Result<(), VerbsError> {
        let to = |state| QpAttributes { state: Some(state), ..QpAttributes::default() };
        let init = QpAttributes {
            pkey_index: Some(link.pkey_index),
            port: Some(self.config.port),
            qkey: Some(link.qkey),
            ..to(QpState::Init)
        };
        let qp = self.datagrams.qp;
        device.modify_qp(qp, &init)?;
        self.replenish_datagrams(device);
        device.modify_qp(qp, &to(QpState::Rtr))?;
        device.modify_qp(qp, &QpAttributes { sq_psn: Some(Psn::new(0)), ..to(QpState::Rts) })
    }

    /// Stops the UD queue pair; connections continue. Call [`Netdev::poll`] until
    /// [`Netdev::is_stopped`]. Then all buffers of the UD queue pair are returned, and the netdev
    /// can start again.
    pub fn stop<D: Device + ?Sized>(&mut self, device: &mut D) -> Result<(), VerbsError> {
        if self.datagrams.state == State::Stopped {
            return Ok(());
        }
        let error = QpAttributes { state: Some(QpState::Err), ..QpAttributes::default() };
        device.modify_qp(self.datagrams.qp, &error)?;
        self.datagrams.state = State::Stopping;
        Ok(())
    }

    pub fn is_stopped(&self) -> bool {
        self.datagrams.state == State::Stopped
    }

    /// Whether all signaled sends have completed.
    pub fn has_sent(&self) -> bool {
        self.datagrams.sends.is_drained() && self.connections.have_sent()
    }

    /// Whether the UD queue pair is started or stopped, and not waiting for outstanding requests.
    pub fn is_settled(&self) -> bool {
        matches!(self.datagrams.state, State::Started | State::Stopped)
    }

    pub fn set_link<D: Device + ?Sized>(
        &mut self,
        device: &mut D,
        link: LinkAttributes,
    ) -> Result<(), VerbsError> {
        if self.link.qkey != link.qkey && self.datagrams.state == State::Started {
            let change = QpAttributes { qkey: Some(link.qkey), ..QpAttributes::default() };
            device.modify_qp(self.datagrams.qp, &change)?;
        }
        self.link = link;
        Ok(())
    }

    /// Destroys the netdev's objects at the device. It must be detached from all groups first.
    /// All buffers are freed; outstanding packets may be lost. The netdev cannot be used
    /// afterwards.
    pub fn close<D: Device + ?Sized>(&mut self, device: &mut D) -> Result<(), VerbsError> {
        device.destroy_qp(self.datagrams.qp)?;
        let Self { connections, small, large, .. } = self;
        connections.destroy(device, |buf| free(small, large, buf))?;
        device.destroy_cq(self.cq)?;
        for stock in [&mut self.small, &mut self.large] {
            device.deregister(stock.lkey())?;
            stock.take_all();
        }
        let Self { datagrams, small, large, .. } = self;
        datagrams.sends.clear(|buf| free(small, large, buf));
        Ok(())
    }

    /// Leaves SQE or ERR once the outstanding requests have completed.
    #[cold]
    fn finish_transition<D: Device + ?Sized>(&mut self, device: &mut D) {
        let Self { datagrams, small, large, events, .. } = self;
        let to = |state| QpAttributes { state: Some(state), ..QpAttributes::default() };
        let qp = datagrams.qp;
        if !datagrams.sends.is_drained() {
            return;
        }
        if datagrams.state == State::Stalled {
            if device.modify_qp(qp, &to(QpState::Rts)).is_ok() {
                datagrams.state = State::Started;
                return;
            }
            // The queue pair did not leave SQE. ERR flushes the receives as well.
            drop(device.modify_qp(qp, &to(QpState::Err)));
            datagrams.state = State::Stopping;
            events.push_back(NetdevEvent::DatagramsFailed { status: CompletionStatus::General });
        }
        let is_over = datagrams.state == State::Stopping && datagrams.receives.posted == 0;
        if is_over && device.modify_qp(qp, &to(QpState::Reset)).is_ok() {
            datagrams.sends.clear(|buf| free(small, large, buf));
            datagrams.state = State::Stopped;
        }
    }
}

/// The maximum number of outstanding requests: of each connection, and of all other queues
/// together.
fn outstanding(config: &NetdevConfig) -> (u32, u32) {
    let own = if config.uc_shares { 0 } else { config.own_receives };
    let connection = SendQueue::capacity(config.connected_sends) + own;
    let datagrams = config.datagram_receives + SendQueue::capacity(config.datagram_sends);
    (connection, datagrams.saturating_add(config.connected_receives))
}

/// The maximum number of outstanding requests of all queues together.
fn completions_max(config: &NetdevConfig) -> u32 {
    let (connection, rest) = outstanding(config);
    rest.saturating_add(config.connections_max.saturating_mul(connection))
}

/// Limits the connections to those whose completions fit in a queue of `completions_max`.
fn limit_connections(config: NetdevConfig, completions_max: u32) -> NetdevConfig {
    let (connection, rest) = outstanding(&config);
    let free = completions_max.saturating_sub(rest) / connection.max(1);
    NetdevConfig { connections_max: config.connections_max.min(free), ..config }
}

/// Checks that messages of `message_bytes` fit in the buffers of a memory.
fn check_capacity(
    argument: &'static str,
    packets: &PacketMemory,
    message_bytes: u32,
) -> Result<(), VerbsError> {
    let (needed, has) = (ip_mtu(message_bytes), packets.packet_bytes_max());
    if needed <= has {
        return Ok(());
    }
    let reason = format!("its buffers hold packets of {has} bytes, but {needed} are needed");
    Err(VerbsError::Invalid { verb: "netdev", argument, reason })
}

const HEADER: usize = IpoibHeader::LEN;
const GRH: usize = Grh::LEN;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connections_are_limited_by_the_completion_queue() {
        let config = NetdevConfig { uc_shares: false, ..NetdevConfig::default() };
        let connections_max = |entries| limit_connections(config, entries).connections_max;
        assert_eq!(connections_max(u32::MAX), config.connections_max);
        for entries in [0, 1_000, 32_767] {
            let fitting = limit_connections(config, entries);
            assert!(fitting.connections_max == 0 || completions_max(&fitting) <= entries);
            let more = NetdevConfig { connections_max: fitting.connections_max + 1, ..fitting };
            assert!(completions_max(&more) > entries);
        }
    }
}
