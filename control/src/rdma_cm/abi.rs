//! The kernel interface of `/dev/infiniband/rdma_cm` (Linux `rdma/rdma_user_cm.h`, version 4):
//! commands of a program, their answers, and events.
//!
//! Numbers are in native byte order, except ports and the fields that the header declares as
//! `__be`. A command that is shorter than its structure is padded with zeros. Parsing is total.

use super::RdmaCmError;
use pollux_verbs::{Access, AddressVector, QpAttributes, QpState};
use pollux_wire::address::{Guid, Qpn};
use pollux_wire::keys::QKey;
use pollux_wire::mad::cm::ip_service::PortSpace;
use pollux_wire::mad::sa::PathRecord;
use std::net::{IpAddr, Ipv6Addr, SocketAddr, SocketAddrV6};
use std::time::Duration;

/// The longest command: RESOLVE_ADDR, or an option with its value.
pub const COMMAND_BYTES_MAX: usize = HEADER_BYTES + 600;
const HEADER_BYTES: usize = 8;
/// The most private data of a command or an event.
const PRIVATE_DATA_BYTES: usize = 256;
const SOCKADDR_IN6_BYTES: usize = 28;

const AF_UNSPEC: u16 = 0;
const AF_INET: u16 = 2;
const AF_INET6: u16 = 10;

/// A command, with the ID that it applies to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Command {
    CreateId { uid: u64, space: PortSpace, qp_type: u8 },
    DestroyId { id: u32 },
    Bind { id: u32, address: SocketAddr },
    ResolveAddress { id: u32, source: Option<SocketAddr>, to: SocketAddr, timeout: Duration },
    ResolveRoute { id: u32, timeout: Duration },
    QueryRoute { id: u32 },
    Connect { id: u32, parameters: Box<ConnectionParameters> },
    Listen { id: u32, backlog: u32 },
    Accept { id: u32, uid: u64, parameters: Option<Box<ConnectionParameters>> },
    Reject { id: u32, reason: u8, private_data: Vec<u8> },
    Disconnect { id: u32 },
    InitQpAttributes { id: u32, state: QpState },
    TakeEvent,
    SetOption { id: u32, option: IdOption },
    Notify { id: u32, event: u32 },
    Migrate { id: u32, from: u32 },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum IdOption {
    TrafficClass(u8),
    ReuseAddress(bool),
    /// Excludes IPv4 addresses if the ID is bound to all IPv6 addresses.
    Ipv6Only(bool),
    AckTimeout(u8),
}

/// The queue pair parameters that both ends exchange.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct ConnectionParameters {
    pub(super) qpn: Qpn,
    pub(super) q_key: QKey,
    pub(super) private_data: Vec<u8>,
    pub(super) srq: bool,
    pub(super) responder_resources: u8,
    pub(super) initiator_depth: u8,
    pub(super) flow_control: bool,
    pub(super) retry_count: u8,
    pub(super) rnr_retry_count: u8,
}

/// The bytes of a structure; bytes beyond its end read as zero.
struct Fields<'a>(&'a [u8]);

impl Fields<'_> {
    fn array<const N: usize>(&self, at: usize) -> [u8; N] {
        std::array::from_fn(|index| self.0.get(at + index).copied().unwrap_or(0))
    }

    fn u8(&self, at: usize) -> u8 {
        self.array::<1>(at)[0]
    }

    fn u16(&self, at: usize) -> u16 {
        u16::from_ne_bytes(self.array(at))
    }

    fn u32(&self, at: usize) -> u32 {
        u32::from_ne_bytes(self.array(at))
    }

    fn u64(&self, at: usize) -> u64 {
        u64::from_ne_bytes(self.array(at))
    }

    fn milliseconds(&self, at: usize) -> Duration {
        Duration::from_millis(self.u32(at).into())
    }

    /// A `sockaddr_in` or `sockaddr_in6`; `None` with the family `AF_UNSPEC`.
    fn address(&self, at: usize) -> Result<Option<SocketAddr>, RdmaCmError> {
        let port = u16::from_be_bytes(self.array(at + 2));
        match self.u16(at) {
            AF_UNSPEC => Ok(None),
            AF_INET => Ok(Some((self.array::<4>(at + 4), port).into())),
            AF_INET6 => {
                let ip = Ipv6Addr::from(self.array::<16>(at + 8));
                Ok(Some(SocketAddrV6::new(ip, port, 0, self.u32(at + 24)).into()))
            }
            _ => Err(RdmaCmError::WrongFamily),
        }
    }

    fn some_address(&self, at: usize) -> Result<SocketAddr, RdmaCmError> {
        self.address(at)?.ok_or(RdmaCmError::Invalid)
    }

    /// The first `length` bytes of a private data field.
    fn bytes(&self, at: usize, length: u8) -> Vec<u8> {
        self.array::<PRIVATE_DATA_BYTES>(at)[..usize::from(length)].to_vec()
    }

    fn parameters(&self, at: usize) -> ConnectionParameters {
        ConnectionParameters {
            qpn: Qpn(self.u32(at) & 0xff_ffff),
            q_key: QKey(self.u32(at + 4)),
            private_data: self.bytes(at + 8, self.u8(at + 264)),
            srq: self.u8(at + 265) != 0,
            responder_resources: self.u8(at + 266),
            initiator_depth: self.u8(at + 267),
            flow_control: self.u8(at + 268) != 0,
            retry_count: self.u8(at + 269).min(7),
            rnr_retry_count: self.u8(at + 270).min(7),
        }
    }
}

impl Command {
    /// Parses a command. Returns it with the maximum length of its answer.
    pub(super) fn parse(bytes: &[u8]) -> Result<(Self, usize), RdmaCmError> {
        let header = Fields(bytes);
        let length = usize::from(header.u16(4));
        let body = bytes.get(HEADER_BYTES..).ok_or(RdmaCmError::Invalid)?;
        if length > body.len() {
            return Err(RdmaCmError::Invalid);
        }
        // The value of an option follows the structure.
        let command = Self::parse_body(header.u32(0), &Fields(body))?;
        Ok((command, header.u16(6).into()))
    }

    fn parse_body(number: u32, body: &Fields<'_>) -> Result<Self, RdmaCmError> {
        Ok(match number {
            0 => Self::CreateId {
                uid: body.u64(0),
                space: PortSpace(body.u16(16)),
                qp_type: body.u8(18),
            },
            1 => Self::DestroyId { id: body.u32(8) },
            2 => Self::Bind { id: body.u32(36), address: body.some_address(8)? },
            3 => Self::ResolveAddress {
                id: body.u32(56),
                source: body.address(0)?,
                to: body.some_address(SOCKADDR_IN6_BYTES)?,
                timeout: body.milliseconds(60),
            },
            4 => Self::ResolveRoute { id: body.u32(0), timeout: body.milliseconds(4) },
            5 => Self::QueryRoute { id: body.u32(8) },
            6 => Self::Connect { id: body.u32(272), parameters: Box::new(body.parameters(0)) },
            7 => Self::Listen { id: body.u32(0), backlog: body.u32(4) },
            8 => {
                let is_valid = body.u8(8 + 271) != 0;
                let parameters = is_valid.then(|| Box::new(body.parameters(8)));
                Self::Accept { id: body.u32(280), uid: body.u64(0), parameters }
            }
            9 => Self::Reject {
                id: body.u32(0),
                reason: body.u8(5),
                private_data: body.bytes(8, body.u8(4)),
            },
            10 => Self::Disconnect { id: body.u32(0) },
            11 => {
                let (id, state) = (body.u32(8), body.u32(12));
                let state = match state {
                    1 => QpState::Init,
                    2 => QpState::Rtr,
                    3 => QpState::Rts,
                    _ => return Err(RdmaCmError::Invalid),
                };
                Self::InitQpAttributes { id, state }
            }
            12 => Self::TakeEvent,
            14 => Self::SetOption { id: body.u32(8), option: IdOption::parse(body)? },
            15 => Self::Notify { id: body.u32(0), event: body.u32(4) },
            18 => Self::Migrate { id: body.u32(8), from: body.u32(12) },
            20 => Self::Bind { id: body.u32(0), address: body.some_address(8)? },
            21 => Self::ResolveAddress {
                id: body.u32(0),
                source: if body.u16(8) == 0 { None } else { body.address(16)? },
                to: body.some_address(144)?,
                timeout: body.milliseconds(4),
            },
            _ => return Err(RdmaCmError::Unsupported),
        })
    }
}

impl IdOption {
    fn parse(body: &Fields<'_>) -> Result<Self, RdmaCmError> {
        const VALUE: usize = 24;
        const LEVEL_ID: u32 = 0;
        const INT_BYTES: u32 = 4;
        let is_set = || body.u32(VALUE) != 0;
        match (body.u32(12), body.u32(16), body.u32(20)) {
            (LEVEL_ID, 0, 1) => Ok(Self::TrafficClass(body.u8(VALUE))),
            (LEVEL_ID, 1, INT_BYTES) => Ok(Self::ReuseAddress(is_set())),
            (LEVEL_ID, 2, INT_BYTES) => Ok(Self::Ipv6Only(is_set())),
            (LEVEL_ID, 3, 1) => Ok(Self::AckTimeout(body.u8(VALUE))),
            (LEVEL_ID, 0..=3, _) => Err(RdmaCmError::Invalid),
            _ => Err(RdmaCmError::Unsupported),
        }
    }
}

/// A structure that is built from zeros.
struct Structure<const N: usize>([u8; N]);

impl<const N: usize> Structure<N> {
    const ZEROED: Self = Self([0; N]);

    fn put(&mut self, at: usize, bytes: &[u8]) {
        self.0[at..at + bytes.len()].copy_from_slice(bytes);
    }

    fn put_u32(&mut self, at: usize, value: u32) {
        self.put(at, &value.to_ne_bytes());
    }

    fn put_address(&mut self, at: usize, address: Option<SocketAddr>) {
        let Some(address) = address else { return };
        self.put(at + 2, &address.port().to_be_bytes());
        match address.ip() {
            IpAddr::V4(ip) => {
                self.put(at, &AF_INET.to_ne_bytes());
                self.put(at + 4, &ip.octets());
            }
            IpAddr::V6(ip) => {
                self.put(at, &AF_INET6.to_ne_bytes());
                self.put(at + 8, &ip.octets());
            }
        }
    }

    /// `ib_uverbs_ah_attr`.
    fn put_vector(&mut self, at: usize, vector: &AddressVector) {
        if let Some(grh) = vector.grh {
            self.put(at, &grh.dgid.0);
            self.put_u32(at + 16, grh.flow_label);
            self.put(at + 20, &[grh.sgid_index, grh.hop_limit, grh.traffic_class]);
        }
        self.put(at + 24, &vector.dlid.0.to_ne_bytes());
        let is_global = vector.grh.is_some().into();
        let rest = [vector.sl, vector.src_path_bits, vector.static_rate, is_global, vector.port];
        self.put(at + 26, &rest);
    }

    /// `ib_user_path_rec`.
    fn put_path(&mut self, at: usize, path: &PathRecord) {
        self.put(at, &path.dgid.0);
        self.put(at + 16, &path.sgid.0);
        self.put(at + 32, &path.dlid.0.to_be_bytes());
        self.put(at + 34, &path.slid.0.to_be_bytes());
        self.put(at + 40, &path.flow_label.to_be_bytes());
        self.put_u32(at + 44, 1);
        self.put_u32(at + 48, path.mtu.0.into());
        self.put(at + 52, &path.p_key.0.to_be_bytes());
        const EXACTLY: u8 = 2;
        self.put(at + 54, &[path.hop_limit, path.traffic_class, 1, path.sl, EXACTLY, EXACTLY]);
        self.put(at + 60, &[path.rate.0, EXACTLY, path.packet_life_time.0, path.preference]);
    }
}

/// The answer with one number: a new ID, or the number of events of an ID that were taken.
pub(super) fn number(value: u32) -> Vec<u8> {
    value.to_ne_bytes().to_vec()
}

/// The route of an ID, as far as it is known (`rdma_ucm_query_route_resp`).
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct RouteAnswer {
    /// The GUID of the node, once the ID has an adapter.
    pub(super) node_guid: Option<Guid>,
    pub(super) port: u8,
    pub(super) path: PathRecord,
    /// Whether the path is resolved. Otherwise it has only the GIDs of both ends and the P_Key.
    pub(super) is_resolved: bool,
    pub(super) source: Option<SocketAddr>,
    pub(super) destination: Option<SocketAddr>,
}

impl RouteAnswer {
    pub(super) fn emit(&self) -> Vec<u8> {
        /// The library finds the adapter by its GUID instead.
        const NO_INDEX: u32 = u32::MAX;
        let mut answer = Structure::<208>::ZEROED;
        if let Some(guid) = self.node_guid {
            answer.put(0, &guid.0.to_be_bytes());
            answer.put(196, &[self.port]);
        }
        answer.put_path(8, &self.path);
        answer.put_address(136, self.source);
        answer.put_address(164, self.destination);
        answer.put_u32(192, self.is_resolved.into());
        answer.put_u32(200, NO_INDEX);
        answer.0.to_vec()
    }
}

/// The attributes for a change of a queue pair (`ib_uverbs_qp_attr`).
pub(super) fn emit_attributes(change: &QpAttributes) -> Vec<u8> {
    let mut answer = Structure::<144>::ZEROED;
    let mut mask = 0;
    let mut put = |bit: u32, at: usize, bytes: &[u8]| {
        mask |= 1 << bit;
        answer.put(at, bytes);
    };
    let word = |value: u32| value.to_ne_bytes();
    let state = match change.state {
        Some(QpState::Rtr) => 2,
        Some(QpState::Rts) => 3,
        _ => 1,
    };
    put(0, 4, &word(state));
    change.access.iter().for_each(|access| put(3, 36, &word(access_bits(*access))));
    change.pkey_index.iter().for_each(|index| put(4, 124, &index.to_ne_bytes()));
    change.port.iter().for_each(|port| put(5, 133, &[*port]));
    change.qkey.iter().for_each(|key| put(6, 20, &word(key.0)));
    change.path_mtu.iter().for_each(|mtu| put(8, 12, &word(mtu.0.into())));
    change.timeout.iter().for_each(|timeout| put(9, 134, &[timeout.0]));
    change.retry_count.iter().for_each(|count| put(10, 135, &[count.get()]));
    change.rnr_retry.iter().for_each(|count| put(11, 136, &[count.get()]));
    change.rq_psn.iter().for_each(|psn| put(12, 24, &word(psn.get())));
    change.initiator_depth.iter().for_each(|depth| put(13, 130, &[*depth]));
    change.min_rnr_timer.iter().for_each(|timer| put(15, 132, &[timer.0]));
    change.sq_psn.iter().for_each(|psn| put(16, 28, &word(psn.get())));
    change.responder_resources.iter().for_each(|count| put(17, 131, &[*count]));
    change.dest_qp.iter().for_each(|qpn| put(20, 32, &word(qpn.0)));
    if let Some(path) = &change.path {
        mask |= 1 << 7;
        answer.put_vector(40, path);
    }
    answer.put_u32(0, mask);
    answer.0.to_vec()
}

fn access_bits(access: Access) -> u32 {
    let rights = [Access::REMOTE_WRITE, Access::REMOTE_READ, Access::REMOTE_ATOMIC];
    let held = rights.into_iter().zip(1..).filter(|(right, _)| access.has(*right));
    held.fold(0, |bits, (_, bit)| bits | 1 << bit)
}

/// Kinds of events (`enum rdma_cm_event_type`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub(super) enum EventKind {
    AddressResolved = 0,
    AddressError = 1,
    RouteResolved = 2,
    RouteError = 3,
    ConnectRequest = 4,
    ConnectResponse = 5,
    Unreachable = 7,
    Rejected = 8,
    Established = 9,
    Disconnected = 10,
    TimeWaitExit = 15,
}

/// The data of an event besides its kind.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum EventData {
    Connection(ConnectionParameters),
    Datagram { vector: AddressVector, qpn: Qpn, q_key: QKey, private_data: Vec<u8> },
}

/// An event (`rdma_ucm_event_resp`).
pub(super) fn emit_event(
    uid: u64,
    id: u32,
    kind: EventKind,
    status: i32,
    data: &EventData,
) -> Vec<u8> {
    const DATA: usize = 20;
    let mut event = Structure::<336>::ZEROED;
    event.put(0, &uid.to_ne_bytes());
    event.put_u32(8, id);
    event.put_u32(12, kind as u32);
    event.put(16, &status.to_ne_bytes());
    match data {
        EventData::Connection(parameters) => {
            let private_data = &parameters.private_data;
            event.put_u32(DATA, parameters.qpn.0);
            event.put_u32(DATA + 4, parameters.q_key.0);
            event.put(DATA + 8, private_data);
            let rest = [
                private_data.len() as u8,
                parameters.srq.into(),
                parameters.responder_resources,
                parameters.initiator_depth,
                parameters.flow_control.into(),
                parameters.retry_count,
                parameters.rnr_retry_count,
            ];
            event.put(DATA + 264, &rest);
        }
        EventData::Datagram { vector, qpn, q_key, private_data } => {
            event.put_u32(DATA, qpn.0);
            event.put_u32(DATA + 4, q_key.0);
            event.put_vector(DATA + 8, vector);
            event.put(DATA + 40, private_data);
            event.put(DATA + 296, &[private_data.len() as u8]);
        }
    }
    event.0.to_vec()
}
