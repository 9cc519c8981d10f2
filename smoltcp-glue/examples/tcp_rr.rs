//! Requests and responses over one TCP connection, and how long they take.
//!
//! ```sh
//! cargo run --release -p pollux --example tcp_rr
//! ```
//!
//! runs both ends in one process. With arguments it is one end, at any device:
//!
//! ```sh
//! pollux fabric --topology single:2 --socket /tmp/fabric &
//! cargo run --release -p pollux --example tcp_rr -- soft:/tmp/fabric@host1 10.0.0.1/24 &
//! cargo run --release -p pollux --example tcp_rr -- soft:/tmp/fabric@host2 10.0.0.2/24 10.0.0.1
//! ```

use pollux::{Interface, Mode, Node, TcpStream};
use std::error::Error;
use std::io::{ErrorKind, Read, Write};
use std::net::{IpAddr, SocketAddr};
use std::time::Instant;

const PORT: u16 = 7000;
const OCTETS: usize = 64;

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match arguments[..] {
        [] => {
            std::thread::spawn(|| {
                serve("soft:", "10.0.0.1/24").map_err(|error| eprintln!("{error}"))
            });
            ask("soft:", "10.0.0.2/24", "10.0.0.1")
        }
        [device, address] => serve(device, address),
        [device, address, peer] => ask(device, address, peer),
        _ => Err("write: tcp_rr [DEVICE ADDRESS/PREFIX [PEER]]".into()),
    }
}

fn serve(device: &str, address: &str) -> Result<(), Box<dyn Error>> {
    let interface = Node::open(device).interface().address(address).mode(Mode::Rc).up()?;
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
fn ask(device: &str, address: &str, peer: &str) -> Result<(), Box<dyn Error>> {
    let interface = Node::open(device).interface().address(address).mode(Mode::Rc).up()?;
    let mut stream = connect(&interface, SocketAddr::new(peer.parse()?, PORT))?;
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

/// A server that starts at the same moment may not be up, or not listen yet.
fn connect(interface: &Interface, server: SocketAddr) -> std::io::Result<TcpStream> {
    let mut tries = 0;
    loop {
        match interface.tcp_connect(server) {
            Err(error)
                if tries < 1000
                    && matches!(
                        error.kind(),
                        ErrorKind::ConnectionRefused | ErrorKind::HostUnreachable
                    ) =>
            {
                tries += 1;
            }
            other => return other,
        }
    }
}
