//! UDP there and back, and how long that takes.
//!
//! ```sh
//! cargo run --release -p pollux --example udp_echo
//! ```
//!
//! runs both ends in one process. With arguments it is one end, at any device:
//!
//! ```sh
//! cargo run --release -p pollux --example udp_echo -- mlx5_0:1 10.0.0.1/24
//! cargo run --release -p pollux --example udp_echo -- mlx5_0:1 10.0.0.2/24 10.0.0.1
//! ```

use pollux::Node;
use std::error::Error;
use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

const PORT: u16 = 7;

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match arguments[..] {
        [] => {
            std::thread::spawn(|| {
                echo("soft:", "10.0.0.1/24").map_err(|error| eprintln!("{error}"))
            });
            ask("soft:", "10.0.0.2/24", "10.0.0.1")
        }
        [device, address] => echo(device, address),
        [device, address, peer] => ask(device, address, peer),
        _ => Err("write: udp_echo [DEVICE ADDRESS/PREFIX [PEER]]".into()),
    }
}

fn echo(device: &str, address: &str) -> Result<(), Box<dyn Error>> {
    let interface = Node::open(device).interface().address(address).up()?;
    let ip: IpAddr = address.split('/').next().unwrap_or(address).parse()?;
    let socket = interface.udp_bind(SocketAddr::new(ip, PORT))?;
    let mut buffer = vec![0; 65_535];
    loop {
        let (len, from) = socket.recv_from(&mut buffer)?;
        socket.send_to(&buffer[..len], from)?;
    }
}

#[expect(clippy::disallowed_methods, reason = "it measures")]
fn ask(device: &str, address: &str, peer: &str) -> Result<(), Box<dyn Error>> {
    let interface = Node::open(device).interface().address(address).up()?;
    let peer = SocketAddr::new(peer.parse()?, PORT);
    let unspecified = if peer.is_ipv4() { "0.0.0.0" } else { "::" };
    let socket = interface.udp_bind(SocketAddr::new(unspecified.parse()?, 0))?;
    socket.set_read_timeout(Some(Duration::from_secs(1)));
    let mut times = Vec::new();
    while times.len() < 10_000 {
        let begun = Instant::now();
        socket.send_to(b"are you there?", peer)?;
        // Datagrams may be lost, and at first nobody may be there.
        if socket.recv_from(&mut [0; 64]).is_ok() {
            times.push(begun.elapsed());
        }
    }
    times.sort_unstable();
    let at = |part: usize| times[times.len() * part / 1000];
    println!("round trip: median {:?}, 99.9 % within {:?}", at(500), at(999));
    Ok(())
}
