//! The interface of a backend: two devices that reach each other, and the advance of time.

use pollux_mem::Memory;
use pollux_mem::region::MapError;
use pollux_verbs::device::Device;
use pollux_verbs::error::VerbsError;
use pollux_wire::address::{Gid, Lid};
use pollux_wire::keys::PKey;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Side {
    /// Mostly the requester.
    A,
    /// Mostly the responder.
    B,
    /// Another context of A's device, which a case has opened; never passed to [`Adapters`].
    SecondContext,
}

impl Side {
    pub const BOTH: [Self; 2] = [Self::A, Self::B];

    #[must_use]
    pub const fn other(self) -> Self {
        match self {
            Self::A | Self::SecondContext => Self::B,
            Self::B => Self::A,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WaitDecision {
    /// Poll again.
    GoOn,
    /// Nothing more can arrive, or the time limit of the case has expired.
    GiveUp,
}

/// A multicast group that both ports may use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Group {
    pub mgid: Gid,
    pub mlid: Lid,
}

/// Two devices with ports that reach each other. They may be two contexts of one adapter, or one
/// device that reaches itself.
pub trait Adapters {
    fn device(&mut self, side: Side) -> &mut dyn Device;

    /// The port of the device to use.
    fn port(&self, side: Side) -> u8;

    /// Whether both sides are the same device.
    fn is_one_device(&self) -> bool {
        false
    }

    /// Whether both ports are in the same subnet. If not, every packet needs a GRH.
    fn is_one_subnet(&self) -> bool {
        true
    }

    /// Called after both devices were polled and nothing arrived. In virtual time, advances to the
    /// next event, and gives up if there is none. With a real clock, checks the time limit.
    fn turn(&mut self) -> WaitDecision;

    /// The `nth` of a few multicast groups that both ports have joined; `None` if there is none.
    fn group(&mut self, nth: u8) -> Option<Group> {
        let _ = nth;
        None
    }

    /// Sets the first entries of the port's P_Key table; returns whether that was possible.
    fn set_pkeys(&mut self, side: Side, pkeys: &[PKey]) -> bool {
        let _ = (side, pkeys);
        false
    }

    /// Memory for messages, of the kind that programs use with such adapters.
    fn memory(&self, bytes: usize) -> Result<Memory, MapError> {
        Memory::private(bytes)
    }

    /// The most memory that a case may use, in bytes; cases that need more are skipped.
    fn memory_bytes_max(&self) -> u64 {
        64 << 20
    }

    /// The most objects that a case may create to reach a limit of the device; cases that need more
    /// are skipped.
    fn objects_max(&self) -> u32 {
        1 << 16
    }
}

/// A backend under test.
pub trait Factory {
    /// The name in reports.
    fn name(&self) -> String;

    /// A new pair of devices for one case.
    fn adapters(&mut self) -> Result<Box<dyn Adapters>, VerbsError>;

    /// Whether the wire between the devices loses, repeats or reorders packets. If so, cases for
    /// transports that do not retransmit are skipped; cases for RC must still pass.
    fn is_lossy(&self) -> bool {
        false
    }
}
