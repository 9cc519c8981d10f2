//! Requests and responses over one TCP connection, on a software fabric:
//!
//! ```sh
//! pollux fabric --topology single:2 --socket /tmp/fabric &
//! cargo run --release --example tcp_rr -- soft:/tmp/fabric@host1 10.0.0.1/24 &
//! cargo run --release --example tcp_rr -- soft:/tmp/fabric@host2 10.0.0.2/24 10.0.0.1
//! ```

use pollux::{Mode, Node, TcpStream};
use std::error::Error;
use std::io::{Read, Write};
use std::net::{IpAddr, SocketAddr};
use std::time::Instant;

const PORT: u16 = 7000;
const OCTETS: usize = 64;

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let (device, address, peer) = match &arguments[..] {
        [device, address] => (device, address, None),
        [device, address, peer] => (device, address, Some(peer.parse::<IpAddr>()?)),
        _ => return Err("write: tcp_rr DEVICE ADDRESS/PREFIX [PEER]".into()),
    };
    let interface = Node::open(device).interface().address(address).mode(Mode::Rc).up()?;
    if let Some(peer) = peer {
        return ask(interface.tcp_connect(SocketAddr::new(peer, PORT))?);
    }
    let ip: IpAddr = address.split('/').next().unwrap_or(address).parse()?;
    let listener = interface.tcp_listen(SocketAddr::new(ip, PORT), 16)?;
    loop {
        let (mut stream, peer) = listener.accept()?;
        let mut request = [0; OCTETS];
        while stream.read_exact(&mut request).is_ok() {
            stream.write_all(&request)?;
        }
        println!("{peer} has left");
    }
}

#[expect(clippy::disallowed_methods, reason = "it measures")]
fn ask(mut stream: TcpStream) -> Result<(), Box<dyn Error>> {
    let mut times = Vec::new();
    for _ in 0..10_000 {
        let begun = Instant::now();
        stream.write_all(&[7; OCTETS])?;
        stream.read_exact(&mut [0; OCTETS])?;
        times.push(begun.elapsed());
    }
    times.sort_unstable();
    let at = |part: usize| times[times.len() * part / 1000];
    println!("request and response: median {:?}, 99.9 % within {:?}", at(500), at(999));
    Ok(())
}
