//! A server of HTTP that says hello, to whoever is on the fabric:
//!
//! ```sh
//! cargo run --release -p pollux --example http_server -- mlx5_0:1 10.0.0.1/24
//! ```
//!
//! One thread serves all connections: none is waited for, and each is asked in its turn.

use pollux::{Mode, Node, TcpStream};
use std::error::Error;
use std::io::{Read, Write};
use std::net::{IpAddr, SocketAddr};

const ANSWER: &[u8] = b"HTTP/1.0 200 OK\r\nContent-Length: 6\r\n\r\nhello\n";
/// What is read of a request, which nobody looks at beyond its end.
const REQUEST_OCTETS_MAX: usize = 8192;

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [device, address] = &arguments[..] else {
        return Err("write: http_server DEVICE ADDRESS/PREFIX".into());
    };
    let ip: IpAddr = address.split('/').next().unwrap_or(address).parse()?;
    let interface = Node::open(device).interface().address(address).mode(Mode::Auto).up()?;
    let listener = interface.tcp_listen(SocketAddr::new(ip, 80), 128)?;
    let mut clients = Vec::new();
    loop {
        interface.step();
        while listener.is_ready() {
            clients.push((listener.accept()?.0, Vec::new()));
        }
        clients.retain_mut(|(stream, request)| {
            !stream.is_readable() || is_waited_for(stream, request)
        });
    }
}

/// Reads on, and answers a request that is whole; says whether there is more to come.
fn is_waited_for(stream: &mut TcpStream, request: &mut Vec<u8>) -> bool {
    let mut part = [0; 512];
    match stream.read(&mut part) {
        Err(_) | Ok(0) => return false,
        Ok(len) => request.extend_from_slice(&part[..len]),
    }
    if request.ends_with(b"\r\n\r\n") {
        // The buffer of a new connection has room for this.
        let _ = stream.write_all(ANSWER);
        return false;
    }
    request.len() < REQUEST_OCTETS_MAX
}
