//! Measures the time of requests and responses over one TCP connection.
//!
//! ```sh
//! cargo run --release -p pollux --example tcp_rr
//! ```
//!
//! This command runs both ends in one process. With arguments, the program is one end, at any
//! device:
//!
//! ```sh
//! pollux fabric --topology single:2 --socket /tmp/fabric &
//! cargo run --release -p pollux --example tcp_rr -- soft:/tmp/fabric@host1 10.0.0.1/24 &
//! cargo run --release -p pollux --example tcp_rr -- soft:/tmp/fabric@host2 10.0.0.2/24 10.0.0.1
//! ```

mod ends;

use ends::Ended;
use pollux::{Mode, Node};
use std::io::{Read, Write};
use std::net::SocketAddr;
use std::time::{Duration, Instant};

const PORT: u16 = 7000;
const BYTES: usize = 64;
/// The duration of the measurement.
const MEASURED: Duration = Duration::from_secs(1);

fn main() -> Ended {
    ends::run(serve, ask, &ends::words())
}

fn serve(device: &str, address: &str) -> Ended {
    let interface = Node::open(device)?.interface("ib0").address(address).mode(Mode::Rc).up()?;
    let listener = interface.tcp_listen(ends::at(address, PORT)?, 16)?;
    loop {
        let (mut stream, peer) = listener.accept()?;
        let mut request = [0; BYTES];
        while stream.read_exact(&mut request).is_ok() {
            stream.write_all(&request)?;
        }
        println!("{peer} has left");
    }
}

#[expect(clippy::disallowed_methods, reason = "it measures")]
fn ask(device: &str, address: &str, server: &str) -> Ended {
    let interface = Node::open(device)?.interface("ib0").address(address).mode(Mode::Rc).up()?;
    let mut stream = ends::connect(&interface, SocketAddr::new(server.parse()?, PORT))?;
    let mut times = Vec::new();
    let started = Instant::now();
    while times.is_empty() || started.elapsed() < MEASURED {
        let begun = Instant::now();
        stream.write_all(&[7; BYTES])?;
        stream.read_exact(&mut [0; BYTES])?;
        times.push(begun.elapsed());
    }
    times.sort_unstable();
    let at = |part: usize| times[times.len() * part / 1000];
    println!("request and response: median {:?}, 99.9 % within {:?}", at(500), at(999));
    Ok(())
}
