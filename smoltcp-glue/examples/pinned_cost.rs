//! The cost of a worker thread: half of a round trip, inline and pinned.
//!
//! ```sh
//! cargo run --release -p pollux --example pinned_cost -- [ROUNDS]
//! ```
//!
//! First, one host sends to its own address: inline with one thread, pinned with that thread and a
//! worker. Then two hosts exchange messages: inline with two threads, pinned with two threads and
//! two workers, which need four cores. Busy or missing cores distort the figures.

use pollux::{Mode, Node, Setup, pinned};
use std::error::Error;
use std::io::{self, Read, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::thread::scope;
use std::time::{Duration, Instant};

const BYTES: usize = 64;
const RECEIVE_TIMEOUT: Duration = Duration::from_millis(100);

fn setup(host: u8) -> Setup {
    let setup = Node::open("soft:").expect("a device").interface("ib0").mode(Mode::Rc);
    setup.address(&format!("10.0.0.{host}/24")).timeout(Duration::from_secs(30))
}

const fn at(host: u8, port: u16) -> SocketAddr {
    SocketAddr::new(IpAddr::V4(Ipv4Addr::new(10, 0, 0, host)), port)
}

/// Defines the same measurements for either kind of interface.
macro_rules! measure {
    ($name:ident, $up:expr) => {
        mod $name {
            use super::*;

            /// One host: over UDP, then over TCP.
            pub fn alone(rounds: usize) -> Result<[Figure; 2], Box<dyn Error>> {
                let (interface, mut buffer) = ($up(setup(1))?, [0; BYTES]);
                let (asks, answers) =
                    (interface.udp_bind(at(1, 0))?, interface.udp_bind(at(1, 7))?);
                let from = asks.local_addr()?;
                let udp = half(rounds, || {
                    asks.send_to(&buffer, at(1, 7))?;
                    answers.recv_from(&mut buffer)?;
                    answers.send_to(&buffer, from)?;
                    asks.recv_from(&mut buffer).map(drop)
                })?;
                let listener = interface.tcp_listen(at(1, 80), 4)?;
                let mut asks = interface.tcp_begin(at(1, 80))?;
                let (mut answers, _) = listener.accept()?;
                let tcp = half(rounds, || {
                    asks.write_all(&buffer)?;
                    answers.read_exact(&mut buffer)?;
                    answers.write_all(&buffer)?;
                    asks.read_exact(&mut buffer)
                })?;
                Ok([udp, tcp])
            }

            /// Two hosts.
            pub fn two(rounds: usize) -> Result<[Figure; 2], Box<dyn Error>> {
                let ((ready, is_ready), is_over) = (channel(), AtomicBool::new(false));
                scope(|scope| {
                    let serving = scope.spawn(|| serve(ready, &is_over).map_err(|e| e.to_string()));
                    let (interface, mut buffer) = ($up(setup(1))?, [0; BYTES]);
                    is_ready.recv()?;
                    let mut stream = (0..1000).find_map(|_| interface.tcp_connect(at(2, 80)).ok());
                    let stream = stream.as_mut().ok_or("nobody listens")?;
                    let socket = interface.udp_bind(at(1, 0))?;
                    socket.set_read_timeout(Some(RECEIVE_TIMEOUT))?;
                    let udp = half(rounds, || {
                        // Datagrams may be lost.
                        socket.send_to(&buffer, at(2, 7))?;
                        while socket.recv_from(&mut buffer).is_err() {
                            socket.send_to(&buffer, at(2, 7))?;
                        }
                        Ok(())
                    });
                    is_over.store(true, Ordering::Relaxed);
                    let tcp = half(rounds, || {
                        stream.write_all(&buffer)?;
                        stream.read_exact(&mut buffer)
                    })?;
                    stream.shutdown(std::net::Shutdown::Write)?;
                    stream.read_to_end(&mut Vec::new())?;
                    serving.join().expect("it does not panic")?;
                    Ok([udp?, tcp])
                })
            }

            fn serve(ready: Sender<()>, is_over: &AtomicBool) -> Result<(), Box<dyn Error>> {
                let (interface, mut buffer) = ($up(setup(2))?, [0; BYTES]);
                let socket = interface.udp_bind(at(2, 7))?;
                socket.set_read_timeout(Some(RECEIVE_TIMEOUT))?;
                let listener = interface.tcp_listen(at(2, 80), 4)?;
                ready.send(())?;
                while !is_over.load(Ordering::Relaxed) {
                    if let Ok((len, from)) = socket.recv_from(&mut buffer) {
                        socket.send_to(&buffer[..len], from)?;
                    }
                }
                let (mut stream, _) = listener.accept()?;
                while stream.read_exact(&mut buffer).is_ok() {
                    stream.write_all(&buffer)?;
                }
                Ok(())
            }
        }
    };
}

measure!(inline, Setup::up);
measure!(by_worker, |setup: Setup| setup.up_pinned(pinned::Config::default()));

/// Median and 99th percentile of half of a round trip.
type Figure = [Duration; 2];

#[expect(clippy::disallowed_methods, reason = "it measures")]
fn half(rounds: usize, mut round: impl FnMut() -> io::Result<()>) -> io::Result<Figure> {
    let mut times = Vec::with_capacity(rounds);
    for _ in 0..rounds {
        let begun = Instant::now();
        round()?;
        times.push(begun.elapsed() / 2);
    }
    times.sort_unstable();
    Ok([50, 99].map(|part| times[times.len() * part / 100]))
}

fn main() -> Result<(), Box<dyn Error>> {
    let rounds = std::env::args().nth(1).map_or(Ok(20_000), |text| text.parse::<usize>())?.max(1);
    println!("half of a round trip of {BYTES} bytes: median, 99 %");
    let print = |what: &str, [udp, tcp]: [Figure; 2]| {
        println!("{what:24} UDP {:?}, {:?}; TCP {:?}, {:?}", udp[0], udp[1], tcp[0], tcp[1]);
    };
    print("inline, to itself", inline::alone(rounds)?);
    print("pinned, to itself", by_worker::alone(rounds)?);
    print("inline, between two", inline::two(rounds)?);
    print("pinned, between two", by_worker::two(rounds)?);
    Ok(())
}
