//! Unmodified programs at a fabric: OpenSM, `ibnetdiscover`, `smpquery` and the like.
//!
//! Such programs speak to libibumad, and that to the kernel; the library `libumad2sim` of ibsim,
//! preloaded, speaks to this instead. Nobody here wrote either, so they judge our agents.
//!
//! 1. [`protocol`]: the messages;
//! 2. [`clients`]: who is where, and whose answer is whose;
//! 3. [`server`]: the sockets.

pub mod clients;
pub mod protocol;
pub mod server;

pub use clients::{CLIENTS_MAX, Clients};
pub use server::Server;
