//! An address from a DHCP server (RFC 2131, RFC 4390 for InfiniBand).
//!
//! ```text
//!   Init --> Selecting --offer--> Requesting --ACK--> Checking --free--> Bound --T1--> Renewing
//!    ^    (retries forever)           |                  |                 ^             |  T2
//!    |                                |                  |                 +----ACK----- Rebinding
//!    +--------------------------------+-- NAK, timeout --+-- taken: DECLINE, or lease over --+
//! ```
//!
//! The link address of InfiniBand does not fit the hardware address field of a message. So the
//! client identifier identifies a client, and the client requests answers by broadcast (RFC 4390
//! 2). A renewing client has an address, and sends to its server directly.
//!
//! ARP probes the address between the ACK and its use (RFC 2131 2.2): [`DhcpEvent::Check`] requests
//! the probe, [`Dhcp::handle_free`] and [`Dhcp::handle_taken`] report the result.

mod lease;
mod message;
#[cfg(test)]
mod tests;

pub use lease::{DhcpLease, ROUTERS_MAX};
pub use message::client_id;

use crate::frame::{NoLink, To};
use crate::output::{Output, output_methods};
use pollux_verbs::reasons;
use pollux_verbs::rng::SeededRng;
use pollux_verbs::time::Time;
use pollux_wire::ip::IpProtocol;
use pollux_wire::ip::dhcp::{DhcpHeader, DhcpKind, DhcpMessage, DhcpOp, DhcpOptionCode};
use pollux_wire::ip::ipv4::Ipv4Packet;
use pollux_wire::ip::mgid::GroupId;
use pollux_wire::ip::udp::UdpDatagram;
use std::net::Ipv4Addr;
use std::time::Duration;

/// Spreads the messages of nodes that start together (RFC 2131 4.4.1).
const START_DELAY_MAX: Duration = Duration::from_secs(1);
const RETRY_MIN: Duration = Duration::from_secs(4);
const RETRY_MAX: Duration = Duration::from_secs(64);
/// The random part of a retry interval, up and down (RFC 2131 4.1).
const RETRY_SPREAD: Duration = Duration::from_secs(1);
/// Requests for one offer before discovery starts again.
const REQUESTS_MAX: u8 = 4;
/// The wait before discovery after a conflict (RFC 2131 3.1).
const DECLINE_WAIT: Duration = Duration::from_secs(10);
/// The shortest interval between renewal requests (RFC 2131 4.4.5).
const RENEW_INTERVAL_MIN: Duration = Duration::from_secs(60);
const EVENTS_MAX: usize = 64;
pub const CLIENT_ID_BYTES_MAX: usize = 64;

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DhcpState {
    Stopped,
    Init {
        until: Time,
    },
    Selecting {
        sent: u8,
        until: Time,
    },
    Requesting {
        lease: DhcpLease,
        sent: u8,
        until: Time,
    },
    /// ARP probes the address.
    Checking {
        lease: DhcpLease,
    },
    Bound {
        lease: DhcpLease,
    },
    Renewing {
        lease: DhcpLease,
        until: Time,
    },
    Rebinding {
        lease: DhcpLease,
        until: Time,
    },
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DhcpEvent {
    /// ARP has to probe this address.
    Check(Ipv4Addr),
    /// The address may be used. A renewed lease may have other parameters than before.
    Bound(DhcpLease),
    Lost(Ipv4Addr),
}

reasons! {
    pub enum DhcpDrop {
        Malformed = "malformed",
        Checksum = "checksum",
        /// It has another transaction ID, or is for another client.
        NotForUs = "not_for_us",
        OtherServer = "other_server",
        Unexpected = "unexpected",
        BadOption = "bad_option",
    }
}

pub struct Dhcp {
    client_id: Vec<u8>,
    rng: SeededRng,
    state: DhcpState,
    since: Time,
    xid: u32,
    began: Time,
    output: Output<NoLink, DhcpEvent, DhcpDrop>,
}

impl Dhcp {
    /// At most [`CLIENT_ID_BYTES_MAX`] bytes of `client_id` are used.
    pub fn new(client_id: &[u8], seed: u64) -> Self {
        Self {
            client_id: client_id[..client_id.len().min(CLIENT_ID_BYTES_MAX)].to_vec(),
            rng: SeededRng::secret(seed),
            state: DhcpState::Stopped,
            since: Time::START,
            xid: 0,
            began: Time::START,
            output: Output::new(EVENTS_MAX),
        }
    }

    pub fn start(&mut self, now: Time) {
        if let Some(ip) = self.lease().map(|lease| lease.ip) {
            self.output.report(DhcpEvent::Lost(ip));
        }
        let delay = self.rng.duration(START_DELAY_MAX);
        self.restart(now, delay);
    }

    /// Handles a link that came up. The link may be another subnet, so any server is asked to
    /// confirm the address, which stays in use meanwhile (RFC 2131 3.7).
    pub fn handle_link(&mut self, now: Time) {
        match self.lease().cloned() {
            Some(lease) => {
                self.new_exchange(now);
                self.rebind(now, lease);
                if let DhcpState::Rebinding { until, .. } = &mut self.state {
                    *until = now + RETRY_MIN;
                }
            }
            // The interface also probes the address again, and reports the result.
            None if matches!(self.state, DhcpState::Checking { .. }) => {}
            None => self.start(now),
        }
    }

    /// Releases the address. The release is broadcast, because there is no time to resolve the
    /// server's link address.
    pub fn stop(&mut self, now: Time) {
        if let Some(lease) = self.lease().cloned() {
            self.send(now, DhcpKind::RELEASE, Some(&lease), BROADCAST);
            self.output.report(DhcpEvent::Lost(lease.ip));
        }
        self.enter(now, DhcpState::Stopped);
    }

    pub const fn state(&self) -> (&DhcpState, Time) {
        (&self.state, self.since)
    }

    pub const fn lease(&self) -> Option<&DhcpLease> {
        match &self.state {
            DhcpState::Bound { lease }
            | DhcpState::Renewing { lease, .. }
            | DhcpState::Rebinding { lease, .. } => Some(lease),
            _ => None,
        }
    }

    pub fn handle_free(&mut self, now: Time, ip: Ipv4Addr) {
        if let DhcpState::Checking { lease } = &self.state
            && lease.ip == ip
        {
            self.bind(now, lease.clone());
        }
    }

    /// Handles a conflict: another node has the address, which is being checked or already in use.
    /// Declines the lease, and restarts.
    pub fn handle_taken(&mut self, now: Time, ip: Ipv4Addr) {
        let checked = match &self.state {
            DhcpState::Checking { lease } => Some(lease),
            _ => self.lease(),
        };
        let Some(lease) = checked.filter(|lease| lease.ip == ip).cloned() else { return };
        if self.lease().is_some() {
            self.output.report(DhcpEvent::Lost(ip));
        }
        self.send(now, DhcpKind::DECLINE, Some(&lease), BROADCAST);
        self.restart(now, DECLINE_WAIT);
    }

    pub fn handle_packet(&mut self, now: Time, bytes: &[u8]) {
        if let Err(reason) = self.handle(now, bytes) {
            self.output.count(reason);
        }
    }

    pub fn handle_timeout(&mut self, now: Time) {
        while self.poll_timeout().is_some_and(|due| due <= now) {
            self.timed_out(now);
        }
    }

    pub fn poll_timeout(&self) -> Option<Time> {
        match &self.state {
            DhcpState::Stopped | DhcpState::Checking { .. } => None,
            DhcpState::Init { until }
            | DhcpState::Selecting { until, .. }
            | DhcpState::Requesting { until, .. } => Some(*until),
            DhcpState::Bound { lease } => lease.renew_at,
            DhcpState::Renewing { lease, until } => {
                lease.rebind_at.into_iter().chain([*until]).min()
            }
            DhcpState::Rebinding { lease, until } => {
                lease.expires_at.into_iter().chain([*until]).min()
            }
        }
    }

    output_methods!(NoLink, DhcpEvent, DhcpDrop);

    fn timed_out(&mut self, now: Time) {
        match self.state.clone() {
            DhcpState::Stopped | DhcpState::Checking { .. } => {}
            DhcpState::Init { .. } => self.discover(now, 0),
            DhcpState::Selecting { sent, .. } => self.discover(now, sent),
            DhcpState::Requesting { lease, sent, .. } if sent < REQUESTS_MAX => {
                self.request(now, lease, sent);
            }
            DhcpState::Requesting { .. } => self.restart(now, Duration::ZERO),
            DhcpState::Bound { lease } => {
                self.new_exchange(now);
                self.renew(now, lease);
            }
            DhcpState::Renewing { lease, .. } => self.renew(now, lease),
            DhcpState::Rebinding { lease, .. } => self.rebind(now, lease),
        }
    }

    fn handle(&mut self, now: Time, bytes: &[u8]) -> Result<(), DhcpDrop> {
        let malformed = |_| DhcpDrop::Malformed;
        let packet = Ipv4Packet::parse(bytes).map_err(malformed)?;
        let header = packet.header();
        if header.protocol != IpProtocol::UDP || header.is_fragment() {
            return Err(DhcpDrop::Malformed);
        }
        let datagram = UdpDatagram::parse(packet.payload()).map_err(malformed)?;
        if !packet.checksum_ok() || !datagram.checksum_ok(&header.pseudo_header()) {
            return Err(DhcpDrop::Checksum);
        }
        let is_to_client = datagram.header().destination_port == DhcpHeader::CLIENT_PORT;
        let message = DhcpMessage::parse(datagram.payload()).map_err(malformed)?;
        if message.header.op != DhcpOp::REPLY || !is_to_client {
            return Err(DhcpDrop::Malformed);
        }
        // A client identifier in an answer must be ours (RFC 6842 3).
        let client_id = message.option(DhcpOptionCode::CLIENT_IDENTIFIER);
        if message.header.xid != self.xid || client_id.is_some_and(|id| id != self.client_id) {
            return Err(DhcpDrop::NotForUs);
        }
        match message.option(DhcpOptionCode::MESSAGE_TYPE) {
            Some(&[kind]) => self.handle_message(now, DhcpKind(kind), &message),
            _ => Err(DhcpDrop::BadOption),
        }
    }

    fn handle_message(
        &mut self,
        now: Time,
        kind: DhcpKind,
        message: &DhcpMessage<'_>,
    ) -> Result<(), DhcpDrop> {
        let server = lease::server(message).ok_or(DhcpDrop::BadOption);
        match (self.state.clone(), kind) {
            (DhcpState::Selecting { .. }, DhcpKind::OFFER) => {
                let offer = DhcpLease::read(now, message).ok_or(DhcpDrop::BadOption)?;
                self.request(now, offer, 0);
            }
            (DhcpState::Requesting { lease: offer, .. }, DhcpKind::ACK) => {
                let lease = DhcpLease::read(now, message).ok_or(DhcpDrop::BadOption)?;
                if lease.server != offer.server || lease.ip != offer.ip {
                    return Err(DhcpDrop::OtherServer);
                }
                self.output.report(DhcpEvent::Check(lease.ip));
                self.enter(now, DhcpState::Checking { lease });
            }
            (DhcpState::Requesting { lease: offer, .. }, DhcpKind::NAK) => {
                if server? != offer.server {
                    return Err(DhcpDrop::OtherServer);
                }
                self.restart(now, RETRY_SPREAD);
            }
            (
                DhcpState::Renewing { lease: held, .. } | DhcpState::Rebinding { lease: held, .. },
                DhcpKind::ACK,
            ) => {
                let lease = DhcpLease::read(now, message).ok_or(DhcpDrop::BadOption)?;
                if lease.ip != held.ip {
                    return Err(DhcpDrop::BadOption);
                }
                self.bind(now, lease);
            }
            (DhcpState::Renewing { lease, .. }, DhcpKind::NAK) => {
                if server? != lease.server {
                    return Err(DhcpDrop::OtherServer);
                }
                self.lose(now, lease.ip);
            }
            (DhcpState::Rebinding { lease, .. }, DhcpKind::NAK) => self.lose(now, lease.ip),
            _ => return Err(DhcpDrop::Unexpected),
        }
        Ok(())
    }

    fn discover(&mut self, now: Time, sent: u8) {
        if sent == 0 {
            self.new_exchange(now);
        }
        self.send(now, DhcpKind::DISCOVER, None, BROADCAST);
        let until = now + self.retry_after(sent);
        self.enter(now, DhcpState::Selecting { sent: sent.saturating_add(1), until });
    }

    fn request(&mut self, now: Time, lease: DhcpLease, sent: u8) {
        self.send(now, DhcpKind::REQUEST, Some(&lease), BROADCAST);
        let until = now + self.retry_after(sent);
        self.enter(now, DhcpState::Requesting { lease, sent: sent + 1, until });
    }

    /// Sends a renewal request to the server; from T2 on, rebinds instead.
    fn renew(&mut self, now: Time, lease: DhcpLease) {
        if lease.rebind_at.is_some_and(|at| at <= now) {
            return self.rebind(now, lease);
        }
        let until = now + lease::half_of_rest(now, lease.rebind_at).max(RENEW_INTERVAL_MIN);
        self.enter(now, DhcpState::Renewing { lease: lease.clone(), until });
        self.send(now, DhcpKind::REQUEST, Some(&lease), To::Route);
    }

    fn rebind(&mut self, now: Time, lease: DhcpLease) {
        if lease.expires_at.is_some_and(|at| at <= now) {
            return self.lose(now, lease.ip);
        }
        let until = now + lease::half_of_rest(now, lease.expires_at).max(RENEW_INTERVAL_MIN);
        self.enter(now, DhcpState::Rebinding { lease: lease.clone(), until });
        self.send(now, DhcpKind::REQUEST, Some(&lease), BROADCAST);
    }

    fn bind(&mut self, now: Time, lease: DhcpLease) {
        self.output.report(DhcpEvent::Bound(lease.clone()));
        self.enter(now, DhcpState::Bound { lease });
    }

    fn lose(&mut self, now: Time, ip: Ipv4Addr) {
        self.output.report(DhcpEvent::Lost(ip));
        self.restart(now, Duration::ZERO);
    }

    fn restart(&mut self, now: Time, after: Duration) {
        self.enter(now, DhcpState::Init { until: now + after });
    }

    fn enter(&mut self, now: Time, state: DhcpState) {
        if std::mem::discriminant(&self.state) != std::mem::discriminant(&state) {
            self.since = now;
        }
        self.state = state;
    }

    fn new_exchange(&mut self, now: Time) {
        self.xid = self.rng.next_u64() as u32;
        self.began = now;
    }

    /// The retry interval: it doubles, with up to a second of jitter up or down (RFC 2131 4.1).
    fn retry_after(&mut self, sent: u8) -> Duration {
        let doubled = RETRY_MIN * (1 << sent.min(8));
        doubled.min(RETRY_MAX) - RETRY_SPREAD + self.rng.duration(RETRY_SPREAD * 2)
    }
}

const BROADCAST: To<NoLink> = To::Group(GroupId::Broadcast);
