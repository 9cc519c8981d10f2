//! An HTTP server that answers "hello", and its client.
//!
//! ```sh
//! cargo run --release -p pollux --example http_server
//! ```
//!
//! This command runs both in one process. With arguments, the program is the server or the client,
//! at any device:
//!
//! ```sh
//! cargo run --release -p pollux --example http_server -- mlx5_0:1 10.0.0.1/24
//! cargo run --release -p pollux --example http_server -- mlx5_0:1 10.0.0.2/24 10.0.0.1
//! ```
//!
//! One thread serves all connections without blocking: it reads only from readable connections.

mod ends;

use ends::Ended;
use pollux::{Mode, Node, TcpStream};
use std::io::{Read, Write};
use std::net::SocketAddr;

const PORT: u16 = 80;
const ANSWER: &[u8] = b"HTTP/1.0 200 OK\r\nContent-Length: 6\r\n\r\nhello\n";
/// The maximum length of a request.
const REQUEST_BYTES_MAX: usize = 8192;

fn main() -> Ended {
    ends::run(serve, ask, &ends::words())
}

fn serve(device: &str, address: &str) -> Ended {
    let interface = Node::open(device)?.interface("ib0").address(address).mode(Mode::Auto).up()?;
    let listener = interface.tcp_listen(ends::at(address, PORT)?, 128)?;
    let mut clients = Vec::new();
    loop {
        interface.step();
        while listener.is_ready() {
            clients.push((listener.accept()?.0, Vec::new()));
        }
        clients
            .retain_mut(|(stream, request)| !stream.is_readable() || read_request(stream, request));
    }
}

/// Reads a part of a request, and answers a complete one; returns whether more is expected.
fn read_request(stream: &mut TcpStream, request: &mut Vec<u8>) -> bool {
    let mut part = [0; 512];
    match stream.read(&mut part) {
        Err(_) | Ok(0) => return false,
        Ok(len) => request.extend_from_slice(&part[..len]),
    }
    if request.ends_with(b"\r\n\r\n") {
        // The buffer of a new connection has space for this.
        let _ = stream.write_all(ANSWER);
        return false;
    }
    request.len() < REQUEST_BYTES_MAX
}

fn ask(device: &str, address: &str, server: &str) -> Ended {
    let interface = Node::open(device)?.interface("ib0").address(address).mode(Mode::Auto).up()?;
    let mut stream = ends::connect(&interface, SocketAddr::new(server.parse()?, PORT))?;
    stream.write_all(b"GET / HTTP/1.0\r\n\r\n")?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    print!("{answer}");
    Ok(())
}
