//! How long round trips take through both stacks, and how much a stream moves, on a software fabric:
//!
//! ```sh
//! cargo bench -p pollux --bench round_trips
//! ```
//!
//! In one thread, which serves both ends in turn, a round trip is what both stacks cost and nothing
//! else: the figure to look at while something is made quicker. Between two threads, each pinned to
//! a core, it is what an application sees; half of it is given, as peers give theirs.
#![expect(clippy::disallowed_methods, reason = "it measures")]

use pollux::{Interface, Mode, Node, TcpStream, UdpSocket};
use pollux_node::fabric::Embedded;
use std::io::{Read, Write};
use std::net::{IpAddr, Ipv4Addr, Shutdown, SocketAddr};
use std::sync::Barrier;
use std::time::{Duration, Instant};

const OCTETS: usize = 64;
const ROUNDS: usize = 100_000;
const MODES: [(Mode, &str); 2] = [(Mode::Ud, "UD"), (Mode::Rc, "RC")];

fn at(host: u8, port: u16) -> SocketAddr {
    SocketAddr::new(IpAddr::V4(Ipv4Addr::new(10, 0, 0, host)), port)
}

fn up(fabric: &Embedded, mode: Mode, host: u8) -> Interface {
    let setup = Node::open(&fabric.port(&format!("host{host}"))).interface().mode(mode);
    setup.address(&format!("10.0.0.{host}/24")).up().expect("it comes up")
}

/// The median, and what 999 of 1000 are not slower than, in nanoseconds.
fn quantiles(mut times: Vec<Duration>) -> (u128, u128) {
    times.sort_unstable();
    (times[times.len() / 2].as_nanos(), times[times.len() * 999 / 1000].as_nanos())
}

fn rounds(mut round: impl FnMut()) -> (u128, u128) {
    (0..ROUNDS / 10).for_each(|_| round());
    let times = (0..ROUNDS).map(|_| {
        let begun = Instant::now();
        round();
        begun.elapsed()
    });
    quantiles(times.collect())
}

/// Both ends in one thread.
fn one_thread(fabric: &Embedded, mode: Mode) -> [(u128, u128); 2] {
    let ends = [up(fabric, mode, 1), up(fabric, mode, 2)];
    let [here, there] =
        [1, 2].map(|host| ends[usize::from(host) - 1].udp_bind(at(host, 7)).expect("free"));
    let mut buffer = [0; OCTETS];
    let mut answered = |socket: &UdpSocket, from: &UdpSocket, to: SocketAddr| {
        from.send_to(&[7; OCTETS], to).expect("there is room");
        while !socket.is_readable() {
            ends.iter().for_each(|end| _ = end.step());
        }
        socket.recv_from(&mut buffer).expect("it is there");
    };
    let mut both = || {
        answered(&there, &here, at(2, 7));
        answered(&here, &there, at(1, 7));
    };
    // Until there is a connection, datagrams go without.
    let begun = Instant::now();
    while begun.elapsed() < Duration::from_secs(1) {
        both();
    }
    let udp = rounds(both);

    let listener = ends[1].tcp_listen(at(2, 7), 1).expect("free");
    // Nothing else serves the other end meanwhile, so one thread cannot wait for both.
    let mut here = ends[0].tcp_begin(at(2, 7)).expect("a port is free");
    while !listener.is_ready() {
        ends.iter().for_each(|end| _ = end.step());
    }
    let (mut there, _) = listener.accept().expect("it is there");
    let mut buffer = [0; OCTETS];
    let mut answered = |from: &mut TcpStream, to: &mut TcpStream| {
        from.write_all(&[7; OCTETS]).expect("there is room");
        while !to.is_readable() {
            ends.iter().for_each(|end| _ = end.step());
        }
        to.read_exact(&mut buffer).expect("it is there");
    };
    let tcp = rounds(|| {
        answered(&mut here, &mut there);
        answered(&mut there, &mut here);
    });
    [udp, tcp]
}

fn pin(core: usize) {
    let cores = core_affinity::get_core_ids().unwrap_or_default();
    if let Some(id) = cores.get(core % cores.len().max(1)) {
        core_affinity::set_for_current(*id);
    }
}

/// An end on each of two cores: round trips of both kinds, and gigabits a second.
fn two_threads(fabric: &Embedded, mode: Mode) -> ([(u128, u128); 2], f64) {
    let ready = Barrier::new(2);
    std::thread::scope(|scope| {
        scope.spawn(|| serve(fabric, mode, &ready));
        pin(0);
        let here = up(fabric, mode, 1);
        ready.wait();
        let mut buffer = [0; OCTETS];
        let socket = here.udp_bind(at(1, 7)).expect("free");
        let udp = rounds(|| {
            socket.send_to(&[7; OCTETS], at(2, 7)).expect("there is room");
            socket.recv_from(&mut buffer).expect("it comes back");
        });
        socket.send_to(&[], at(2, 7)).expect("there is room");
        let mut stream = here.tcp_connect(at(2, 7)).expect("it listens");
        let tcp = rounds(|| {
            stream.write_all(&[7; OCTETS]).expect("there is room");
            stream.read_exact(&mut buffer).expect("it comes back");
        });
        drop(stream);
        (([udp, tcp]), pour(&here))
    })
}

/// One stream of two seconds.
fn pour(here: &Interface) -> f64 {
    let mut stream = here.tcp_connect(at(2, 9)).expect("it listens");
    let (part, begun, mut sent) = (vec![7; 1 << 18], Instant::now(), 0);
    while begun.elapsed() < Duration::from_secs(2) {
        stream.write_all(&part).expect("there is room");
        sent += part.len();
    }
    stream.shutdown(Shutdown::Write).expect("it is open");
    stream.read_to_end(&mut Vec::new()).expect("it is heard to its end");
    sent as f64 * 8.0 / begun.elapsed().as_secs_f64() / 1e9
}

fn serve(fabric: &Embedded, mode: Mode, ready: &Barrier) {
    pin(1);
    let there = up(fabric, mode, 2);
    let socket = there.udp_bind(at(2, 7)).expect("free");
    let echo = there.tcp_listen(at(2, 7), 1).expect("free");
    let sink = there.tcp_listen(at(2, 9), 1).expect("free");
    let mut buffer = vec![0; 1 << 18];
    ready.wait();
    while let (len @ 1.., from) = socket.recv_from(&mut buffer).expect("it comes") {
        socket.send_to(&buffer[..len], from).expect("there is room");
    }
    let (mut stream, _) = echo.accept().expect("it comes");
    while stream.read_exact(&mut buffer[..OCTETS]).is_ok() {
        stream.write_all(&buffer[..OCTETS]).expect("there is room");
    }
    let (mut stream, _) = sink.accept().expect("it comes");
    while stream.read(&mut buffer).expect("it is open") > 0 {}
}

fn main() {
    let fabric = Embedded::start("single:2").expect("it starts");
    println!("64 octets, in ns: median (999 of 1000 within)");
    for (mode, name) in MODES {
        let [udp, tcp] = one_thread(&fabric, mode);
        println!("{name}, both ends in one thread, round trip: UDP {udp:?}, TCP {tcp:?}");
    }
    for (mode, name) in MODES {
        let (both, gigabits) = two_threads(&fabric, mode);
        let [udp, tcp] = both.map(|(median, late)| (median / 2, late / 2));
        println!("{name}, two threads, half a round trip: UDP {udp:?}, TCP {tcp:?}");
        println!("{name}, two threads, one stream: {gigabits:.1} Gb/s");
    }
}
