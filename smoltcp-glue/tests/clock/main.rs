//! Mixed traffic between threads in real time, with faults on their links: no byte is wrong, all
//! programs continue after the faults, and memory does not grow.
//!
//! It takes `POLLUX_LOAD_MINUTES` minutes, and a few seconds by default. Faults come from a seeded
//! RNG; their timing does not.

use pollux::{Interface, Mode, Node, TcpListener, TcpStream, UdpSocket};
use pollux_counted::Counted;
use pollux_node::admin::client::ask;
use pollux_node::admin::request::AdminRequest;
use pollux_node::fabric::Embedded;
use pollux_verbs::rng::SeededRng;
use std::io::{ErrorKind, Read, Write};
use std::net::{IpAddr, Ipv4Addr, Shutdown, SocketAddr};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

#[global_allocator]
static MEMORY: Counted = Counted::new();

const SECOND: Duration = Duration::from_secs(1);
const TIME_DEFAULT: Duration = Duration::from_secs(6);
/// The timeout of calls after the faults.
const TIMEOUT: Duration = Duration::from_secs(30);
const MODES: [Mode; 4] = [Mode::Auto, Mode::Rc, Mode::Uc, Mode::Ud];
const GROUP: Ipv4Addr = Ipv4Addr::new(239, 1, 2, 3);
const STREAMS: u16 = 80;
const ECHOES: u16 = 7;
const GROUP_PORT: u16 = 5000;

/// The state that all threads share.
#[derive(Default)]
struct Shared {
    is_over: AtomicBool,
    /// Clients that have not ended: the server ends after them.
    clients: AtomicU64,
    /// Faults are over: from now on every stream has to succeed.
    is_recovered: AtomicBool,
    complete: AtomicU64,
    broken: AtomicU64,
    echoed: AtomicU64,
    group_received: AtomicU64,
    opened: AtomicU64,
}

impl Shared {
    fn is_over(&self) -> bool {
        self.is_over.load(Ordering::Relaxed)
    }
}

fn add(count: &AtomicU64) {
    count.fetch_add(1, Ordering::Relaxed);
}

fn at(host: usize, port: u16) -> SocketAddr {
    SocketAddr::from(([10, 0, 0, host as u8 + 1], port))
}

fn open(fabric: &Embedded, host: usize) -> Interface {
    let port = fabric.port(&format!("host{}", host + 1));
    let setup = Node::open(&port)
        .expect("a device")
        .interface("ib0")
        .mode(MODES[host])
        .timeout(2 * TIMEOUT);
    setup.address(&format!("10.0.0.{}/24", host + 1)).up().expect("it comes up")
}

const fn byte(stream: u64, at: usize) -> u8 {
    let mixed = (at as u64 ^ stream << 40).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (mixed >> 56) as u8
}

/// Echoes streams and datagrams, and counts datagrams of the group.
struct Server {
    listener: TcpListener,
    echoes: UdpSocket,
    group: UdpSocket,
    streams: Vec<(TcpStream, Vec<u8>, bool)>,
}

impl Server {
    fn new(interface: &Interface) -> Self {
        let any_address = |port| SocketAddr::from(([0, 0, 0, 0], port));
        let listener = interface.tcp_listen(any_address(STREAMS), 64).expect("it is free");
        let bind = |port| interface.udp_bind(any_address(port)).expect("it is free");
        let (echoes, group) = (bind(ECHOES), bind(GROUP_PORT));
        group.join(GROUP.into()).expect("it is a group");
        listener.set_nonblocking(true).unwrap();
        for socket in [&echoes, &group] {
            socket.set_nonblocking(true).unwrap();
        }
        Self { listener, echoes, group, streams: Vec::new() }
    }

    fn turn(&mut self, shared: &Shared) {
        let mut buffer = vec![0; 65_536];
        if let Ok((stream, _)) = self.listener.accept() {
            stream.set_nonblocking(true).unwrap();
            self.streams.push((stream, Vec::new(), false));
        }
        self.streams.retain_mut(|(stream, held, has_all)| {
            if held.is_empty() && !*has_all && stream.is_readable() {
                match stream.read(&mut buffer) {
                    Ok(0) => *has_all = true,
                    Ok(received) => held.extend(&buffer[..received]),
                    Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                    Err(_) => return false,
                }
            }
            match held.is_empty() {
                true => {}
                false => match stream.write(held) {
                    Ok(taken) => _ = held.drain(..taken),
                    Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                    Err(_) => return false,
                },
            }
            !(*has_all && held.is_empty())
        });
        if self.echoes.is_readable()
            && let Ok((received, from)) = self.echoes.recv_from(&mut buffer)
        {
            let _ = self.echoes.send_to(&buffer[..received], from);
        }
        while self.group.is_readable() && self.group.recv_from(&mut buffer).is_ok() {
            add(&shared.group_received);
        }
    }
}

fn serve(fabric: &Embedded, shared: &Shared) {
    let interface = open(fabric, 0);
    let mut server = Server::new(&interface);
    while !shared.is_over() || shared.clients.load(Ordering::Relaxed) > 0 {
        if !interface.step() {
            std::thread::yield_now();
        }
        server.turn(shared);
    }
}

/// Transfers a stream and its echo; an error if it ends early.
fn stream(interface: &Interface, to: SocketAddr, stream: u64, len: usize) -> std::io::Result<()> {
    let mut tcp = interface.tcp_begin(to)?;
    tcp.set_read_timeout(Some(TIMEOUT)).unwrap();
    tcp.set_write_timeout(Some(TIMEOUT)).unwrap();
    let all: Vec<u8> = (0..len).map(|at| byte(stream, at)).collect();
    tcp.write_all(&all)?;
    tcp.shutdown(Shutdown::Write)?;
    let mut back = Vec::new();
    tcp.read_to_end(&mut back)?;
    assert!(all.starts_with(&back), "stream {stream}: wrong bytes in the first {}", back.len());
    assert_eq!(back.len(), len, "stream {stream} from {:?} ended early", tcp.local_addr());
    Ok(())
}

/// Sends to the server, and replaces its interface from time to time.
fn run_client(fabric: &Embedded, host: usize, shared: &Shared) {
    let mut rng = SeededRng::new(host as u64);
    let mut number = (host as u64) << 32;
    let mut is_recovered = false;
    while !shared.is_over() {
        let interface = open(fabric, host);
        add(&shared.opened);
        let socket = interface.udp_bind(at(host, 0)).expect("a port is free");
        socket.set_read_timeout(Some(SECOND / 10)).unwrap();
        for _ in 0..500 {
            if shared.is_over() {
                break;
            }
            // A stream that begins after the faults has to succeed.
            let was_recovered =
                std::mem::replace(&mut is_recovered, shared.is_recovered.load(Ordering::Relaxed));
            number += 1;
            match rng.below(10) {
                0..3 => {
                    let payload = vec![number as u8; 1 + rng.below(1900) as usize];
                    let mut buffer = [0; 2048];
                    if socket.send_to(&payload, at(0, ECHOES)).is_ok()
                        && socket.recv_from(&mut buffer).is_ok()
                    {
                        add(&shared.echoed);
                    }
                }
                3 => drop(
                    socket.send_to(&[1; 1000], SocketAddr::new(IpAddr::from(GROUP), GROUP_PORT)),
                ),
                kind => {
                    let most = if kind == 4 { 200_000 } else { 5_000 };
                    let len = rng.below(most) as usize;
                    match stream(&interface, at(0, STREAMS), number, len) {
                        Ok(()) => add(&shared.complete),
                        Err(error) if was_recovered => {
                            panic!("host {host} without faults: {error}")
                        }
                        Err(_) => add(&shared.broken),
                    }
                }
            }
        }
    }
}

/// Memory in use, in KiB: allocations and mapped segments. Freed memory that malloc keeps does not
/// count: it depends on the scheduling of threads (up to 640 MiB in one arena were seen).
fn in_use() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").expect("there is /proc");
    let line = status.lines().find_map(|line| line.strip_prefix("RssShmem:")).expect("it is there");
    let shared: u64 = line.trim().trim_end_matches(" kB").parse().expect("a number");
    shared + MEMORY.bytes() as u64 / 1024
}

/// Faults on links until `end`.
#[expect(clippy::disallowed_methods, reason = "the test runs in real time")]
fn run_faults(fabric: &Embedded, end: Instant, mut look: impl FnMut()) {
    const RULES: [&str; 6] = [
        "loss=1%",
        "loss=0.1%,corrupt=100ppm",
        "duplicate=1%,reorder=1%,delay=50us",
        "host1:1/down",
        "host2:1/down",
        "host3:1/down",
    ];
    let mut rng = SeededRng::new(1);
    let pause = |most: Duration, rng: &mut SeededRng| std::thread::sleep(rng.duration(most));
    while Instant::now() < end {
        let rule = RULES[rng.below(RULES.len() as u64) as usize];
        let number = ask(&fabric.path(), &AdminRequest::AddFault(rule.into())).expect("it answers");
        let number = number.as_u64().expect("it is a number") as u32;
        pause(SECOND, &mut rng);
        ask(&fabric.path(), &AdminRequest::RemoveFault(number)).expect("it is there");
        pause(3 * SECOND, &mut rng);
        look();
    }
}

#[test]
#[expect(clippy::disallowed_methods, reason = "the test runs in real time")]
fn traffic_survives_faults_without_memory_growth() {
    let minutes = std::env::var("POLLUX_LOAD_MINUTES").ok().and_then(|it| it.parse::<u64>().ok());
    let time = minutes.map_or(TIME_DEFAULT, |minutes| Duration::from_secs(60 * minutes));
    let fabric = Embedded::start("single:4").expect("it starts");
    let shared = Shared::default();
    let begin = Instant::now();
    let (at_first, mut amounts) = (in_use(), Vec::new());
    std::thread::scope(|scope| {
        let _end = End(&shared.is_over);
        scope.spawn(|| serve(&fabric, &shared));
        for host in 1..MODES.len() {
            let (fabric, shared) = (&fabric, &shared);
            add(&shared.clients);
            scope.spawn(move || {
                let _guard = ClientGuard(&shared.clients);
                run_client(fabric, host, shared);
            });
        }
        let mut next = begin;
        run_faults(&fabric, begin + time, || {
            if next <= Instant::now() {
                next += (time / 20).max(SECOND);
                amounts.push(in_use());
                println!("{:?}: {} KiB, {}", begin.elapsed(), in_use(), shared.summary());
            }
        });
        // Neighbors are resolved again.
        std::thread::sleep(TIMEOUT.min(time));
        shared.is_recovered.store(true, Ordering::Relaxed);
        let before = shared.complete.load(Ordering::Relaxed);
        std::thread::sleep(time.min(10 * SECOND));
        assert!(shared.complete.load(Ordering::Relaxed) > before, "no stream is complete");
    });
    println!("{:?}: {} KiB, {}", begin.elapsed(), in_use(), shared.summary());
    // The buffers of an interface are larger than this.
    assert!(in_use() < at_first + 1024, "a leak: {} KiB", in_use());
    // Memory grows until all neighbors are known.
    let (early, late) = amounts.split_at(amounts.len() / 2);
    if let (Some(_), Some(early), Some(late)) = (minutes, early.iter().max(), late.iter().max()) {
        assert!(*late < early + early / 4 + 16_384, "memory grows: {amounts:?} KiB");
    }
}

impl Shared {
    fn summary(&self) -> String {
        let of = |count: &AtomicU64| count.load(Ordering::Relaxed);
        let (complete, broken, opened) = (of(&self.complete), of(&self.broken), of(&self.opened));
        let (echoed, group_received) = (of(&self.echoed), of(&self.group_received));
        let datagrams = format!("{echoed} echoes, {group_received} of the group");
        format!(
            "{complete} streams complete, {broken} not; {datagrams}; {opened} interfaces opened"
        )
    }
}

/// Counts down the clients, also when a thread fails.
struct ClientGuard<'a>(&'a AtomicU64);

impl Drop for ClientGuard<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Ends all threads, also when the test fails.
struct End<'a>(&'a AtomicBool);

impl Drop for End<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}
