//! The command line of the examples: server and client in one process, or one of them at a device
//! and an address.

#![allow(dead_code, reason = "no example needs all of it")]

use pollux::{Interface, TcpStream};
use std::error::Error;
use std::io::{self, ErrorKind};
use std::net::{IpAddr, SocketAddr};

/// The outcome of an example.
pub type Ended = Result<(), Box<dyn Error>>;

/// Runs the server, the client, or both. Without words, both run in this process. Otherwise, the
/// words are a device and an address with its prefix, and for the client the address of the server.
/// A server runs until it is killed.
pub fn run(
    serve: impl Fn(&str, &str) -> Ended + Send + 'static,
    ask: impl Fn(&str, &str, &str) -> Ended,
    words: &[&str],
) -> Ended {
    match *words {
        [] => {
            std::thread::spawn(move || {
                serve("soft:", "10.0.0.1/24").map_err(|error| eprintln!("{error}"))
            });
            ask("soft:", "10.0.0.2/24", "10.0.0.1")
        }
        [device, address] => serve(device, address),
        [device, address, server] => ask(device, address, server),
        _ => Err("write DEVICE ADDRESS/PREFIX, and for a client SERVER behind it".into()),
    }
}

/// The words of the command line after the name of the program.
pub fn words() -> Vec<&'static str> {
    std::env::args().skip(1).map(|word| &*word.leak()).collect()
}

/// The words of the command line, or these if there are none.
pub fn words_or(others: &'static str) -> Vec<&'static str> {
    let words = words();
    if words.is_empty() { others.split(' ').collect() } else { words }
}

/// The socket address of an address with prefix, such as `10.0.0.1/24`, and a port.
pub fn at(address: &str, port: u16) -> Result<SocketAddr, Box<dyn Error>> {
    let ip: IpAddr = address.split('/').next().unwrap_or(address).parse()?;
    Ok(SocketAddr::new(ip, port))
}

/// Connects, with retries: a server that starts at the same time may not listen yet.
pub fn connect(interface: &Interface, server: SocketAddr) -> io::Result<TcpStream> {
    let is_early = |kind| matches!(kind, ErrorKind::ConnectionRefused | ErrorKind::HostUnreachable);
    for _ in 0..1000 {
        match interface.tcp_connect(server) {
            Err(error) if is_early(error.kind()) => {}
            other => return other,
        }
    }
    interface.tcp_connect(server)
}
