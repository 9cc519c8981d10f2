//! Links between adapters: where frames travel, and who may look on or interfere.
//!
//! An adapter knows only [`Link`]. [`world`] joins adapters in one thread and virtual time, with
//! [`fault`] rules and captures; [`threads`] joins two adapters in two threads.

pub mod fault;
pub mod threads;
pub mod world;

use crate::frame::Frame;
use crate::time::Time;

/// One end of a link.
pub trait Link {
    /// What time it is.
    fn now(&self) -> Time;
    /// Whether time moves only when nobody has anything to do, and is cheap to ask for.
    fn is_virtual(&self) -> bool;
    /// Sends a frame, or gives it back when the link has no room now.
    #[expect(clippy::result_large_err, reason = "a refused frame goes back to its owner")]
    fn send(&mut self, frame: Frame) -> Result<(), Frame>;
    /// The next frame that has come.
    fn receive(&mut self) -> Option<Frame>;
    /// Whether anything on the way looks at packets: then messages must not take the shortcut.
    fn wants_packets(&self) -> bool;
    /// When the adapter wants to be called again, if nothing comes before.
    fn set_deadline(&mut self, deadline: Option<Time>);
    /// Lets time pass, until `end` at the most.
    fn idle(&mut self, end: Time);
}
