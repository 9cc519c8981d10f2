//! Two adapters in two threads of one process, joined by a lane each way.

use super::Link;
use crate::frame::Arrival;
use crate::hca::Adapter;
use crate::lend::Lender;
use crate::time::Time;
use pollux_mem::shared_ring::{RingReceiver, RingSender, SharedRing};
use std::sync::{Arc, OnceLock};

/// Slots of a lane: a burst, and no more than the caches hold.
const SLOTS: usize = 1024;

/// What an entry of a lane is.
const MESSAGE: u8 = 0;
const PACKET: u8 = 1;

/// What tells the time to links between threads; given by whoever may read a clock.
pub type Clock = Arc<dyn Fn() -> Time + Send + Sync>;

/// One end of a link between threads.
pub struct ThreadLink {
    to: RingSender,
    from: RingReceiver,
    clock: Clock,
    /// What this end lends, for the other; and what the other one lends.
    lends: Arc<OnceLock<Arc<Lender>>>,
    borrows: Arc<OnceLock<Arc<Lender>>>,
    /// For what lies in a lane in parts, and is needed in one.
    room: Vec<u8>,
    packets_only: bool,
}

/// Two joined ends.
///
/// # Panics
/// When the process has no memory for the lanes.
pub fn pair(clock: &Clock) -> [ThreadLink; 2] {
    let lane = || SharedRing::private(SLOTS).expect("there is memory for a lane");
    let lanes = [lane(), lane()];
    let lenders = [Arc::default(), Arc::default()];
    [0, 1].map(|end| ThreadLink {
        to: lanes[end].other_side().sender(),
        from: lanes[1 - end].other_side().receiver(),
        clock: clock.clone(),
        lends: Arc::clone(&lenders[end]),
        borrows: Arc::clone(&lenders[1 - end]),
        room: Vec::new(),
        packets_only: false,
    })
}

impl ThreadLink {
    /// Real packets, with their CRCs, even where messages might take the shortcut. For both ends.
    pub fn set_packets_only(&mut self) {
        self.packets_only = true;
    }
}

impl Link for ThreadLink {
    fn now(&self) -> Time {
        (self.clock)()
    }

    fn is_virtual(&self) -> bool {
        false
    }

    fn wants_packets(&self) -> bool {
        self.packets_only
    }

    fn attach(&mut self, lender: &Arc<Lender>) {
        // An end has one adapter for life.
        let _ = self.lends.set(lender.clone());
    }

    fn send_packet(&mut self, bytes: &[u8]) -> bool {
        self.to.send_bytes(PACKET, &[], bytes)
    }

    #[inline]
    fn send_bytes(&mut self, head: &[u64], bytes: &[u8]) -> bool {
        self.to.send_bytes(MESSAGE, head, bytes)
    }

    #[inline]
    fn send_message(&mut self, head: &[u64], bytes: usize, fill: impl FnMut(&mut [u8])) -> bool {
        self.to.send(MESSAGE, head, bytes, fill)
    }

    #[inline]
    fn receive(&mut self, now: Time, adapter: &mut Adapter) -> bool {
        let lender = self.borrows.get().map(|lender| &**lender as _);
        let room = &mut self.room;
        self.from.receive(|entry| {
            if entry.tag() == PACKET {
                room.clear();
                entry.read(|part| room.extend_from_slice(part));
                adapter.handle_packet(now, room);
            } else if !adapter.take_usual(now, entry) {
                adapter.handle_message(now, Arrival::of_entry(entry, lender, room).as_ref());
            }
        })
    }

    fn set_deadline(&mut self, _: Option<Time>) {}

    fn idle(&mut self, _: Time) {
        std::thread::yield_now();
    }
}
