//! The events of an open file, until its program takes them.

use super::abi::{EventData, EventKind, emit_event};
use super::id::IdState;
use super::{EVENTS_MAX, FileId, ProgramId, RdmaCm, RdmaCmError};
use std::collections::VecDeque;

#[derive(Debug)]
pub(super) struct EventFile {
    pub(super) program: ProgramId,
    queue: VecDeque<Event>,
    /// Events that were not announced to the program yet.
    pub(super) unannounced: u32,
    /// Events that were announced, and that the program can no longer take.
    revoked: u32,
}

#[derive(Debug)]
struct Event {
    /// The ID that counts the event in `events_taken`.
    owner: u32,
    /// The ID of the request, if the event is a request for a connection.
    request: Option<u32>,
    bytes: Vec<u8>,
}

impl Event {
    fn is_of(&self, id: u32) -> bool {
        self.owner == id || self.request == Some(id)
    }
}

impl EventFile {
    pub(super) const fn new(program: ProgramId) -> Self {
        Self { program, queue: VecDeque::new(), unannounced: 0, revoked: 0 }
    }

    fn push(&mut self, event: Event) -> bool {
        let fits = self.queue.len() < EVENTS_MAX;
        if fits {
            self.queue.push_back(event);
            self.unannounced += 1;
        }
        fits
    }

    fn count(&self, id: u32) -> usize {
        self.queue.iter().filter(|event| event.is_of(id)).count()
    }

    fn remove(&mut self, id: u32) -> Vec<Event> {
        let all = std::mem::take(&mut self.queue).into_iter();
        let (removed, kept): (Vec<_>, Vec<_>) = all.partition(|event| event.is_of(id));
        self.queue = kept.into();
        let count = removed.len() as u32;
        let untold = count.min(self.unannounced);
        self.unannounced -= untold;
        self.revoked += count - untold;
        removed
    }

    /// Drops the events of an ID; returns the IDs of requests among them.
    pub(super) fn discard(&mut self, id: u32) -> Vec<u32> {
        let dropped = self.remove(id).into_iter();
        dropped.filter_map(|event| event.request.filter(|request| *request != id)).collect()
    }

    pub(super) const fn take_revoked(&mut self) -> u32 {
        std::mem::replace(&mut self.revoked, 0)
    }
}

impl RdmaCm {
    /// Queues an event of an ID. While the program has not accepted a request, its ID has no
    /// events.
    pub(super) fn emit(&mut self, number: u32, kind: EventKind, status: i32, data: &EventData) {
        let Some(id) = self.ids.get(&number).filter(|id| id.uid != 0) else { return };
        let bytes = emit_event(id.uid, number, kind, status, data);
        if let Some(file) = self.files.get_mut(&id.file) {
            file.push(Event { owner: number, request: None, bytes });
        }
    }

    /// Queues the request for a connection as an event of its listener. Returns `false` if the file
    /// has too many events.
    pub(super) fn emit_request(&mut self, listener: u32, request: u32, data: &EventData) -> bool {
        let Some(id) = self.ids.get_mut(&listener) else { return false };
        let bytes = emit_event(id.uid, request, EventKind::ConnectRequest, 0, data);
        let event = Event { owner: listener, request: Some(request), bytes };
        let is_queued = self.files.get_mut(&id.file).is_some_and(|file| file.push(event));
        if let (true, IdState::Listening { waiting, .. }) = (is_queued, &mut id.state) {
            *waiting += 1;
        }
        is_queued
    }

    /// The next event of a file.
    pub(super) fn take_event(&mut self, file: FileId) -> Result<Vec<u8>, RdmaCmError> {
        let file = self.files.get_mut(&file).ok_or(RdmaCmError::Invalid)?;
        let event = file.queue.pop_front().ok_or(RdmaCmError::NoEvent)?;
        if let Some(id) = self.ids.get_mut(&event.owner) {
            id.events_taken += 1;
            if let (Some(_), IdState::Listening { waiting, .. }) = (event.request, &mut id.state) {
                *waiting = waiting.saturating_sub(1);
            }
        }
        Ok(event.bytes)
    }

    /// Moves the events of an ID to another file. Returns `false` and moves none if that file would
    /// have more than [`EVENTS_MAX`] events: a lost request would stay with its peer until a
    /// timeout.
    pub(super) fn move_events(&mut self, number: u32, from: FileId, to: FileId) -> bool {
        let count = self.files.get(&from).map_or(0, |file| file.count(number));
        let fits = |file: &EventFile| file.queue.len() + count <= EVENTS_MAX;
        if !self.files.get(&to).is_some_and(fits) {
            return false;
        }
        let moved = self.files.get_mut(&from).map(|file| file.remove(number)).unwrap_or_default();
        if let Some(file) = self.files.get_mut(&to) {
            moved.into_iter().for_each(|event| _ = file.push(event));
        }
        true
    }
}
