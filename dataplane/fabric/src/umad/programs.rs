//! Programs at the ports of a subnet, and the routing of their datagrams.
//!
//! ```text
//! control    Connect: assigns a slot; queries about the program's node
//! data       request:  the slot is written into its transaction ID; a node of the subnet or
//!                      another program answers
//!            response: goes through the subnet, and by its transaction ID to the right slot
//! a request without a response at once, or within RESPONSE_TIME, or beyond PENDING_MAX, is
//! returned with TIMED_OUT
//! ```
//!
//! A program gets only requests of its classes, because its preloaded library fails on a class
//! without a registered agent. Subnet managers take subnet management and administration. Other
//! programs add their classes to the name of their node, as in `host3/7,50`.

use super::protocol::{ConnectArguments, Control, ControlKind, DATA_LEN, DataMessage};
use crate::Fabric;
use crate::net::{MadDelivery, start_return_path};
use crate::node::{NodePort, SubnetNode};
use crate::subnet::Datagram;
use crate::time::Time;
use crate::topology::{End, PlannedNode};
use pollux_wire::address::Lid;
use pollux_wire::mad::rmpp::{RmppHeader, RmppStatus, RmppType, SEGMENT_LEN};
use pollux_wire::mad::sa::SaMad;
use pollux_wire::mad::smp::{CapabilityMask, NodeInfo, NodeType};
use pollux_wire::mad::{MAD_LEN, MadHeader, Method, MgmtClass};
use pollux_wire::units::TimeCode;
use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

pub const CLIENTS_MAX: usize = 32;
/// Requests that may wait for their responses. Further ones are returned at once.
const PENDING_MAX: usize = 4096;
/// Messages to programs that may wait in [`Programs::poll_transmit`].
const OUTGOING_MAX: usize = 4096;
const RESPONSE_TIME: Duration = Duration::from_secs(1);

#[derive(Default)]
pub struct Programs {
    slots: [Option<Client>; CLIENTS_MAX],
    /// Requests without a response, by their transaction ID with the slot.
    pending: BTreeMap<u64, Pending>,
    outgoing: VecDeque<(usize, DataMessage)>,
    counts: ProgramCounts,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ProgramCounts {
    /// Messages from programs that were malformed, or from a program that is not connected.
    pub malformed: u64,
    /// Messages to programs that were lost because the queue was full.
    pub lost: u64,
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
    /// Whether another program or a manager has it, or it is a packet in flight. Otherwise, no
    /// response will come.
    is_handed_over: bool,
    request: DataMessage,
}

impl Fabric {
    /// Answers a control message of a program. Any bytes get an answer.
    pub fn answer_program(&mut self, bytes: &[u8]) -> Control {
        let Some(request) = Control::parse(bytes) else { return Control::refusal(0) };
        let answer = match request.kind {
            ControlKind::Connect => self.connect(&request),
            _ => self.ask(&request),
        };
        answer.unwrap_or_else(|| Control::refusal(request.client))
    }

    fn connect(&mut self, request: &Control) -> Option<Control> {
        let connect = ConnectArguments::parse(&request.data);
        let (name, classes) =
            connect.node_name().split_once('/').unwrap_or((connect.node_name(), ""));
        let at = port_named(self.net.subnet().topology().nodes(), name)?;
        let classes = classes.split(',').filter(|class| !class.is_empty()).map(str::parse);
        let classes = classes.collect::<Result<_, _>>().ok()?;
        let slot = self.programs.slots.iter().position(Option::is_none)?;
        let (process, is_sm) = (connect.process, false);
        self.programs.slots[slot] = Some(Client { at, process, is_sm, classes });
        self.set_is_sm(slot, connect.is_sm);
        // The node's name is returned unchanged, because a program reports a difference.
        let answer = ConnectArguments { process: slot as u32, ..connect };
        Some(Control { client: slot as u32, ..request.answer(&answer.emit()) })
    }

    fn ask(&mut self, request: &Control) -> Option<Control> {
        let slot = request.client as usize;
        let at = self.programs.slots.get(slot)?.as_ref()?.at;
        let node = &self.net.subnet().nodes()[at.node as usize];
        let port = &node.ports[usize::from(at.port)];
        let answer = match request.kind {
            ControlKind::Disconnect => {
                self.disconnect_program(slot);
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

    /// Removes a program, after a disconnect or its death.
    pub fn disconnect_program(&mut self, slot: usize) {
        self.set_is_sm(slot, false);
        let programs = &mut self.programs;
        if let Some(client) = programs.slots.get_mut(slot) {
            *client = None;
        }
        programs.pending.retain(|_, pending| pending.slot != slot);
        programs.outgoing.retain(|(to, _)| *to != slot);
    }

    /// Sets whether a program is a subnet manager. IsSM of its port is set if any program or
    /// manager at the port is one.
    fn set_is_sm(&mut self, slot: usize, is_sm: bool) {
        let Some(Some(client)) = self.programs.slots.get_mut(slot) else { return };
        client.is_sm = is_sm;
        let at = client.at;
        let mut programs = self.programs.slots.iter().flatten();
        let has_sm = self.managers.at(at).is_some()
            || programs.any(|client| client.at == at && client.is_sm);
        let now = self.net.subnet().port(at).info.capability_mask;
        let (node, sm) = (self.net.subnet_mut().node_mut(at.node), CapabilityMask::SM);
        node.set_capability(at.port, if has_sm { now.with(sm) } else { now.without(sm) });
    }

    /// Sends a datagram of a program. Malformed messages are dropped and counted.
    pub fn send_of_program(&mut self, now: Time, slot: usize, bytes: &[u8]) {
        let programs = &mut self.programs;
        let client = programs.slots.get(slot).and_then(Option::as_ref);
        let (Some(client), Some(mut message)) = (client, DataMessage::parse(bytes)) else {
            programs.counts.malformed += 1;
            return;
        };
        let at = client.at;
        let asked = mark(&mut message.mad, slot);
        if let Some(transaction_id) = asked {
            if programs.pending.len() >= PENDING_MAX {
                let status = DataMessage::TIMED_OUT;
                return programs.transmit(slot, DataMessage { status, ..message });
            }
            let (deadline, request) = (now + RESPONSE_TIME, message);
            let pending = Pending { slot, deadline, is_handed_over: false, request };
            programs.pending.insert(transaction_id, pending);
        }
        let subnet = self.net.subnet();
        let node = &subnet.nodes()[at.node as usize];
        let slid = match message.dlid {
            Lid::PERMISSIVE => Lid::PERMISSIVE,
            _ => node.lid(at.port),
        };
        let DataMessage { dlid, src_qp, dest_qp, mad, .. } = message;
        let (departures, p_key) = (subnet.departures(), node.first_p_key(at.port));
        self.net.send_datagram(now, at, Datagram { slid, dlid, src_qp, dest_qp, p_key, mad });
        if let Some(asked) = asked
            && self.net.subnet().departures() != departures
        {
            self.programs.set_handed_over(asked);
        }
        self.deliver(now, message.len);
        if let Some(asked) = asked
            && self.programs.pending.get(&asked).is_some_and(|pending| !pending.is_handed_over)
        {
            self.programs.give_back(asked);
        }
    }

    /// Delivers a datagram to a program. `len` is the length that the sender gave.
    pub(crate) fn send_to_program(
        &mut self,
        now: Time,
        slot: usize,
        delivery: MadDelivery,
        len: u64,
    ) {
        let MadDelivery { at, datagram, .. } = delivery;
        let is_ours = self.managers.have_lid(self.net.subnet(), datagram.slid);
        let len = if is_ours { self.take_segment(now, at, &datagram) } else { len };
        let Datagram { slid, dlid, src_qp, dest_qp, mad, .. } = datagram;
        let message = DataMessage { dlid, slid, src_qp, dest_qp, status: 0, len, mad };
        self.programs.transmit(slot, message);
    }

    /// Handles RMPP in a datagram from a manager of this process, as the kernel would for a
    /// program; returns the length of the datagram. The last segment is acknowledged. A response
    /// of several segments is stopped after the first, because the protocol of the library cannot
    /// carry it.
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
}

impl Programs {
    /// The ID of the process in a slot, which is part of the names of its sockets.
    pub fn process(&self, slot: usize) -> Option<u32> {
        Some(self.slots.get(slot)?.as_ref()?.process)
    }

    /// Returns timed-out requests to their programs.
    pub(crate) fn timeout(&mut self, now: Time) {
        let over = self.pending.iter().filter(|(_, pending)| pending.deadline <= now);
        let over: Vec<_> = over.map(|(&transaction_id, _)| transaction_id).collect();
        over.into_iter().for_each(|transaction_id| self.give_back(transaction_id));
    }

    pub(crate) fn due(&self) -> Option<Time> {
        self.pending.values().map(|pending| pending.deadline).min()
    }

    pub fn poll_transmit(&mut self) -> Option<(usize, [u8; DATA_LEN])> {
        self.outgoing.pop_front().map(|(slot, message)| (slot, message.emit()))
    }

    /// The program at a port that a datagram is for. A response is for the sender of its request; a
    /// request is for the program that takes its class.
    pub(crate) fn receiver(&mut self, at: End, header: &MadHeader) -> Option<usize> {
        if !header.method.is_response() {
            return self.taker(at, header.mgmt_class);
        }
        let slot = self.pending.get(&header.transaction_id)?.slot;
        self.slots[slot].as_ref().filter(|client| client.at == at)?;
        self.pending.remove(&header.transaction_id).map(|pending| pending.slot)
    }

    /// Records that a manager or another program has a request.
    pub(crate) fn set_handed_over(&mut self, transaction_id: u64) {
        if let Some(asked) = self.pending.get_mut(&transaction_id) {
            asked.is_handed_over = true;
        }
    }

    fn taker(&self, at: End, class: MgmtClass) -> Option<usize> {
        let is_managers = class.is_smi() || class == MgmtClass::SUBN_ADM;
        self.slots.iter().position(|slot| {
            slot.as_ref().is_some_and(|client| {
                client.at == at
                    && (client.classes.contains(&class.0) || client.is_sm && is_managers)
            })
        })
    }

    /// Returns a request without a response to its program.
    fn give_back(&mut self, transaction_id: u64) {
        let Some(pending) = self.pending.remove(&transaction_id) else { return };
        let message = DataMessage { status: DataMessage::TIMED_OUT, ..pending.request };
        self.transmit(pending.slot, message);
    }

    fn transmit(&mut self, slot: usize, message: DataMessage) {
        if self.outgoing.len() == OUTGOING_MAX {
            self.counts.lost += 1;
            return;
        }
        self.outgoing.push_back((slot, message));
    }
}

/// The port with a name of the form `NODE` or `NODE:PORT`. `NODE` is the name or the GUID
/// (`0x0002c90300001000`) of a node; without `NODE`, the first adapter is meant.
fn port_named(nodes: &[PlannedNode], name: &str) -> Option<End> {
    let (name, port) = match name.split_once(':') {
        Some((name, port)) => (name, Some(port.parse::<u8>().ok()?)),
        None => (name, None),
    };
    let node = if name.is_empty() {
        nodes.iter().position(|node| node.kind == NodeType::CHANNEL_ADAPTER)? as u32
    } else {
        let named = nodes.iter().rposition(|node| node.name == name);
        let found = named.or_else(|| {
            let guid = u64::from_str_radix(name.strip_prefix("0x")?, 16).ok()?;
            nodes.iter().position(|node| node.guid.0 == guid)
        });
        found? as u32
    };
    let is_switch = nodes[node as usize].kind == NodeType::SWITCH;
    let port = port.unwrap_or(u8::from(!is_switch));
    let is_there = if is_switch { port == 0 } else { port > 0 };
    let has_it = usize::from(port) < nodes[node as usize].ports.len();
    (is_there && has_it).then_some(End { node, port })
}

/// Writes the slot into the upper 16 bits of a request's transaction ID, which programs do not use;
/// returns the transaction ID if a response is due. A TrapRepress answers a trap of the subnet, so
/// the upper 32 bits, which the library has set, become zero again. A directed response starts its
/// return path where the request ended.
fn mark(mad: &mut [u8; 256], slot: usize) -> Option<u64> {
    let method = Method(mad[3]);
    if method == Method::TRAP_REPRESS {
        mad[8..12].fill(0);
        return None;
    }
    if method.is_response() {
        start_return_path(mad);
        return None;
    }
    mad[8..10].copy_from_slice(&(slot as u16 + 1).to_be_bytes());
    let is_answered = method != Method::SEND;
    let mut id = [0; 8];
    id.copy_from_slice(&mad[8..16]);
    is_answered.then_some(u64::from_be_bytes(id))
}

/// Vendor, device ID and hardware revision. The rest, with the firmware version, is zero.
fn vendor(identity: &NodeInfo) -> [u8; 24] {
    let mut bytes = [0; 24];
    let words = [identity.vendor_id, identity.device_id.into(), identity.revision];
    for (at, word) in bytes.chunks_exact_mut(4).zip(words) {
        at.copy_from_slice(&word.to_ne_bytes());
    }
    bytes
}

fn node_info(node: &SubnetNode, port: &NodePort, number: u8) -> NodeInfo {
    NodeInfo { port_guid: port.guids[0], local_port_num: number, ..node.identity }
}

/// The attributes of a port, with the program's own port as the local port.
fn port_info(node: &SubnetNode, own: u8, number: u8) -> Option<[u8; 64]> {
    let number = if number == 0 { own } else { number };
    let mut info = node.ports.get(usize::from(number))?.info;
    info.local_port_num = own;
    Some(info.emit())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::link::Wire;
    use crate::net::Net;
    use crate::node::NodeDrop;
    use crate::subnet::Subnet;
    use crate::topology::Topology;
    use pollux_wire::address::Qpn;
    use pollux_wire::mad::smp::DirectedSmp;
    use pollux_wire::mad::smp::{PortInfo, PortState, SmInfo};
    use pollux_wire::mad::{Attribute, AttributeId};
    use proptest::prelude::*;

    fn fabric() -> Fabric {
        let subnet = Subnet::new(Topology::generate("single:3", 1).unwrap());
        Fabric::new(Net::new(subnet, 0, Wire::default()))
    }

    fn control(fabric: &mut Fabric, client: u32, kind: ControlKind, data: &[u8]) -> Control {
        let request = Control { kind, client, ..Control::refusal(0) };
        fabric.answer_program(&request.answer(data).emit())
    }

    fn connect(fabric: &mut Fabric, name: &str, is_sm: bool) -> Option<usize> {
        let mut node = [0; 32];
        node[..name.len()].copy_from_slice(name.as_bytes());
        let connect = ConnectArguments { process: 4711, is_sm, node };
        let answer = control(fabric, 0, ControlKind::Connect, &connect.emit());
        let id = ConnectArguments::parse(&answer.data).process as usize;
        (answer.kind == ControlKind::Connect).then_some(id)
    }

    /// A request to the node at the end of `path`.
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

    fn sent(fabric: &mut Fabric) -> Option<(usize, DataMessage)> {
        let (slot, bytes) = fabric.programs.poll_transmit()?;
        Some((slot, DataMessage::parse(&bytes).unwrap()))
    }

    #[test]
    fn a_program_gets_a_node_and_learns_of_it() {
        let mut fabric = fabric();
        let slot = connect(&mut fabric, "host2", false).unwrap();
        assert_eq!(fabric.programs.process(slot), Some(4711));
        let mut ask = |kind, data: &[u8]| control(&mut fabric, slot as u32, kind, data);
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
    fn a_program_that_names_an_unknown_node_is_refused() {
        let mut fabric = fabric();
        for name in ["nobody", "host1:2", "host1:x", "host1/x", "switch1:1"] {
            assert_eq!(connect(&mut fabric, name, false), None, "{name}");
        }
        let guid = fabric.net.subnet().nodes()[2].identity.node_guid.to_string();
        let names = ["", "host1:1", "switch1", "host3/7,50", &guid];
        for (slot, name) in names.into_iter().enumerate() {
            assert_eq!(connect(&mut fabric, name, false), Some(slot), "{name}");
        }
        (5..CLIENTS_MAX).for_each(|slot| assert_eq!(connect(&mut fabric, "", false), Some(slot)));
        assert_eq!(connect(&mut fabric, "", false), None, "no slot is left");
    }

    #[test]
    fn a_request_is_answered_or_comes_back() {
        let mut fabric = fabric();
        let slot = connect(&mut fabric, "host1", false).unwrap();
        let request = directed(Method::GET, NodeInfo::ID, &[1, 2]);
        fabric.send_of_program(Time::START, slot, &request.emit());
        let (to, answer) = sent(&mut fabric).unwrap();
        assert_eq!((to, answer.status, answer.len), (slot, 0, 256));
        assert_eq!((answer.mad[3], &answer.mad[10..16]), (0x81, &request.mad[10..16]));
        fabric.send_of_program(
            Time::START,
            slot,
            &directed(Method::GET, NodeInfo::ID, &[1, 7]).emit(),
        );
        let (to, back) = sent(&mut fabric).unwrap();
        assert_eq!((to, back.status, back.mad[3]), (slot, DataMessage::TIMED_OUT, 1));
        assert_eq!((sent(&mut fabric), fabric.due()), (None, None));
    }

    #[test]
    fn a_manager_answers_other_programs() {
        let mut fabric = fabric();
        let asker = connect(&mut fabric, "host1", false).unwrap();
        let request = directed(Method::GET, SmInfo::ID, &[1, 2]).emit();
        fabric.send_of_program(Time::START, asker, &request);
        let no_sm = sent(&mut fabric).unwrap().1;
        assert_eq!((no_sm.mad[3], no_sm.mad[5]), (0x81, 0x0c), "there is no manager yet");
        let manager = connect(&mut fabric, "host2", true).unwrap();
        fabric.send_of_program(Time::START, asker, &request);
        let (to, mut asked) = sent(&mut fabric).unwrap();
        assert_eq!((to, asked.mad[3]), (manager, 1));
        (asked.mad[3], asked.mad[4], asked.mad[6]) = (0x81, 0x80, 0);
        fabric.send_of_program(Time::START, manager, &asked.emit());
        let (to, answer) = sent(&mut fabric).unwrap();
        assert_eq!((to, answer.mad[3], answer.status), (asker, 0x81, 0));
        fabric.send_of_program(Time::START, manager, &asked.emit());
        assert_eq!(sent(&mut fabric), None, "answered once");
        fabric.send_of_program(Time::START, asker, &request);
        assert_eq!(sent(&mut fabric).unwrap().0, manager);
        let due = fabric.due().unwrap();
        fabric.advance(due);
        let (to, back) = sent(&mut fabric).unwrap();
        assert_eq!((to, back.status), (asker, DataMessage::TIMED_OUT));
    }

    #[test]
    fn a_request_beyond_the_limit_comes_back_at_once() {
        let mut fabric = fabric();
        let asker = connect(&mut fabric, "host1", false).unwrap();
        let manager = connect(&mut fabric, "host2", true).unwrap();
        for nth in 0..=PENDING_MAX {
            let mut request = directed(Method::GET, SmInfo::ID, &[1, 2]);
            request.mad[12..16].copy_from_slice(&(nth as u32).to_be_bytes());
            fabric.send_of_program(Time::START, asker, &request.emit());
            let (to, message) = sent(&mut fabric).unwrap();
            let expected =
                if nth < PENDING_MAX { (manager, 0) } else { (asker, DataMessage::TIMED_OUT) };
            assert_eq!((to, message.status), expected, "request {nth}");
            assert_eq!(message.mad[12..16], request.mad[12..16]);
        }
        assert_eq!(sent(&mut fabric), None);
    }

    #[test]
    fn programs_get_requests_of_their_classes_only() {
        let mut fabric = fabric();
        let manager = connect(&mut fabric, "host1", true).unwrap();
        let own = connect(&mut fabric, "host1/7,50", false).unwrap();
        fabric.net.subnet_mut().node_mut(1).ports[1].info.lid = Lid(4);
        let mut to_class = |class: MgmtClass| {
            let header = MadHeader::new(class, Method::SEND, 1, AttributeId(0x10));
            let mut message = directed(Method::SEND, AttributeId(0), &[]);
            message.mad[..24].copy_from_slice(&header.emit());
            (message.dlid, message.len) = (Lid(4), 200);
            fabric.send_of_program(Time::START, manager, &message.emit());
            sent(&mut fabric).map(|(slot, message)| (slot, message.slid, message.len))
        };
        assert_eq!(to_class(MgmtClass::COMM_MGT), Some((own, Lid(4), 200)));
        assert_eq!(to_class(MgmtClass(50)), Some((own, Lid(4), 200)));
        assert_eq!(to_class(MgmtClass::SUBN_ADM), Some((manager, Lid(4), 200)));
        assert_eq!(to_class(MgmtClass(51)), None);
        let unclaimed = fabric.net.subnet().nodes()[1].drops.of(NodeDrop::Unclaimed);
        assert_eq!((unclaimed, fabric.programs.counts), (1, ProgramCounts::default()));
    }

    proptest! {
        #[test]
        fn any_messages_are_survived(
            bytes in prop::collection::vec(any::<u8>(), 0..300),
            mads in prop::collection::vec(prop::collection::vec(any::<u8>(), DATA_LEN), 0..8),
        ) {
            let mut fabric = fabric();
            fabric.answer_program(&bytes);
            let slot = connect(&mut fabric, "host1/7", true).unwrap();
            fabric.send_of_program(Time::START, slot, &bytes);
            for mut mad in mads {
                mad[0..4].copy_from_slice(&[0xff, 0xff, 0, 0]);
                mad[24..32].copy_from_slice(&256u64.to_be_bytes());
                (mad[32], mad[33], mad[34], mad[35]) = (1, 0x81, 1, mad[35] & 0x87);
                fabric.send_of_program(Time::START, slot, &mad);
            }
            fabric.advance(Time::START + RESPONSE_TIME);
            prop_assert!(fabric.programs.pending.is_empty());
        }
    }
}
