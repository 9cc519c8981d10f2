//! Clients that attach to a server or end, and their control messages.

use super::naming::find_port;
use super::{AttachedPort, CLIENTS_MAX, Client, Server, UNATTACHED_MAX};
use crate::net::Net;
use crate::net::shared_port::PortContext;
use crate::node::NodeDrop;
use crate::process::control_message::{Attach, ControlMessage};
use crate::process::grants::DIRECT_RINGS_MAX;
use crate::process::port_page::{SLOTS, ServerPage};
use crate::process::socket::{ReceivedMessage, Socket, accept};
use crate::time::Time;
use crate::topology::End;
use pollux_hca::PORT_CONTEXTS_MAX;
use pollux_mem::Segment;
use std::collections::VecDeque;
use std::os::fd::{AsFd, OwnedFd};

/// Connections accepted at once; further ones wait in the backlog.
const ACCEPTED_MAX: usize = CLIENTS_MAX + UNATTACHED_MAX;
/// The refusal if this process has no more descriptors or memory.
const NO_RESOURCES: &str = "the fabric has no memory or no descriptors left";
/// Control messages read from a client at a time: more than it has direct rings.
const MESSAGES: usize = 4 * DIRECT_RINGS_MAX;

/// The reason of a refusal, at the limit of clients with adapters or with agents.
pub(super) fn too_many_clients() -> String {
    format!("the fabric has its maximum of {CLIENTS_MAX} clients; stop one")
}

impl Server {
    pub(super) fn read_sockets(&mut self, now: Time, net: &mut Net) {
        let clients: Vec<u32> = self.clients.keys().copied().collect();
        for number in clients {
            self.read(net, number);
        }
        let clients: Vec<u32> = self.clients.keys().copied().collect();
        for number in clients {
            self.detach_if_lost(now, net, number);
        }
        if self.read_agents(now, net) {
            self.idle_turns = 0;
        }
        self.accept_connections(now, net);
    }

    /// Handles connections that are not attached yet, and accepts new ones.
    pub(super) fn accept_connections(&mut self, now: Time, net: &mut Net) {
        self.read_unattached(now, net);
        for _ in 0..ACCEPTED_MAX {
            let Some(socket) = accept(self.listener.as_fd()) else { break };
            let silent = self.attach_or_close(now, net, socket);
            self.unattached.extend(silent);
            if self.unattached.len() > UNATTACHED_MAX {
                // Attach those that have sent their message meanwhile; close only a silent one.
                self.read_unattached(now, net);
                if self.unattached.len() > UNATTACHED_MAX {
                    self.unattached.pop_front();
                }
            }
        }
    }

    fn read_unattached(&mut self, now: Time, net: &mut Net) {
        for socket in std::mem::take(&mut self.unattached) {
            let silent = self.attach_or_close(now, net, socket);
            self.unattached.extend(silent);
        }
    }

    /// Attaches or closes a connection after its first message; returns the connection if it has
    /// sent none.
    fn attach_or_close(&mut self, now: Time, net: &mut Net, socket: Socket) -> Option<Socket> {
        let refuse = |socket: &Socket, reason: &str| {
            // If the socket has no space for the reason, the client finds it closed.
            let _ = socket.send(&ControlMessage::Refused { reason: reason.into() }, None);
        };
        match socket.receive() {
            ReceivedMessage::Nothing => return Some(socket),
            ReceivedMessage::Message(ControlMessage::Attach(ask), _) => {
                if let Err((socket, reason)) = self.attach(now, net, socket, &ask) {
                    refuse(&socket, &reason);
                }
            }
            ReceivedMessage::Message(ControlMessage::AttachAgents(ask), _) => {
                if let Err((socket, reason)) = self.attach_agents(net, socket, &ask) {
                    refuse(&socket, &reason);
                }
            }
            ReceivedMessage::Truncated(_) => refuse(&socket, NO_RESOURCES),
            ReceivedMessage::Message(..) | ReceivedMessage::End => {}
        }
        None
    }

    fn attach(
        &mut self,
        now: Time,
        net: &mut Net,
        socket: Socket,
        ask: &Attach,
    ) -> Result<(), (Socket, String)> {
        let context = match self.find_context(now, net, ask) {
            Ok(context) => context,
            Err(reason) => return Err((socket, reason)),
        };
        let end = context.end;
        self.plug(net, end);
        let Ok((page, fd)) = ServerPage::create(&net.port(end)) else {
            return Err((socket, NO_RESOURCES.into()));
        };
        let number = self.free_number();
        if !socket.send(&ControlMessage::Attached { client: number }, Some(fd.as_fd())) {
            return Err((socket, "the socket is full".into()));
        }
        page.set_wants_packets(net.wants_packets());
        net.claim(context);
        let (held, taken, outbox, is_full, is_lost) = (None, 0, VecDeque::new(), false, false);
        let client = Client { socket, context, page, held, taken, outbox, is_full, is_lost };
        self.clients.insert(number, client);
        let secret = ask.secret;
        let port = self.ports.entry(end).or_insert_with(|| AttachedPort::new(secret));
        port.contexts.insert(context.vhca_index, number);
        Ok(())
    }

    /// The port that clients open as `soft:PATH@NODE[:PORT]`. Without a number, the first port with
    /// a cable.
    pub fn find_port(net: &Net, node: &str, port: Option<u8>) -> Result<End, String> {
        let topology = net.subnet().topology();
        let has_cable = |end| topology.peer(end).is_some() || net.is_foreign(end);
        find_port(topology, has_cable, node, port)
    }

    /// Plugs in the cable that was unplugged with the last client of a port.
    pub(super) fn plug(&mut self, net: &mut Net, end: End) {
        if self.unplugged.remove(&end) {
            net.set_cable(end, true);
        }
    }

    /// Unplugs the cable of a port without clients.
    pub(super) fn unplug_if_free(&mut self, net: &mut Net, end: End) {
        if self.ports.get(&end).is_some_and(|port| port.contexts.is_empty() && port.agents == 0) {
            self.ports.remove(&end);
            net.set_cable(end, false);
            self.unplugged.insert(end);
        }
    }

    /// The context that a client requests. The port must have no clients, or the client must have
    /// the secret of its clients and the context must be free.
    fn find_context(
        &mut self,
        now: Time,
        net: &mut Net,
        ask: &Attach,
    ) -> Result<PortContext, String> {
        let end = Self::find_port(net, &ask.node, ask.port)?;
        if ask.context >= PORT_CONTEXTS_MAX {
            let context = ask.context;
            return Err(format!(
                "context {context} of this port does not exist; an adapter has {PORT_CONTEXTS_MAX} \
                 contexts"
            ));
        }
        if !self.is_free(end, ask) {
            // The clients at the port may have ended since their sockets were read.
            self.detach_lost_at(now, net, end);
        }
        if !self.is_free(end, ask) {
            return Err(self.in_use_by(end));
        }
        if self.clients.len() >= CLIENTS_MAX {
            return Err(too_many_clients());
        }
        Ok(PortContext { end, vhca_index: ask.context })
    }

    /// The reason of a refusal, if another process has the port.
    pub(super) fn in_use_by(&self, end: End) -> String {
        let process = match self.process_at(end) {
            Some(process) => {
                let name = std::fs::read_to_string(format!("/proc/{process}/comm"));
                let name = name.map_or_else(|_| "ended".into(), |name| name.trim_end().to_owned());
                format!("process {process} ({})", name.escape_debug())
            }
            None => "a process of another container".into(),
        };
        format!("{process} is at this port; stop it, or open another port")
    }

    fn is_free(&self, end: End, ask: &Attach) -> bool {
        self.ports.get(&end).is_none_or(|port| {
            port.secret == ask.secret && !port.contexts.contains_key(&ask.context)
        })
    }

    /// A free client number, from 1 to 0xffff. There are fewer clients than numbers.
    pub(super) fn free_number(&mut self) -> u32 {
        loop {
            self.client_last = self.client_last % 0xffff + 1;
            let last = self.client_last;
            if !self.clients.contains_key(&last) && !self.agents.contains(last) {
                return self.client_last;
            }
        }
    }

    fn read(&mut self, net: &mut Net, number: u32) {
        for _ in 0..MESSAGES {
            let Some(client) = self.clients.get_mut(&number) else { return };
            let end = client.context.end;
            let is_valid = match client.socket.receive() {
                ReceivedMessage::Nothing => return,
                ReceivedMessage::Message(
                    message @ (ControlMessage::Expose { .. } | ControlMessage::Withdraw { .. }),
                    fd,
                ) => self.forward_request(net, number, &message, fd),
                ReceivedMessage::Message(message @ ControlMessage::Mapped { .. }, _) => {
                    self.forward_answer(net, number, &message);
                    true
                }
                // The server polls the client's ring next in any case.
                ReceivedMessage::Message(ControlMessage::Wake, _) => true,
                // This process has no descriptor left for a leased segment. That is not an error of
                // the client.
                ReceivedMessage::Truncated(message @ ControlMessage::Expose { .. }) => {
                    net.count_drop(end, NodeDrop::NoDescriptor);
                    self.forward_request(net, number, &message, None)
                }
                ReceivedMessage::Message(..)
                | ReceivedMessage::Truncated(_)
                | ReceivedMessage::End => false,
            };
            if !is_valid {
                let client = self.clients.get_mut(&number);
                client.into_iter().for_each(|client| client.is_lost = true);
                return;
            }
        }
    }

    /// Forwards a message about a segment from the sender of a ring to its receiver. `false` if
    /// client `from` is not the ring's sender, if its previous request has no answer yet, or if
    /// other processes could write to the segment.
    fn forward_request(
        &mut self,
        net: &mut Net,
        from: u32,
        message: &ControlMessage,
        descriptor: Option<OwnedFd>,
    ) -> bool {
        let (ring, segment) = match *message {
            ControlMessage::Expose { ring, segment }
            | ControlMessage::Withdraw { ring, segment } => (ring, segment),
            _ => return false,
        };
        // The ring may have ended meanwhile.
        let Some(grant) = self.grants.ring(ring) else { return true };
        let Some(granted) = self.rings.get_mut(&ring) else { return true };
        let to = grant.to;
        if grant.from != from || !granted.begin_request(segment) {
            return false;
        }
        let is_exposed = matches!(message, ControlMessage::Expose { .. });
        if is_exposed && descriptor.is_none() {
            // The message has no descriptor, for example because this process is at its limit. The
            // sender then copies its messages.
            let answer = ControlMessage::Mapped { ring, segment, is_mapped: false };
            granted.end_request(segment);
            self.send_ring_control(net, from, ring, &answer, None);
            return true;
        }
        let mut leased = None;
        if is_exposed {
            let sent = descriptor.and_then(|fd| Segment::from_fd(fd, 1..=usize::MAX).ok());
            let Some(sealed) = sent.filter(Segment::is_sealed) else { return false };
            leased = Some(sealed.into_fd());
        }
        self.send_ring_control(net, to, ring, message, leased.as_ref());
        true
    }

    /// Sends a control message about a ring. If there is no space for it, the ring ends.
    fn send_ring_control(
        &mut self,
        net: &mut Net,
        number: u32,
        ring: u64,
        message: &ControlMessage,
        descriptor: Option<&OwnedFd>,
    ) {
        if !self.send_control(net, number, message, descriptor) {
            self.end_ring(net, ring);
        }
    }

    /// Forwards the answer of the receiver of a ring, if there was a request.
    fn forward_answer(&mut self, net: &mut Net, to: u32, message: &ControlMessage) {
        let ControlMessage::Mapped { ring, segment, .. } = *message else { return };
        let Some(grant) = self.grants.ring(ring).filter(|grant| grant.to == to) else { return };
        let from = grant.from;
        if self.rings.get_mut(&ring).is_some_and(|granted| granted.end_request(segment)) {
            self.send_ring_control(net, from, ring, message, None);
        }
    }

    fn detach_lost_at(&mut self, now: Time, net: &mut Net, end: End) {
        let port = self.ports.get(&end);
        let clients: Vec<u32> = port.iter().flat_map(|it| it.contexts.values().copied()).collect();
        for number in clients {
            self.read(net, number);
            self.detach_if_lost(now, net, number);
        }
    }

    fn detach_if_lost(&mut self, now: Time, net: &mut Net, number: u32) {
        if self.clients.get(&number).is_some_and(|client| client.is_lost) {
            self.detach(now, net, number);
        }
    }

    /// Detaches a client. The frames that it has sent are still delivered. The cable of the port is
    /// unplugged with its last client.
    fn detach(&mut self, now: Time, net: &mut Net, number: u32) {
        self.receive_from(now, net, number, SLOTS);
        net.advance(now);
        self.grants.of_client(number).into_iter().for_each(|ring| self.end_ring(net, ring));
        let Some(client) = self.clients.remove(&number) else { return };
        net.detach(client.context);
        let end = client.context.end;
        let Some(port) = self.ports.get_mut(&end) else { return };
        port.contexts.remove(&client.context.vhca_index);
        self.unplug_if_free(net, end);
    }
}
