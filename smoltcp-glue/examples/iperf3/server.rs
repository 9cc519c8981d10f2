//! The server, which runs one test after another.

use super::control::{Control, TIMEOUT, cookie, wrong};
use super::report::Report;
use super::stream::{Socket, Stream};
use super::wire::{COOKIE_LEN, Count, HELLO, Protocol, State, Test, WELCOME};
use pollux::{Interface, TcpListener, UdpSocket};
use std::io::{self, Write};
use std::net::SocketAddr;

pub struct Server {
    interface: Interface,
    listener: TcpListener,
    at: SocketAddr,
}

impl Server {
    pub fn bind(interface: &Interface, at: SocketAddr) -> io::Result<Self> {
        let listener = interface.tcp_listen(at, 16)?;
        Ok(Self { interface: interface.clone(), listener, at })
    }

    /// Waits for a client, and runs its test.
    pub fn serve(&self) -> io::Result<Report> {
        self.listener.set_timeout(None)?;
        let (mut control, _) = self.listener.accept()?;
        let cookie = cookie(&mut control)?;
        let mut control = Control::new(control)?;
        control.send_state(State::ParamExchange)?;
        let asked =
            control.receive_json(|json| Some(Test::of_json(json).ok_or(json.to_string())))?;
        let test = match asked {
            Ok(test) => test,
            Err(json) => {
                control.send_state(State::ServerTerminate)?;
                return Err(wrong(&format!("only one stream in one direction works, not {json}")));
            }
        };
        let socket = match test.protocol {
            Protocol::Tcp => self.tcp(&mut control, cookie)?,
            Protocol::Udp => self.udp(&mut control)?,
        };
        control.send_state(State::TestStart)?;
        control.send_state(State::TestRunning)?;
        let mut stream = Stream::new(socket, test)?;
        while !control.is_readable() {
            match test.is_reverse {
                true => stream.send(&self.interface)?,
                false => stream.receive()?,
            }
        }
        control.expect(State::TestEnd)?;
        finish(control, stream, test)
    }

    /// Accepts the stream: the connection with the same cookie.
    fn tcp(&self, control: &mut Control, expected: [u8; COOKIE_LEN]) -> io::Result<Socket> {
        control.send_state(State::CreateStreams)?;
        self.listener.set_timeout(Some(TIMEOUT))?;
        loop {
            let (mut stream, _) = self.listener.accept()?;
            if cookie(&mut stream)? == expected {
                return Ok(Socket::Tcp(stream));
            }
            stream.write_all(&[State::AccessDenied as u8])?;
        }
    }

    /// Waits for the first datagram of a client.
    fn udp(&self, control: &mut Control) -> io::Result<Socket> {
        let socket: UdpSocket = self.interface.udp_bind(self.at)?;
        socket.set_read_timeout(Some(TIMEOUT))?;
        control.send_state(State::CreateStreams)?;
        let mut hello = [0; HELLO.len()];
        let (len, client) = socket.recv_from(&mut hello)?;
        if hello[..len] != HELLO {
            return Err(wrong("this greeting is unknown"));
        }
        socket.connect(client)?;
        socket.send(&WELCOME)?;
        Ok(Socket::Udp(socket))
    }
}

/// Exchanges results. If the client sent the data, its results have the number of bytes, and the
/// server receives until it has all of them.
fn finish(mut control: Control, mut stream: Stream, test: Test) -> io::Result<Report> {
    if test.is_reverse {
        stream.end()?;
    }
    control.send_state(State::ExchangeResults)?;
    let theirs = control.receive_json(Count::of_json)?;
    if !test.is_reverse {
        stream.drain(Some(theirs.bytes))?;
    }
    let ours = stream.count;
    control.send_json(&ours.to_json())?;
    control.send_state(State::DisplayResults)?;
    control.expect(State::IperfDone)?;
    let (sent, received) = if test.is_reverse { (ours, theirs) } else { (theirs, ours) };
    Ok(Report { test, sent, received })
}
