//! The RDMA connection manager for other programs, by IP address and port: the service behind
//! `/dev/infiniband/rdma_cm` (Linux `rdma_ucm`; IBA annex A11).
//!
//! A program opens files, and creates IDs at them. An ID is bound to an address, listens, or
//! resolves the address and the route of a peer, and connects. Commands are answered at once. The
//! result of an operation that takes time is an event, which the program takes from the file of the
//! ID. The program owns its queue pairs; the command INIT_QP_ATTR returns the attributes for each
//! state.
//!
//! The modules: `id` has the states of an ID with their diagram, `abi` the bytes of commands and
//! events, `ports` the port bindings, and `events` the queues of files. `commands` handles commands
//! of programs, `requests` the events of connections by [`crate::cm`], and `datagrams` the datagram
//! services, which have no connection (IBA 12.11).
//!
//! There is no I/O and no clock here. The caller passes in the host's addresses
//! ([`RdmaCm::handle_host`]) and resolves the addresses that IDs wait for ([`RdmaCm::wanted`],
//! [`RdmaCm::handle_resolution`]).
//!
//! # Limits of a program
//!
//! A program may send any bytes. It has at most [`FILES_MAX`] files and [`IDS_MAX`] IDs, including
//! the IDs that requests of peers create for its listeners. A listener has at most [`BACKLOG_MAX`]
//! requests that the program has not taken, and a file [`EVENTS_MAX`] events. A request beyond a
//! limit is dropped as if it was lost, because its sender repeats it. When a program ends, all its
//! connections are disconnected.

mod abi;
mod commands;
mod datagrams;
mod error;
mod events;
mod id;
mod ports;
mod requests;
#[cfg(test)]
mod tests;

pub use abi::COMMAND_BYTES_MAX;
pub use error::RdmaCmError;

use crate::cm::{Cm, CmConfig, CmDatagram, LocalPort};
use crate::effects::{ConnectionKey, PortView};
use crate::mad::Envelope;
use abi::Command;
use datagrams::Datagrams;
use events::EventFile;
use id::{CmId, IdState};
use pollux_verbs::rng::SeededRng;
use pollux_verbs::time::Time;
use pollux_wire::address::{Gid, Guid};
use pollux_wire::mad::sa::PathRecord;
use ports::Ports;
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

/// Open files of a program.
pub const FILES_MAX: usize = 1024;
/// IDs of a program.
pub const IDS_MAX: usize = 8192;
/// Requests for a listener that its program has not taken yet.
pub const BACKLOG_MAX: usize = 1024;
/// Events of a file that its program has not taken; more are lost.
pub const EVENTS_MAX: usize = 65_536;

/// The number of a program, which is never reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ProgramId(pub u64);

/// The number of an open file, which is never reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FileId(pub u32);

/// The port and the addresses of the host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostView {
    pub port: PortView,
    pub addresses: BTreeSet<IpAddr>,
}

impl HostView {
    fn local(&self) -> LocalPort {
        let PortView { number, lid, lmc, .. } = self.port;
        LocalPort { number, lid, lmc, gids: self.port.gids.clone() }
    }
}

/// The resolution of an address for which IDs wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ResolvedAddress {
    /// Our source address for packets to the resolved address.
    pub source: IpAddr,
    pub gid: Gid,
    /// The path to that port, once the SA has returned it.
    pub path: Option<PathRecord>,
}

/// The answer to a command.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CommandAnswer {
    pub bytes: Vec<u8>,
    /// The number of events at the file `revoked_at` that were announced to the program, and that
    /// it can no longer take.
    pub revoked: u32,
    pub revoked_at: Option<FileId>,
}

pub struct RdmaCm {
    cm: Cm,
    rng: SeededRng,
    node_guid: Guid,
    host: Option<HostView>,
    files: BTreeMap<FileId, EventFile>,
    last_file: u32,
    ids: BTreeMap<u32, CmId>,
    last_id: u32,
    /// The number of IDs of each program.
    counts: BTreeMap<ProgramId, usize>,
    ports: Ports,
    connections: BTreeMap<ConnectionKey, u32>,
    datagrams: Datagrams,
    /// IDs that wait for an address or a route, by their deadline.
    resolving: BTreeSet<(Time, u32)>,
}

impl RdmaCm {
    /// `seed` has to be secret.
    pub fn new(node_guid: Guid, seed: u64) -> Self {
        let mut rng = SeededRng::secret(seed);
        Self {
            cm: Cm::new(CmConfig::of(node_guid), rng.split()),
            rng,
            node_guid,
            host: None,
            files: BTreeMap::new(),
            last_file: 0,
            ids: BTreeMap::new(),
            last_id: 0,
            counts: BTreeMap::new(),
            ports: Ports::default(),
            connections: BTreeMap::new(),
            datagrams: Datagrams::default(),
            resolving: BTreeSet::new(),
        }
    }

    /// Sets the addresses of the host and the state of its port.
    pub fn handle_host(&mut self, host: HostView) {
        self.cm.handle_port(host.local());
        self.host = Some(host);
    }

    pub const fn host(&self) -> Option<&HostView> {
        self.host.as_ref()
    }

    /// Opens a file for a program.
    pub fn open(&mut self, program: ProgramId) -> Result<FileId, RdmaCmError> {
        let open = self.files.values().filter(|file| file.program == program).count();
        if open >= FILES_MAX {
            return Err(RdmaCmError::NoFile);
        }
        self.last_file += 1;
        let file = FileId(self.last_file);
        self.files.insert(file, EventFile::new(program));
        Ok(file)
    }

    /// Closes a file, with its IDs.
    pub fn close(&mut self, now: Time, file: FileId) {
        let ids: Vec<_> = self.ids_at(|id| id.file == file).collect();
        ids.into_iter().for_each(|id| self.destroy(now, id));
        self.files.remove(&file);
    }

    /// Ends a program: closes all its files.
    pub fn end_program(&mut self, now: Time, program: ProgramId) {
        let files: Vec<_> = self.files.iter().filter(|(_, file)| file.program == program).collect();
        let files: Vec<_> = files.into_iter().map(|(file, _)| *file).collect();
        files.into_iter().for_each(|file| self.close(now, file));
    }

    /// Handles a command of a program at one of its files.
    pub fn handle_command(
        &mut self,
        now: Time,
        program: ProgramId,
        file: FileId,
        bytes: &[u8],
    ) -> Result<CommandAnswer, RdmaCmError> {
        let is_own = self.files.get(&file).is_some_and(|it| it.program == program);
        if !is_own {
            return Err(RdmaCmError::Invalid);
        }
        let (command, answer_max) = Command::parse(bytes)?;
        let mut answer = self.carry_out(now, file, command)?;
        self.pump(now);
        answer.bytes.truncate(answer_max);
        Ok(answer)
    }

    /// The number of new events of a file since the last call.
    pub fn take_announcements(&mut self, file: FileId) -> u32 {
        self.files.get_mut(&file).map_or(0, |file| std::mem::take(&mut file.unannounced))
    }

    pub fn handle_mad(&mut self, now: Time, envelope: &Envelope) {
        if !self.handle_datagram_mad(envelope) {
            self.cm.handle_mad(now, &CmDatagram::parse(envelope));
        }
        self.pump(now);
    }

    pub fn poll_transmit(&mut self) -> Option<Envelope> {
        self.datagrams.poll_transmit().or_else(|| self.cm.poll_transmit())
    }

    pub fn poll_timeout(&self) -> Option<Time> {
        let resolving = self.resolving.first().map(|(due, _)| *due);
        let all = [resolving, self.cm.poll_timeout(), self.datagrams.poll_timeout()];
        all.into_iter().flatten().min()
    }

    pub fn handle_timeout(&mut self, now: Time) {
        while let Some(&(_, id)) = self.resolving.first().filter(|(due, _)| *due <= now) {
            self.give_up_resolution(id);
        }
        self.cm.handle_timeout(now);
        self.handle_datagram_timeouts(now);
        self.pump(now);
    }

    /// The number of connections and requests, including those in time-wait.
    pub fn connections(&self) -> usize {
        self.cm.count()
    }

    fn ids_at(&self, is_meant: impl Fn(&CmId) -> bool) -> impl Iterator<Item = u32> {
        self.ids.iter().filter(move |(_, id)| is_meant(id)).map(|(number, _)| *number)
    }

    /// Adds an ID. Returns its number, or `None` if the program has [`IDS_MAX`] IDs.
    fn add_id(&mut self, id: CmId) -> Option<u32> {
        let program = self.files.get(&id.file)?.program;
        let count = self.counts.entry(program).or_default();
        if *count >= IDS_MAX {
            return None;
        }
        *count += 1;
        loop {
            self.last_id = self.last_id.wrapping_add(1);
            if self.last_id != 0 && !self.ids.contains_key(&self.last_id) {
                self.ids.insert(self.last_id, id);
                return Some(self.last_id);
            }
        }
    }

    fn remove_id(&mut self, number: u32) -> Option<CmId> {
        let id = self.ids.remove(&number)?;
        if let Some(program) = self.files.get(&id.file).map(|file| file.program)
            && let Some(count) = self.counts.get_mut(&program)
        {
            *count -= 1;
            if *count == 0 {
                self.counts.remove(&program);
            }
        }
        Some(id)
    }

    /// Removes an ID and its events, and ends its binding, its connection and the requests that the
    /// program has not taken.
    fn destroy(&mut self, now: Time, number: u32) {
        let Some(id) = self.remove_id(number) else { return };
        if let IdState::ResolvingAddress { until } | IdState::ResolvingRoute { until } = id.state {
            self.resolving.remove(&(until, number));
        }
        if let (Some(port), true) = (id.source.map(|it| it.port()), id.is_bound) {
            self.ports.unbind(id.space, port, number);
            if !self.ports.has_listener(id.space, port) {
                self.cm.unlisten(id.space.service_id(port));
            }
        }
        if let Some(key) = id.state.connection() {
            self.connections.remove(&key);
            let _ = self.cm.disconnect(now, key, [0; 220]);
        }
        self.datagrams.forget(number);
        let Some(file) = self.files.get_mut(&id.file) else { return };
        for request in file.discard(number) {
            self.destroy(now, request);
        }
    }
}
