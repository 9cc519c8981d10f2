//! Measures the round-trip time of UDP.
//!
//! ```sh
//! cargo run --release -p pollux --example udp_echo
//! ```
//!
//! This command runs both ends in one process. With arguments, the program is one end, at any
//! device:
//!
//! ```sh
//! cargo run --release -p pollux --example udp_echo -- mlx5_0:1 10.0.0.1/24
//! cargo run --release -p pollux --example udp_echo -- mlx5_0:1 10.0.0.2/24 10.0.0.1
//! ```

mod ends;

use ends::Ended;
use pollux::Node;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

const PORT: u16 = 7;
/// The duration of the measurement.
const MEASURED: Duration = Duration::from_secs(1);

fn main() -> Ended {
    ends::run(echo, ask, &ends::words())
}

fn echo(device: &str, address: &str) -> Ended {
    let interface = Node::open(device)?.interface("ib0").address(address).up()?;
    let socket = interface.udp_bind(ends::at(address, PORT)?)?;
    let mut buffer = vec![0; 65_535];
    loop {
        let (len, from) = socket.recv_from(&mut buffer)?;
        socket.send_to(&buffer[..len], from)?;
    }
}

#[expect(clippy::disallowed_methods, reason = "it measures")]
fn ask(device: &str, address: &str, server: &str) -> Ended {
    let interface = Node::open(device)?.interface("ib0").address(address).up()?;
    let server = SocketAddr::new(server.parse()?, PORT);
    let socket = interface.udp_bind(if server.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" })?;
    socket.set_read_timeout(Some(Duration::from_secs(1)))?;
    let mut times = Vec::new();
    let started = Instant::now();
    while times.is_empty() || started.elapsed() < MEASURED {
        let begun = Instant::now();
        socket.send_to(b"are you there?", server)?;
        // Datagrams may be lost, or arrive before the server has its socket.
        if socket.recv_from(&mut [0; 64]).is_ok() {
            times.push(begun.elapsed());
        }
    }
    times.sort_unstable();
    let at = |part: usize| times[times.len() * part / 1000];
    println!("round trip: median {:?}, 99.9 % within {:?}", at(500), at(999));
    Ok(())
}
