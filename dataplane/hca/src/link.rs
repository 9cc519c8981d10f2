//! The interface between a device and the link of its adapter.

use crate::Adapter;
use crate::lease::LeaseTable;
use crate::sink::FrameSink;
use crate::violation::KeyViolation;
use pollux_verbs::time::Time;
use pollux_verbs::{Device, VerbsError};
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::Duration;

pub trait Link: FrameSink {
    fn now(&self) -> Time;
    /// Whether the clock is virtual. Such a clock is cheap to read.
    fn is_virtual(&self) -> bool;
    /// Whether the [message bypass](crate::message_bypass) is off.
    fn wants_packets(&self) -> bool;
    /// Gives the other end access to the leases of this end's adapter.
    fn attach(&mut self, leases: &Arc<LeaseTable>);
    /// Updates the adapter's port, if its attributes have changed.
    fn refresh(&mut self, _: &mut Adapter) {}
    /// Passes the next received frame to the adapter. Returns whether there was one.
    fn receive(&mut self, now: Time, adapter: &mut Adapter) -> bool;
    /// Reports a key violation to the agent of the adapter's port, if there is one.
    fn report(&mut self, _: &KeyViolation) {}
    /// Opens another device on the same port, in a context of its own. `_name` is the device name.
    fn open_shared(&mut self, _name: &str) -> Result<Box<dyn Device + Send>, VerbsError> {
        Err(VerbsError::Unsupported { verb: "open_shared", capability: "a second context" })
    }
    fn set_deadline(&mut self, deadline: Option<Time>);
    /// Waits until `end` at the latest. After [`Link::fall_asleep`], an arriving frame ends the
    /// wait.
    fn idle(&mut self, end: Time);
    /// Makes the next sender wake this end, once. The caller must poll all sources again before it
    /// sleeps, including those that it polls rarely.
    fn fall_asleep(&mut self) {}
    /// Whether no frame has arrived since [`Link::fall_asleep`].
    fn is_asleep(&self) -> bool {
        true
    }
    /// Whether the other end is lost permanently.
    fn is_lost(&self) -> bool {
        false
    }
    /// The descriptor that becomes readable when a sender wakes this end, if there is one.
    fn wake_descriptor(&self) -> Option<BorrowedFd<'_>> {
        None
    }
    /// The longest time that a caller may sleep on the descriptor.
    fn sleep_max(&self) -> Duration {
        Duration::MAX
    }
}
