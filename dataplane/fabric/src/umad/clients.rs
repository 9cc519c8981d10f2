//! Programs at the ports of a subnet: who is where, and whose datagram is whose.
//!
//! ```text
//! control    Connect: a slot; questions about its node: answers from the node
//! data       request:  TID is marked with the slot; answered in the subnet, or by another program
//!            response: goes back through the subnet, and by its TID to the slot that asked
//! unanswered at once, or after RESPONSE_TIME: the request comes back with TIMED_OUT
//! ```
//!
//! A program gets requests only of classes that it takes: the library that it has preloaded falls
//! over what it has not registered for. Subnet managers take subnet management and administration;
//! others say so with the name of their node, as in `host3/7,50`. The protocol has room for no
//! more.

use super::protocol::{Connect, Control, ControlKind, DATA_LEN, DataMessage};
use crate::link::world::Wire;
use crate::net::{Delivery, Net};
use crate::node::{Node, NodePort};
use crate::sm::{self, Residents};
use crate::subnet::{Datagram, Subnet};
use crate::time::Time;
use crate::topology::End;
use pollux_wire::address::Lid;
use pollux_wire::mad::rmpp::{RmppHeader, RmppStatus, RmppType, SEGMENT_LEN};
use pollux_wire::mad::sa::SaMad;
use pollux_wire::mad::smp::{CapabilityMask, DirectedSmp, NodeInfo, NodeType};
use pollux_wire::mad::{MAD_LEN, MadHeader, Method, MgmtClass};
use pollux_wire::units::TimeCode;
use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

/// Programs at a time.
pub const CLIENTS_MAX: usize = 32;
/// Requests that wait for another program.
const PENDING_MAX: usize = 4096;
/// Messages that wait to be taken. What a subnet of this size sends back at once has room.
const OUTGOING_MAX: usize = 4096;
/// How long another program has to answer.
const RESPONSE_TIME: Duration = Duration::from_secs(1);

/// The programs, and the subnet that they are at.
pub struct Clients {
    net: Net,
    managers: Residents,
    by_name: BTreeMap<String, u32>,
    slots: [Option<Client>; CLIENTS_MAX],
    /// Requests without an answer so far, by TID as marked.
    pending: BTreeMap<u64, Pending>,
    outgoing: VecDeque<(usize, DataMessage)>,
    unclaimed: u64,
    lost: u64,
}

struct Client {
    at: End,
    process: u32,
    is_sm: bool,
    classes: Vec<u8>,
}

struct Pending {
    slot: usize,
    deadline: Time,
    /// Whether another program has it, or it is on its way as a packet; if not, nobody will answer.
    is_handed_over: bool,
    request: DataMessage,
}

impl Clients {
    /// Nobody yet, at a subnet that carries nothing but management.
    pub fn new(subnet: Subnet) -> Self {
        Self::at(Net::new(subnet, 0, Wire::default()))
    }

    /// Nobody yet.
    pub fn at(net: Net) -> Self {
        let names = net.subnet().topology().nodes().iter().map(|node| node.name.clone());
        Self {
            by_name: names.zip(0..).collect(),
            net,
            managers: Residents::default(),
            slots: [const { None }; CLIENTS_MAX],
            pending: BTreeMap::new(),
            outgoing: VecDeque::new(),
            unclaimed: 0,
            lost: 0,
        }
    }

    /// The net.
    pub fn net(&self) -> &Net {
        &self.net
    }

    /// The net, to be changed.
    pub fn net_mut(&mut self) -> &mut Net {
        &mut self.net
    }

    /// The subnet.
    pub fn subnet(&self) -> &Subnet {
        self.net.subnet()
    }

    /// The subnet, to be changed.
    pub fn subnet_mut(&mut self) -> &mut Subnet {
        self.net.subnet_mut()
    }

    /// A subnet manager of our own starts at a port.
    pub fn start_manager(&mut self, at: End, config: sm::Config) {
        self.managers.start(self.net.subnet_mut(), at, config);
    }

    /// It stops, without a word to anybody.
    pub fn stop_manager(&mut self, at: End) {
        self.managers.stop(self.net.subnet_mut(), at);
    }

    /// Our own subnet managers.
    pub fn managers(&self) -> &Residents {
        &self.managers
    }

    /// The process in a slot, by which its sockets are called.
    pub fn process(&self, slot: usize) -> Option<u32> {
        Some(self.slots.get(slot)?.as_ref()?.process)
    }

    /// Requests that no program took, and messages that there was no room for.
    pub fn dropped(&self) -> (u64, u64) {
        (self.unclaimed, self.lost)
    }

    /// Answers a control message. Any bytes have an answer.
    pub fn control(&mut self, bytes: &[u8]) -> Control {
        let Some(request) = Control::parse(bytes) else { return Control::refusal(0) };
        let answer = match request.kind {
            ControlKind::Connect => self.connect(&request),
            _ => self.ask(&request),
        };
        answer.unwrap_or_else(|| Control::refusal(request.client))
    }

    fn connect(&mut self, request: &Control) -> Option<Control> {
        let connect = Connect::parse(&request.data);
        let (place, classes) =
            connect.node_name().split_once('/').unwrap_or((connect.node_name(), ""));
        let at = self.place(place)?;
        let classes = classes.split(',').filter(|class| !class.is_empty()).map(str::parse);
        let classes = classes.collect::<Result<_, _>>().ok()?;
        let slot = self.slots.iter().position(Option::is_none)?;
        let (process, is_sm) = (connect.process, false);
        self.slots[slot] = Some(Client { at, process, is_sm, classes });
        self.set_is_sm(slot, connect.is_sm);
        // The node's name comes back as it was sent: a program says when it differs.
        let answer = Connect { process: slot as u32, ..connect };
        Some(Control { client: slot as u32, ..request.answer(&answer.emit()) })
    }

    /// The port that a program wants: `NODE` or `NODE:PORT`, where a node can be called by its
    /// GUID too, as in `0x0002c90300001000`; without a name the first adapter's.
    fn place(&self, name: &str) -> Option<End> {
        let nodes = self.subnet().topology().nodes();
        let (name, port) = match name.split_once(':') {
            Some((name, port)) => (name, Some(port.parse::<u8>().ok()?)),
            None => (name, None),
        };
        let node = if name.is_empty() {
            nodes.iter().position(|node| node.kind == NodeType::CHANNEL_ADAPTER)? as u32
        } else {
            self.by_name.get(name).copied().or_else(|| {
                let guid = u64::from_str_radix(name.strip_prefix("0x")?, 16).ok()?;
                Some(nodes.iter().position(|node| node.guid.0 == guid)? as u32)
            })?
        };
        let is_switch = nodes[node as usize].kind == NodeType::SWITCH;
        let port = port.unwrap_or(u8::from(!is_switch));
        let is_there = if is_switch { port == 0 } else { port > 0 };
        let has_it = usize::from(port) < nodes[node as usize].ports.len();
        (is_there && has_it).then_some(End { node, port })
    }

    /// A message of a program that is here.
    fn ask(&mut self, request: &Control) -> Option<Control> {
        let slot = request.client as usize;
        let at = self.slots.get(slot)?.as_ref()?.at;
        let node = &self.subnet().nodes()[at.node as usize];
        let port = &node.ports[usize::from(at.port)];
        let answer = match request.kind {
            ControlKind::Disconnect => {
                self.disconnect(slot);
                request.answer(&[])
            }
            ControlKind::Port => {
                let [high, low] = port.info.lid.0.to_ne_bytes();
                request.answer(&[high, low, port.info.port_state.0])
            }
            ControlKind::Vendor => request.answer(&vendor(&node.identity)),
            ControlKind::Gid => request.answer(&node.gid(at.port).0),
            ControlKind::Guid => request.answer(&port.guids[0].0.to_be_bytes()),
            ControlKind::NodeInfo => request.answer(&node_info(node, port, at.port).emit()),
            ControlKind::PortInfo => request.answer(&port_info(node, at.port, request.data[0])?),
            ControlKind::PKeys => {
                let bytes = port.p_keys.entries().map(|key| key.0.to_be_bytes());
                request.answer(bytes.as_flattened())
            }
            ControlKind::SetIsSm => {
                let [a, b, c, d, ..] = request.data;
                self.set_is_sm(slot, u32::from_ne_bytes([a, b, c, d]) != 0);
                request.answer(&[])
            }
            ControlKind::Connect | ControlKind::Refused => return None,
        };
        Some(answer)
    }

    /// A program is gone, with or without having said so.
    pub fn disconnect(&mut self, slot: usize) {
        self.set_is_sm(slot, false);
        if let Some(client) = self.slots.get_mut(slot) {
            *client = None;
        }
        self.pending.retain(|_, pending| pending.slot != slot);
        self.outgoing.retain(|(to, _)| *to != slot);
    }

    /// A port has a subnet manager if one of the programs at it is one.
    fn set_is_sm(&mut self, slot: usize, is_sm: bool) {
        let Some(Some(client)) = self.slots.get_mut(slot) else { return };
        client.is_sm = is_sm;
        let at = client.at;
        let has_sm = self.managers.at(at).is_some()
            || self.slots.iter().flatten().any(|client| client.at == at && client.is_sm);
        let node = self.subnet_mut().node_mut(at.node);
        let now = node.ports[usize::from(at.port)].info.capability_mask;
        let sm = CapabilityMask::SM;
        node.set_capability(at.port, if has_sm { now.with(sm) } else { now.without(sm) });
    }

    /// A program sends a datagram. What is none of our messages is dropped, and counted.
    pub fn data(&mut self, now: Time, slot: usize, bytes: &[u8]) {
        let client = self.slots.get(slot).and_then(Option::as_ref);
        let (Some(client), Some(mut message)) = (client, DataMessage::parse(bytes)) else {
            self.unclaimed += 1;
            return;
        };
        let at = client.at;
        let asked = mark(&mut message.mad, slot).filter(|_| self.pending.len() < PENDING_MAX);
        if let Some(transaction_id) = asked {
            let (deadline, request) = (now + RESPONSE_TIME, message);
            let pending = Pending { slot, deadline, is_handed_over: false, request };
            self.pending.insert(transaction_id, pending);
        }
        let slid = match message.dlid {
            Lid::PERMISSIVE => Lid::PERMISSIVE,
            _ => self.subnet().nodes()[at.node as usize].lid(at.port),
        };
        let DataMessage { dlid, src_qp, dest_qp, mad, .. } = message;
        let departures = self.subnet().departures();
        let p_key = self.subnet().nodes()[at.node as usize].first_p_key(at.port);
        self.net.send_datagram(now, at, Datagram { slid, dlid, src_qp, dest_qp, p_key, mad });
        if self.subnet().departures() != departures
            && let Some(asked) = asked.and_then(|id| self.pending.get_mut(&id))
        {
            asked.is_handed_over = true;
        }
        self.hand_out(now, message.len);
        let unanswered = asked.and_then(|id| self.pending.get(&id).map(|pending| (id, pending)));
        if let Some((transaction_id, _)) = unanswered.filter(|(_, one)| !one.is_handed_over) {
            self.give_back(transaction_id);
        }
    }

    /// What the clock brings: traps, and requests whose time is over.
    pub fn timeout(&mut self, now: Time) {
        self.managers.timeout(now);
        if self.subnet().traps_due().is_some_and(|due| due <= now) {
            self.subnet_mut().send_traps(now);
        }
        self.net.advance(now);
        self.hand_out(now, MAD_LEN as u64);
        let over = self.pending.iter().filter(|(_, pending)| pending.deadline <= now);
        let over: Vec<_> = over.map(|(&transaction_id, _)| transaction_id).collect();
        over.into_iter().for_each(|transaction_id| self.give_back(transaction_id));
    }

    /// When [`Clients::timeout`] has something to do.
    pub fn due(&self) -> Option<Time> {
        let pending = self.pending.values().map(|pending| pending.deadline);
        let others = self.subnet().traps_due().into_iter().chain(self.net.deadline());
        pending.chain(others).chain(self.managers.due()).min()
    }

    /// A message for the program in a slot.
    pub fn poll_transmit(&mut self) -> Option<(usize, [u8; DATA_LEN])> {
        self.outgoing.pop_front().map(|(slot, message)| (slot, message.emit()))
    }

    /// Gives programs and managers what has arrived at their ports, until none of the managers has
    /// more to say. `len` is what the sender said of its length.
    fn hand_out(&mut self, now: Time, len: u64) {
        loop {
            while let Some(delivery) = self.net.poll_delivery() {
                self.hand_over(now, delivery, len);
            }
            let net = &mut self.net;
            if !self.managers.transmit(now, |at, datagram| net.send_datagram(now, at, datagram)) {
                break;
            }
        }
    }

    fn hand_over(&mut self, now: Time, delivery: Delivery, len: u64) {
        let (at, datagram) = (delivery.at, &delivery.datagram);
        let Ok((header, _)) = MadHeader::read(&datagram.mad) else { return };
        let (class, transaction_id) = (header.mgmt_class, header.transaction_id);
        let is_response = header.method.is_response();
        let asker = if is_response { self.asker(at, transaction_id) } else { None };
        let is_managers = asker.is_none() && self.managers.take(at, class);
        let slot = if is_response { asker } else { self.taker(at, class) };
        if !is_response
            && (is_managers || slot.is_some())
            && let Some(asked) = self.pending.get_mut(&transaction_id)
        {
            asked.is_handed_over = true;
        }
        if is_managers {
            return self.managers.handle(now, at, datagram);
        }
        let Some(slot) = slot else {
            if self.net.has_adapter(at) {
                self.net.give(delivery);
            } else {
                self.unclaimed += 1;
            }
            return;
        };
        let is_ours = self.managers.have_lid(self.subnet(), datagram.slid);
        let len = if is_ours { self.take_segment(now, at, datagram) } else { len };
        let Datagram { slid, dlid, src_qp, dest_qp, mad, .. } = delivery.datagram;
        self.transmit(slot, DataMessage { dlid, slid, src_qp, dest_qp, status: 0, len, mad });
    }

    /// The length of a datagram of our own manager. Programs leave segments to what is below them,
    /// so an answer in segments is acknowledged here; of one that has more than the first the rest
    /// is refused, since the protocol has no room for it.
    fn take_segment(&mut self, now: Time, at: End, datagram: &Datagram) -> u64 {
        let mad = SaMad::parse(&datagram.mad);
        let is_segment = mad.header.mgmt_class == MgmtClass::SUBN_ADM
            && mad.rmpp.active
            && mad.rmpp.rmpp_type == RmppType::DATA;
        if !is_segment {
            return MAD_LEN as u64;
        }
        let rmpp = if mad.rmpp.last {
            RmppHeader::ack(mad.rmpp.segment_number, mad.rmpp.segment_number, TimeCode(0))
        } else {
            RmppHeader::end(RmppType::STOP, RmppStatus::RESOURCES_EXHAUSTED)
        };
        let method = Method(mad.header.method.0 ^ 0x80);
        let reply = SaMad { header: MadHeader { method, ..mad.header }, rmpp, ..mad };
        let Datagram { slid, dlid, src_qp, dest_qp, p_key, .. } = *datagram;
        let reply = Datagram {
            slid: dlid,
            dlid: slid,
            src_qp: dest_qp,
            dest_qp: src_qp,
            p_key,
            mad: reply.emit(),
        };
        self.net.send_datagram(now, at, reply);
        let payload = u64::from(mad.rmpp.payload_length_or_window).min(SEGMENT_LEN as u64);
        (MAD_LEN - SEGMENT_LEN) as u64 + payload
    }

    /// The program at a port that asked this, which now has its answer.
    fn asker(&mut self, at: End, transaction_id: u64) -> Option<usize> {
        let slot = self.pending.get(&transaction_id)?.slot;
        let is_here = self.slots[slot].as_ref().is_some_and(|client| client.at == at);
        is_here.then(|| self.pending.remove(&transaction_id))?.map(|pending| pending.slot)
    }

    /// The program at a port that takes requests of a class.
    fn taker(&self, at: End, class: MgmtClass) -> Option<usize> {
        let is_managers = class.is_smi() || class == MgmtClass::SUBN_ADM;
        self.slots.iter().position(|slot| {
            slot.as_ref().is_some_and(|client| {
                client.at == at
                    && (client.classes.contains(&class.0) || client.is_sm && is_managers)
            })
        })
    }

    /// Nobody answers: the program hears that.
    fn give_back(&mut self, transaction_id: u64) {
        let Some(pending) = self.pending.remove(&transaction_id) else { return };
        let message = DataMessage { status: DataMessage::TIMED_OUT, ..pending.request };
        self.transmit(pending.slot, message);
    }

    fn transmit(&mut self, slot: usize, message: DataMessage) {
        if self.outgoing.len() == OUTGOING_MAX {
            self.lost += 1;
            return;
        }
        self.outgoing.push_back((slot, message));
    }
}

/// Marks a request's TID with who asks, in the upper 16 bits, which are free, and gives the TID if
/// an answer is due. What the library wrote into the TID of a datagram that answers ours is taken
/// out again, and a directed answer starts its way back where the request ended.
fn mark(mad: &mut [u8; 256], slot: usize) -> Option<u64> {
    let method = Method(mad[3]);
    if method == Method::TRAP_REPRESS {
        mad[8..12].fill(0);
        return None;
    }
    if method.is_response() {
        if MgmtClass(mad[1]) == MgmtClass::SUBN_DIRECTED_ROUTE {
            let hop_count = DirectedSmp::parse(mad).hop_count();
            mad[6] = hop_count.saturating_add(1);
        }
        return None;
    }
    mad[8..10].copy_from_slice(&(slot as u16 + 1).to_be_bytes());
    let is_answered = method != Method::SEND;
    let mut id = [0; 8];
    id.copy_from_slice(&mad[8..16]);
    is_answered.then_some(u64::from_be_bytes(id))
}

/// Vendor, part and hardware revision, and the firmware's behind a gap.
fn vendor(identity: &NodeInfo) -> [u8; 24] {
    let mut bytes = [0; 24];
    let words = [identity.vendor_id, identity.device_id.into(), identity.revision];
    for (at, word) in bytes.chunks_exact_mut(4).zip(words) {
        at.copy_from_slice(&word.to_ne_bytes());
    }
    bytes
}

fn node_info(node: &Node, port: &NodePort, number: u8) -> NodeInfo {
    NodeInfo { port_guid: port.guids[0], local_port_num: number, ..node.identity }
}

/// A port's attributes, with the program's own port as the one that the question came by.
fn port_info(node: &Node, own: u8, number: u8) -> Option<[u8; 64]> {
    let number = if number == 0 { own } else { number };
    let mut info = node.ports.get(usize::from(number))?.info;
    info.local_port_num = own;
    Some(info.emit())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::topology::Topology;
    use pollux_wire::address::Qpn;
    use pollux_wire::mad::smp::{PortInfo, PortState, SmInfo};
    use pollux_wire::mad::{Attribute, AttributeId};
    use proptest::prelude::*;

    fn clients() -> Clients {
        Clients::new(Subnet::new(Topology::generate("single:3", 1).unwrap()))
    }

    fn control(clients: &mut Clients, client: u32, kind: ControlKind, data: &[u8]) -> Control {
        let request = Control { kind, client, ..Control::refusal(0) };
        clients.control(&request.answer(data).emit())
    }

    fn connect(clients: &mut Clients, name: &str, is_sm: bool) -> Option<usize> {
        let mut node = [0; 32];
        node[..name.len()].copy_from_slice(name.as_bytes());
        let connect = Connect { process: 4711, is_sm, node };
        let answer = control(clients, 0, ControlKind::Connect, &connect.emit());
        let id = Connect::parse(&answer.data).process as usize;
        (answer.kind == ControlKind::Connect).then_some(id)
    }

    /// A request to the neighbor at `path`.
    fn directed(method: Method, id: AttributeId, path: &[u8]) -> DataMessage {
        let class = MgmtClass::SUBN_DIRECTED_ROUTE;
        let header = MadHeader::new(class, method, 0x0000_0007_0000_0001, id);
        let (dr_slid, dr_dlid) = (Lid::PERMISSIVE, Lid::PERMISSIVE);
        let mut smp = DirectedSmp { header, dr_slid, dr_dlid, ..DirectedSmp::default() };
        smp.set_hops(0, path.len() as u8);
        smp.initial_path[1..=path.len()].copy_from_slice(path);
        DataMessage {
            dlid: Lid::PERMISSIVE,
            slid: Lid::PERMISSIVE,
            dest_qp: Qpn(0),
            src_qp: Qpn(0),
            status: 0,
            len: 256,
            mad: smp.emit(),
        }
    }

    fn sent(clients: &mut Clients) -> Option<(usize, DataMessage)> {
        let (slot, bytes) = clients.poll_transmit()?;
        Some((slot, DataMessage::parse(&bytes).unwrap()))
    }

    #[test]
    fn a_program_gets_a_node_and_learns_of_it() {
        let mut clients = clients();
        let slot = connect(&mut clients, "host2", false).unwrap();
        assert_eq!(clients.process(slot), Some(4711));
        let mut ask = |kind, data: &[u8]| control(&mut clients, slot as u32, kind, data);
        let info = NodeInfo::read(&ask(ControlKind::NodeInfo, &[]).data).unwrap().0;
        assert_eq!((info.local_port_num, info.port_guid.0), (1, info.node_guid.0 + 1));
        assert_eq!(ask(ControlKind::Guid, &[]).data[..8], info.port_guid.0.to_be_bytes());
        assert_eq!(ask(ControlKind::Gid, &[]).data[8..16], info.port_guid.0.to_be_bytes());
        let port = PortInfo::parse(&ask(ControlKind::PortInfo, &[0]).data);
        assert_eq!(port.port_state, PortState::INITIALIZE);
        assert_eq!(ask(ControlKind::PKeys, &[]).data[..4], [0xff, 0xff, 0, 0]);
        assert_eq!(ask(ControlKind::PortInfo, &[9]).kind, ControlKind::Refused);
        assert_eq!(ask(ControlKind::Disconnect, &[]).kind, ControlKind::Disconnect);
        assert_eq!(ask(ControlKind::NodeInfo, &[]).kind, ControlKind::Refused);
    }

    #[test]
    fn who_asks_for_a_node_that_is_not_there_is_refused() {
        let mut clients = clients();
        for name in ["nobody", "host1:2", "host1:x", "host1/x", "switch1:1"] {
            assert_eq!(connect(&mut clients, name, false), None, "{name}");
        }
        let guid = clients.subnet().nodes()[2].identity.node_guid.to_string();
        let names = ["", "host1:1", "switch1", "host3/7,50", &guid];
        for (slot, name) in names.into_iter().enumerate() {
            assert_eq!(connect(&mut clients, name, false), Some(slot), "{name}");
        }
        (5..CLIENTS_MAX).for_each(|slot| assert_eq!(connect(&mut clients, "", false), Some(slot)));
        assert_eq!(connect(&mut clients, "", false), None, "no slot is left");
    }

    #[test]
    fn a_request_is_answered_or_comes_back() {
        let mut clients = clients();
        let slot = connect(&mut clients, "host1", false).unwrap();
        let request = directed(Method::GET, NodeInfo::ID, &[1, 2]);
        clients.data(Time::START, slot, &request.emit());
        let (to, answer) = sent(&mut clients).unwrap();
        assert_eq!((to, answer.status, answer.len), (slot, 0, 256));
        assert_eq!((answer.mad[3], &answer.mad[10..16]), (0x81, &request.mad[10..16]));
        clients.data(Time::START, slot, &directed(Method::GET, NodeInfo::ID, &[1, 7]).emit());
        let (to, back) = sent(&mut clients).unwrap();
        assert_eq!((to, back.status, back.mad[3]), (slot, DataMessage::TIMED_OUT, 1));
        assert_eq!((sent(&mut clients), clients.due()), (None, None));
    }

    #[test]
    fn a_manager_answers_other_programs() {
        let mut clients = clients();
        let asker = connect(&mut clients, "host1", false).unwrap();
        let request = directed(Method::GET, SmInfo::ID, &[1, 2]).emit();
        clients.data(Time::START, asker, &request);
        let no_sm = sent(&mut clients).unwrap().1;
        assert_eq!((no_sm.mad[3], no_sm.mad[5]), (0x81, 0x0c), "there is no manager yet");
        let manager = connect(&mut clients, "host2", true).unwrap();
        clients.data(Time::START, asker, &request);
        let (to, mut asked) = sent(&mut clients).unwrap();
        assert_eq!((to, asked.mad[3]), (manager, 1));
        (asked.mad[3], asked.mad[4], asked.mad[6]) = (0x81, 0x80, 0);
        clients.data(Time::START, manager, &asked.emit());
        let (to, answer) = sent(&mut clients).unwrap();
        assert_eq!((to, answer.mad[3], answer.status), (asker, 0x81, 0));
        clients.data(Time::START, manager, &asked.emit());
        assert_eq!(sent(&mut clients), None, "answered once");
        clients.data(Time::START, asker, &request);
        assert_eq!(sent(&mut clients).unwrap().0, manager);
        let due = clients.due().unwrap();
        clients.timeout(due);
        let (to, back) = sent(&mut clients).unwrap();
        assert_eq!((to, back.status), (asker, DataMessage::TIMED_OUT));
    }

    #[test]
    fn programs_get_requests_of_their_classes_only() {
        let mut clients = clients();
        let manager = connect(&mut clients, "host1", true).unwrap();
        let own = connect(&mut clients, "host1/7,50", false).unwrap();
        clients.subnet_mut().node_mut(1).ports[1].info.lid = Lid(4);
        let mut to_class = |class: MgmtClass| {
            let header = MadHeader::new(class, Method::SEND, 1, AttributeId(0x10));
            let mut message = directed(Method::SEND, AttributeId(0), &[]);
            message.mad[..24].copy_from_slice(&header.emit());
            (message.dlid, message.len) = (Lid(4), 200);
            clients.data(Time::START, manager, &message.emit());
            sent(&mut clients).map(|(slot, message)| (slot, message.slid, message.len))
        };
        assert_eq!(to_class(MgmtClass::COMM_MGT), Some((own, Lid(4), 200)));
        assert_eq!(to_class(MgmtClass(50)), Some((own, Lid(4), 200)));
        assert_eq!(to_class(MgmtClass::SUBN_ADM), Some((manager, Lid(4), 200)));
        assert_eq!(to_class(MgmtClass(51)), None);
        assert_eq!(clients.dropped(), (1, 0));
    }

    proptest! {
        #[test]
        fn any_messages_are_survived(
            bytes in prop::collection::vec(any::<u8>(), 0..300),
            mads in prop::collection::vec(prop::collection::vec(any::<u8>(), DATA_LEN), 0..8),
        ) {
            let mut clients = clients();
            clients.control(&bytes);
            let slot = connect(&mut clients, "host1/7", true).unwrap();
            clients.data(Time::START, slot, &bytes);
            for mut mad in mads {
                mad[0..4].copy_from_slice(&[0xff, 0xff, 0, 0]);
                mad[24..32].copy_from_slice(&256u64.to_be_bytes());
                (mad[32], mad[33], mad[34], mad[35]) = (1, 0x81, 1, mad[35] & 0x87);
                clients.data(Time::START, slot, &mad);
            }
            clients.timeout(Time::START + RESPONSE_TIME);
            prop_assert!(clients.pending.is_empty());
        }
    }
}
