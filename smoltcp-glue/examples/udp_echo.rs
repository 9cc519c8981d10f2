//! UDP echo over a software fabric, without hardware or root:
//!
//! ```sh
//! pollux fabric --topology single:2 --socket /tmp/fabric &
//! cargo run --release --example udp_echo -- soft:/tmp/fabric@host1 10.0.0.1/24 &
//! cargo run --release --example udp_echo -- soft:/tmp/fabric@host2 10.0.0.2/24 10.0.0.1
//! ```
//!
//! With hardware, the device is `mlx5_0:1` or whatever `ibv_devices` shows.

use pollux::Node;
use std::error::Error;
use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

const PORT: u16 = 7;

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let (device, address, peer) = match &arguments[..] {
        [device, address] => (device, address, None),
        [device, address, peer] => (device, address, Some(peer.parse::<IpAddr>()?)),
        _ => return Err("write: udp_echo DEVICE ADDRESS/PREFIX [PEER]".into()),
    };
    let interface = Node::open(device).interface().address(address).up()?;
    match peer {
        Some(peer) => ask(&interface, SocketAddr::new(peer, PORT)),
        None => echo(&interface, address),
    }
}

fn echo(interface: &pollux::Interface, address: &str) -> Result<(), Box<dyn Error>> {
    let ip: IpAddr = address.split('/').next().unwrap_or(address).parse()?;
    let socket = interface.udp_bind(SocketAddr::new(ip, PORT))?;
    let mut buffer = vec![0; 65_535];
    loop {
        let (len, from) = socket.recv_from(&mut buffer)?;
        socket.send_to(&buffer[..len], from)?;
    }
}

#[expect(clippy::disallowed_methods, reason = "it measures")]
fn ask(interface: &pollux::Interface, peer: SocketAddr) -> Result<(), Box<dyn Error>> {
    let unspecified = if peer.is_ipv4() { "0.0.0.0" } else { "::" };
    let socket = interface.udp_bind(SocketAddr::new(unspecified.parse()?, 0))?;
    socket.set_read_timeout(Some(Duration::from_secs(1)));
    let mut times = Vec::new();
    for _ in 0..10_000 {
        let begun = Instant::now();
        socket.send_to(b"are you there?", peer)?;
        socket.recv_from(&mut [0; 64])?;
        times.push(begun.elapsed());
    }
    times.sort_unstable();
    let at = |part: usize| times[times.len() * part / 1000];
    println!("round trip: median {:?}, 99.9 % within {:?}", at(500), at(999));
    Ok(())
}
