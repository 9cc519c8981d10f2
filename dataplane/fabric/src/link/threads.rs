//! Two adapters in two threads of one process, joined by a ring in each direction.

use super::{FrameSink, Link};
use crate::time::Time;
use pollux_hca::Adapter;
use pollux_hca::LeaseTable;
use pollux_hca::frame::Arrival;
use pollux_mem::shared_ring::{LONG_SLOTS_MAX, RingReceiver, RingSender, SharedRing};
use std::sync::{Arc, OnceLock};

/// Slots of a ring: enough for a burst, and few enough to stay in the caches.
const SLOTS: usize = 1024;
const _: () = assert!(SLOTS >= LONG_SLOTS_MAX);

/// The kinds of entries of a ring.
const MESSAGE: u8 = 0;
const PACKET: u8 = 1;

/// A clock. The caller provides it, because this crate does not read the time itself.
pub type Clock = Arc<dyn Fn() -> Time + Send + Sync>;

pub struct ThreadLink {
    to: RingSender,
    from: RingReceiver,
    clock: Clock,
    /// The leases of this end's adapter, and those of its peer.
    own_leases: Arc<OnceLock<Arc<LeaseTable>>>,
    peer_leases: Arc<OnceLock<Arc<LeaseTable>>>,
    /// A contiguous copy of an entry that wraps around in its ring.
    buffer: Vec<u8>,
    packets_only: bool,
}

/// Two joined ends.
///
/// # Panics
/// When the process has no memory for the rings.
pub fn pair(clock: &Clock) -> [ThreadLink; 2] {
    let ring = || SharedRing::private(SLOTS).expect("there is memory for a ring");
    let rings = [ring(), ring()];
    let leases = [Arc::default(), Arc::default()];
    [0, 1].map(|end| ThreadLink {
        to: rings[end].other_side().sender(),
        from: rings[1 - end].other_side().receiver(),
        clock: clock.clone(),
        own_leases: Arc::clone(&leases[end]),
        peer_leases: Arc::clone(&leases[1 - end]),
        buffer: Vec::new(),
        packets_only: false,
    })
}

impl ThreadLink {
    /// Sends packets even where messages could bypass them. Must be set at both ends.
    pub fn set_packets_only(&mut self) {
        self.packets_only = true;
    }
}

impl FrameSink for ThreadLink {
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

    fn attach(&mut self, leases: &Arc<LeaseTable>) {
        // An end has one adapter for its whole life.
        let _ = self.own_leases.set(leases.clone());
    }

    #[inline]
    fn receive(&mut self, now: Time, adapter: &mut Adapter) -> bool {
        let leases = self.peer_leases.get().map(|leases| &**leases as _);
        let buffer = &mut self.buffer;
        self.from.receive(|entry| {
            if entry.tag() == PACKET {
                buffer.clear();
                entry.read(|part| buffer.extend_from_slice(part));
                adapter.handle_packet(now, buffer);
            } else if !adapter.receive_fast(now, entry) {
                adapter.handle_message(now, Arrival::of_entry(entry, leases, buffer).as_ref());
            }
        })
    }

    fn set_deadline(&mut self, _: Option<Time>) {}

    fn idle(&mut self, _: Time) {
        std::thread::yield_now();
    }
}
