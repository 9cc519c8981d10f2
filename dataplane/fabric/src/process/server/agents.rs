//! Management agents of processes: their registrations, and the MADs to and from them.

use super::clients::too_many_clients;
use super::{AttachedPort, CLIENTS_MAX, Server};
use crate::net::agent_mad::AgentMad;
use crate::net::{MadDelivery, Net};
use crate::node::NodeDrop;
use crate::process::agent_message::{AgentMessage, AgentRegistration};
use crate::process::control_message::{AttachAgents, ControlMessage};
use crate::process::socket::Socket;
use crate::time::Time;
use crate::topology::End;
use pollux_wire::mad::smp::CapabilityMask;
use pollux_wire::mad::{MAD_LEN, MadHeader};
use rustix::event::{PollFd, PollFlags};
use rustix::io::Errno;
use std::collections::{BTreeMap, VecDeque};
use std::os::fd::AsFd;

/// Messages that may wait for a client. Further MADs are dropped, as by a full receive queue. A
/// client with a reply beyond this limit is detached.
const OUTBOX_MAX: usize = 4096;
/// Agents of a client; the kernel has the same limit for an open umad file.
const AGENTS_MAX: usize = 32;
/// Messages taken from a client in a turn.
const BATCH: usize = 64;
/// The first number of an agent. In the transaction IDs of programs with libumad2sim, the upper 32
/// bits are below it, because their upper 16 bits are the slot, from 1 to 32.
const FIRST: u32 = 0x8000_0000;
/// The offset of the OUI in a MAD of a vendor class, behind the RMPP header.
const OUI: usize = 37;

/// The connections of agents, by the number of the client.
#[derive(Default)]
pub(super) struct AgentClients {
    clients: BTreeMap<u32, AgentClient>,
    /// Counts registrations.
    registered: u32,
}

struct AgentClient {
    socket: Socket,
    at: End,
    is_sm: bool,
    agents: BTreeMap<u32, AgentRegistration>,
    outbox: VecDeque<AgentMessage>,
    is_lost: bool,
}

impl AgentClients {
    pub(super) fn len(&self) -> usize {
        self.clients.len()
    }

    pub(super) fn contains(&self, client: u32) -> bool {
        self.clients.contains_key(&client)
    }

    /// The process of the first client at a port, if the system knows it.
    pub(super) fn process_at(&self, end: End) -> Option<u32> {
        let client = self.clients.values().find(|client| client.at == end)?;
        client.socket.process()
    }

    pub(super) fn poll_fds(&self) -> impl Iterator<Item = PollFd<'_>> {
        self.clients.values().map(|client| {
            let waits = !client.outbox.is_empty();
            let flags = if waits { PollFlags::IN | PollFlags::OUT } else { PollFlags::IN };
            PollFd::from_borrowed_fd(client.socket.as_fd(), flags)
        })
    }

    /// Sends waiting messages to all clients.
    pub(super) fn flush(&mut self) {
        for client in self.clients.values_mut() {
            client.flush();
        }
    }

    /// The client and the agent that get a MAD at a port. A response is for the agent that sent the
    /// request; a request is for the agent that has registered for it.
    pub(super) fn receiver(&self, at: End, delivery: &MadDelivery) -> Option<(u32, u32)> {
        let mad = &delivery.datagram.mad;
        let (header, _) = MadHeader::read(mad).ok()?;
        let asked = (header.transaction_id >> 32) as u32;
        let is_for = |agent: u32, registration: &AgentRegistration| {
            if header.method.is_response() {
                agent == asked
            } else {
                registration.takes(&header, mad)
            }
        };
        self.clients.iter().filter(|(_, client)| client.at == at).find_map(|(number, client)| {
            let mut agents = client.agents.iter();
            let agent = agents.find(|(agent, registration)| is_for(**agent, registration))?.0;
            Some((*number, *agent))
        })
    }

    /// Registers an agent. `None` if another agent of the port takes one of its methods, or if the
    /// client has too many agents.
    fn register(&mut self, number: u32, registration: AgentRegistration) -> Option<u32> {
        let at = self.clients.get(&number)?.at;
        let others = self.clients.values().filter(|client| client.at == at);
        let is_taken = others.flat_map(|client| client.agents.values()).any(|other| {
            let is_alike = |one: &AgentRegistration| (one.class, one.version, one.oui);
            is_alike(other) == is_alike(&registration) && other.methods & registration.methods != 0
        });
        let client = self.clients.get_mut(&number)?;
        if is_taken || client.agents.len() == AGENTS_MAX {
            return None;
        }
        // A number is reused after 2^31 registrations.
        self.registered = (self.registered + 1) % FIRST;
        let agent = FIRST | self.registered;
        client.agents.insert(agent, registration);
        Some(agent)
    }
}

impl AgentClient {
    /// Sends a message, or queues it. `false` if the queue is full.
    #[must_use]
    fn send(&mut self, message: AgentMessage) -> bool {
        let has_space = self.outbox.len() < OUTBOX_MAX;
        if has_space {
            self.outbox.push_back(message);
        }
        self.flush();
        has_space
    }

    fn flush(&mut self) {
        while let Some(message) = self.outbox.front() {
            match self.socket.send_bytes(&message.emit()) {
                Ok(()) => drop(self.outbox.pop_front()),
                Err(Errno::AGAIN) => return,
                Err(_) => {
                    self.is_lost = true;
                    return;
                }
            }
        }
    }
}

impl AgentRegistration {
    fn takes(&self, header: &MadHeader, mad: &[u8; MAD_LEN]) -> bool {
        /// Vendor classes with an OUI in each MAD (IBA 16.5).
        const VENDOR_CLASSES: std::ops::RangeInclusive<u8> = 0x30..=0x4f;
        let is_vendors = !VENDOR_CLASSES.contains(&self.class) || mad[OUI..OUI + 3] == self.oui;
        self.class == header.mgmt_class.0
            && self.class != 0
            && self.version == header.class_version
            && is_vendors
            && self.methods >> (header.method.0 & 0x7f) & 1 == 1
    }
}

impl Server {
    pub(super) fn attach_agents(
        &mut self,
        net: &mut Net,
        socket: Socket,
        ask: &AttachAgents,
    ) -> Result<(), (Socket, String)> {
        let at = match Self::find_port(net, &ask.node, ask.port) {
            Ok(at) => at,
            Err(reason) => return Err((socket, reason)),
        };
        let is_shared = self.ports.get(&at).is_none_or(|port| port.secret == ask.secret);
        let capability = net.subnet().port(at).info.capability_mask;
        if !is_shared {
            let reason = self.in_use_by(at);
            return Err((socket, reason));
        }
        let refusal = match () {
            () if self.agents.len() >= CLIENTS_MAX => Some(too_many_clients()),
            () if ask.is_sm && capability.contains(CapabilityMask::SM) => {
                Some("a subnet manager is at this port".into())
            }
            () => None,
        };
        if let Some(reason) = refusal {
            return Err((socket, reason));
        }
        let number = self.free_number();
        if !socket.send(&ControlMessage::Attached { client: number }, None) {
            return Err((socket, "the socket is full".into()));
        }
        self.plug(net, at);
        if ask.is_sm {
            let node = net.subnet_mut().node_mut(at.node);
            node.set_capability(at.port, capability.with(CapabilityMask::SM));
        }
        let (agents, outbox, is_lost) = (BTreeMap::new(), VecDeque::new(), false);
        let client = AgentClient { socket, at, is_sm: ask.is_sm, agents, outbox, is_lost };
        self.agents.clients.insert(number, client);
        let port = self.ports.entry(at).or_insert_with(|| AttachedPort::new(ask.secret));
        port.agents += 1;
        Ok(())
    }

    /// Reads the sockets of agents; returns whether there was anything.
    pub(super) fn read_agents(&mut self, now: Time, net: &mut Net) -> bool {
        let mut was_busy = false;
        for number in self.agents.clients.keys().copied().collect::<Vec<_>>() {
            for _ in 0..BATCH {
                let Some(client) = self.agents.clients.get_mut(&number) else { break };
                match client.socket.receive_agent() {
                    Ok(message) => self.handle_agent_message(now, net, number, message),
                    Err(Errno::AGAIN) => break,
                    Err(_) => {
                        client.is_lost = true;
                        break;
                    }
                }
                was_busy = true;
            }
            if self.agents.clients.get(&number).is_some_and(|client| client.is_lost) {
                self.detach_agents(net, number);
            }
        }
        was_busy
    }

    fn handle_agent_message(
        &mut self,
        now: Time,
        net: &mut Net,
        number: u32,
        message: AgentMessage,
    ) {
        match message {
            AgentMessage::Register(registration) => {
                let agent = self.agents.register(number, registration);
                if let Some(client) = self.agents.clients.get_mut(&number) {
                    client.is_lost |= !client.send(AgentMessage::Registered(agent));
                }
            }
            AgentMessage::Unregister { agent } => {
                if let Some(client) = self.agents.clients.get_mut(&number) {
                    client.agents.remove(&agent);
                }
            }
            AgentMessage::Mad(mad) => {
                if let Some(client) = self.agents.clients.get(&number) {
                    net.send_of_agent(now, client.at, &mad);
                }
            }
            // Only the server may send this.
            AgentMessage::Registered(_) => {
                let client = self.agents.clients.get_mut(&number);
                client.into_iter().for_each(|client| client.is_lost = true);
            }
        }
    }

    fn detach_agents(&mut self, net: &mut Net, number: u32) {
        let Some(client) = self.agents.clients.remove(&number) else { return };
        let at = client.at;
        if client.is_sm {
            let node = net.subnet_mut().node_mut(at.node);
            let capability = node.ports[usize::from(at.port)].info.capability_mask;
            node.set_capability(at.port, capability.without(CapabilityMask::SM));
        }
        if let Some(port) = self.ports.get_mut(&at) {
            port.agents -= 1;
            self.unplug_if_free(net, at);
        }
    }

    /// Whether an agent of a process takes a MAD that has arrived.
    pub fn has_agent_for(&self, delivery: &MadDelivery) -> bool {
        self.agents.receiver(delivery.at, delivery).is_some()
    }

    /// Delivers a MAD to the agent that takes it.
    pub fn give_to_agent(&mut self, net: &mut Net, delivery: &MadDelivery) {
        let Some((number, agent)) = self.agents.receiver(delivery.at, delivery) else { return };
        let mad = AgentMad { agent, ..net.for_agent(delivery) };
        let Some(client) = self.agents.clients.get_mut(&number) else { return };
        if !client.send(AgentMessage::Mad(mad)) {
            return net.count_drop(client.at, NodeDrop::Full);
        }
        self.idle_turns = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Fabric;
    use crate::link::Wire;
    use crate::link::fault::SeededRng;
    use crate::net::agent_mad::AgentGrh;
    use crate::node::{P_KEYS, PKeys};
    use crate::process::socket::ReceivedMessage;
    use crate::subnet::Subnet;
    use crate::topology::Topology;
    use pollux_wire::address::{Gid, Lid, Qpn};
    use pollux_wire::keys::PKey;
    use pollux_wire::mad::smp::{DirectedSmp, NodeInfo, PortInfo, PortState};
    use pollux_wire::mad::{Attribute, AttributeId, Method, MgmtClass};
    use std::time::Duration;

    /// Two hosts at a switch, with the LIDs 1 and 2.
    fn fabric(name: &str) -> Fabric {
        let mut subnet = Subnet::new(Topology::generate("single:2", 1).unwrap());
        for node in 0..3 {
            let ports = &mut subnet.node_mut(node).ports;
            ports.iter_mut().for_each(|port| port.info.port_state = PortState::ACTIVE);
            if node > 0 {
                ports[1].info.lid = Lid(node as u16);
            }
        }
        let tables = subnet.node_mut(0).forwarding.as_mut().unwrap();
        let mut ports = tables.linear_block(0).unwrap();
        (ports.ports[1], ports.ports[2]) = (1, 2);
        assert!(tables.set_linear_block(0, &ports));
        tables.info.linear_fdb_top = Lid(2);
        let wire = Wire { latency: Duration::ZERO, ..Wire::default() };
        let mut fabric = Fabric::new(Net::new(subnet, 1, wire));
        let path = std::env::temp_dir().join(format!("pollux-{name}-{}", std::process::id()));
        fabric.processes = Some(Server::bind(&path).unwrap());
        fabric
    }

    fn step(fabric: &mut Fabric) {
        fabric.processes.as_mut().unwrap().wake();
        fabric.step(Time::START).unwrap();
    }

    fn attach(fabric: &mut Fabric, host: u32, is_sm: bool) -> Result<Socket, String> {
        let path = fabric.processes.as_ref().unwrap().path.with_extension("");
        let socket = Socket::connect(&path).unwrap();
        let (node, port, secret) = (format!("host{host}"), None, 5);
        let message = ControlMessage::AttachAgents(AttachAgents { node, port, secret, is_sm });
        assert!(socket.send(&message, None));
        step(fabric);
        match socket.receive() {
            ReceivedMessage::Message(ControlMessage::Attached { .. }, None) => Ok(socket),
            ReceivedMessage::Message(ControlMessage::Refused { reason }, _) => Err(reason),
            other => panic!("{other:?}"),
        }
    }

    fn send(fabric: &mut Fabric, socket: &Socket, message: &AgentMessage) {
        socket.send_bytes(&message.emit()).unwrap();
        step(fabric);
    }

    fn register(fabric: &mut Fabric, socket: &Socket, class: MgmtClass, method: u8) -> Option<u32> {
        let (class, version, methods) = (class.0, class.version(), 1 << method);
        let registration = AgentRegistration { class, version, methods, ..Default::default() };
        send(fabric, socket, &AgentMessage::Register(registration));
        let Ok(AgentMessage::Registered(agent)) = socket.receive_agent() else { panic!() };
        agent
    }

    fn mad_of(socket: &Socket) -> Option<AgentMad> {
        match socket.receive_agent() {
            Ok(AgentMessage::Mad(mad)) => Some(mad),
            Err(Errno::AGAIN) => None,
            other => panic!("{other:?}"),
        }
    }

    fn gsi(agent: u32, lid: u16, class: MgmtClass, method: Method) -> AgentMad {
        let id = AttributeId(0x1234);
        let header = MadHeader::new(class, method, u64::from(agent) << 32 | 7, id);
        let mut mad = [0; MAD_LEN];
        header.write(&mut mad).unwrap();
        let (sl, path_bits, p_key_index) = (0, 0, 0);
        AgentMad { agent, lid: Lid(lid), qpn: Qpn(1), sl, path_bits, p_key_index, grh: None, mad }
    }

    #[test]
    fn processes_at_a_port_get_their_responses_and_the_requests_of_their_methods() {
        let mut fabric = fabric("agents");
        let [one, two] = [1, 1].map(|host| attach(&mut fabric, host, false).unwrap());
        let far = attach(&mut fabric, 2, false).unwrap();
        let server = register(&mut fabric, &one, MgmtClass::DEVICE, 1).unwrap();
        assert_eq!(register(&mut fabric, &two, MgmtClass::DEVICE, 1), None, "it is taken");
        let client = register(&mut fabric, &two, MgmtClass::DEVICE, 2).unwrap();
        let asker = register(&mut fabric, &far, MgmtClass(0), 0).unwrap();
        for (socket, agent, method) in [(&one, server, Method::GET), (&two, client, Method::SET)] {
            let asked = gsi(asker, 1, MgmtClass::DEVICE, method);
            send(&mut fabric, &far, &AgentMessage::Mad(asked));
            let request = mad_of(socket).unwrap();
            assert_eq!((request.agent, request.lid, request.mad), (agent, Lid(2), asked.mad));
            assert!(mad_of(&one).is_none() && mad_of(&two).is_none());
            let mut response = AgentMad { agent, ..request };
            response.mad[3] = 0x81;
            send(&mut fabric, socket, &AgentMessage::Mad(response));
            let answer = mad_of(&far).unwrap();
            assert_eq!((answer.agent, answer.lid, answer.mad), (asker, Lid(1), response.mad));
        }
        // Once a process has ended, other agents can register its methods.
        drop(one);
        step(&mut fabric);
        assert!(register(&mut fabric, &two, MgmtClass::DEVICE, 1).is_some());
    }

    #[test]
    fn address_and_headers_arrive() {
        let mut fabric = fabric("agent-headers");
        let mut keys = [PKey::INVALID; P_KEYS];
        (keys[0], keys[1]) = (PKey::DEFAULT, PKey(0x8001));
        for node in [1, 2] {
            fabric.net.subnet_mut().node_mut(node).ports[1].p_keys = PKeys::new(keys);
        }
        let gid = |fabric: &Fabric, node: usize| fabric.net.subnet().nodes()[node].gid(1);
        let [one, two] = [1, 2].map(|host| attach(&mut fabric, host, false).unwrap());
        let taker = register(&mut fabric, &two, MgmtClass::DEVICE, 1).unwrap();
        let asker = register(&mut fabric, &one, MgmtClass(0), 0).unwrap();
        let (hop_limit, traffic_class, flow_label) = (9, 3, 0xf_1234);
        let gid_of =
            |gid: Gid| AgentGrh { gid_index: 0, hop_limit, traffic_class, flow_label, gid };
        let grh = Some(gid_of(gid(&fabric, 2)));
        let asked = gsi(asker, 2, MgmtClass::DEVICE, Method::GET);
        let asked = AgentMad { sl: 0, p_key_index: 1, grh, ..asked };
        send(&mut fabric, &one, &AgentMessage::Mad(asked));
        let grh = Some(gid_of(gid(&fabric, 1)));
        let (agent, lid) = (taker, Lid(1));
        assert_eq!(mad_of(&two), Some(AgentMad { agent, lid, grh, ..asked }));
        // The P_Key table has no such index.
        send(&mut fabric, &one, &AgentMessage::Mad(AgentMad { p_key_index: 9999, ..asked }));
        assert_eq!(mad_of(&two), None);
        assert_eq!(fabric.net.subnet().nodes()[1].drops.of(NodeDrop::Key), 1);
    }

    #[test]
    fn a_port_has_is_sm_for_one_process_until_it_ends() {
        let mut fabric = fabric("agent-sm");
        let has_it = |fabric: &Fabric| {
            let port = fabric.net.subnet().port(End { node: 1, port: 1 });
            port.info.capability_mask.contains(CapabilityMask::SM)
        };
        let manager = attach(&mut fabric, 1, true).unwrap();
        assert!(has_it(&fabric));
        let process = fabric.processes.as_ref().unwrap().process_at(End { node: 1, port: 1 });
        assert_eq!(process, Some(std::process::id()));
        assert_eq!(attach(&mut fabric, 1, true).err().unwrap(), "a subnet manager is at this port");
        let other = attach(&mut fabric, 1, false).unwrap();
        drop(manager);
        step(&mut fabric);
        assert!(!has_it(&fabric) && attach(&mut fabric, 1, true).is_ok());
        drop(other);
    }

    fn smp(agent: u32, method: Method, id: AttributeId, path: &[u8]) -> AgentMad {
        let class = MgmtClass::SUBN_DIRECTED_ROUTE;
        let header = MadHeader::new(class, method, u64::from(agent) << 32 | 7, id);
        let (dr_slid, dr_dlid) = (Lid::PERMISSIVE, Lid::PERMISSIVE);
        let mut smp = DirectedSmp { header, dr_slid, dr_dlid, ..DirectedSmp::default() };
        smp.set_hops(0, path.len() as u8);
        smp.initial_path[1..=path.len()].copy_from_slice(path);
        let (lid, qpn) = (Lid::PERMISSIVE, Qpn(0));
        AgentMad { lid, qpn, mad: smp.emit(), ..gsi(agent, 0, class, method) }
    }

    #[test]
    fn only_a_port_with_the_grant_sends_more_than_gets_of_subnet_management() {
        let mut fabric = fabric("agent-grant");
        let socket = attach(&mut fabric, 1, false).unwrap();
        let agent = register(&mut fabric, &socket, MgmtClass(0), 0).unwrap();
        for path in [&[][..], &[1], &[1, 2]] {
            send(
                &mut fabric,
                &socket,
                &AgentMessage::Mad(smp(agent, Method::GET, NodeInfo::ID, path)),
            );
            let answer = mad_of(&socket).expect("an answer");
            assert_eq!((answer.agent, answer.mad[3], answer.lid), (agent, 0x81, Lid::PERMISSIVE));
        }
        let set = AgentMessage::Mad(smp(agent, Method::SET, PortInfo::ID, &[1, 2]));
        send(&mut fabric, &socket, &set);
        assert_eq!(mad_of(&socket), None);
        assert_eq!(fabric.net.subnet().nodes()[1].drops.of(NodeDrop::NotManager), 1);
        fabric.net.grant_management(End { node: 1, port: 1 });
        send(&mut fabric, &socket, &set);
        assert!(mad_of(&socket).is_some());
    }

    #[test]
    fn a_client_that_sends_anything_else_is_detached() {
        let mut fabric = fabric("agent-garbage");
        let statistics = |fabric: &Fabric| fabric.processes.as_ref().unwrap().agents.len();
        let answer = AgentMessage::Registered(Some(1)).emit();
        for bytes in [&[][..], &[4; 10], &[9; 296], &[4; 400], &answer] {
            let socket = attach(&mut fabric, 1, false).unwrap();
            assert_eq!(statistics(&fabric), 1);
            socket.send_bytes(bytes).unwrap();
            step(&mut fabric);
            assert_eq!(statistics(&fabric), 0, "{bytes:?}");
        }
        // The number of agents is limited. A MAD with the number of no agent is sent like others.
        let socket = attach(&mut fabric, 1, false).unwrap();
        let class = MgmtClass(0);
        for method in 0..AGENTS_MAX as u8 {
            assert!(register(&mut fabric, &socket, class, method).is_some(), "agent {method}");
        }
        assert_eq!(register(&mut fabric, &socket, class, AGENTS_MAX as u8), None);
        let stray = gsi(7, 2, MgmtClass::DEVICE, Method::GET);
        send(&mut fabric, &socket, &AgentMessage::Mad(stray));
        assert_eq!(statistics(&fabric), 1);
    }

    #[test]
    fn a_client_that_reads_no_replies_is_detached() {
        let mut fabric = fabric("agent-unread");
        let socket = attach(&mut fabric, 1, false).unwrap();
        let register = AgentMessage::Register(AgentRegistration::default()).emit();
        // The socket itself takes a few hundred replies.
        for _ in 0..2 * OUTBOX_MAX {
            if socket.send_bytes(&register).is_err() {
                break;
            }
            step(&mut fabric);
        }
        let clients = &fabric.processes.as_ref().unwrap().agents.clients;
        let waiting: Vec<usize> = clients.values().map(|client| client.outbox.len()).collect();
        assert_eq!(waiting, []);
    }

    /// MADs of random bytes, some with the class and the method of a request or a response.
    #[test]
    fn any_mads_of_clients_are_survived() {
        let mut fabric = fabric("agent-random");
        fabric.net.grant_management(End { node: 1, port: 1 });
        let [one, two] = [1, 2].map(|host| attach(&mut fabric, host, false).unwrap());
        assert!(register(&mut fabric, &two, MgmtClass::DEVICE, 1).is_some());
        let mut rng = SeededRng::new(1);
        for _ in 0..2_000 {
            let mut bytes: [u8; 296] = std::array::from_fn(|_| rng.next_u64() as u8);
            bytes[0] = 4;
            if rng.happens(800_000) {
                let [class, method, lid] = [[0x81, 1, 3, 6], [1, 2, 0x81, 5], [0, 1, 2, 0xff]]
                    .map(|all| all[rng.below(4) as usize]);
                (bytes[8], bytes[9]) = (lid, if lid == 0xff { 0xff } else { 0 });
                (bytes[41], bytes[43]) = (class, method);
            }
            one.send_bytes(&bytes).unwrap();
            step(&mut fabric);
            while [&one, &two].iter().any(|socket| mad_of(socket).is_some()) {}
        }
        assert_eq!(fabric.processes.as_ref().unwrap().agents.len(), 2);
    }
}
