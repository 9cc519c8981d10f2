//! A server with a thread for each connection, and clients in many threads, at two interfaces.
//!
//! ```sh
//! cargo run --release -p pollux --example pinned
//! ```
//!
//! Each interface has one worker. If there are enough cores, give each worker its own core with
//! `cores: vec![2], idle: Idle::Poll`, and give an interface with many connections several workers
//! with `workers: 2`. All threads block in their calls, as with kernel sockets.

use pollux::pinned::{Config, Interface, TcpListener, TcpStream};
use pollux::{Mode, Node};
use std::error::Error;
use std::io::{self, Read, Write};
use std::net::SocketAddr;
use std::thread::{scope, spawn};

const CLIENTS: u8 = 4;
const QUESTIONS: u32 = 1000;

fn main() -> Result<(), Box<dyn Error>> {
    let up = |address| {
        let setup = Node::open("soft:")?.interface("ib0").address(address).mode(Mode::Rc);
        setup.up_pinned(Config::default())
    };
    let (server, client) = (up("10.0.0.1/24")?, up("10.0.0.2/24")?);
    let at: SocketAddr = "10.0.0.1:7000".parse()?;
    let listener = server.tcp_listen(at, 128)?;
    let serving = spawn(move || serve(&listener));
    scope(|scope| {
        let clients = [(); CLIENTS as usize].map(|()| scope.spawn(|| ask(&client, at)));
        clients.into_iter().try_for_each(|client| client.join().expect("it does not panic"))
    })?;
    let answered = serving.join().expect("it does not panic")?;
    println!("{answered} questions of {CLIENTS} clients were answered");
    Ok(())
}

/// Serves each client in its own thread; returns the number of requests.
fn serve(listener: &TcpListener) -> io::Result<u32> {
    let mut serving = Vec::new();
    for _ in 0..CLIENTS {
        let (stream, _) = listener.accept()?;
        serving.push(spawn(move || answer(stream)));
    }
    serving.into_iter().map(|one| one.join().expect("it does not panic")).sum()
}

/// Doubles the numbers of a stream until its end.
fn answer(mut stream: TcpStream) -> io::Result<u32> {
    let (mut question, mut answered) = ([0; 4], 0);
    while stream.read_exact(&mut question).is_ok() {
        let number = u32::from_be_bytes(question);
        stream.write_all(&number.wrapping_mul(2).to_be_bytes())?;
        answered += 1;
    }
    Ok(answered)
}

fn ask(interface: &Interface, server: SocketAddr) -> io::Result<()> {
    let mut stream = interface.tcp_connect(server)?;
    for number in 0..QUESTIONS {
        let mut answer = [0; 4];
        stream.write_all(&number.to_be_bytes())?;
        stream.read_exact(&mut answer)?;
        assert_eq!(u32::from_be_bytes(answer), 2 * number);
    }
    Ok(())
}
