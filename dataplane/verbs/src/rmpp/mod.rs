//! RMPP: transfers of subnet administration's tables that are longer than a MAD (IBA 13.6).
//!
//! ```text
//! Sender    start: one segment --ACK with a window--> segments of the window --last ACK--> end
//!           no ACK in time: resends from the first unacknowledged segment; ABORT after retries
//!           STOP or ABORT received: end
//! Receiver  next segment: kept; ACK at the end of the window, and at the end of the table
//!           repeated segment: ACK again, because the first ACK was lost
//!           segment after a gap: ignored, because the sender repeats the lost segments
//!           invalid segment: ABORT
//!           STOP or ABORT received: end
//! ```
//!
//! The subnet administrator sends, its clients receive. Both halves are in this module, which the
//! crates of both depend on, so that one test covers both. They do no I/O: the caller sends the
//! MADs and passes the time in.

mod receiver;
mod sender;

pub use receiver::{Reception, SegmentOutcome};
pub use sender::{TRANSFER_BYTES_MAX, TRANSFERS_MAX, Transfers};

use pollux_wire::mad::MAD_LEN;
use pollux_wire::units::TimeCode;

type Mad = [u8; MAD_LEN];

/// The response time that sender and receiver announce: 4.096 us * 2^14, about 67 ms.
const RESPONSE_TIME: TimeCode = TimeCode(14);
