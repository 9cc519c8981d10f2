//! RMPP: subnet administration's tables that are longer than a MAD, in segments (IBA 13.6).
//!
//! ```text
//! Sender    start: one segment --ACK with a window--> segments of the window --last ACK--> end
//!           no ACK in time: again from the first unacknowledged segment, at last ABORT
//!           STOP or ABORT received: end
//! Receiver  next segment: kept; ACK when the window is used up, and at the end
//!           repeated segment: ACK again, since ours was lost
//!           segment after a gap: ignored, since the sender repeats the lost ones
//!           invalid segment: ABORT
//!           STOP or ABORT received: end
//! ```
//!
//! The administrator sends, its clients receive. Both halves are here, below both of their crates,
//! so that one test joins them. They do no I/O: the caller sends the MADs and passes the time in.

mod receiver;
mod sender;

pub use receiver::{Reception, SegmentOutcome};
pub use sender::{TRANSFER_BYTES_MAX, TRANSFERS_MAX, Transfers};

use pollux_wire::mad::MAD_LEN;
use pollux_wire::units::TimeCode;

type Mad = [u8; MAD_LEN];

/// The response time that both halves announce: 4.096 us * 2^14, about 67 ms.
const RESPONSE_TIME: TimeCode = TimeCode(14);
