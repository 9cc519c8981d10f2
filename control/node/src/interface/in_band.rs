//! What stands in for management at ports that no subnet manager knows, as those of RoCE are.
//!
//! **An extension of ours, which only Pollux speaks.** Control sees a port in a subnet whose
//! administrator is here: it lets everyone into every group, and knows a path to every port, as on
//! Ethernet a GID is all that it takes. Connection managers have no queue pair 1 there; their
//! datagrams go from one interface's UD queue pair to another's, as packets of a type of their own
//! ([`EtherType::IN_BAND_MAD`](pollux_wire::ip::ipoib::EtherType::IN_BAND_MAD)).
//!
//! Ethernet brings a group to those whose network device asked for it, so each group that is
//! attached has a socket of the kernel's that joined it and receives nothing.

use pollux_control::interface::{DatagramAdjacency, PortView};
use pollux_control::mad::{Envelope, GlobalAddress, Mad, MadAddress};
use pollux_dataplane::ipoib::{Received, RxSource};
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

/// Everybody's LID. Ethernet has none, and asks for none.
const LID: Lid = Lid(1);
/// And that of all groups.
const MLID: Lid = Lid(0xc000);
/// How far packets to ports go.
const HOP_LIMIT: u8 = 64;
/// And to groups, which are those of the link.
const GROUP_HOP_LIMIT: u8 = 1;
/// How long a packet is under way at most: 17 is half a second.
const LIFE_TIME: TimeCode = TimeCode(17);
/// Connections whose other interface is remembered: more than there can be.
const KNOWN_MAX: usize = 4096;
/// Answers that wait to be taken; control asks fewer questions at once.
const ANSWERS_MAX: usize = 256;

/// One side's name for a connection, and the port that the other side is at.
type Conversation = (Gid, CommId);

/// The stand-in at a port.
#[derive(Debug)]
pub struct InBand {
    port: u8,
    answers: VecDeque<Envelope>,
    /// Interfaces that requests went to, for what follows them; and the oldest first.
    known: BTreeMap<Conversation, Qpn>,
    known_by_age: VecDeque<Conversation>,
    network_device: Option<u32>,
    listeners: BTreeMap<Gid, UdpSocket>,
    unsent: u64,
}

impl InBand {
    /// The stand-in at a port of this device.
    pub fn new(device: &str, port: u8) -> Self {
        Self {
            port,
            answers: VecDeque::new(),
            known: BTreeMap::new(),
            known_by_age: VecDeque::new(),
            network_device: network_device(device, port),
            listeners: BTreeMap::new(),
            unsent: 0,
        }
    }

    /// The port's number.
    pub const fn port(&self) -> u8 {
        self.port
    }

    /// Datagrams that had nowhere to go.
    pub const fn unsent(&self) -> u64 {
        self.unsent
    }

    /// The port as control is to see it.
    pub fn view(port: PortView) -> PortView {
        PortView { lid: LID, lmc: 0, sm_lid: LID, sm_sl: 0, ..port }
    }

    /// Takes a datagram of control's: answers it, as one who knows that the port carries so much,
    /// or says which way it is to go as a packet.
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
        self.unsent += u64::from(adjacency.is_none());
        adjacency
    }

    /// What control asked for and is told.
    pub fn take_answers(&mut self) -> impl Iterator<Item = Envelope> + '_ {
        self.answers.drain(..)
    }

    /// The datagram in a packet that came to the UD queue pair, if there is one.
    pub fn receive(&self, received: &Received, local_gid: Gid) -> Option<Envelope> {
        let RxSource::Datagram { qpn, gid: Some(remote_gid), group: None, .. } = received.from
        else {
            return None;
        };
        let mad: Mad = *received.packet.bytes().first_chunk::<MAD_LEN>()?;
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

    /// Makes Ethernet bring a group here; says whether it will.
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

    /// And no more.
    pub fn unsubscribe(&mut self, mgid: Gid) {
        self.listeners.remove(&mgid);
    }

    /// Where a datagram goes: to the interface that a request names, and what follows the request
    /// to the same; an answer to the interface that asked.
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

/// What the administrator says to a question; nothing to what is none.
fn answer(question: &Mad, mtu: Mtu) -> Option<Mad> {
    let mut mad = SaMad::parse(question);
    if mad.header.method.is_response() {
        return None;
    }
    match mad.header.attribute_id {
        PathRecord::ID => mad.data = path(mad.record().ok()?.1, mtu).to_data(),
        McMemberRecord::ID => mad.data = group(mad.record().ok()?.1, mtu).to_data(),
        // Groups neither come nor go, so there is nothing to be told of them.
        InformInfo::ID => {}
        _ => mad.header.status = MadStatus::BAD_METHOD_ATTRIBUTE,
    }
    mad.header.method = mad.header.method.response();
    Some(mad.emit())
}

/// The path to whatever port was asked for.
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

/// The group that somebody wants to be in.
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

/// The kernel's number of the network device that a port of RoCE is on.
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

    /// What the administrator's own client makes of the answer to a question.
    fn ask(question: SaQuery) -> SaReply {
        let (mut in_band, now) = (in_band(), Time::START);
        let mut client = SaClient::new(SaConfig::default(), SeededRng::new(1));
        client.handle_sm_change(now, Some(MadAddress::gsi(LID, 0, PKey::DEFAULT)));
        client.ask(now, RequestId(1), question).expect("there is room");
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
    fn what_follows_a_request_goes_where_the_request_went() {
        let mut in_band = in_band();
        let mut goes = |message, qpn| {
            in_band.send(&envelope(message, qpn), MTU).map(|adjacency| adjacency.qpn)
        };
        let local_comm_id = CommId(3);
        let rtu = CmMessage::Rtu(Rtu { local_comm_id, ..Rtu::default() });
        assert_eq!(goes(rtu, Qpn::GSI), None, "nobody was asked yet");
        let service_id = Dialect::Rfc.service_id(Qpn(0x123));
        let req = CmMessage::Req(Req { local_comm_id, service_id, ..Req::default() });
        assert_eq!(goes(req, Qpn::GSI), Some(Qpn(0x123)));
        assert_eq!(goes(rtu, Qpn::GSI), Some(Qpn(0x123)));
        assert_eq!(goes(CmMessage::Rej(Rej::default()), Qpn(0x77)), Some(Qpn(0x77)), "an answer");
        assert_eq!(in_band.unsent(), 1);
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
