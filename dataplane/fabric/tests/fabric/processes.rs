//! A server of processes and its clients: traffic that bypasses the server, and clients or servers
//! that are killed.
//!
//! The test starts its own program as a client that sends forever, or as the server, and kills it
//! after some progress, different in each round; never after a certain time.
#![expect(clippy::disallowed_methods, reason = "processes need a clock, and are told their part")]

use crate::pair::{Connection, Side, connect, side_of};
use crate::served::{Served, Serving, clock, name, path_of, server};
use pollux_fabric::node::PKeys;
use pollux_fabric::process::socket::socket_path;
use pollux_fabric::process::{ProcessLink, open};
use pollux_fabric::topology::End;
use pollux_mem::Memory;
use pollux_verbs::*;
use pollux_wire::address::Lid;
use pollux_wire::keys::PKey;
use pollux_wire::mad::smp::PortState;
use pollux_wire::units::TimeCode;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use std::env;
use std::os::unix::process::{ExitStatusExt, parent_id};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

const ROLE: &str = "POLLUX_FABRIC_ROLE";
const PATH: &str = "POLLUX_FABRIC_PATH";
const ALONE: &str = "POLLUX_FABRIC_ALONE";
const ROUNDS: u64 = 25;
/// The limit of every wait, far above the need on a busy machine.
const WAIT_MAX: Duration = Duration::from_secs(60);

const SLOT: usize = 80 << 10;
const SLOTS: usize = 8;

/// Runs a test, by its path, in a separate process, because it counts resources of the process;
/// returns false in that process.
pub fn runs_alone(test: &str) -> bool {
    if env::var_os(ALONE).is_some() {
        return false;
    }
    let mut command = Command::new(env::current_exe().unwrap());
    let output = command.args(["--exact", test, "--nocapture"]).env(ALONE, "1").output().unwrap();
    let [text, errors] = [output.stdout, output.stderr].map(|it| String::from_utf8(it).unwrap());
    assert!(output.status.success(), "{test}: {}\n{text}{errors}", output.status);
    assert!(text.contains("1 passed"), "{test} is no path of a test: {text}");
    true
}

/// Hosts of `single:N` have the LIDs after the LID of their switch.
const LIDS: [u16; 2] = [2, 3];

fn connection() -> Connection {
    // Half a second, seven times: a peer may wait for a processor.
    Connection { timeout: TimeCode(17), psn: 7, ..Connection::default() }
}

/// A client at a host, with a queue pair for the other host's. The first queue pair of every
/// adapter has the same number, so the peers need not exchange it.
fn client(name: &str, host: u32) -> Side<ProcessLink> {
    client_with(name, host, SLOT * SLOTS)
}

/// The same with this many bytes of memory.
fn client_with(name: &str, host: u32, bytes: usize) -> Side<ProcessLink> {
    let begun = Instant::now();
    let device = loop {
        match open(name, clock()) {
            Ok(device) => break device,
            // The server may not know yet that the previous client is dead.
            Err(error) => assert!(begun.elapsed() < WAIT_MAX, "{error}"),
        }
        std::thread::yield_now();
    };
    let memory = Memory::shared(bytes).unwrap();
    let mut side = side_of(device, memory, &connection());
    wait_for(&mut side, |side| side.device.port(1).unwrap().state == PortState::ACTIVE);
    let peer = side.device.qpn(side.qp).unwrap();
    connect(&mut side, peer, LIDS[2 - host as usize], &connection());
    side
}

/// Polls until a condition holds.
fn wait_for(side: &mut Side<ProcessLink>, is: impl Fn(&Side<ProcessLink>) -> bool) {
    let begun = Instant::now();
    while !is(side) {
        assert!(begun.elapsed() < WAIT_MAX, "it never is");
        side.device.progress();
    }
}

/// Lengths of messages: empty, in the ring entry, and leased.
fn bytes(which: usize) -> usize {
    [0, 1, 64, 188, 189, 4096, 65_520, 33][which % 8]
}

fn byte(which: usize) -> u8 {
    (which * 31 + 1) as u8
}

/// Sends messages in order, forever or this many.
fn send(side: &mut Side<ProcessLink>, messages: usize, mut waiting: impl FnMut()) {
    let (mut posted, mut done) = (0, 0);
    while done < messages {
        if posted < messages && posted - done < SLOTS {
            let (at, length) = (posted % SLOTS * SLOT, bytes(posted));
            assert!(side.memory.write(at, &vec![byte(posted); length]));
            let sges = [side.sge(at as u64, length as u32)];
            let (id, op, data) = (posted as u64, SendOp::SendImm(posted as u32), Data::Sges(&sges));
            let request = SendRequest { id, op, flags: SendFlags::SIGNALED, data };
            side.device.post_send(side.qp, &[request]).unwrap();
            posted += 1;
        }
        while let Some(completion) = side.poll() {
            assert_eq!(
                (completion.id, completion.status),
                (done as u64, CompletionStatus::Success)
            );
            done += 1;
        }
        waiting();
    }
}

/// Receives messages, and checks that they are complete and in order.
#[derive(Default)]
struct Receiver {
    posted: usize,
    came: usize,
}

impl Receiver {
    fn step(&mut self, side: &mut Side<ProcessLink>) {
        while self.posted - self.came < SLOTS {
            let sges = [side.sge((self.posted % SLOTS * SLOT) as u64, SLOT as u32)];
            let request = RecvRequest { id: self.posted as u64, sges: &sges };
            side.device.post_recv(side.qp, &[request]).unwrap();
            self.posted += 1;
        }
        let Some(completion) = side.poll() else { return };
        let came = self.came;
        assert_eq!((completion.id, completion.status), (came as u64, CompletionStatus::Success));
        assert_eq!(completion.with, With::Imm(came as u32));
        assert_eq!(completion.bytes as usize, bytes(came));
        let mut content = vec![0; bytes(came)];
        assert!(side.memory.read(came % SLOTS * SLOT, &mut content));
        assert!(content.iter().all(|&found| found == byte(came)), "message {came}");
        self.came += 1;
    }

    fn until(&mut self, side: &mut Side<ProcessLink>, came: usize) {
        let begun = Instant::now();
        while self.came < came {
            assert!(begun.elapsed() < WAIT_MAX, "only {} messages came", self.came);
            self.step(side);
        }
    }
}

/// A child process with a role, which does not outlive the test.
struct Peer(Child);

impl Peer {
    fn start(role: &str, path: &std::path::Path) -> Self {
        let mut command = Command::new(env::current_exe().unwrap());
        command.args(["--exact", "processes::peer", "--nocapture"]);
        command.env(ROLE, role).env(PATH, path).stdout(Stdio::null());
        Self(command.spawn().unwrap())
    }

    fn kill(mut self) {
        self.0.kill().unwrap();
        assert_eq!(self.0.wait().unwrap().signal(), Some(9), "it ended by itself");
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Does nothing as a test. As a child process it has its role until it is killed, or until its peer
/// has ended.
#[test]
fn peer() {
    let (Ok(role), Ok(path)) = (env::var(ROLE), env::var(PATH)) else { return };
    let (path, parent) = (std::path::Path::new(&path), parent_id());
    let waiting = || assert_eq!(parent_id(), parent, "nobody is there any more");
    match role.as_str() {
        "sender" => send(&mut client(&name(path, 2), 2), usize::MAX, waiting),
        // With less address space than the peer's memory needs.
        "tight" => {
            let mut side = client(&name(path, 2), 2);
            let before = getrlimit(Resource::As);
            let most = Some(address_space() + (8 << 20));
            setrlimit(Resource::As, Rlimit { current: most, ..before }).unwrap();
            let mut receiver = Receiver::default();
            loop {
                receiver.step(&mut side);
                assert_eq!(borrowed(), 0, "there is no room for it");
                waiting();
            }
        }
        "server" => {
            let (mut server, clock) = (server(path, "single:2"), clock());
            let mut ports = 0;
            loop {
                server.turn(clock(), &mut ports);
                waiting();
            }
        }
        _ => panic!("no such part: {role}"),
    }
}

fn descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").unwrap().count()
}

fn mappings() -> usize {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    maps.lines().filter(|line| line.contains("pollux-")).count()
}

/// Bytes of the address space in use.
fn address_space() -> u64 {
    let pages = std::fs::read_to_string("/proc/self/statm").unwrap();
    let pages: u64 = pages.split(' ').next().unwrap().parse().unwrap();
    pages * rustix::param::page_size() as u64
}

/// Segments of peers that are mapped for leased messages.
fn borrowed() -> usize {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    let is_borrowed = |line: &&str| line.contains("r--s") && line.contains("pollux-memory");
    maps.lines().filter(is_borrowed).count()
}

/// Long messages are copied once, out of memory that the receiver maps until the ring ends; it maps
/// no other memory.
#[test]
fn memory_is_mapped_for_its_receiver_while_the_ring_lasts() {
    if runs_alone("processes::memory_is_mapped_for_its_receiver_while_the_ring_lasts") {
        return;
    }
    let (served, [mut a, mut b]) = two("mapped");
    assert_eq!(borrowed(), 0);
    let mut receiver = until_direct(&served, &mut a, &mut b);
    let mut sent = receiver.came;
    let begun = Instant::now();
    while borrowed() == 0 {
        assert!(begun.elapsed() < WAIT_MAX, "nothing is leased");
        exchange_from(&mut a, &mut b, &mut receiver, &mut sent, 8);
    }
    exchange_from(&mut a, &mut b, &mut receiver, &mut sent, 80);
    assert_eq!(borrowed(), 1, "only what the sender leased");
    let left = served.ask(|server| {
        server.net_mut().set_tap(Box::new(|_, _: End, _: &[u8]| ()));
        server.tell_changes();
        server.statistics().1
    });
    assert_eq!(left, 0);
    exchange_from(&mut a, &mut b, &mut receiver, &mut sent, 8);
    assert_eq!(borrowed(), 0, "the ring is over");
}

/// A receiver that cannot map its peer's memory gets everything by copy.
#[test]
fn a_receiver_without_address_space_gets_long_messages_by_copy() {
    const MESSAGES: usize = 80;
    if runs_alone("processes::a_receiver_without_address_space_gets_long_messages_by_copy") {
        return;
    }
    let served = Served::start("tight", "single:2");
    let mut peer = Peer::start("tight", served.path());
    let mut side = client_with(&served.name(1), 1, 64 << 20);
    send(&mut side, MESSAGES, || {
        assert!(peer.0.try_wait().unwrap().is_none(), "the receiver has ended");
    });
    assert_eq!(served.ask(|server| server.statistics()), (2, 2), "all went past the server");
    peer.kill();
}

/// A client that is killed at any moment leaves no resources behind, and the next one gets its
/// port.
#[test]
fn a_killed_client_leaves_no_resources() {
    if runs_alone("processes::a_killed_client_leaves_no_resources") {
        return;
    }
    let served = Served::start("killed", "single:2");
    let mut side = client(&served.name(1), 1);
    let mut kept = None;
    let mut rings_most = 0;
    for round in 0..ROUNDS {
        let peer = Peer::start("sender", served.path());
        let mut receiver = Receiver::default();
        let progress = (round + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 55;
        receiver.until(&mut side, progress as usize + 1);
        rings_most = rings_most.max(served.ask(|server| server.statistics().1));
        peer.kill();
        let begun = Instant::now();
        // Messages that it left in its rings may arrive or not; none of its resources stays.
        while served.ask(|server| server.statistics()) != (1, 0) {
            assert!(begun.elapsed() < WAIT_MAX, "the dead one stays");
            side.device.progress();
        }
        let down = served.ask(|server| server.net().subnet().nodes()[2].ports[1].info.port_state);
        assert_eq!(down, PortState::DOWN);
        // Rings and segments are released as control messages arrive.
        let reset = QpAttributes { state: Some(QpState::Reset), ..QpAttributes::default() };
        side.device.modify_qp(side.qp, &reset).unwrap();
        for _ in 0..10_000 {
            side.device.progress();
        }
        while side.poll().is_some() {}
        let left = (descriptors(), mappings());
        assert_eq!(*kept.get_or_insert(left), left, "round {round} left something behind");
        let peer = side.device.qpn(side.qp).unwrap();
        connect(&mut side, peer, LIDS[1], &connection());
    }
    assert_eq!(rings_most, 2, "no ring was in use");
}

/// When the server is killed, the ports of its clients go down, the queue pairs stay, and the
/// clients attach to the next server.
#[test]
fn clients_attach_again_after_the_server_is_killed() {
    if runs_alone("processes::clients_attach_again_after_the_server_is_killed") {
        return;
    }
    let path = path_of("server");
    for _ in 0..5 {
        let peer = Peer::start("server", &path);
        let mut sides = [1, 2].map(|host| client(&name(&path, host), host));
        let [a, b] = &mut sides;
        let mut receiver = Receiver::default();
        exchange(a, b, &mut receiver, 200);
        peer.kill();
        for side in [&mut *a, &mut *b] {
            wait_for(side, |side| side.device.port(1).unwrap().state == PortState::DOWN);
            let events: Vec<_> = std::iter::from_fn(|| side.device.async_event()).collect();
            assert!(events.contains(&AsyncEvent::PortError(1)), "{events:?}");
            assert!(side.device.create_cq(16).is_ok(), "verbs go on");
        }
        let _peer = Peer::start("server", &path);
        for side in [&mut *a, &mut *b] {
            wait_for(side, |side| side.device.port(1).unwrap().state == PortState::ACTIVE);
            let events: Vec<_> = std::iter::from_fn(|| side.device.async_event()).collect();
            assert!(events.contains(&AsyncEvent::PortActive(1)), "{events:?}");
        }
        for side in [&mut *a, &mut *b] {
            let reset = QpAttributes { state: Some(QpState::Reset), ..QpAttributes::default() };
            side.device.modify_qp(side.qp, &reset).unwrap();
            while side.poll().is_some() {}
        }
        let peer = a.device.qpn(a.qp).unwrap();
        connect(a, peer, LIDS[1], &connection());
        connect(b, peer, LIDS[0], &connection());
        exchange(a, b, &mut Receiver::default(), 200);
    }
    let _ = std::fs::remove_file(socket_path(&path));
}

/// Sends this many messages from `b` to `a`.
fn exchange(
    a: &mut Side<ProcessLink>,
    b: &mut Side<ProcessLink>,
    receiver: &mut Receiver,
    messages: usize,
) {
    let begun = Instant::now();
    let receiver = Mutex::new((receiver, a));
    send(b, messages, || {
        let (receiver, a) = &mut *receiver.lock().unwrap();
        receiver.step(a);
        assert!(begun.elapsed() < WAIT_MAX, "only {} messages came", receiver.came);
    });
}

fn two(name: &str) -> (Served, [Side<ProcessLink>; 2]) {
    let served = Served::start(name, "single:2");
    let sides = [1, 2].map(|host| client(&served.name(host), host));
    (served, sides)
}

/// Exchanges messages until both directions have a ring of their own.
fn until_direct(served: &Served, a: &mut Side<ProcessLink>, b: &mut Side<ProcessLink>) -> Receiver {
    let (mut receiver, mut sent) = (Receiver::default(), 0);
    let begun = Instant::now();
    while served.ask(|server| server.statistics()) != (2, 2) {
        assert!(begun.elapsed() < WAIT_MAX, "they never get a ring");
        exchange_from(a, b, &mut receiver, &mut sent, 8);
    }
    receiver.posted = receiver.posted.max(sent);
    receiver
}

/// Continues an exchange.
fn exchange_from(
    a: &mut Side<ProcessLink>,
    b: &mut Side<ProcessLink>,
    receiver: &mut Receiver,
    sent: &mut usize,
    messages: usize,
) {
    for _ in 0..messages {
        let sges = [b.sge(0, bytes(*sent) as u32)];
        assert!(b.memory.write(0, &vec![byte(*sent); bytes(*sent)]));
        let op = SendOp::SendImm(*sent as u32);
        let (flags, data) = (SendFlags::SIGNALED, Data::Sges(&sges));
        b.device.post_send(b.qp, &[SendRequest { id: 0, op, flags, data }]).unwrap();
        *sent += 1;
        let begun = Instant::now();
        while b.poll().is_none() {
            assert!(begun.elapsed() < WAIT_MAX, "only {} messages came", receiver.came);
            receiver.step(a);
        }
        receiver.until(a, *sent);
    }
}

/// Traffic of direct rings is counted at every port of the path that it bypasses.
#[test]
fn traffic_of_direct_rings_is_counted() {
    if runs_alone("processes::traffic_of_direct_rings_is_counted") {
        return;
    }
    let (served, [mut a, mut b]) = two("counted");
    let mut receiver = until_direct(&served, &mut a, &mut b);
    let mut sent = receiver.came;
    let counted = |served: &Served| {
        served.ask(|server| {
            let nodes = server.net().subnet().nodes();
            [(1, 1), (2, 1), (0, 1), (0, 2)].map(|(node, port): (usize, usize)| {
                let counters = &nodes[node].ports[port].counters;
                let sent = [counters.xmit_packets, counters.xmit_data];
                let came = [counters.rcv_packets, counters.rcv_data];
                [sent, came].map(|both| both.map(|counter| counter.long()))
            })
        })
    };
    let before = counted(&served);
    exchange_from(&mut a, &mut b, &mut receiver, &mut sent, 80);
    let after = counted(&served);
    // Packets and words out, and packets and words in, of both hosts and of the switch's ports.
    let went = |port: usize| {
        [0, 1].map(|way| [0, 1].map(|what| after[port][way][what] - before[port][way][what]))
    };
    let [[a_out, a_in], [b_out, b_in], [to_a, from_a], [to_b, from_b]] = [0, 1, 2, 3].map(went);
    // The path MTU is 1024: of each eight messages, 1 + 1 + 1 + 1 + 1 + 4 + 64 + 1 packets.
    assert_eq!(b_out[0], 80 / 8 * 74);
    assert_eq!([from_b, to_a, a_in], [b_out; 3]);
    assert_eq!([from_a, to_b, b_in], [a_out; 3]);
    assert!(a_out[0] > 0, "there were acknowledgements");
}

/// A ring ends when its traffic is no longer allowed, and when a tap needs packets.
#[test]
fn direct_rings_end_when_their_path_changes() {
    if runs_alone("processes::direct_rings_end_when_their_path_changes") {
        return;
    }
    let (served, [mut a, mut b]) = two("ends");
    let mut receiver = until_direct(&served, &mut a, &mut b);
    let mut sent = receiver.came;
    let keys =
        |key: PKey| PKeys::new(std::array::from_fn(|nth| if nth == 0 { key } else { PKey(0) }));
    let enforce = |served: &Served, key: PKey| {
        served.ask(move |server| {
            let port = &mut server.net_mut().subnet_mut().node_mut(0).ports[2];
            port.info.partition_enforcement_outbound = true;
            port.p_keys = keys(key);
            server.tell_changes();
            server.statistics().1
        })
    };
    assert_eq!(enforce(&served, PKey(0x8001)), 1, "one direction is forbidden");
    assert_eq!(enforce(&served, PKey::DEFAULT), 1);
    exchange_from(&mut a, &mut b, &mut receiver, &mut sent, 8);
    wait_for(&mut a, |_| served.ask(|server| server.statistics().1) == 2);

    let seen = Arc::new(AtomicUsize::new(0));
    let tapped = seen.clone();
    let left = served.ask(move |server| {
        let tap = move |_, _: End, _: &[u8]| {
            tapped.fetch_add(1, Ordering::Relaxed);
        };
        server.net_mut().set_tap(Box::new(tap));
        server.tell_changes();
        server.statistics().1
    });
    assert_eq!(left, 0);
    exchange_from(&mut a, &mut b, &mut receiver, &mut sent, 8);
    // Two links, and 74 packets one way at least.
    assert!(seen.load(Ordering::Relaxed) >= 2 * 74, "{seen:?}");
}

/// The agent of a port counts the drops of its adapter for wrong keys.
#[test]
fn a_key_that_does_not_match_is_counted_at_the_port() {
    if runs_alone("processes::a_key_that_does_not_match_is_counted_at_the_port") {
        return;
    }
    let (served, [mut a, mut b]) = two("keys");
    let mut entries = [PKey::INVALID; 32];
    entries[0] = PKey(0x8001);
    served.ask(move |server| {
        server.net_mut().subnet_mut().node_mut(2).ports[1].p_keys = PKeys::new(entries);
    });
    wait_for(&mut b, |side| side.device.pkey(1, 0).unwrap() == entries[0]);
    let request = SendRequest {
        id: 1,
        op: SendOp::Send,
        flags: SendFlags::SIGNALED,
        data: Data::Sges(&[a.sge(0, 8)]),
    };
    a.device.post_send(a.qp, &[request]).unwrap();
    a.device.progress();
    wait_for(&mut b, |_| {
        let violations =
            |server: &mut Serving| server.net().subnet().nodes()[2].ports[1].info.p_key_violations;
        served.ask(violations) > 0
    });
    assert!(b.device.adapter.port().drops.of(pollux_fabric::DropReason::PKey) > 0);
}

/// Ports that do not exist or are taken are refused with a reason.
#[test]
fn ports_have_one_client() {
    if runs_alone("processes::ports_have_one_client") {
        return;
    }
    let (served, sides) = two("refused");
    let path = served.path().display().to_string();
    for (name, reason) in [
        (served.name(1), "is at this port"),
        (format!("soft:{path}@nobody"), "no node of this name"),
        (format!("soft:{path}@host1:2"), "node 'host1' has no port 2; ports go from 1 to 1"),
        (format!("soft:{path}-not@host1"), "no fabric listens"),
        ("soft:".into(), "not of the form"),
    ] {
        let error = open(&name, clock()).err().expect("it is refused").to_string();
        assert!(error.contains(reason), "{error}");
    }
    use std::os::unix::fs::PermissionsExt;
    let mode = std::fs::metadata(socket_path(served.path())).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    assert_eq!(sides[0].device.port(1).unwrap().lid, Lid(LIDS[0]));
    assert!(sides.iter().all(|side| side.state() == QpState::Rts));
}
