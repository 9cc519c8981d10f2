//! The sockets of the protocol: where programs with `libumad2sim` find the fabric.
//!
//! Names are abstract and end in a zero: `NAME:ctl` for control, `NAME:outN` for the datagrams of
//! slot N. A program's own are `NAME:ctlPID`, from which it asks, and `NAME:inPID`, which is
//! connected to its slot's and takes datagrams from no other. Nothing here decides; see
//! [`super::clients`].
//!
//! Abstract names have no owner: any user of the machine can connect who shares the network
//! namespace. Run it in a namespace of its own where that matters.

use super::clients::{CLIENTS_MAX, Clients};
use super::protocol::{CONTROL_LEN, DATA_LEN};
use crate::time::Time;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::collections::VecDeque;
use std::io::{self, ErrorKind};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::time::Duration;

/// Messages that a program may leave untaken before it counts as gone.
const BACKLOG_MAX: usize = 4096;
/// Messages read of a socket in a turn.
const BATCH: usize = 64;
/// How soon a program that was full is tried again.
const RETRY: Duration = Duration::from_millis(1);

/// Clients and their sockets.
pub struct Server {
    name: String,
    clients: Clients,
    /// Where programs connect; none if the server has no name.
    control: Option<UnixDatagram>,
    data: Vec<UnixDatagram>,
    backlogs: Vec<VecDeque<[u8; DATA_LEN]>>,
    /// Sockets that have something: slots, and behind their last the control socket.
    ready: Vec<usize>,
}

impl Server {
    /// Opens the sockets of a server that is called `name`. Fails if there is one already.
    pub fn bind(name: &str, clients: Clients) -> io::Result<Self> {
        let bind = |purpose: &str| {
            let socket = UnixDatagram::bind_addr(&address(name, purpose)?)?;
            socket.set_nonblocking(true)?;
            Ok(socket)
        };
        let control = Some(bind("ctl")?);
        let data = (0..CLIENTS_MAX).map(|slot| bind(&format!("out{slot}")));
        let data = data.collect::<io::Result<_>>()?;
        let backlogs = vec![VecDeque::new(); CLIENTS_MAX];
        let ready = Vec::new();
        Ok(Self { name: name.into(), clients, control, data, backlogs, ready })
    }

    /// A server that no program can find: of a net that only other things are done with.
    pub fn without_name(clients: Clients) -> Self {
        let (name, backlogs) = (String::new(), vec![VecDeque::new(); CLIENTS_MAX]);
        Self { name, clients, control: None, data: Vec::new(), backlogs, ready: Vec::new() }
    }

    /// The programs, and the subnet that they are at.
    pub fn clients(&mut self) -> &mut Clients {
        &mut self.clients
    }

    /// Waits for something to do, but no longer than `longest`, and finds out which sockets have
    /// something for [`Server::turn`] to take.
    pub fn wait(&mut self, now: Time, longest: Duration) -> io::Result<()> {
        self.wait_beside(now, longest, Vec::new())
    }

    /// The same, but anything that happens to `others` ends it too.
    pub fn wait_beside(
        &mut self,
        now: Time,
        longest: Duration,
        others: Vec<PollFd<'_>>,
    ) -> io::Result<()> {
        let until = |due: Time| due.since_start().saturating_sub(now.since_start());
        let mut wait = self.clients.due().map_or(longest, until).min(longest);
        if self.backlogs.iter().any(|backlog| !backlog.is_empty()) {
            wait = wait.min(RETRY);
        }
        let sockets = self.data.iter().chain(&self.control);
        let own = sockets.map(|it| PollFd::new(it, PollFlags::IN));
        let mut sockets: Vec<_> = own.chain(others).collect();
        let own = self.data.len() + usize::from(self.control.is_some());
        let wait = Timespec { tv_sec: wait.as_secs() as i64, tv_nsec: wait.subsec_nanos().into() };
        self.ready.clear();
        match poll(&mut sockets, Some(&wait)) {
            Ok(_) => {}
            Err(rustix::io::Errno::INTR) => return Ok(()),
            Err(error) => return Err(error.into()),
        }
        let ready =
            sockets[..own].iter().zip(0..).filter(|(socket, _)| !socket.revents().is_empty());
        self.ready.extend(ready.map(|(_, index)| index));
        Ok(())
    }

    /// Takes what has come, and sends what comes of it.
    pub fn turn(&mut self, now: Time) -> io::Result<()> {
        // The control socket comes last: what a program sent before it left is taken before.
        for index in std::mem::take(&mut self.ready) {
            if index < CLIENTS_MAX { self.take_data(now, index)? } else { self.take_control()? }
        }
        self.clients.timeout(now);
        while let Some((slot, message)) = self.clients.poll_transmit() {
            self.backlogs[slot].push_back(message);
        }
        (0..self.data.len()).for_each(|slot| self.send(slot));
        Ok(())
    }

    fn take_data(&mut self, now: Time, slot: usize) -> io::Result<()> {
        let mut bytes = [0; DATA_LEN + 1];
        for _ in 0..BATCH {
            let Some(len) = received(self.data[slot].recv(&mut bytes))? else { break };
            self.clients.data(now, slot, &bytes[..len]);
        }
        Ok(())
    }

    fn take_control(&mut self) -> io::Result<()> {
        let Some(control) = &self.control else { return Ok(()) };
        let mut bytes = [0; CONTROL_LEN + 1];
        for _ in 0..BATCH {
            let Some((len, from)) = received(control.recv_from(&mut bytes))? else { break };
            let answer = self.clients.control(&bytes[..len]).emit();
            // Who is gone by now needs no answer.
            let _ = control.send_to_addr(&answer, &from);
        }
        Ok(())
    }

    /// Sends what waits for a slot, as far as its program takes it. Who is dead, or takes nothing
    /// for long, loses its slot.
    fn send(&mut self, slot: usize) {
        let backlog = &mut self.backlogs[slot];
        if backlog.is_empty() {
            return;
        }
        let Some(process) = self.clients.process(slot) else { return backlog.clear() };
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
                    return self.clients.disconnect(slot);
                }
            }
            backlog.pop_front();
        }
    }
}

/// An abstract address with the zero at its end that the protocol has.
fn address(name: &str, purpose: &str) -> io::Result<SocketAddr> {
    SocketAddr::from_abstract_name(format!("{name}:{purpose}\0"))
}

/// Nothing there is no failure; nor is that a program which we sent to has gone.
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
