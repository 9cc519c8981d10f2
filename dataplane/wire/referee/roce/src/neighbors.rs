//! The MAC addresses of neighbors, from ARP and neighbor discovery, and the frames that wait for an
//! address (RFC 826; RFC 4861 5.1, 7.2.2).
//!
//! ```text
//!            send               answer
//!   (none) -------> ASKED ----------------> KNOWN
//!      ^              |  ^                    |
//!      |  ASKS_MAX    |  |  send, when older  |
//!      +--------------+  +--- than AGE_MAX ---+
//! ```
//!
//! Only frames to send create entries, so other hosts cannot fill the table. The number of entries
//! and of waiting frames is limited.

use pollux_fabric::Time;
use pollux_wire::address::Gid;
use pollux_wire::ethernet::MacAddress;
use std::collections::BTreeMap;
use std::time::Duration;

pub const NEIGHBORS_MAX: usize = 256;
/// Frames that wait for one neighbor, at most.
pub const WAITING_FRAMES_MAX: usize = 64;
/// Requests for a neighbor before its entry is removed.
pub const ASKS_MAX: u32 = 3;
/// The time between two requests.
pub const ASK_INTERVAL: Duration = Duration::from_secs(1);
/// How long an entry is valid without a frame from the neighbor.
pub const AGE_MAX: Duration = Duration::from_mins(1);

#[derive(Debug)]
enum Neighbor {
    Asked { source: Gid, asks: u32, again: Time, waiting: Vec<Vec<u8>> },
    Known { mac: MacAddress, until: Time },
}

#[derive(Debug, Default)]
pub struct RoceNeighbors {
    entries: BTreeMap<Gid, Neighbor>,
}

/// The result of a lookup.
#[derive(Debug, PartialEq, Eq)]
pub enum Lookup {
    /// Send to this address.
    Known(MacAddress),
    /// The caller passes the frame to [`RoceNeighbors::wait`].
    Unknown {
        /// Whether the caller must send the first request.
        ask: bool,
    },
    /// The table is full, and no neighbor in it has answered yet.
    Full,
}

/// A request that is due, for `target`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Question {
    pub source: Gid,
    pub target: Gid,
}

impl RoceNeighbors {
    /// Looks up the address of `target`, for a frame from `source`.
    pub fn look_up(&mut self, now: Time, source: Gid, target: Gid) -> Lookup {
        match self.entries.get(&target) {
            Some(&Neighbor::Known { mac, until }) if now < until => return Lookup::Known(mac),
            Some(Neighbor::Asked { .. }) => return Lookup::Unknown { ask: false },
            _ => {}
        }
        if !self.entries.contains_key(&target) && !self.has_room() {
            return Lookup::Full;
        }
        let again = now + ASK_INTERVAL;
        let asked = Neighbor::Asked { source, asks: 1, again, waiting: Vec::new() };
        self.entries.insert(target, asked);
        Lookup::Unknown { ask: true }
    }

    /// Removes the least recently active neighbor if the table is full; returns whether one
    /// more fits.
    fn has_room(&mut self) -> bool {
        if self.entries.len() < NEIGHBORS_MAX {
            return true;
        }
        let known = self.entries.iter().filter_map(|(&gid, neighbor)| match neighbor {
            Neighbor::Known { until, .. } => Some((*until, gid)),
            Neighbor::Asked { .. } => None,
        });
        let oldest = known.min();
        oldest.is_some_and(|(_, gid)| self.entries.remove(&gid).is_some())
    }

    /// Keeps a frame until the neighbor answers; returns false if too many frames wait, or no
    /// request is pending.
    pub fn wait(&mut self, target: Gid, frame: Vec<u8>) -> bool {
        match self.entries.get_mut(&target) {
            Some(Neighbor::Asked { waiting, .. }) if waiting.len() < WAITING_FRAMES_MAX => {
                waiting.push(frame);
                true
            }
            _ => false,
        }
    }

    /// Learns the address of a neighbor; returns the frames that waited for it. Neighbors without
    /// an entry are ignored.
    pub fn learn(&mut self, now: Time, gid: Gid, mac: MacAddress) -> Vec<Vec<u8>> {
        let Some(entry) = self.entries.get_mut(&gid) else { return Vec::new() };
        let known = Neighbor::Known { mac, until: now + AGE_MAX };
        match std::mem::replace(entry, known) {
            Neighbor::Asked { waiting, .. } => waiting,
            Neighbor::Known { .. } => Vec::new(),
        }
    }

    /// Confirms the entry of a neighbor that sent a frame.
    pub fn confirm(&mut self, now: Time, gid: Gid, from: MacAddress) {
        if let Some(Neighbor::Known { mac, until }) = self.entries.get_mut(&gid)
            && *mac == from
        {
            *until = now + AGE_MAX;
        }
    }

    /// The requests to repeat, and the number of dropped frames: those that waited for neighbors
    /// that have not answered [`ASKS_MAX`] requests.
    pub fn handle_timeout(&mut self, now: Time) -> (Vec<Question>, usize) {
        let (mut questions, mut lost) = (Vec::new(), 0);
        self.entries.retain(|&target, neighbor| {
            let Neighbor::Asked { source, asks, again, waiting } = neighbor else { return true };
            if *again > now {
                return true;
            }
            if *asks == ASKS_MAX {
                lost += waiting.len();
                return false;
            }
            *asks += 1;
            *again = now + ASK_INTERVAL;
            questions.push(Question { source: *source, target });
            true
        });
        (questions, lost)
    }

    /// When the next request is due.
    pub fn deadline(&self) -> Option<Time> {
        let asked = self.entries.values().filter_map(|neighbor| match neighbor {
            Neighbor::Asked { again, .. } => Some(*again),
            Neighbor::Known { .. } => None,
        });
        asked.min()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OURS: Gid = Gid([1; 16]);
    const MAC: MacAddress = MacAddress([2, 0, 0, 0, 0, 9]);

    fn gid(nth: u16) -> Gid {
        let mut gid = [0; 16];
        gid[14..].copy_from_slice(&nth.to_be_bytes());
        Gid(gid)
    }

    #[test]
    fn waiting_frames_are_sent_on_the_answer_up_to_the_limit() {
        let (mut table, now) = (RoceNeighbors::default(), Time::START);
        assert_eq!(table.look_up(now, OURS, gid(1)), Lookup::Unknown { ask: true });
        let waited = (0..100).filter(|&nth| table.wait(gid(1), vec![nth])).count();
        assert_eq!(waited, WAITING_FRAMES_MAX);
        assert_eq!(table.look_up(now, OURS, gid(1)), Lookup::Unknown { ask: false });
        assert_eq!(table.learn(now, gid(1), MAC).len(), WAITING_FRAMES_MAX);
        assert_eq!(table.look_up(now, OURS, gid(1)), Lookup::Known(MAC));
        assert!(!table.wait(gid(1), vec![]), "nothing waits for who is known");
    }

    #[test]
    fn unanswered_requests_are_repeated_and_given_up() {
        let (mut table, mut now) = (RoceNeighbors::default(), Time::START);
        table.look_up(now, OURS, gid(1));
        assert!(table.wait(gid(1), vec![]));
        for _ in 1..ASKS_MAX {
            assert_eq!(table.handle_timeout(now), (vec![], 0), "too early");
            now = table.deadline().unwrap();
            let question = Question { source: OURS, target: gid(1) };
            assert_eq!(table.handle_timeout(now), (vec![question], 0));
        }
        now = table.deadline().unwrap();
        assert_eq!(table.handle_timeout(now), (vec![], 1));
        assert_eq!(table.deadline(), None);
    }

    #[test]
    fn entries_age_without_frames_of_that_address() {
        let (mut table, start) = (RoceNeighbors::default(), Time::START);
        table.look_up(start, OURS, gid(1));
        table.learn(start, gid(1), MAC);
        let half = start + AGE_MAX / 2;
        table.confirm(half, gid(1), MacAddress::BROADCAST);
        assert_eq!(table.look_up(start + AGE_MAX, OURS, gid(1)), Lookup::Unknown { ask: true });
        table.learn(start, gid(1), MAC);
        table.confirm(half, gid(1), MAC);
        assert_eq!(table.look_up(start + AGE_MAX, OURS, gid(1)), Lookup::Known(MAC));
    }

    #[test]
    fn the_table_forgets_the_oldest_and_never_grows_beyond_its_limit() {
        let mut table = RoceNeighbors::default();
        for nth in 0..1000 {
            let now = Time::from_nanos(nth.into());
            assert_eq!(table.look_up(now, OURS, gid(nth)), Lookup::Unknown { ask: true });
            table.learn(now, gid(nth), MAC);
            assert!(table.entries.len() <= NEIGHBORS_MAX);
        }
        assert_eq!(table.look_up(Time::START, OURS, gid(999)), Lookup::Known(MAC));
        for nth in 1000..2000 {
            table.look_up(Time::START, OURS, gid(nth));
        }
        assert_eq!(table.look_up(Time::START, OURS, gid(2000)), Lookup::Full);
        assert!(table.learn(Time::START, gid(3000), MAC).is_empty());
        assert_eq!(table.entries.len(), NEIGHBORS_MAX);
    }
}
