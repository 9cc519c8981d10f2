//! An application's own loop as the worker of its sockets: it polls many sockets, blocks on none,
//! and does other work in between.
//!
//! ```sh
//! cargo run --release -p pollux --example inline_worker
//! ```
//!
//! One thread runs both hosts. One host has a thousand sockets, and sums the datagrams of each. The
//! other host sends to all of them, a batch at a time. With arguments, the hosts use other devices:
//!
//! ```sh
//! cargo run --release -p pollux --example inline_worker -- \
//!     mlx5_0:1 10.0.0.1/24 mlx5_1:1 10.0.0.2/24
//! ```

mod ends;

use ends::Ended;
use pollux::{Node, UdpSocket};
use std::net::SocketAddr;
use std::time::{Duration, Instant};

const SOCKETS: u16 = 1000;
const BATCH: usize = 32;
/// Numbers sent to each socket.
const NUMBERS: u64 = 10;
/// The time limit of a batch, because datagrams may be lost.
const TIMEOUT: Duration = Duration::from_secs(1);

#[expect(clippy::disallowed_methods, reason = "a batch has a timeout")]
fn main() -> Ended {
    let words = ends::words_or("soft: 10.0.0.1/24 soft: 10.0.0.2/24");
    let [device, address, other_device, other_address] = words[..] else {
        return Err("write a device and an address with its prefix, twice".into());
    };
    let receiver = Node::open(device)?.interface("ib0").address(address).up()?;
    let sender = Node::open(other_device)?.interface("ib0").address(other_address).up()?;
    let ip = ends::at(address, 0)?.ip();
    let at = |number: u16| SocketAddr::new(ip, 7000 + number);
    let mut sums: Vec<(UdpSocket, u64)> = Vec::new();
    for number in 0..SOCKETS {
        sums.push((receiver.udp_bind(at(number))?, 0));
    }
    let outgoing = sender.udp_bind(ends::at(other_address, 7000)?)?;
    // Resolves the neighbor first: only few datagrams can wait for the resolution.
    outgoing.send_to(&0_u64.to_be_bytes(), at(0))?;
    while !sums[0].0.is_readable() {
        sender.step();
        receiver.step();
    }
    sums[0].0.recv_from(&mut [0; 8])?;
    for number in 1..=NUMBERS {
        let bytes = number.to_be_bytes();
        let all: Vec<_> = (0..SOCKETS).map(|to| (&bytes[..], at(to))).collect();
        for batch in all.chunks(BATCH) {
            let mut sent = 0;
            while sent < batch.len() {
                sent += outgoing.send_batch(&batch[sent..])?;
            }
            let mut missing = batch.len();
            let begun = Instant::now();
            while missing > 0 && begun.elapsed() < TIMEOUT {
                sender.step();
                receiver.step();
                for (socket, sum) in &mut sums {
                    let mut bytes = [0; 8];
                    while socket.is_readable() {
                        socket.recv_from(&mut bytes)?;
                        *sum += u64::from_be_bytes(bytes);
                        missing = missing.saturating_sub(1);
                    }
                }
            }
            // Other work of the application takes place here; it delays the sockets.
        }
    }
    let complete = sums.iter().filter(|(_, sum)| *sum == NUMBERS * (NUMBERS + 1) / 2).count();
    println!("{complete} of {SOCKETS} sockets have heard all {NUMBERS} numbers");
    Ok(())
}
