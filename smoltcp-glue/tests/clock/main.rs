//! Mixed traffic between threads on the machine's clock, with trouble on their links: every byte
//! is right, everybody goes on when it is over, and memory stays what it was.
//!
//! It takes `POLLUX_LOAD_MINUTES` minutes, and a few seconds without being told. What happens is
//! drawn from an RNG; when, the machine decides.

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
const USUALLY: Duration = Duration::from_secs(6);
/// How long anybody may wait for a peer that is not in trouble any more.
const TIMEOUT: Duration = Duration::from_secs(30);
const MODES: [Mode; 4] = [Mode::Auto, Mode::Rc, Mode::Uc, Mode::Ud];
const GROUP: Ipv4Addr = Ipv4Addr::new(239, 1, 2, 3);
const STREAMS: u16 = 80;
const ECHOES: u16 = 7;
const NEWS: u16 = 5000;

/// What all threads know of each other.
#[derive(Default)]
struct Shared {
    is_over: AtomicBool,
    /// Those who have not heard that yet: the server goes last.
    talkers: AtomicU64,
    /// Trouble has ended for good: from now on everything has to succeed.
    is_recovered: AtomicBool,
    whole: AtomicU64,
    broken: AtomicU64,
    echoed: AtomicU64,
    heard: AtomicU64,
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

/// Sends back what streams bring, and datagrams, and counts what it hears of the group.
struct Server {
    listener: TcpListener,
    echoes: UdpSocket,
    news: UdpSocket,
    streams: Vec<(TcpStream, Vec<u8>, bool)>,
}

impl Server {
    fn new(interface: &Interface) -> Self {
        let anywhere = |port| SocketAddr::from(([0, 0, 0, 0], port));
        let listener = interface.tcp_listen(anywhere(STREAMS), 64).expect("it is free");
        let bind = |port| interface.udp_bind(anywhere(port)).expect("it is free");
        let (echoes, news) = (bind(ECHOES), bind(NEWS));
        news.join(GROUP.into()).expect("it is a group");
        listener.set_nonblocking(true);
        [&echoes, &news].into_iter().for_each(|socket| socket.set_nonblocking(true));
        Self { listener, echoes, news, streams: Vec::new() }
    }

    fn turn(&mut self, shared: &Shared) {
        let mut buffer = vec![0; 65_536];
        if let Ok((stream, _)) = self.listener.accept() {
            stream.set_nonblocking(true);
            self.streams.push((stream, Vec::new(), false));
        }
        self.streams.retain_mut(|(stream, held, has_all)| {
            if held.is_empty() && !*has_all && stream.is_readable() {
                match stream.read(&mut buffer) {
                    Ok(0) => *has_all = true,
                    Ok(came) => held.extend(&buffer[..came]),
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
            && let Ok((came, from)) = self.echoes.recv_from(&mut buffer)
        {
            let _ = self.echoes.send_to(&buffer[..came], from);
        }
        while self.news.is_readable() && self.news.recv_from(&mut buffer).is_ok() {
            add(&shared.heard);
        }
    }
}

fn serve(fabric: &Embedded, shared: &Shared) {
    let interface = open(fabric, 0);
    let mut server = Server::new(&interface);
    while !shared.is_over() || shared.talkers.load(Ordering::Relaxed) > 0 {
        if !interface.step() {
            std::thread::yield_now();
        }
        server.turn(shared);
    }
}

/// A stream there and back; an error if it ends before all was there.
fn stream(interface: &Interface, to: SocketAddr, stream: u64, len: usize) -> std::io::Result<()> {
    let mut tcp = interface.tcp_begin(to)?;
    tcp.set_read_timeout(Some(TIMEOUT));
    tcp.set_write_timeout(Some(TIMEOUT));
    let all: Vec<u8> = (0..len).map(|at| byte(stream, at)).collect();
    tcp.write_all(&all)?;
    tcp.shutdown(Shutdown::Write)?;
    let mut back = Vec::new();
    tcp.read_to_end(&mut back)?;
    assert!(all.starts_with(&back), "stream {stream}: wrong bytes in the first {}", back.len());
    assert_eq!(back.len(), len, "stream {stream} from {:?} ended early", tcp.local_addr());
    Ok(())
}

/// Talks to the server, and now and then ends its interface and begins another.
fn talk(fabric: &Embedded, host: usize, shared: &Shared) {
    let mut rng = SeededRng::new(host as u64);
    let mut number = (host as u64) << 32;
    let mut is_recovered = false;
    while !shared.is_over() {
        let interface = open(fabric, host);
        add(&shared.opened);
        let socket = interface.udp_bind(at(host, 0)).expect("a port is free");
        socket.set_read_timeout(Some(SECOND / 10));
        for _ in 0..500 {
            if shared.is_over() {
                break;
            }
            // What begins in the calm has to succeed.
            let was_calm =
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
                3 => drop(socket.send_to(&[1; 1000], SocketAddr::new(IpAddr::from(GROUP), NEWS))),
                kind => {
                    let most = if kind == 4 { 200_000 } else { 5_000 };
                    let len = rng.below(most) as usize;
                    match stream(&interface, at(0, STREAMS), number, len) {
                        Ok(()) => add(&shared.whole),
                        Err(error) if was_calm => panic!("host {host} in the calm: {error}"),
                        Err(_) => add(&shared.broken),
                    }
                }
            }
        }
    }
}

/// Memory in use, in KiB: what was allocated, and segments that are mapped. What malloc keeps of
/// freed memory depends on how threads took turns (up to 640 MiB in one arena were seen), so it
/// does not count.
fn in_use() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").expect("Linux tells");
    let line = status.lines().find_map(|line| line.strip_prefix("RssShmem:")).expect("it is there");
    let shared: u64 = line.trim().trim_end_matches(" kB").parse().expect("a number");
    shared + MEMORY.bytes() as u64 / 1024
}

/// Trouble on links until it is to end.
#[expect(clippy::disallowed_methods, reason = "this is about the machine's clock")]
fn trouble(fabric: &Embedded, end: Instant, mut look: impl FnMut()) {
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
#[expect(clippy::disallowed_methods, reason = "this is about the machine's clock")]
fn threads_talk_through_trouble_and_memory_stays_what_it_was() {
    let minutes = std::env::var("POLLUX_LOAD_MINUTES").ok().and_then(|it| it.parse::<u64>().ok());
    let time = minutes.map_or(USUALLY, |minutes| Duration::from_secs(60 * minutes));
    let fabric = Embedded::start("single:4").expect("it starts");
    let shared = Shared::default();
    let begin = Instant::now();
    let (at_first, mut amounts) = (in_use(), Vec::new());
    std::thread::scope(|scope| {
        let _end = End(&shared.is_over);
        scope.spawn(|| serve(&fabric, &shared));
        for host in 1..MODES.len() {
            let (fabric, shared) = (&fabric, &shared);
            add(&shared.talkers);
            scope.spawn(move || {
                let _leaves = Leaves(&shared.talkers);
                talk(fabric, host, shared);
            });
        }
        let mut next = begin;
        trouble(&fabric, begin + time, || {
            if next <= Instant::now() {
                next += (time / 20).max(SECOND);
                amounts.push(in_use());
                println!("{:?}: {} KiB, {}", begin.elapsed(), in_use(), shared.say());
            }
        });
        // Interfaces look for each other anew.
        std::thread::sleep(TIMEOUT.min(time));
        shared.is_recovered.store(true, Ordering::Relaxed);
        let before = shared.whole.load(Ordering::Relaxed);
        std::thread::sleep(time.min(10 * SECOND));
        assert!(shared.whole.load(Ordering::Relaxed) > before, "nobody talks any more");
    });
    println!("{:?}: {} KiB, {}", begin.elapsed(), in_use(), shared.say());
    // An interface has more than this in buffers.
    assert!(in_use() < at_first + 1024, "somebody keeps what has ended: {} KiB", in_use());
    // Until all have talked to all it grows; after minutes it does not.
    let (early, late) = amounts.split_at(amounts.len() / 2);
    if let (Some(_), Some(early), Some(late)) = (minutes, early.iter().max(), late.iter().max()) {
        assert!(*late < early + early / 4 + 16_384, "memory grows: {amounts:?} KiB");
    }
}

impl Shared {
    fn say(&self) -> String {
        let of = |count: &AtomicU64| count.load(Ordering::Relaxed);
        let (whole, broken, opened) = (of(&self.whole), of(&self.broken), of(&self.opened));
        let (echoed, heard) = (of(&self.echoed), of(&self.heard));
        let datagrams = format!("{echoed} echoes, {heard} of the group");
        format!("{whole} streams whole, {broken} not; {datagrams}; {opened} interfaces opened")
    }
}

/// One less, also when its thread fails.
struct Leaves<'a>(&'a AtomicU64);

impl Drop for Leaves<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Ends all, also when the test fails.
struct End<'a>(&'a AtomicBool);

impl Drop for End<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}
