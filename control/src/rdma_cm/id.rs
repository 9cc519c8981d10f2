//! An ID of a program, and its states.
//!
//! ```text
//!   created --bind--> bound --listen--> listening
//!      |                |
//!      +--resolve address--> resolving address --address--> address resolved
//!                                   | timeout                     | resolve route
//!                                   v                             v
//!                                 bound           +--timeout-- resolving route
//!                                                 v               | path
//!                                        address resolved         v
//!                                                              route resolved
//!   connection                                                    | connect: REQ
//!                                                                 v
//!     requested, at a REQ for a listener                      requesting
//!        | accept: REP          | reject: REJ                     | REP
//!        v                      v                                 v
//!     accepting               ended                            replied
//!        | RTU, or data                                           | accept: RTU
//!        v                                                        v
//!     connected <-------------------------------------------------+
//!        | DREQ, disconnect
//!        v
//!      ended  <-- REJ, timeout -- requesting, replied, accepting
//!
//!   datagrams: route resolved --connect: SIDR_REQ--> requesting service --SIDR_REP--> found
//!              service requested, at a SIDR_REQ for a listener --accept: SIDR_REP--> served
//!                                                              --reject: SIDR_REP--> served
//! ```

use super::abi::RouteAnswer;
use super::{FileId, HostView, RdmaCm, RdmaCmError};
use crate::cm::Terms;
use crate::effects::ConnectionKey;
use pollux_verbs::time::Time;
use pollux_verbs::{Access, QpAttributes, QpState, QpType};
use pollux_wire::address::Gid;
use pollux_wire::keys::{PKey, QKey};
use pollux_wire::mad::cm::Rep;
use pollux_wire::mad::cm::ip_service::PortSpace;
use pollux_wire::mad::sa::PathRecord;
use pollux_wire::packet::RnrTimer;
use pollux_wire::psn::Psn;
use std::net::SocketAddr;

/// The Q_Key of datagram services, as in Linux.
pub(super) const DATAGRAM_Q_KEY: QKey = QKey(0x0123_4567);
/// The code of 0.64 ms. Linux leaves the code at 0, which is the longest time, 0.66 s.
const MIN_RNR_TIMER: RnrTimer = RnrTimer(12);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum IdState {
    Created,
    Bound,
    ResolvingAddress {
        until: Time,
    },
    AddressResolved,
    ResolvingRoute {
        until: Time,
    },
    RouteResolved,
    Listening {
        backlog: usize,
        waiting: usize,
    },
    Requesting(ConnectionKey),
    Replied(ConnectionKey),
    Requested(ConnectionKey),
    Accepting(ConnectionKey),
    Connected(ConnectionKey),
    /// The connection may still be in time-wait.
    Ended(ConnectionKey),
    RequestingService,
    Found,
    ServiceRequested,
    Served,
}

#[derive(Debug)]
pub(super) struct CmId {
    pub(super) file: FileId,
    /// The program's identifier of the ID; 0 for a request that the program has not accepted.
    pub(super) uid: u64,
    pub(super) space: PortSpace,
    pub(super) qp_type: QpType,
    pub(super) state: IdState,
    /// Our address.
    pub(super) source: Option<SocketAddr>,
    /// The address of the peer.
    pub(super) destination: Option<SocketAddr>,
    /// Whether the ID itself is bound to the port of `source`.
    pub(super) is_bound: bool,
    pub(super) peer_gid: Option<Gid>,
    pub(super) path: Option<PathRecord>,
    /// The PSN of the first packet that we expect.
    pub(super) starting_psn: Psn,
    /// RDMA READs and atomics of the peer that the program serves at the same time.
    pub(super) responder_resources: u8,
    /// Whether its connection was ever open.
    pub(super) was_connected: bool,
    pub(super) is_shared: bool,
    pub(super) is_ipv6_only: bool,
    pub(super) ack_timeout: Option<u8>,
    /// The number of its events that the program has taken.
    pub(super) events_taken: u32,
}

impl IdState {
    /// The connection of the ID at the CM.
    pub(super) const fn connection(&self) -> Option<ConnectionKey> {
        match self {
            Self::Requesting(key)
            | Self::Replied(key)
            | Self::Requested(key)
            | Self::Accepting(key)
            | Self::Connected(key)
            | Self::Ended(key) => Some(*key),
            _ => None,
        }
    }
}

impl CmId {
    pub(super) fn new(file: FileId, uid: u64, space: PortSpace, qp_type: QpType) -> Self {
        Self {
            file,
            uid,
            space,
            qp_type,
            state: IdState::Created,
            source: None,
            destination: None,
            is_bound: false,
            peer_gid: None,
            path: None,
            starting_psn: Psn::new(0),
            responder_resources: 0,
            was_connected: false,
            is_shared: false,
            is_ipv6_only: false,
            ack_timeout: None,
            events_taken: 0,
        }
    }

    /// Whether the ID has an adapter. An ID that is bound to all addresses has none yet.
    fn has_adapter(&self) -> bool {
        self.source.is_some_and(|source| !source.ip().is_unspecified())
    }

    pub(super) fn route(&self, cm: &RdmaCm) -> RouteAnswer {
        let Some(host) = cm.host.as_ref().filter(|_| self.has_adapter()) else {
            return RouteAnswer {
                source: self.source,
                destination: self.destination,
                ..RouteAnswer::default()
            };
        };
        let own = host.port.gids.first().copied().unwrap_or_default();
        let known = PathRecord {
            sgid: own,
            dgid: self.peer_gid.unwrap_or_default(),
            p_key: PKey::DEFAULT,
            ..PathRecord::default()
        };
        RouteAnswer {
            node_guid: Some(cm.node_guid),
            port: host.port.number,
            path: self.path.unwrap_or(known),
            is_resolved: self.path.is_some(),
            source: self.source,
            destination: self.destination,
        }
    }

    /// The attributes with which the program changes its queue pair to `state`.
    pub(super) fn attributes(
        &self,
        cm: &RdmaCm,
        state: QpState,
    ) -> Result<QpAttributes, RdmaCmError> {
        let host = cm.host.as_ref().filter(|_| self.has_adapter()).ok_or(RdmaCmError::Invalid)?;
        if state == QpState::Init {
            return Ok(self.to_init(host));
        }
        if self.qp_type == QpType::Ud {
            let sq_psn = (state == QpState::Rts).then_some(Psn::new(0));
            return Ok(QpAttributes { state: Some(state), sq_psn, ..QpAttributes::default() });
        }
        let terms = self.terms(cm, host).ok_or(RdmaCmError::Invalid)?;
        Ok(match state {
            QpState::Rtr => terms.to_receive(MIN_RNR_TIMER),
            _ => terms.to_send(),
        })
    }

    fn to_init(&self, host: &HostView) -> QpAttributes {
        let p_key = self.path.map_or(PKey::DEFAULT, |path| path.p_key);
        let matches = |known: &PKey| known.partition() == p_key.partition();
        let pkey_index = host.port.pkeys.iter().position(matches).unwrap_or(0);
        let is_datagram = self.qp_type == QpType::Ud;
        let access = match self.state.connection() {
            None => Access::NONE,
            Some(_) if self.responder_resources == 0 => Access::REMOTE_WRITE,
            Some(_) => Access::REMOTE_WRITE | Access::REMOTE_READ | Access::REMOTE_ATOMIC,
        };
        QpAttributes {
            state: Some(QpState::Init),
            pkey_index: Some(pkey_index as u16),
            port: Some(host.port.number),
            access: (!is_datagram).then_some(access),
            qkey: is_datagram.then_some(DATAGRAM_Q_KEY),
            ..QpAttributes::default()
        }
    }

    /// The terms of the connection. For a request that is not accepted yet, they are the terms that
    /// the peer requests, because a program changes its queue pair before it accepts.
    fn terms(&self, cm: &RdmaCm, host: &HostView) -> Option<Terms> {
        let key = self.state.connection()?;
        if let Some(terms) = cm.cm.terms(key) {
            return Some(terms);
        }
        let (req, peer) = cm.cm.request(key).filter(|_| self.is_requested())?;
        let rep = Rep {
            starting_psn: self.starting_psn,
            responder_resources: req.initiator_depth,
            initiator_depth: req.responder_resources,
            ..Rep::default()
        };
        Some(Terms::passive(req, &rep, peer, &host.local()))
    }

    const fn is_requested(&self) -> bool {
        matches!(self.state, IdState::Requested(_))
    }
}
