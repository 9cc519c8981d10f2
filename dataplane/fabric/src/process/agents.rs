//! The management agents of a process at a port: what `/dev/infiniband/umadN` is to a program.
//!
//! A client opens a connection for its agents ([`AgentPort::open`]) and registers each with the
//! classes and methods of the requests that it takes. The server delivers a response to the agent
//! whose number is in the upper half of its TID, and a request to the agent that has registered for
//! it, in whichever process at the port. A connection that ends takes its agents with it.

use super::address::PortAddress;
use super::agent_message::AgentMessage;
use super::control_message::{AttachAgents, ControlMessage};
use super::link::{OpenError, attach};
use super::socket::Socket;
use crate::link::threads::Clock;
use rustix::io::Errno;
use std::os::fd::{AsFd, BorrowedFd};

#[derive(Debug)]
pub struct AgentPort {
    socket: Socket,
}

impl AgentPort {
    /// Opens the port with this name, which other processes with this secret may have open, too.
    /// A subnet manager (`is_sm`) sets IsSM in its capability mask until the end of the
    /// connection, and is refused if the port has one.
    pub fn open(name: &str, secret: u64, is_sm: bool, clock: &Clock) -> Result<Self, OpenError> {
        let address = PortAddress::parse(name).ok_or_else(|| OpenError::Name(name.into()))?;
        let PortAddress { node, port, .. } = address.clone();
        let message = ControlMessage::AttachAgents(AttachAgents { node, port, secret, is_sm });
        let (socket, _) = attach(&address, &message, clock)?;
        Ok(Self { socket })
    }

    /// Sends a message. `AGAIN` if the server has not read the last ones.
    pub fn send(&self, message: &AgentMessage) -> Result<(), Errno> {
        self.socket.send_bytes(&message.emit())
    }

    /// Ends the connection, whoever else holds this.
    pub fn end(&self) {
        self.socket.end();
    }

    /// Receives a message. `AGAIN` if there is none.
    pub fn receive(&self) -> Result<AgentMessage, Errno> {
        self.socket.receive_agent()
    }
}

impl AsFd for AgentPort {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}
