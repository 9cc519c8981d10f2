//! The in-band MAD transport, for ports without InfiniBand management such as those of RoCE.
//!
//! **An extension that only Pollux implements.** SA queries of control are answered here: a port
//! may join every group, and has a path to every other port, since a GID is enough on Ethernet.
//! There is no queue pair 1 for CM. CM MADs are sent between the UD queue pairs of interfaces, as
//! packets with their own EtherType
//! ([`EtherType::IN_BAND_MAD`](pollux_wire::ethernet::EtherType::IN_BAND_MAD)).
//!
//! Ethernet delivers the packets of a group only to network devices that have joined it. Each
//! attached group therefore has a kernel socket, which joins the group and receives nothing.

use super::MadDrops;
use pollux_control::ipoib::{DatagramAdjacency, PacketSource as Source, PortView};
use pollux_control::mad::{Envelope, GlobalAddress, Mad, MadAddress};
use pollux_verbs::AddressVector;
use pollux_wire::address::{Gid, Lid, Qpn};
use pollux_wire::keys::{PKey, QKey};
use pollux_wire::mad::cm::ipoib::Dialect;
use pollux_wire::mad::cm::{CmMessage, CommId};
use pollux_wire::mad::sa::{InformInfo, McMemberRecord, PathRecord, SaMad};
use pollux_wire::mad::{Attribute, MAD_LEN, MadHeader, MadStatus, MgmtClass};
use pollux_wire::units::{Mtu, TimeCode};
use std::collections::{BTreeMap, VecDeque};
use std::fs;
use std::net::{Ipv6Addr, UdpSocket};

/// The LID of all ports. Ethernet has none.
const LID: Lid = Lid(1);
const MLID: Lid = Lid(0xc000);
/// The hop limit of packets to ports.
const HOP_LIMIT: u8 = 64;
/// The hop limit of packets to groups, which have link scope.
const GROUP_HOP_LIMIT: u8 = 1;
/// The packet lifetime: 17 is half a second.
const LIFE_TIME: TimeCode = TimeCode(17);
/// Maximum number of connections with a known remote interface: more than there can be.
const KNOWN_MAX: usize = 4096;
/// Maximum number of queued SA responses. Control has fewer queries at once.
const ANSWERS_MAX: usize = 256;

/// The remote port of a connection, and its local communication ID.
type Conversation = (Gid, CommId);

#[derive(Debug)]
pub struct InBand {
    port: u8,
    answers: VecDeque<Envelope>,
    /// The UD queue pairs of remote interfaces, for messages after the REQ, and their keys by age.
    known: BTreeMap<Conversation, Qpn>,
    known_by_age: VecDeque<Conversation>,
    network_device: Option<u32>,
    listeners: BTreeMap<Gid, UdpSocket>,
    pub(super) drops: MadDrops,
}

impl InBand {
    pub fn new(device: &str, port: u8) -> Self {
        Self {
            port,
            answers: VecDeque::new(),
            known: BTreeMap::new(),
            known_by_age: VecDeque::new(),
            network_device: network_device(device, port),
            listeners: BTreeMap::new(),
            drops: MadDrops::default(),
        }
    }

    /// Sets the attributes that a port without InfiniBand management does not have.
    pub fn view(port: PortView) -> PortView {
        PortView { lid: LID, lmc: 0, sm_lid: LID, sm_sl: 0, ..port }
    }

    /// Handles a MAD of control: answers an SA query, with this MTU of the port, or returns the
    /// adjacency for a CM message.
    pub fn send(&mut self, envelope: &Envelope, mtu: Mtu) -> Option<DatagramAdjacency> {
        let adjacency = match MadHeader::read(&envelope.mad).map(|(header, _)| header.mgmt_class) {
            Ok(MgmtClass::SUBN_ADM) if self.answers.len() < ANSWERS_MAX => {
                let mad = answer(&envelope.mad, mtu);
                self.answers.extend(mad.map(|mad| Envelope { mad, ..*envelope }));
                return None;
            }
            Ok(MgmtClass::COMM_MGT) => self.adjacency(envelope),
            _ => None,
        };
        self.drops.unsent += u64::from(adjacency.is_none());
        adjacency
    }

    pub fn take_answers(&mut self) -> impl Iterator<Item = Envelope> + '_ {
        self.answers.drain(..)
    }

    /// The MAD in a packet from the UD queue pair, if it is one.
    pub fn receive(&mut self, from: &Source, packet: &[u8], local_gid: Gid) -> Option<Envelope> {
        let envelope = Self::read(from, packet, local_gid);
        self.drops.malformed += u64::from(envelope.is_none());
        envelope
    }

    fn read(from: &Source, packet: &[u8], local_gid: Gid) -> Option<Envelope> {
        let Source::Datagram { qpn, gid: Some(remote_gid), group: None, .. } = *from else {
            return None;
        };
        let mad: Mad = *packet.first_chunk::<MAD_LEN>()?;
        let (header, _) = MadHeader::read(&mad).ok()?;
        let global = GlobalAddress {
            remote_gid,
            local_gid,
            hop_limit: HOP_LIMIT,
            ..GlobalAddress::default()
        };
        let gsi = MadAddress::gsi(LID, 0, PKey::DEFAULT);
        let peer = MadAddress { qpn, global: Some(global), ..gsi };
        (header.mgmt_class == MgmtClass::COMM_MGT).then_some(Envelope { peer, mad })
    }

    /// Joins a group at the network device. Returns whether that succeeded.
    pub fn subscribe(&mut self, mgid: Gid) -> bool {
        let Some(device) = self.network_device else { return false };
        let socket = UdpSocket::bind((Ipv6Addr::UNSPECIFIED, 0));
        let joined = socket.and_then(|socket| {
            socket.join_multicast_v6(&Ipv6Addr::from(mgid.0), device)?;
            Ok(socket)
        });
        match joined {
            Ok(socket) => _ = self.listeners.insert(mgid, socket),
            Err(_) => return false,
        }
        true
    }

    /// Leaves a group at the network device.
    pub fn unsubscribe(&mut self, mgid: Gid) {
        self.listeners.remove(&mgid);
    }

    /// The adjacency for a CM message: a REQ is sent to the interface in its service ID, later
    /// messages to the same interface, and responses to the sender of the REQ.
    fn adjacency(&mut self, envelope: &Envelope) -> Option<DatagramAdjacency> {
        let global = envelope.peer.global?;
        let (header, body) = MadHeader::read(&envelope.mad).ok()?;
        let message = CmMessage::parse(header.attribute_id, body.first_chunk()?).ok()?;
        let local_comm_id = CommId(u32::from_be_bytes(*body.first_chunk()?));
        let conversation = (global.remote_gid, local_comm_id);
        let qpn = match message {
            _ if envelope.peer.qpn != Qpn::GSI => envelope.peer.qpn,
            CmMessage::Req(req) => {
                let (_, qpn) = Dialect::of(req.service_id)?;
                self.remember(conversation, qpn);
                qpn
            }
            _ => *self.known.get(&conversation)?,
        };
        let vector = AddressVector {
            dlid: LID,
            sl: 0,
            src_path_bits: 0,
            static_rate: 0,
            port: self.port,
            grh: Some(global.route(0)),
        };
        Some(DatagramAdjacency { vector, qpn, mtu: MAD_LEN as u32 })
    }

    fn remember(&mut self, conversation: Conversation, qpn: Qpn) {
        if self.known.insert(conversation, qpn).is_some() {
            return;
        }
        self.known_by_age.push_back(conversation);
        if self.known_by_age.len() > KNOWN_MAX
            && let Some(oldest) = self.known_by_age.pop_front()
        {
            self.known.remove(&oldest);
        }
    }
}

/// The SA response to a query; `None` if the MAD is no query.
fn answer(question: &Mad, mtu: Mtu) -> Option<Mad> {
    let mut mad = SaMad::parse(question);
    if mad.header.method.is_response() {
        return None;
    }
    match mad.header.attribute_id {
        PathRecord::ID => mad.data = path(mad.record().ok()?.1, mtu).to_data(),
        McMemberRecord::ID => mad.data = group(mad.record().ok()?.1, mtu).to_data(),
        // Groups are never created or deleted, so there are no reports.
        InformInfo::ID => {}
        _ => mad.header.status = MadStatus::BAD_METHOD_ATTRIBUTE,
    }
    mad.header.method = mad.header.method.response();
    Some(mad.emit())
}

/// The path to any port.
fn path(asked: PathRecord, mtu: Mtu) -> PathRecord {
    PathRecord {
        dlid: LID,
        slid: LID,
        hop_limit: HOP_LIMIT,
        reversible: true,
        mtu,
        packet_life_time: LIFE_TIME,
        ..asked
    }
}

/// The record of any group.
fn group(asked: McMemberRecord, mtu: Mtu) -> McMemberRecord {
    McMemberRecord {
        q_key: QKey::IPOIB_OPENSM,
        mlid: MLID,
        mtu,
        p_key: PKey::DEFAULT,
        packet_life_time: LIFE_TIME,
        hop_limit: GROUP_HOP_LIMIT,
        ..asked
    }
}

/// The index of the network device of a RoCE port.
fn network_device(device: &str, port: u8) -> Option<u32> {
    let gids = format!("/sys/class/infiniband/{device}/ports/{port}/gid_attrs/ndevs/0");
    let name = fs::read_to_string(gids).ok()?;
    let index = fs::read_to_string(format!("/sys/class/net/{}/ifindex", name.trim())).ok()?;
    index.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use pollux_control::sa::{
        Membership, RequestId, SaClient, SaConfig, SaEvent, SaQuery, SaReply,
    };
    use pollux_verbs::rng::SeededRng;
    use pollux_verbs::time::Time;
    use pollux_wire::mad::cm::{Rej, Req, Rtu};
    use pollux_wire::mad::notice::TrapNumber;
    use pollux_wire::mad::sa::JoinState;

    const PEER: Gid = Gid([7; 16]);
    const OWN: Gid = Gid([1; 16]);

    const MTU: Mtu = Mtu::BYTES_4096;

    fn in_band() -> InBand {
        InBand::new("no_such_device", 1)
    }

    /// The reply that the SA client of control makes of the response.
    fn ask(question: SaQuery) -> SaReply {
        let (mut in_band, now) = (in_band(), Time::START);
        let mut client = SaClient::new(SaConfig::default(), SeededRng::new(1));
        client.handle_sm_change(now, Some(MadAddress::gsi(LID, 0, PKey::DEFAULT)));
        client.ask(now, RequestId(1), question).expect("there is space");
        let asked = client.poll_transmit().expect("it asks");
        assert_eq!(in_band.send(&asked, MTU), None, "it is answered here");
        in_band.take_answers().for_each(|answer| client.handle_mad(now, &answer));
        match client.poll_event() {
            Some(SaEvent::Answered { result: Ok(answer), .. }) => answer,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn every_port_and_every_group_is_known() {
        let SaReply::Path(path) = ask(SaQuery::path(OWN, PEER, PKey::DEFAULT, 0)) else { panic!() };
        assert_eq!((path.dgid, path.mtu, path.hop_limit), (PEER, MTU, HOP_LIMIT));
        let mgid = Gid([0xff; 16]);
        let join_state = JoinState::FULL_MEMBER;
        let member = Membership { mgid, port_gid: OWN, p_key: PKey::DEFAULT, join_state };
        for question in [SaQuery::join(member), SaQuery::leave(member)] {
            let SaReply::Group(group) = ask(question) else { panic!() };
            assert_eq!((group.mgid, group.mtu, group.join_state), (mgid, MTU, join_state));
        }
        let all = SaQuery::subscription(TrapNumber::MULTICAST_GROUP_CREATED, true);
        assert!(matches!(ask(all), SaReply::Subscription(_)));
    }

    fn envelope(message: CmMessage, qpn: Qpn) -> Envelope {
        let global = GlobalAddress { remote_gid: PEER, ..GlobalAddress::default() };
        let gsi = MadAddress::gsi(LID, 0, PKey::DEFAULT);
        let peer = MadAddress { qpn, global: Some(global), ..gsi };
        Envelope { peer, mad: message.emit_mad(5) }
    }

    #[test]
    fn messages_after_a_req_are_sent_to_its_interface() {
        let mut in_band = in_band();
        let mut qpn_of = |message, qpn| {
            in_band.send(&envelope(message, qpn), MTU).map(|adjacency| adjacency.qpn)
        };
        let local_comm_id = CommId(3);
        let rtu = CmMessage::Rtu(Rtu { local_comm_id, ..Rtu::default() });
        assert_eq!(qpn_of(rtu, Qpn::GSI), None, "no REQ was sent yet");
        let service_id = Dialect::Rfc.service_id(Qpn(0x123));
        let req = CmMessage::Req(Req { local_comm_id, service_id, ..Req::default() });
        assert_eq!(qpn_of(req, Qpn::GSI), Some(Qpn(0x123)));
        assert_eq!(qpn_of(rtu, Qpn::GSI), Some(Qpn(0x123)));
        assert_eq!(qpn_of(CmMessage::Rej(Rej::default()), Qpn(0x77)), Some(Qpn(0x77)), "an answer");
        assert_eq!(in_band.drops.unsent, 1);
    }

    #[test]
    fn a_packet_that_is_no_cm_message_is_counted() {
        let mut in_band = in_band();
        let from = Source::Datagram { qpn: Qpn(0x77), lid: LID, gid: Some(PEER), group: None };
        let mad = CmMessage::Rtu(Rtu::default()).emit_mad(7);
        let received = in_band.receive(&from, &mad, OWN).expect("it is one");
        assert_eq!((received.peer.qpn, received.mad, in_band.drops.malformed), (Qpn(0x77), mad, 0));
        let mut other_class = mad;
        other_class[1] = MgmtClass::SUBN_ADM.0;
        for packet in [&mad[..MAD_LEN - 1], &[], &other_class] {
            assert_eq!(in_band.receive(&from, packet, OWN), None);
        }
        let to_group =
            Source::Datagram { qpn: Qpn(0x77), lid: LID, gid: Some(PEER), group: Some(OWN) };
        assert_eq!(in_band.receive(&to_group, &mad, OWN), None);
        assert_eq!(in_band.drops.malformed, 4);
    }

    #[test]
    fn only_so_many_conversations_are_remembered() {
        let mut in_band = in_band();
        for nth in 0..2 * KNOWN_MAX as u32 {
            in_band.remember((PEER, CommId(nth)), Qpn(nth));
        }
        assert_eq!((in_band.known.len(), in_band.known_by_age.len()), (KNOWN_MAX, KNOWN_MAX));
        assert!(!in_band.known.contains_key(&(PEER, CommId(0))));
    }
}
