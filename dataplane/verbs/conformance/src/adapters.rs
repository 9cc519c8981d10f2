//! The interface of a backend: two devices that reach each other, and their time.

use pollux_mem::Memory;
use pollux_mem::region::MapError;
use pollux_verbs::device::Device;
use pollux_verbs::error::VerbsError;
use pollux_wire::address::{Gid, Lid};
use pollux_wire::keys::PKey;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Side {
    /// It mostly sends requests.
    A,
    /// It mostly answers.
    B,
    /// Another context of A's device, which a case has opened. [`Adapters`] does not have it.
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
    /// Nothing can arrive any more, or the time of this case is over.
    GiveUp,
}

/// A multicast group that both ports may use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Group {
    pub mgid: Gid,
    pub mlid: Lid,
}

/// Two devices whose ports reach each other; they may be one adapter opened twice, or one device
/// that reaches itself.
pub trait Adapters {
    fn device(&mut self, side: Side) -> &mut dyn Device;

    /// The port of the device to use.
    fn port(&self, side: Side) -> u8;

    /// Whether both sides are the same device.
    fn is_one_device(&self) -> bool {
        false
    }

    /// If not, every packet needs a GRH.
    fn is_one_subnet(&self) -> bool {
        true
    }

    /// Called when both devices were polled and nothing arrived. In virtual time it advances to the
    /// next event, and gives up if there is none; with a real clock it checks the time limit.
    fn turn(&mut self) -> WaitDecision;

    /// A multicast group that both ports have joined, one of a few; `None` if that is not possible.
    fn group(&mut self, nth: u8) -> Option<Group> {
        let _ = nth;
        None
    }

    /// Sets the first entries of the port's P_Key table; returns whether that was possible.
    fn set_pkeys(&mut self, side: Side, pkeys: &[PKey]) -> bool {
        let _ = (side, pkeys);
        false
    }

    /// Memory for messages, of the kind that programs with such adapters use.
    fn memory(&self, bytes: usize) -> Result<Memory, MapError> {
        Memory::private(bytes)
    }

    /// The largest memory of a case; longer messages are skipped.
    fn memory_bytes_max(&self) -> u64 {
        64 << 20
    }

    /// The limit of objects that a case may create to reach a limit; beyond that, it is skipped.
    fn objects_max(&self) -> u32 {
        1 << 16
    }
}

/// A backend under test.
pub trait Factory {
    /// The name in reports.
    fn name(&self) -> String;

    /// A new pair for one case.
    fn adapters(&mut self) -> Result<Box<dyn Adapters>, VerbsError>;

    /// Whether the wire between the two loses, repeats or reorders packets. Then the cases of
    /// transports that do not retransmit are skipped; those of RC must pass all the same.
    fn is_lossy(&self) -> bool {
        false
    }
}
