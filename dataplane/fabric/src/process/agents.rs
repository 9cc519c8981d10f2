//! The management agents of a process at a port, like those of a file of `/dev/infiniband/umadN`.
//!
//! A client opens a connection for its agents ([`AgentPort::open`]) and registers each agent with
//! the class and the methods of the requests that it takes. Several processes can have agents at a
//! port. The server delivers a response to the agent with the number in the upper half of the
//! transaction ID, and a request to the agent that has registered for it. The end of a connection
//! unregisters its agents.

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
    /// Opens the port with this name. Other processes with this secret may have it open, too. For a
    /// subnet manager (`is_sm`), the port has IsSM in its capability mask until the end of the
    /// connection; the server refuses a second one.
    pub fn open(name: &str, secret: u64, is_sm: bool, clock: &Clock) -> Result<Self, OpenError> {
        let address = PortAddress::parse(name).ok_or_else(|| OpenError::Name(name.into()))?;
        let PortAddress { node, port, .. } = address.clone();
        let message = ControlMessage::AttachAgents(AttachAgents { node, port, secret, is_sm });
        let (socket, _) = attach(&address, &message, clock)?;
        Ok(Self { socket })
    }

    /// Sends a message. `AGAIN` if the socket is full of messages that the server has not read.
    pub fn send(&self, message: &AgentMessage) -> Result<(), Errno> {
        self.socket.send_bytes(&message.emit())
    }

    /// Shuts down the connection, also for other holders of a copy of the descriptor.
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
