//! The client, which selects the test.

use super::control::{Control, TIMEOUT, wrong};
use super::report::Report;
use super::stream::{Socket, Stream};
use super::wire::{COOKIE_LEN, Count, HELLO, Protocol, State, Test, WELCOME};
use pollux::{Interface, TcpStream};
use std::hash::{BuildHasher, RandomState};
use std::io::{self, Write};
use std::net::SocketAddr;

/// A running test. Dropping it before the end closes the connection, which the server notices.
pub struct Client {
    interface: Interface,
    control: Control,
    stream: Stream,
    test: Test,
}

impl Client {
    /// Negotiates a test over a connection to the server, and opens the stream.
    pub fn start(interface: &Interface, mut control: TcpStream, test: Test) -> io::Result<Self> {
        let (server, cookie) = (control.peer_addr()?, new_cookie());
        control.write_all(&cookie)?;
        let mut control = Control::new(control)?;
        control.expect(State::ParamExchange)?;
        control.send_json(&test.to_json())?;
        control.expect(State::CreateStreams)?;
        let socket = match test.protocol {
            Protocol::Tcp => {
                let mut stream = interface.tcp_connect(server)?;
                stream.write_all(&cookie)?;
                Socket::Tcp(stream)
            }
            Protocol::Udp => open_udp(interface, server)?,
        };
        control.expect(State::TestStart)?;
        control.expect(State::TestRunning)?;
        let stream = Stream::new(socket, test)?;
        Ok(Self { interface: interface.clone(), control, stream, test })
    }

    /// Sends or receives the data of the test. Data sent by TCP is acknowledged on return.
    pub fn transfer(&mut self) -> io::Result<()> {
        while !self.stream.has_enough() {
            if self.control.is_readable() {
                // The server sends a state during a test only to report an error.
                self.control.expect(State::TestRunning)?;
            }
            match self.test.is_reverse {
                false => self.stream.send(&self.interface)?,
                true => self.stream.receive()?,
            }
        }
        self.stream.flush()
    }

    /// Ends the test, and exchanges the counts.
    pub fn finish(mut self) -> io::Result<Report> {
        self.control.send_state(State::TestEnd)?;
        // A server that waits for space in the stream does not read the control connection.
        if self.test.is_reverse && self.test.protocol == Protocol::Tcp {
            self.stream.drain(None)?;
        }
        self.control.expect(State::ExchangeResults)?;
        if self.test.is_reverse && self.test.protocol == Protocol::Udp {
            self.stream.drain(None)?;
        }
        let ours = self.stream.count;
        self.control.send_json(&ours.to_json())?;
        let theirs = self.control.receive_json(Count::of_json)?;
        self.control.expect(State::DisplayResults)?;
        self.control.send_state(State::IperfDone)?;
        let (sent, received) = if self.test.is_reverse { (theirs, ours) } else { (ours, theirs) };
        Ok(Report { test: self.test, sent, received })
    }
}

/// A UDP socket that has exchanged the first datagrams with the server.
fn open_udp(interface: &Interface, server: SocketAddr) -> io::Result<Socket> {
    let any = if server.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" };
    let socket = interface.udp_bind(any)?;
    socket.connect(server)?;
    socket.set_read_timeout(Some(TIMEOUT))?;
    socket.send(&HELLO)?;
    let mut welcome = [0; WELCOME.len()];
    let (len, _) = socket.recv_from(&mut welcome)?;
    match welcome[..len] == WELCOME {
        true => Ok(Socket::Udp(socket)),
        false => Err(wrong("the server does not know this greeting")),
    }
}

/// A random cookie, by which the server identifies the test.
fn new_cookie() -> [u8; COOKIE_LEN] {
    let system = RandomState::new();
    let mut cookie = [0; COOKIE_LEN];
    for (at, letter) in cookie[..COOKIE_LEN - 1].iter_mut().enumerate() {
        *letter = b'a' + (system.hash_one(at) % 26) as u8;
    }
    cookie
}
