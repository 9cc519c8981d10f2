//! Unmodified programs at a fabric: OpenSM, `ibnetdiscover`, `smpquery` and the like.
//!
//! Such programs use libibumad, and that uses the kernel; the preloaded library `libumad2sim` of
//! ibsim uses this server instead. Both are independent programs, so they are referees of our
//! agents.
//!
//! 1. [`protocol`]: the messages;
//! 2. [`programs`]: the programs, their ports, and the routing of responses;
//! 3. [`sockets`]: the sockets.

pub mod programs;
pub mod protocol;
pub mod sockets;

pub use programs::{CLIENTS_MAX, Programs};
pub use sockets::Sockets;
