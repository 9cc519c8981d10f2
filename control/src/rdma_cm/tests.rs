//! Tests of programs on two hosts, by the bytes of the kernel interface, in virtual time.

use super::abi::EventKind;
use super::*;
use crate::mad::MadAddress;
use pollux_wire::address::Lid;
use pollux_wire::keys::PKey;
use pollux_wire::mad::cm::ip_service::PortSpace;
use pollux_wire::mad::service_id::ServiceId;
use pollux_wire::mad::smp::PortState;
use pollux_wire::units::Mtu;
use proptest::prelude::*;
use std::net::Ipv4Addr;
use std::time::Duration;

const SECOND: Duration = Duration::from_secs(1);
const PORT: u16 = 7174;
const TCP: u16 = 0x0106;
const UDP: u16 = 0x0111;

const ADDRESS_RESOLVED: u32 = 0;
const ADDRESS_ERROR: u32 = 1;
const ROUTE_RESOLVED: u32 = 2;
const CONNECT_REQUEST: u32 = 4;
const CONNECT_RESPONSE: u32 = 5;
const UNREACHABLE: u32 = 7;
const REJECTED: u32 = 8;
const ESTABLISHED: u32 = 9;
const DISCONNECTED: u32 = 10;
const TIMEWAIT_EXIT: u32 = 15;

/// A command with its number, the length of its answer, and fields at their offsets.
fn command(number: u32, bytes: usize, answer: u16, fields: &[(usize, &[u8])]) -> Vec<u8> {
    let mut all = number.to_ne_bytes().to_vec();
    all.extend((bytes as u16).to_ne_bytes());
    all.extend(answer.to_ne_bytes());
    all.resize(8 + bytes, 0);
    for (at, field) in fields {
        all[8 + at..][..field.len()].copy_from_slice(field);
    }
    all
}

fn sockaddr(ip: Ipv4Addr, port: u16) -> [u8; 8] {
    let mut bytes = [2_u16.to_ne_bytes(), port.to_be_bytes(), [0; 2], [0; 2]].concat();
    bytes[4..].copy_from_slice(&ip.octets());
    bytes.try_into().expect("it has eight bytes")
}

fn word(bytes: &[u8], at: usize) -> u32 {
    u32::from_ne_bytes(bytes[at..at + 4].try_into().expect("there are four"))
}

/// A host with one program, which has one file.
struct Host {
    cm: RdmaCm,
    ip: Ipv4Addr,
    lid: Lid,
    gid: Gid,
    program: ProgramId,
    file: FileId,
    /// Events that were announced to the program, less those that it took or lost.
    tokens: u32,
}

impl Host {
    fn new(number: u8) -> Self {
        let mut cm = RdmaCm::new(Guid(number.into()), number.into());
        let ip = Ipv4Addr::new(10, 0, 0, number);
        let (lid, gid) = (Lid(number.into()), Gid::new(Gid::DEFAULT_PREFIX, Guid(number.into())));
        let port = PortView {
            number: 1,
            state: PortState::ACTIVE,
            lid,
            lmc: 0,
            sm_lid: Lid(1),
            sm_sl: 0,
            mtu: Mtu::BYTES_4096,
            gids: vec![gid],
            pkeys: vec![PKey::DEFAULT],
        };
        cm.handle_host(HostView { port, addresses: [ip.into()].into() });
        let program = ProgramId(1);
        let file = cm.open(program).unwrap();
        Self { cm, ip, lid, gid, program, file, tokens: 0 }
    }

    fn send(&mut self, now: Time, bytes: &[u8]) -> Result<Vec<u8>, RdmaCmError> {
        let answer = self.cm.handle_command(now, self.program, self.file, bytes);
        self.tokens += self.cm.take_announcements(self.file);
        let answer = answer?;
        self.tokens -= answer.revoked;
        Ok(answer.bytes)
    }

    fn create(&mut self, now: Time, uid: u64, space: u16) -> u32 {
        let fields: [(usize, &[u8]); 2] = [(0, &uid.to_ne_bytes()), (16, &space.to_ne_bytes())];
        word(&self.send(now, &command(0, 24, 4, &fields)).unwrap(), 0)
    }

    /// Destroys an ID; returns the number of its events that were taken.
    fn destroy(&mut self, now: Time, id: u32) -> u32 {
        word(&self.send(now, &command(1, 16, 4, &[(8, &id.to_ne_bytes())])).unwrap(), 0)
    }

    fn bind(&mut self, now: Time, id: u32, ip: Ipv4Addr, port: u16) -> Result<(), RdmaCmError> {
        let fields: [(usize, &[u8]); 2] = [(8, &sockaddr(ip, port)), (36, &id.to_ne_bytes())];
        self.send(now, &command(2, 40, 0, &fields)).map(drop)
    }

    fn listen(&mut self, now: Time, id: u32, backlog: u32) -> Result<(), RdmaCmError> {
        let fields: [(usize, &[u8]); 2] = [(0, &id.to_ne_bytes()), (4, &backlog.to_ne_bytes())];
        self.send(now, &command(7, 8, 0, &fields)).map(drop)
    }

    fn listener(&mut self, now: Time, space: u16, backlog: u32) -> u32 {
        let id = self.create(now, 100, space);
        self.bind(now, id, Ipv4Addr::UNSPECIFIED, PORT).unwrap();
        self.listen(now, id, backlog).unwrap();
        id
    }

    fn resolve(&mut self, now: Time, id: u32, to: Ipv4Addr, timeout_ms: u32) {
        let fields: [(usize, &[u8]); 3] =
            [(28, &sockaddr(to, PORT)), (56, &id.to_ne_bytes()), (60, &timeout_ms.to_ne_bytes())];
        self.send(now, &command(3, 64, 0, &fields)).unwrap();
    }

    /// Sends CONNECT, or ACCEPT with the program's identifier `uid`.
    fn parameters(
        &mut self,
        now: Time,
        id: u32,
        uid: Option<u64>,
        text: &[u8],
        qpn: u32,
    ) -> Result<(), RdmaCmError> {
        let (number, bytes, at) = if uid.is_some() { (8, 296, 8) } else { (6, 288, 0) };
        // In CONNECT, the parameters overwrite the identifier.
        let fields: [(usize, &[u8]); 6] = [
            (0, &uid.unwrap_or(0).to_ne_bytes()),
            (at, &qpn.to_ne_bytes()),
            (at + 8, text),
            (at + 264, &[text.len() as u8]),
            (at + 266, &[4, 4, 0, 7, 7, 1]),
            (at + 272, &id.to_ne_bytes()),
        ];
        self.send(now, &command(number, bytes, 0, &fields)).map(drop)
    }

    fn of_id(&mut self, now: Time, number: u32, id: u32) -> Result<Vec<u8>, RdmaCmError> {
        // In REJECT, DISCONNECT and RESOLVE_ROUTE, the ID comes first.
        let fields: [(usize, &[u8]); 2] = [(0, &id.to_ne_bytes()), (4, &[0, 0, 0, 0])];
        self.send(now, &command(number, 264, 0, &fields))
    }

    fn qp_attributes(&mut self, now: Time, id: u32, state: u32) -> Result<Vec<u8>, RdmaCmError> {
        let fields: [(usize, &[u8]); 2] = [(8, &id.to_ne_bytes()), (12, &state.to_ne_bytes())];
        self.send(now, &command(11, 16, 144, &fields))
    }

    fn event(&mut self, now: Time) -> Option<Event> {
        let taken = self.send(now, &command(12, 8, 336, &[]));
        match taken {
            Ok(bytes) => {
                self.tokens -= 1;
                Some(Event(bytes))
            }
            Err(error) => {
                assert_eq!((error, self.tokens), (RdmaCmError::NoEvent, 0));
                None
            }
        }
    }

    fn expect(&mut self, now: Time, kind: u32) -> Event {
        let event = self.event(now).unwrap_or_else(|| panic!("there is an event {kind}"));
        assert_eq!(event.kind(), kind);
        event
    }
}

struct Event(Vec<u8>);

impl Event {
    fn uid(&self) -> u64 {
        u64::from_ne_bytes(self.0[..8].try_into().expect("there are eight"))
    }

    fn id(&self) -> u32 {
        word(&self.0, 8)
    }

    fn kind(&self) -> u32 {
        word(&self.0, 12)
    }

    fn status(&self) -> i32 {
        word(&self.0, 16).cast_signed()
    }

    fn qpn(&self) -> u32 {
        word(&self.0, 20)
    }

    fn private_data(&self) -> &[u8] {
        &self.0[28..][..usize::from(self.0[284])]
    }
}

/// A server and a client.
struct World {
    now: Time,
    hosts: [Host; 2],
}

impl World {
    fn new() -> Self {
        Self { now: Time::START + SECOND, hosts: [Host::new(1), Host::new(2)] }
    }

    /// Carries messages until there are none, and resolves the addresses that hosts wait for.
    fn settle(&mut self) {
        let known: Vec<_> = self.hosts.iter().map(|host| (host.ip, host.lid, host.gid)).collect();
        loop {
            let mut has_moved = false;
            for from in 0..2 {
                let own = known[from];
                for to in self.hosts[from].cm.wanted() {
                    let Some((_, lid, gid)) = known.iter().find(|it| IpAddr::V4(it.0) == to) else {
                        continue;
                    };
                    let path = PathRecord {
                        sgid: own.2,
                        dgid: *gid,
                        slid: own.1,
                        dlid: *lid,
                        p_key: PKey::DEFAULT,
                        mtu: Mtu::BYTES_2048,
                        ..PathRecord::default()
                    };
                    let source = own.0.into();
                    let resolved = ResolvedAddress { source, gid: *gid, path: Some(path) };
                    self.hosts[from].cm.handle_resolution(to, &resolved);
                    has_moved = true;
                }
                while let Some(envelope) = self.hosts[from].cm.poll_transmit() {
                    has_moved = true;
                    let to = known.iter().position(|(_, lid, _)| *lid == envelope.peer.lid);
                    let peer = MadAddress::gsi(own.1, 0, PKey::DEFAULT);
                    let arrived = Envelope { peer, mad: envelope.mad };
                    if let Some(to) = to {
                        self.hosts[to].cm.handle_mad(self.now, &arrived);
                    }
                }
            }
            for host in &mut self.hosts {
                host.tokens += host.cm.take_announcements(host.file);
            }
            if !has_moved {
                return;
            }
        }
    }

    /// Runs for `time`, in steps from timer to timer.
    fn pass(&mut self, time: Duration) {
        let until = self.now + time;
        loop {
            let due = self.hosts.iter().filter_map(|host| host.cm.poll_timeout()).min();
            let Some(due) = due.filter(|due| *due <= until) else { break };
            self.now = due.max(self.now);
            for host in &mut self.hosts {
                host.cm.handle_timeout(self.now);
            }
            self.settle();
        }
        self.now = until;
    }

    /// A client's ID with a route to the server.
    fn routed(&mut self, uid: u64, space: u16) -> u32 {
        let [server, client] = &mut self.hosts;
        let id = client.create(self.now, uid, space);
        client.resolve(self.now, id, server.ip, 2000);
        self.settle();
        let client = &mut self.hosts[1];
        assert_eq!(client.expect(self.now, ADDRESS_RESOLVED).uid(), uid);
        client.of_id(self.now, 4, id).unwrap();
        self.settle();
        self.hosts[1].expect(self.now, ROUTE_RESOLVED);
        id
    }

    /// The client's ID that has sent a REQ, and the ID of the request at the server.
    fn requested(&mut self) -> (u32, u32) {
        self.requested_of(0x111)
    }

    /// Like [`Self::requested`], with this QPN.
    fn requested_of(&mut self, qpn: u32) -> (u32, u32) {
        let id = self.routed(7, TCP);
        self.hosts[1].parameters(self.now, id, None, b"hello", qpn).unwrap();
        self.settle();
        let request = self.hosts[0].expect(self.now, CONNECT_REQUEST);
        assert_eq!((request.uid(), request.qpn()), (100, qpn));
        assert_eq!(request.private_data()[..6], *b"hello\0");
        assert_eq!(request.private_data().len(), 56);
        (id, request.id())
    }

    fn connected(&mut self) -> (u32, u32) {
        let (client, server) = self.requested();
        self.hosts[0].parameters(self.now, server, Some(8), b"welcome", 0x222).unwrap();
        self.settle();
        let reply = self.hosts[1].expect(self.now, CONNECT_RESPONSE);
        assert_eq!((reply.uid(), reply.qpn()), (7, 0x222));
        assert!(reply.private_data().starts_with(b"welcome\0"));
        // ACCEPT without parameters.
        let confirm = command(8, 296, 0, &[(280, &client.to_ne_bytes())]);
        self.hosts[1].send(self.now, &confirm).unwrap();
        self.settle();
        assert_eq!(self.hosts[0].expect(self.now, ESTABLISHED).uid(), 8);
        (client, server)
    }
}

#[test]
fn a_client_connects_and_both_ends_see_the_end() {
    let mut world = World::new();
    let listener = world.hosts[0].listener(world.now, TCP, 0);
    let (client, server) = world.connected();
    world.hosts[1].of_id(world.now, 10, client).unwrap();
    world.settle();
    assert_eq!(world.hosts[0].expect(world.now, DISCONNECTED).uid(), 8);
    assert_eq!(world.hosts[1].expect(world.now, DISCONNECTED).uid(), 7);
    world.hosts[0].of_id(world.now, 10, server).unwrap();
    world.pass(60 * SECOND);
    world.hosts[0].expect(world.now, TIMEWAIT_EXIT);
    world.hosts[1].expect(world.now, TIMEWAIT_EXIT);
    // Address, route, reply, end, time-wait; the request counts for the listener.
    assert_eq!(world.hosts[1].destroy(world.now, client), 5);
    assert_eq!(world.hosts[0].destroy(world.now, server), 3);
    assert_eq!(world.hosts[0].destroy(world.now, listener), 1);
    assert!(world.hosts.iter().all(|host| host.cm.ids.is_empty() && host.cm.connections() == 0));
}

#[test]
fn queue_pairs_get_the_terms_of_both_ends() {
    const INIT: u32 = 1 << 0 | 1 << 3 | 1 << 4 | 1 << 5;
    const RTR: u32 = 1 << 0 | 1 << 7 | 1 << 8 | 1 << 12 | 1 << 15 | 1 << 17 | 1 << 20;
    const RTS: u32 = 1 << 0 | 1 << 9 | 1 << 10 | 1 << 11 | 1 << 13 | 1 << 16;
    let mut world = World::new();
    world.hosts[0].listener(world.now, TCP, 0);
    let (client, server) = world.requested();
    let now = world.now;
    assert_eq!(world.hosts[1].qp_attributes(now, client, 2), Err(RdmaCmError::Invalid));
    // The server changes its queue pair before it accepts.
    let init = world.hosts[0].qp_attributes(now, server, 1).unwrap();
    assert_eq!((word(&init, 0), word(&init, 36)), (INIT, 2 | 4 | 8), "mask and rights");
    let to_receive = world.hosts[0].qp_attributes(now, server, 2).unwrap();
    assert_eq!((word(&to_receive, 0), word(&to_receive, 32)), (RTR, 0x111));
    assert_eq!(to_receive[64..66], 2_u16.to_ne_bytes(), "the LID of the client");
    let to_send = world.hosts[0].qp_attributes(now, server, 3).unwrap();
    assert_eq!((word(&to_send, 0), to_send[135]), (RTS, 7));
    world.hosts[0].parameters(now, server, Some(8), b"", 0x222).unwrap();
    world.settle();
    let of_client = world.hosts[1].qp_attributes(now, client, 2).unwrap();
    let sends = world.hosts[1].qp_attributes(now, client, 3).unwrap();
    assert_eq!(word(&of_client, 32), 0x222);
    assert_eq!(word(&of_client, 24), word(&to_send, 28), "what one sends the other expects");
    assert_eq!(word(&sends, 28), word(&to_receive, 24));
}

#[test]
fn a_rejected_request_has_the_private_data_of_the_rejection() {
    let mut world = World::new();
    world.hosts[0].listener(world.now, TCP, 0);
    let (client, server) = world.requested();
    let fields: [(usize, &[u8]); 3] = [(0, &server.to_ne_bytes()), (4, &[2]), (8, b"no")];
    world.hosts[0].send(world.now, &command(9, 264, 0, &fields)).unwrap();
    world.settle();
    let rejected = world.hosts[1].expect(world.now, REJECTED);
    assert_eq!((rejected.uid(), rejected.status()), (7, 28));
    assert!(rejected.private_data().starts_with(b"no\0"));
    assert_eq!(world.hosts[1].destroy(world.now, client), 3);
}

#[test]
fn a_port_without_a_listener_rejects_and_a_silent_host_is_unreachable() {
    let mut world = World::new();
    let id = world.routed(7, TCP);
    world.hosts[1].parameters(world.now, id, None, b"", 0x111).unwrap();
    world.settle();
    let rejected = world.hosts[1].expect(world.now, REJECTED);
    assert_eq!(rejected.status(), 8, "an invalid service ID");

    let id = world.routed(9, TCP);
    world.hosts[0].lid = Lid(77);
    world.hosts[1].parameters(world.now, id, None, b"", 0x111).unwrap();
    world.pass(600 * SECOND);
    let unreachable = world.hosts[1].expect(world.now, UNREACHABLE);
    assert_eq!((unreachable.uid(), unreachable.status()), (9, -110));
}

#[test]
fn an_address_that_nobody_has_is_an_error_in_time() {
    let mut world = World::new();
    let id = world.hosts[1].create(world.now, 7, TCP);
    world.hosts[1].resolve(world.now, id, Ipv4Addr::new(10, 0, 0, 99), 2000);
    world.pass(SECOND);
    assert!(world.hosts[1].event(world.now).is_none());
    world.pass(SECOND);
    world.hosts[1].tokens += world.hosts[1].cm.take_announcements(world.hosts[1].file);
    let error = world.hosts[1].expect(world.now, ADDRESS_ERROR);
    assert_eq!((error.uid(), error.status()), (7, -110));
    // Another address may be tried.
    let server = world.hosts[0].ip;
    world.hosts[1].resolve(world.now, id, server, 2000);
    world.settle();
    world.hosts[1].expect(world.now, ADDRESS_RESOLVED);
}

#[test]
fn a_program_that_ends_disconnects_its_peers() {
    let mut world = World::new();
    world.hosts[0].listener(world.now, TCP, 0);
    world.connected();
    let (_, second) = world.requested_of(0x112);
    let program = world.hosts[0].program;
    world.hosts[0].cm.end_program(world.now, program);
    world.settle();
    world.hosts[1].expect(world.now, DISCONNECTED);
    world.hosts[1].expect(world.now, REJECTED);
    assert!(world.hosts[0].cm.ids.is_empty() && world.hosts[0].cm.counts.is_empty());
    let answer = world.hosts[0].of_id(world.now, 10, second);
    assert_eq!(answer, Err(RdmaCmError::Invalid), "its file is closed");
}

#[test]
fn a_destroyed_listener_rejects_what_was_not_taken() {
    let mut world = World::new();
    let listener = world.hosts[0].listener(world.now, TCP, 0);
    let id = world.routed(7, TCP);
    world.hosts[1].parameters(world.now, id, None, b"", 0x111).unwrap();
    world.settle();
    assert_eq!(world.hosts[0].tokens, 1);
    assert_eq!(world.hosts[0].destroy(world.now, listener), 0);
    assert_eq!(world.hosts[0].tokens, 0, "the event of the request is revoked");
    world.settle();
    world.hosts[1].expect(world.now, REJECTED);
    assert!(world.hosts[0].cm.ids.is_empty());
}

#[test]
fn requests_beyond_the_backlog_wait_until_some_are_taken() {
    let mut world = World::new();
    world.hosts[0].listener(world.now, TCP, 2);
    for uid in 1..=3 {
        let id = world.routed(uid, TCP);
        world.hosts[1].parameters(world.now, id, None, b"", uid as u32).unwrap();
        world.settle();
    }
    assert_eq!(world.hosts[0].tokens, 2);
    world.hosts[0].expect(world.now, CONNECT_REQUEST);
    // The third request is repeated.
    world.pass(20 * SECOND);
    world.hosts[0].expect(world.now, CONNECT_REQUEST);
    assert_eq!(world.hosts[0].expect(world.now, CONNECT_REQUEST).qpn(), 3);
}

#[test]
fn a_program_has_a_limited_number_of_ids_and_files() {
    let mut world = World::new();
    let [host, _] = &mut world.hosts;
    let ids: Vec<_> = (0..IDS_MAX).map(|_| host.create(world.now, 1, TCP)).collect();
    let another = command(0, 24, 4, &[(16, &TCP.to_ne_bytes())]);
    assert_eq!(host.send(world.now, &another), Err(RdmaCmError::NoMemory));
    host.destroy(world.now, ids[0]);
    assert!(host.send(world.now, &another).is_ok());
    assert!((1..FILES_MAX).all(|_| host.cm.open(host.program).is_ok()));
    assert_eq!(host.cm.open(host.program), Err(RdmaCmError::NoFile));
    let other = host.cm.open(ProgramId(2)).unwrap();
    let foreign = command(1, 16, 4, &[(8, &ids[1].to_ne_bytes())]);
    let answer = host.cm.handle_command(world.now, ProgramId(2), other, &foreign);
    assert_eq!(answer, Err(RdmaCmError::NoId), "it is another program's");
    let answer = host.cm.handle_command(world.now, ProgramId(2), host.file, &foreign);
    assert_eq!(answer, Err(RdmaCmError::Invalid), "as is the file");
}

#[test]
fn events_go_along_with_an_id_to_another_file() {
    let mut world = World::new();
    let server = world.hosts[0].ip;
    let client = &mut world.hosts[1];
    let id = client.create(world.now, 7, TCP);
    client.resolve(world.now, id, server, 2000);
    world.settle();
    let client = &mut world.hosts[1];
    assert_eq!(client.tokens, 1);
    let from = std::mem::replace(&mut client.file, client.cm.open(client.program).unwrap());
    let fields: [(usize, &[u8]); 2] = [(8, &id.to_ne_bytes()), (12, &from.0.to_ne_bytes())];
    let bytes = command(18, 16, 4, &fields);
    let moved = client.cm.handle_command(world.now, client.program, client.file, &bytes).unwrap();
    assert_eq!((moved.revoked, moved.revoked_at), (1, Some(from)));
    client.tokens = client.cm.take_announcements(client.file);
    client.expect(world.now, ADDRESS_RESOLVED);
    assert_eq!(client.destroy(world.now, id), 1);
}

#[test]
fn an_id_whose_events_do_not_fit_into_another_file_stays() {
    let mut world = World::new();
    let listener = world.hosts[0].listener(world.now, TCP, 1);
    let id = world.routed(7, TCP);
    world.hosts[1].parameters(world.now, id, None, b"", 0x111).unwrap();
    world.settle();
    let host = &mut world.hosts[0];
    let (from, full) = (host.file, host.cm.open(host.program).unwrap());
    host.file = full;
    let other = host.create(world.now, 8, TCP);
    let nothing = commands::nothing();
    (1..EVENTS_MAX).for_each(|_| host.cm.emit(other, EventKind::AddressResolved, 0, &nothing));
    let migrate = |host: &mut Host, id: u32| {
        let fields: [(usize, &[u8]); 2] = [(8, &id.to_ne_bytes()), (12, &from.0.to_ne_bytes())];
        let bytes = command(18, 16, 4, &fields);
        host.cm.handle_command(world.now, host.program, full, &bytes).map(|moved| moved.revoked)
    };
    host.cm.emit(other, EventKind::AddressResolved, 0, &nothing);
    assert_eq!(migrate(host, listener), Err(RdmaCmError::NoMemory));
    host.cm.take_event(full).unwrap();
    assert_eq!(migrate(host, listener), Ok(1), "there is space for one event now");
    host.cm.destroy(world.now, other);
    let request = host.cm.take_event(full).unwrap();
    assert_eq!(Event(request).kind(), CONNECT_REQUEST);
}

#[test]
fn a_listener_that_the_connection_manager_refuses_stays_bound() {
    let mut world = World::new();
    let [host, _] = &mut world.hosts;
    let (now, ip) = (world.now, host.ip);
    let numbers = || (1_u64..).map(ServiceId);
    let count = numbers().take_while(|id| host.cm.cm.listen(*id, [0; 148]).is_ok()).count();
    let id = host.create(now, 1, TCP);
    host.bind(now, id, ip, PORT).unwrap();
    assert_eq!(host.listen(now, id, 0), Err(RdmaCmError::NoMemory));
    assert!(!host.cm.ports.has_listener(PortSpace::TCP, PORT), "it listens nowhere");
    numbers().take(count).for_each(|id| host.cm.cm.unlisten(id));
    assert_eq!(host.listen(now, id, 0), Ok(()));
    assert_eq!(host.cm.ports.listener(PortSpace::TCP, PORT, ip.into()), Some(id));
}

#[test]
fn datagrams_find_the_queue_pair_of_a_service() {
    let mut world = World::new();
    world.hosts[0].listener(world.now, UDP, 0);
    let id = world.routed(7, UDP);
    world.hosts[1].parameters(world.now, id, None, b"hello", 0).unwrap();
    world.settle();
    let request = world.hosts[0].expect(world.now, CONNECT_REQUEST);
    // The private data of a datagram event follow the address handle attributes.
    assert_eq!(request.0[60..66], *b"hello\0");
    // Without a reply, the request is repeated, and creates no second ID.
    world.pass(3 * SECOND);
    assert!(world.hosts[0].event(world.now).is_none());
    world.hosts[0].parameters(world.now, request.id(), Some(8), b"", 0x333).unwrap();
    world.settle();
    let found = world.hosts[1].expect(world.now, ESTABLISHED);
    assert_eq!((found.qpn(), word(&found.0, 24)), (0x333, 0x0123_4567));
    assert_eq!(found.0[52..54], 1_u16.to_ne_bytes(), "the LID of the server");
    assert_eq!(world.hosts[1].destroy(world.now, id), 3);
    world.hosts[0].destroy(world.now, request.id());

    // Without a listener the status is that of the reply.
    let program = world.hosts[0].program;
    world.hosts[0].cm.end_program(world.now, program);
    let id = world.routed(9, UDP);
    world.hosts[1].parameters(world.now, id, None, b"", 0).unwrap();
    world.settle();
    assert_eq!(world.hosts[1].expect(world.now, UNREACHABLE).status(), 1);
}

#[test]
fn addresses_of_others_and_bound_ports_are_refused() {
    let mut world = World::new();
    let [host, other] = &mut world.hosts;
    let now = world.now;
    let id = host.create(now, 1, TCP);
    assert_eq!(host.bind(now, id, other.ip, PORT), Err(RdmaCmError::NoAddress));
    let own = host.ip;
    host.bind(now, id, own, PORT).unwrap();
    assert_eq!(host.bind(now, id, own, PORT + 1), Err(RdmaCmError::Invalid));
    let second = host.create(now, 2, TCP);
    assert_eq!(host.bind(now, second, own, PORT), Err(RdmaCmError::AddressInUse));
    let of_infiniband: [(usize, &[u8]); 2] =
        [(8, &27_u16.to_ne_bytes()), (36, &second.to_ne_bytes())];
    let bytes = command(2, 40, 0, &of_infiniband);
    assert_eq!(host.send(now, &bytes), Err(RdmaCmError::WrongFamily));
    // A bound ID has an adapter; the route begins with its GUID.
    let route = host.send(now, &command(5, 16, 208, &[(8, &id.to_ne_bytes())])).unwrap();
    assert_eq!((route.len(), &route[..8]), (208, &1_u64.to_be_bytes()[..]));
    assert_eq!(route[136..144], sockaddr(own, PORT));
}

/// The number of a command, its bytes, an ID in it, and the seconds that pass after it.
fn any_command() -> impl Strategy<Value = (u32, Vec<u8>, u32, u32)> {
    let bytes = prop::collection::vec(any::<u8>(), 0..COMMAND_BYTES_MAX);
    (0..24_u32, bytes, 0..6_u32, 0..9_u32)
}

proptest! {
    /// For any bytes, commands are answered or refused, and nothing is left when the program ends.
    #[test]
    fn any_commands_are_answered_or_refused(
        all in prop::collection::vec(any_command(), 0..60),
    ) {
        let mut world = World::new();
        for (number, mut bytes, id, seconds) in all {
            let at = match number {
                2 => 36,
                3 => 56,
                6 => 272,
                8 => 280,
                1 | 5 | 11 | 14 | 18 => 8,
                _ => 0,
            };
            bytes.resize(bytes.len().max(at + 4), 0);
            bytes[at..at + 4].copy_from_slice(&id.to_ne_bytes());
            let whole = command(number, bytes.len(), 400, &[(0, &bytes)]);
            let host = &mut world.hosts[0];
            let answer = host.cm.handle_command(world.now, host.program, host.file, &whole);
            if let Ok(answer) = answer {
                prop_assert!(answer.bytes.len() <= 400);
            }
            world.settle();
            world.pass(SECOND * seconds);
        }
        let program = world.hosts[0].program;
        world.hosts[0].cm.end_program(world.now, program);
        world.pass(600 * SECOND);
        prop_assert!(world.hosts[0].cm.ids.is_empty() && world.hosts[0].cm.connections.is_empty());
        prop_assert_eq!(world.hosts[0].cm.connections(), 0);
    }
}
