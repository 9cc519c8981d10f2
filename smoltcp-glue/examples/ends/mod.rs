//! What the examples have in common: both ends of something in one process, or one of them, at a
//! device and an address from the command line.

#![allow(dead_code, reason = "no example needs all of it")]

use pollux::{Interface, TcpStream};
use std::error::Error;
use std::io::{self, ErrorKind};
use std::net::{IpAddr, SocketAddr};

/// How an example ends.
pub type Ended = Result<(), Box<dyn Error>>;

/// Runs a server at a device and an address with its prefix, and a client that is told the server's
/// address as well; or one of them, if there are arguments. A server goes on until it is ended.
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
        _ => Err("write a device, an address with its prefix, and who asks also the server".into()),
    }
}

/// The words of the command line behind the program's name.
pub fn words() -> Vec<&'static str> {
    std::env::args().skip(1).map(|word| &*word.leak()).collect()
}

/// These words, if there are none.
pub fn words_or(others: &'static str) -> Vec<&'static str> {
    let words = words();
    if words.is_empty() { others.split(' ').collect() } else { words }
}

/// The address in front of the prefix, with a port.
pub fn at(address: &str, port: u16) -> Result<SocketAddr, Box<dyn Error>> {
    let ip: IpAddr = address.split('/').next().unwrap_or(address).parse()?;
    Ok(SocketAddr::new(ip, port))
}

/// A server that starts at the same moment may not be up, or not listen yet.
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
