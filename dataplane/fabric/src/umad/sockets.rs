//! The sockets at which programs with `libumad2sim` find the fabric.
//!
//! Names are abstract and end in a zero byte: `NAME:ctl` for control messages, `NAME:outN` for the
//! datagrams of slot N. A program has `NAME:ctlPID` for its control messages, and `NAME:inPID`,
//! which it connects to the socket of its slot. The decisions are in [`super::programs`].
//!
//! Abstract names have no permissions: any user in the same network namespace can connect. Use a
//! separate namespace if that matters.

use super::programs::CLIENTS_MAX;
use super::protocol::{CONTROL_LEN, DATA_LEN};
use crate::Fabric;
use crate::time::Time;
use rustix::event::{PollFd, PollFlags};
use std::collections::VecDeque;
use std::io::{self, ErrorKind};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::time::Duration;

/// Unread messages after which a program counts as dead.
const BACKLOG_MAX: usize = 4096;
/// Messages read from a socket in a turn.
const BATCH: usize = 64;
/// The retry interval for a program whose socket was full.
const RETRY: Duration = Duration::from_millis(1);

pub struct Sockets {
    name: String,
    control: UnixDatagram,
    data: Vec<UnixDatagram>,
    backlogs: Vec<VecDeque<[u8; DATA_LEN]>>,
    /// The indexes of readable sockets: slots, and then the control socket.
    ready: Vec<usize>,
}

impl Sockets {
    /// Opens the sockets of a fabric with this name. Fails if they exist.
    pub fn bind(name: &str) -> io::Result<Self> {
        let bind = |purpose: &str| {
            let socket = UnixDatagram::bind_addr(&address(name, purpose)?)?;
            socket.set_nonblocking(true)?;
            Ok(socket)
        };
        let control = bind("ctl")?;
        let data = (0..CLIENTS_MAX).map(|slot| bind(&format!("out{slot}")));
        let data = data.collect::<io::Result<_>>()?;
        let backlogs = vec![VecDeque::new(); CLIENTS_MAX];
        Ok(Self { name: name.into(), control, data, backlogs, ready: Vec::new() })
    }

    pub(crate) fn poll_fds(&self) -> impl Iterator<Item = PollFd<'_>> {
        self.data.iter().chain([&self.control]).map(|it| PollFd::new(it, PollFlags::IN))
    }

    /// Sets the indexes of readable [`Sockets::poll_fds`].
    pub(crate) fn set_ready(&mut self, ready: Vec<usize>) {
        self.ready = ready;
    }

    pub(crate) fn retry(&self) -> Option<Duration> {
        self.backlogs.iter().any(|backlog| !backlog.is_empty()).then_some(RETRY)
    }

    pub(crate) fn receive(&mut self, now: Time, fabric: &mut Fabric) -> io::Result<()> {
        // The control socket is last, so that datagrams of a program precede its Disconnect.
        for index in std::mem::take(&mut self.ready) {
            match self.data.get(index) {
                Some(socket) => take_data(socket, now, index, fabric)?,
                None => take_control(&self.control, fabric)?,
            }
        }
        Ok(())
    }

    pub(crate) fn send(&mut self, fabric: &mut Fabric) {
        while let Some((slot, message)) = fabric.programs.poll_transmit() {
            self.backlogs[slot].push_back(message);
        }
        (0..self.data.len()).for_each(|slot| self.send_to(slot, fabric));
    }

    /// Sends the waiting messages of a slot, as far as the program's socket has space. Disconnects
    /// a program that is dead or does not read.
    fn send_to(&mut self, slot: usize, fabric: &mut Fabric) {
        let backlog = &mut self.backlogs[slot];
        if backlog.is_empty() {
            return;
        }
        let Some(process) = fabric.programs.process(slot) else { return backlog.clear() };
        let Ok(to) = address(&self.name, &format!("in{process}")) else { return };
        while let Some(message) = backlog.front() {
            match self.data[slot].send_to_addr(message, &to) {
                Ok(_) => {}
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                Err(error)
                    if error.kind() == ErrorKind::WouldBlock && backlog.len() < BACKLOG_MAX =>
                {
                    return;
                }
                Err(_) => {
                    backlog.clear();
                    return fabric.disconnect_program(slot);
                }
            }
            backlog.pop_front();
        }
    }
}

fn take_data(socket: &UnixDatagram, now: Time, slot: usize, fabric: &mut Fabric) -> io::Result<()> {
    let mut bytes = [0; DATA_LEN + 1];
    for _ in 0..BATCH {
        let Some(len) = received(socket.recv(&mut bytes))? else { break };
        fabric.send_of_program(now, slot, &bytes[..len]);
    }
    Ok(())
}

fn take_control(socket: &UnixDatagram, fabric: &mut Fabric) -> io::Result<()> {
    let mut bytes = [0; CONTROL_LEN + 1];
    for _ in 0..BATCH {
        let Some((len, from)) = received(socket.recv_from(&mut bytes))? else { break };
        let answer = fabric.answer_program(&bytes[..len]).emit();
        // A program that has ended needs no answer.
        let _ = socket.send_to_addr(&answer, &from);
    }
    Ok(())
}

/// An abstract address, with the zero byte at its end that the protocol requires.
fn address(name: &str, purpose: &str) -> io::Result<SocketAddr> {
    SocketAddr::from_abstract_name(format!("{name}:{purpose}\0"))
}

/// An empty socket is not an error, and an ended program is not an error either.
fn received<T>(result: io::Result<T>) -> io::Result<Option<T>> {
    use ErrorKind::{ConnectionRefused, Interrupted, WouldBlock};
    match result {
        Ok(received) => Ok(Some(received)),
        Err(error) if matches!(error.kind(), WouldBlock | Interrupted | ConnectionRefused) => {
            Ok(None)
        }
        Err(error) => Err(error),
    }
}
