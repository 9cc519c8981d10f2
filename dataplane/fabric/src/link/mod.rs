//! Links between adapters: where frames travel, and who may look on or interfere.
//!
//! An adapter knows only [`Link`]. [`world`] joins adapters in one thread and virtual time, with
//! [`fault`] rules and captures; [`threads`] joins two adapters in two threads.

pub mod fault;
pub mod threads;
pub mod world;

use crate::hca::Adapter;
use crate::hca::violation::KeyViolation;
use crate::lend::Lender;
use crate::time::Time;
use pollux_verbs::{Device, LKey, VerbsError};
use std::sync::Arc;

/// One end of a link.
pub trait Link {
    /// What time it is.
    fn now(&self) -> Time;
    /// Whether time moves only when nobody has anything to do, and is cheap to ask for.
    fn is_virtual(&self) -> bool;
    /// Whether anything on the way looks at packets: then messages must not take the shortcut.
    fn wants_packets(&self) -> bool;
    /// The same, of bytes that lie in one place.
    fn send_bytes(&mut self, head: &[u64], bytes: &[u8]) -> bool {
        let mut rest = bytes;
        self.send_message(head, bytes.len(), |part| {
            let (now, later) = rest.split_at(part.len());
            part.copy_from_slice(now);
            rest = later;
        })
    }
    /// Whether the receiver of a message whose head begins so can copy it out of the regions of
    /// these keys. If not, it goes in pieces, by copy.
    fn lends(&mut self, _head: [u64; 2], _keys: &mut dyn Iterator<Item = LKey>) -> bool {
        true
    }
    /// Tells the other end what this one's adapter lends.
    fn attach(&mut self, lender: &Arc<Lender>);
    /// Tells the adapter what became of its port, if anything did.
    fn refresh(&mut self, _: &mut Adapter) {}
    /// Whether management agents stand at this end: then datagrams of management are for the link
    /// even if they are for the adapter's own port.
    fn has_agents(&self) -> bool {
        false
    }
    /// Sends a packet, LRH to VCRC; says whether there was room.
    fn send_packet(&mut self, bytes: &[u8]) -> bool;
    /// Sends a message: the words of its head, and so many bytes, which `fill` writes part by
    /// part. Says whether there was room.
    fn send_message(&mut self, head: &[u64], bytes: usize, fill: impl FnMut(&mut [u8])) -> bool;
    /// Hands the next thing that has come to the adapter; says whether there was any.
    fn receive(&mut self, now: Time, adapter: &mut Adapter) -> bool;
    /// Tells the agent of the adapter's port of a key that did not match, where there is one.
    fn report(&mut self, _: &KeyViolation) {}
    /// Another adapter at the same port, for a device of this name.
    fn open_shared(&mut self, _name: &str) -> Result<Box<dyn Device + Send>, VerbsError> {
        Err(VerbsError::Unsupported { verb: "open_shared", capability: "a second context" })
    }
    /// When the adapter wants to be called again, if nothing comes before.
    fn set_deadline(&mut self, deadline: Option<Time>);
    /// Lets time pass, until `end` at the most.
    fn idle(&mut self, end: Time);
    /// Whoever is at it sleeps between turns: what it looks at once in many, it looks at in the
    /// next.
    fn rest(&mut self) {}
}
