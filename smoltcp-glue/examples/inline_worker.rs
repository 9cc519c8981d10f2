//! An application's own loop as the worker of its sockets: it looks at many, waits for none, and does
//! its own work in between.
//!
//! ```sh
//! cargo run --release -p pollux --example inline_worker
//! ```
//!
//! Both hosts are this thread's. One has a thousand sockets, each of which adds up what it hears;
//! the other sends to all of them, a batch at a time.

use pollux::{Node, UdpSocket};
use std::error::Error;
use std::net::SocketAddr;

const SOCKETS: u16 = 1000;
const BATCH: usize = 32;
/// What each socket hears.
const NUMBERS: u64 = 10;

fn main() -> Result<(), Box<dyn Error>> {
    let node = Node::open("soft:");
    let hears = node.interface().address("10.0.0.1/24").up()?;
    let speaks = node.interface().address("10.0.0.2/24").up()?;
    let at = |number: u16| SocketAddr::from(([10, 0, 0, 1], 7000 + number));
    let mut sums: Vec<(UdpSocket, u64)> = Vec::new();
    for number in 0..SOCKETS {
        sums.push((hears.udp_bind(at(number))?, 0));
    }
    let voice = speaks.udp_bind("10.0.0.2:7000".parse::<SocketAddr>()?)?;
    // One that has to be looked for first keeps only so many datagrams waiting.
    voice.send_to(&0_u64.to_be_bytes(), at(0))?;
    while !sums[0].0.is_readable() {
        speaks.step();
        hears.step();
    }
    for number in 1..=NUMBERS {
        let octets = number.to_be_bytes();
        let all: Vec<_> = (0..SOCKETS).map(|to| (&octets[..], at(to))).collect();
        for batch in all.chunks(BATCH) {
            let mut sent = 0;
            while sent < batch.len() {
                sent += voice.send_batch(&batch[sent..])?;
            }
            while hears.step() {}
            for (socket, sum) in &mut sums {
                let mut octets = [0; 8];
                while socket.is_readable() {
                    socket.recv_from(&mut octets)?;
                    *sum += u64::from_be_bytes(octets);
                }
            }
            // Here is the application's own work. The shorter it is, the less anybody waits.
        }
    }
    let whole = sums.iter().filter(|(_, sum)| *sum == NUMBERS * (NUMBERS + 1) / 2).count();
    println!("{whole} of {SOCKETS} sockets have heard all {NUMBERS} numbers");
    Ok(())
}
