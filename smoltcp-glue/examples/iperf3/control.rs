//! The control connection, for the negotiation of a test and for its results.

use super::wire::{COOKIE_LEN, JSON_BYTES_MAX, State};
use pollux::TcpStream;
use serde_json::Value;
use std::io::{self, ErrorKind, Read, Write};
use std::time::Duration;

/// How long to wait for a message of the peer.
pub const TIMEOUT: Duration = Duration::from_secs(30);

pub struct Control(TcpStream);

impl Control {
    pub fn new(stream: TcpStream) -> io::Result<Self> {
        stream.set_read_timeout(Some(TIMEOUT))?;
        stream.set_write_timeout(Some(TIMEOUT))?;
        Ok(Self(stream))
    }

    pub fn send_state(&mut self, state: State) -> io::Result<()> {
        self.0.write_all(&[state as u8])
    }

    /// Whether the peer has sent something, or has closed the connection.
    pub fn is_readable(&self) -> bool {
        self.0.is_readable()
    }

    pub fn receive_state(&mut self) -> io::Result<State> {
        let mut byte = [0];
        self.0.read_exact(&mut byte)?;
        State::of(byte[0]).ok_or_else(|| wrong(&format!("byte {} is no state", byte[0])))
    }

    /// Receives a state, which must be the expected one.
    pub fn expect(&mut self, expected: State) -> io::Result<()> {
        match self.receive_state()? {
            heard if heard == expected => Ok(()),
            State::AccessDenied => Err(io::Error::other("the server is busy with another test")),
            State::ServerTerminate | State::ServerError => {
                Err(io::Error::other("the server refuses this test, or has ended"))
            }
            State::ClientTerminate => Err(io::Error::other("the client has ended")),
            other => Err(wrong(&format!("the other end said {other:?}, not {expected:?}"))),
        }
    }

    pub fn send_json(&mut self, json: &Value) -> io::Result<()> {
        let text = json.to_string();
        let len = (text.len() as u32).to_be_bytes();
        self.0.write_all(&[&len, text.as_bytes()].concat())
    }

    /// Receives JSON, and parses it with `read`.
    pub fn receive_json<R>(&mut self, read: impl FnOnce(&Value) -> Option<R>) -> io::Result<R> {
        let mut len = [0; 4];
        self.0.read_exact(&mut len)?;
        let len = u32::from_be_bytes(len) as usize;
        if len > JSON_BYTES_MAX {
            return Err(wrong(&format!("{len} bytes of JSON are too many")));
        }
        let mut text = vec![0; len];
        self.0.read_exact(&mut text)?;
        let json = serde_json::from_slice(&text)?;
        read(&json).ok_or_else(|| wrong(&format!("cannot do anything with {json}")))
    }
}

/// Reads the cookie at the beginning of a connection.
pub fn cookie(stream: &mut TcpStream) -> io::Result<[u8; COOKIE_LEN]> {
    let mut cookie = [0; COOKIE_LEN];
    stream.set_read_timeout(Some(TIMEOUT))?;
    stream.read_exact(&mut cookie)?;
    Ok(cookie)
}

/// The error for an invalid or unsupported message.
pub fn wrong(what: &str) -> io::Error {
    io::Error::new(ErrorKind::InvalidData, what)
}
