//! IP over InfiniBand at one adapter: encapsulation, and the queue pairs that packets go by
//! (RFC 4391 6, RFC 4755 2.2 and 4).
//!
//! A [`Netdev`] has one UD queue pair, which every interface has, and any number of connected
//! ones. Control makes and ends connections, with attributes of its own; the netdev moves packets
//! and says what became of connections. It has no clock and keeps no packet: what cannot be sent
//! now is given back with the reason.
//!
//! ```text
//!   send      packets, each with its route --> 4 bytes in front, same buffer --> UD, RC or UC
//!   poll      completions --> packets, 4 bytes (and the GRH) stripped --> their type and sender
//!             buffers of finished sends go back to the stock, and from there to the receives
//! ```
//!
//! Why one completion queue: an empty poll costs as much as a message, and one queue has one. It
//! has room for all that can be outstanding at once, so it cannot overrun.
//!
//! Memory: `datagram_receives` buffers of the first memory, and `connected_receives` of the second
//! whatever the number of connections, since these share a queue (RFC 4755 leaves that open; with
//! 65,524 bytes a receive, 256 receives are 16.8 MB). Where UC cannot share, each such connection
//! has `own_receives` more. Of each memory the netdev keeps up to 64 free ones at hand. A
//! connection itself keeps a ring of its sends, 16 bytes each: 1 KiB for 64.

mod connections;
mod queue;
mod receive;
mod request;
mod send;

pub use connections::{ConnectionId, ConnectionUse, Peering};
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

/// Completions that one [`Netdev::poll`] takes, and so packets that it gives, at the most.
pub const POLL_MAX: usize = 64;

/// How a netdev is to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Config {
    /// The adapter's port.
    pub port: u8,
    /// Receives kept at the UD queue pair.
    pub datagram_receives: u32,
    /// Sends that may be outstanding there.
    pub datagram_sends: u32,
    /// Receives kept for all connections together; 0: there are no connections.
    pub connected_receives: u32,
    /// Receives kept for each UC connection where these cannot share.
    pub own_receives: u32,
    /// Sends that may be outstanding at a connection.
    pub connected_sends: u32,
    /// Connections at once; fewer where the adapter's completion queues are short.
    pub connections_max: u32,
    /// The longest message that a connection receives, with its header (RFC 4755 5.1).
    pub receive_mtu: u32,
    /// Packets that are copied into their request, if they and their header are that short; the
    /// adapter's limit if that is less.
    pub inline_bytes_max: u32,
    /// UC connections share the receives of all, where the adapter can do that.
    pub uc_shares: bool,
}

impl Default for Config {
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

/// The longest message that anybody receives: 65,520 bytes of IP, and the header.
pub const RECEIVE_MTU_MAX: u32 = 65_524;

/// The longest datagram that any port carries.
const DATAGRAM_BYTES_MAX: usize = 4096;

/// What a netdev is on its link, as control has found out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Link {
    /// Which entry of the port's P_Key table is the link's.
    pub pkey_index: u16,
    /// The key of the broadcast group, which all datagrams show (RFC 4391 4.1).
    pub qkey: QKey,
    /// The port's address.
    pub lid: Lid,
    /// How many low bits of that may vary.
    pub lmc: u8,
    /// The port's name.
    pub gid: Gid,
}

/// What became of something, for control.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NetdevEvent {
    /// A connection failed. Packets for it go by datagram, or come back, until there is another
    /// one; [`Netdev::disconnect`] ends it.
    ConnectionFailed {
        /// Which.
        connection: ConnectionId,
        /// Whose.
        peering: Peering,
        /// How the first request ended that did so badly; `None` if the peer's requests were bad.
        status: Option<CompletionStatus>,
    },
    /// The UD queue pair failed, and is stopping: to be started again once
    /// [`Netdev::is_stopped`].
    DatagramsFailed {
        /// How the first request ended that did so badly.
        status: CompletionStatus,
    },
    /// A connection that was to end has ended: all its buffers are back.
    ConnectionEnded {
        /// Which.
        connection: ConnectionId,
        /// Whose.
        peering: Peering,
    },
}

/// What a netdev moved.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Traffic {
    /// Packets accepted as datagrams.
    pub datagrams_sent: u64,
    /// Packets accepted for connections.
    pub connected_sent: u64,
    /// Packets received as datagrams.
    pub datagrams_received: u64,
    /// Packets received by connections.
    pub connected_received: u64,
    /// Times that receives were wanted and there was no buffer.
    pub starved: u64,
}

/// States of the UD queue pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// In RESET.
    Stopped,
    /// In RTS.
    Started,
    /// A datagram could not be sent: in SQE until all that was outstanding is back.
    Stalled,
    /// In ERR until all that was outstanding is back.
    Stopping,
}

/// The UD queue pair.
#[derive(Debug)]
struct Datagrams {
    qp: Qp,
    qpn: Qpn,
    state: State,
    sends: SendQueue,
    receives: Receives,
}

/// An interface's queue pairs at one adapter, for one worker.
#[derive(Debug)]
pub struct Netdev {
    config: Config,
    pd: Pd,
    cq: Cq,
    small: Stock,
    large: Stock,
    datagrams: Datagrams,
    connections: Connections,
    link: Link,
    /// Other UD queue pairs of ours at this port.
    siblings: Vec<Qpn>,
    /// Ports are addressed by LIDs and not by GIDs alone.
    is_subnet: bool,
    /// The longest datagram, its header counted.
    datagram_bytes: usize,
    traffic: Traffic,
    drops: PacketDrops,
    refusals: Refusals,
    events: VecDeque<NetdevEvent>,
    completions: Box<[Completion]>,
}

impl Netdev {
    /// A netdev at this device, stopped. Address handles for it are to be of the same protection
    /// domain. Datagrams are received into `small`, messages of connections into `large`; packets
    /// of either can be sent. Both memories may be known to other netdevs as well.
    pub fn new<D: Device + ?Sized>(
        device: &mut D,
        pd: Pd,
        config: Config,
        small: &PacketMemory,
        large: &PacketMemory,
    ) -> Result<Self, VerbsError> {
        let attributes = device.attributes();
        let mtu = device.port(config.port)?.mtu_max;
        let datagram_bytes = mtu.bytes().unwrap_or(DATAGRAM_BYTES_MAX);
        check_room("small", small, datagram_bytes as u32)?;
        if config.receive_mtu > RECEIVE_MTU_MAX {
            let (limit, max) = ("receive_mtu", RECEIVE_MTU_MAX.into());
            return Err(VerbsError::Limit { verb: "netdev", limit, max });
        }
        if config.connected_receives > 0 {
            check_room("large", large, config.receive_mtu)?;
        }
        let inline_bytes_max = config.inline_bytes_max.min(attributes.limits.inline_bytes_max);
        let uc_shares = config.uc_shares && attributes.can.uc_srq;
        let config = Config { inline_bytes_max, uc_shares, ..config };
        let config = within(config, attributes.limits.completions_max);
        let cq = device.create_cq(completions_max(&config))?;
        let small = Stock::new(device, pd, small)?;
        let large = Stock::new(device, pd, large)?;
        let qp = device.create_qp(&QpInit {
            qp_type: QpType::Ud,
            pd,
            send_cq: cq,
            recv_cq: cq,
            srq: None,
            send_requests_max: SendQueue::places(config.datagram_sends),
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
            link: Link::default(),
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

    /// The UD queue pair's number, which is part of the interface's link address. It stays for
    /// life.
    pub fn qpn(&self) -> Qpn {
        self.datagrams.qpn
    }

    /// The UD queue pair, to be attached to groups.
    pub fn datagram_qp(&self) -> Qp {
        self.datagrams.qp
    }

    /// Another UD queue pair at this port sends for us as well: what it sends to groups is our own.
    pub fn add_sibling(&mut self, qpn: Qpn) {
        self.siblings.push(qpn);
    }

    /// The completion queue, to be armed by who wants to sleep.
    pub fn cq(&self) -> Cq {
        self.cq
    }

    /// The longest message that connections here receive, to be told to peers.
    pub fn receive_mtu(&self) -> u32 {
        self.config.receive_mtu
    }

    /// What was moved.
    pub fn traffic(&self) -> Traffic {
        self.traffic
    }

    /// Buffers that packets are in: of its memories, those that are neither free nor posted as
    /// receives. For tests that ask whether all come back.
    pub fn buffers_in_use(&self) -> usize {
        self.small.in_use() + self.large.in_use()
    }

    /// What was dropped, by reason.
    pub fn drops(&self) -> &PacketDrops {
        &self.drops
    }

    /// What was not taken, by reason.
    pub fn refusals(&self) -> &Refusals {
        &self.refusals
    }

    /// What has become of connections and of the UD queue pair: at most two events for each
    /// connection, and one for each start.
    pub fn poll_event(&mut self) -> Option<NetdevEvent> {
        self.events.pop_front()
    }

    /// Lets datagrams come and go. For a netdev that is stopped; if it fails, the netdev stops
    /// again.
    pub fn start<D: Device + ?Sized>(
        &mut self,
        device: &mut D,
        link: Link,
    ) -> Result<(), VerbsError> {
        if self.datagrams.state != State::Stopped {
            return Err(VerbsError::Busy { verb: "start", by: "datagrams that come and go" });
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
        link: &Link,
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

    /// Ends that; connections stay. [`Netdev::poll`] goes on until [`Netdev::is_stopped`]: all
    /// buffers of the UD queue pair are back then, and the netdev can start again.
    pub fn stop<D: Device + ?Sized>(&mut self, device: &mut D) -> Result<(), VerbsError> {
        if self.datagrams.state == State::Stopped {
            return Ok(());
        }
        let error = QpAttributes { state: Some(QpState::Err), ..QpAttributes::default() };
        device.modify_qp(self.datagrams.qp, &error)?;
        self.datagrams.state = State::Stopping;
        Ok(())
    }

    /// Whether no datagram comes or goes any more.
    pub fn is_stopped(&self) -> bool {
        self.datagrams.state == State::Stopped
    }

    /// Whether the adapter is done with all that it was given to send, as far as it says so.
    pub fn has_sent(&self) -> bool {
        self.datagrams.sends.is_drained() && self.connections.have_sent()
    }

    /// Whether datagrams come and go, or are to do neither; if not, what is outstanding is to come
    /// back first.
    pub fn is_settled(&self) -> bool {
        matches!(self.datagrams.state, State::Started | State::Stopped)
    }

    /// Another LID or Q_Key, as the subnet manager or the broadcast group says now.
    pub fn set_link<D: Device + ?Sized>(
        &mut self,
        device: &mut D,
        link: Link,
    ) -> Result<(), VerbsError> {
        if self.link.qkey != link.qkey && self.datagrams.state == State::Started {
            let change = QpAttributes { qkey: Some(link.qkey), ..QpAttributes::default() };
            device.modify_qp(self.datagrams.qp, &change)?;
        }
        self.link = link;
        Ok(())
    }

    /// Ends all that the netdev has at the device, once it is attached to no group. Buffers come
    /// back; packets that were under way may be lost. After that it is good for nothing.
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

    /// Goes from a state in which buffers come back to the next, once they are.
    #[cold]
    fn settle<D: Device + ?Sized>(&mut self, device: &mut D) {
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
            // Worse than a datagram that could not be sent: receives come back as well, if not by
            // themselves then by this.
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

impl Default for Link {
    fn default() -> Self {
        Self { pkey_index: 0, qkey: QKey(0), lid: Lid::NONE, lmc: 0, gid: Gid::NONE }
    }
}

/// What may be outstanding at once: of each connection, and of all else.
fn outstanding(config: &Config) -> (u32, u32) {
    let own = if config.uc_shares { 0 } else { config.own_receives };
    let connection = SendQueue::places(config.connected_sends) + own;
    let datagrams = config.datagram_receives + SendQueue::places(config.datagram_sends);
    (connection, datagrams.saturating_add(config.connected_receives))
}

/// All that may be outstanding at once.
fn completions_max(config: &Config) -> u32 {
    let (connection, rest) = outstanding(config);
    rest.saturating_add(config.connections_max.saturating_mul(connection))
}

/// The same with as few connections as a completion queue of so many entries has room for.
fn within(config: Config, completions_max: u32) -> Config {
    let (connection, rest) = outstanding(&config);
    let room = completions_max.saturating_sub(rest) / connection.max(1);
    Config { connections_max: config.connections_max.min(room), ..config }
}

/// Whether messages of so many bytes fit into the buffers of a memory.
fn check_room(
    argument: &'static str,
    packets: &PacketMemory,
    message_bytes: u32,
) -> Result<(), VerbsError> {
    let (needed, has) = (ip_mtu(message_bytes), packets.packet_bytes_max());
    if needed <= has {
        return Ok(());
    }
    let reason = format!("its buffers have room for packets of {has} bytes; {needed} are needed");
    Err(VerbsError::Invalid { verb: "netdev", argument, reason })
}

/// The encapsulation header's length.
const HEADER: usize = IpoibHeader::LEN;
/// The GRH's.
const GRH: usize = Grh::LEN;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_are_as_many_connections_as_completions_fit() {
        let config = Config { uc_shares: false, ..Config::default() };
        let connections_max = |entries| within(config, entries).connections_max;
        assert_eq!(connections_max(u32::MAX), config.connections_max);
        for entries in [0, 1_000, 32_767] {
            let fitting = within(config, entries);
            assert!(fitting.connections_max == 0 || completions_max(&fitting) <= entries);
            let more = Config { connections_max: fitting.connections_max + 1, ..fitting };
            assert!(completions_max(&more) > entries);
        }
    }
}
