//! What a backend provides to be judged: two devices that reach each other, and their time.

use pollux_mem::Memory;
use pollux_mem::region::MapError;
use pollux_verbs::device::Device;
use pollux_verbs::error::VerbsError;
use pollux_wire::address::{Gid, Lid};
use pollux_wire::keys::PKey;

/// Which of the two devices.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Side {
    /// The one that mostly asks.
    A,
    /// The one that mostly answers.
    B,
    /// Another context of A's device, which a case has opened: no backend is asked for this one.
    SecondContext,
}

impl Side {
    /// Both that there always are.
    pub const BOTH: [Self; 2] = [Self::A, Self::B];

    /// The other one.
    #[must_use]
    pub const fn other(self) -> Self {
        match self {
            Self::A | Self::SecondContext => Self::B,
            Self::B => Self::A,
        }
    }
}

/// Whether to wait any longer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Turn {
    /// Poll again.
    GoOn,
    /// Nothing can come any more, or the time of this case is over.
    GiveUp,
}

/// A multicast group that both ports may use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Group {
    /// Its global address.
    pub mgid: Gid,
    /// Its address in the subnet.
    pub mlid: Lid,
}

/// Two devices whose ports reach each other; they may be one adapter opened twice, or one device
/// that reaches itself.
pub trait Adapters {
    /// One of the devices.
    fn device(&mut self, side: Side) -> &mut dyn Device;

    /// The port of it to use.
    fn port(&self, side: Side) -> u8;

    /// Whether both sides are the same device.
    fn is_one_device(&self) -> bool {
        false
    }

    /// Whether the ports are in one subnet; if not, every packet needs a GRH.
    fn is_one_subnet(&self) -> bool {
        true
    }

    /// Called whenever both devices were polled and nothing came. In virtual time it moves the
    /// clock to whatever happens next, and gives up when nothing will; on a clock it looks at the
    /// time limit.
    fn turn(&mut self) -> Turn;

    /// The `nth` of a few multicast groups, made and joined by both ports; `None`: not possible.
    fn group(&mut self, nth: u8) -> Option<Group> {
        let _ = nth;
        None
    }

    /// Makes the port's P_Key table begin with these; says whether that was possible.
    fn set_pkeys(&mut self, side: Side, pkeys: &[PKey]) -> bool {
        let _ = (side, pkeys);
        false
    }

    /// Memory for messages, of the kind that programs with such adapters use.
    fn memory(&self, bytes: usize) -> Result<Memory, MapError> {
        Memory::private(bytes)
    }

    /// The largest memory that one case may use for messages; longer messages are skipped.
    fn memory_bytes_max(&self) -> u64 {
        64 << 20
    }

    /// How many objects a case may make to find a limit; where there may be more, it is skipped.
    fn objects_max(&self) -> u32 {
        1 << 16
    }
}

/// Where adapters come from: a backend under test.
pub trait Factory {
    /// What it is called in reports.
    fn name(&self) -> String;

    /// A fresh pair for one case.
    fn adapters(&mut self) -> Result<Box<dyn Adapters>, VerbsError>;

    /// Whether the wire between the two loses, repeats or reorders packets. Then the cases of
    /// transports that do not repeat are skipped, and those of RC must come out all the same.
    fn is_lossy(&self) -> bool {
        false
    }
}
