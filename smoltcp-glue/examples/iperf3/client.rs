//! The end that says what is to be tested.

use super::control::{Control, TIMEOUT, wrong};
use super::report::Report;
use super::stream::{Socket, Stream};
use super::wire::{COOKIE_LEN, Count, HELLO, Protocol, State, Test, WELCOME};
use pollux::{Interface, TcpStream};
use std::hash::{BuildHasher, RandomState};
use std::io::{self, Write};
use std::net::SocketAddr;

/// A test under way. Dropped before its end, it leaves a server that hears of that.
pub struct Client {
    interface: Interface,
    control: Control,
    stream: Stream,
    test: Test,
}

impl Client {
    /// Agrees on a test over a connection to the server, and opens the stream.
    pub fn start(interface: &Interface, mut control: TcpStream, test: Test) -> io::Result<Self> {
        let (server, cookie) = (control.peer_addr()?, new_cookie());
        control.write_all(&cookie)?;
        let mut control = Control::new(control);
        control.expect(State::ParamExchange)?;
        control.say_json(&test.to_json())?;
        control.expect(State::CreateStreams)?;
        let socket = match test.protocol {
            Protocol::Tcp => {
                let mut stream = interface.tcp_connect(server)?;
                stream.write_all(&cookie)?;
                Socket::Tcp(stream)
            }
            Protocol::Udp => greet(interface, server)?,
        };
        control.expect(State::TestStart)?;
        control.expect(State::TestRunning)?;
        let stream = Stream::new(socket, test);
        Ok(Self { interface: interface.clone(), control, stream, test })
    }

    /// Sends, or receives, what was asked for; what was sent by TCP has been acknowledged then.
    pub fn transfer(&mut self) -> io::Result<()> {
        while !self.stream.has_enough() {
            if self.control.is_readable() {
                // Nothing is to be said now, so this is an error.
                self.control.expect(State::TestRunning)?;
            }
            match self.test.is_reverse {
                false => self.stream.send(&self.interface)?,
                true => self.stream.receive()?,
            }
        }
        self.stream.flush()
    }

    /// Ends the test, and compares what both have counted.
    pub fn finish(mut self) -> io::Result<Report> {
        self.control.say(State::TestEnd)?;
        // A server that waits for room in the stream would not hear that.
        if self.test.is_reverse && self.test.protocol == Protocol::Tcp {
            self.stream.drain(None)?;
        }
        self.control.expect(State::ExchangeResults)?;
        if self.test.is_reverse && self.test.protocol == Protocol::Udp {
            self.stream.drain(None)?;
        }
        let ours = self.stream.count;
        self.control.say_json(&ours.to_json())?;
        let theirs = self.control.hear_json(Count::of_json)?;
        self.control.expect(State::DisplayResults)?;
        self.control.say(State::IperfDone)?;
        let (sent, received) = if self.test.is_reverse { (theirs, ours) } else { (ours, theirs) };
        Ok(Report { test: self.test, sent, received })
    }
}

/// A socket that the server has heard of.
fn greet(interface: &Interface, server: SocketAddr) -> io::Result<Socket> {
    let any = if server.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" };
    let socket = interface.udp_bind(any)?;
    socket.connect(server)?;
    socket.set_read_timeout(Some(TIMEOUT));
    socket.send(&HELLO)?;
    let mut welcome = [0; WELCOME.len()];
    let (len, _) = socket.recv_from(&mut welcome)?;
    match welcome[..len] == WELCOME {
        true => Ok(Socket::Udp(socket)),
        false => Err(wrong("the server does not know this greeting")),
    }
}

/// Letters that no other test has.
fn new_cookie() -> [u8; COOKIE_LEN] {
    let system = RandomState::new();
    let mut cookie = [0; COOKIE_LEN];
    for (at, letter) in cookie[..COOKIE_LEN - 1].iter_mut().enumerate() {
        *letter = b'a' + (system.hash_one(at) % 26) as u8;
    }
    cookie
}
