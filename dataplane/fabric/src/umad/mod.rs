//! Unmodified programs at a fabric: OpenSM, `ibnetdiscover`, `smpquery` and the like.
//!
//! Such programs use libibumad, which uses the kernel. With the library `libumad2sim` of ibsim
//! preloaded, they use this server instead. Read in this order: [`protocol`], [`programs`],
//! [`sockets`].

pub mod programs;
pub mod protocol;
pub mod sockets;

pub use programs::{CLIENTS_MAX, Programs};
pub use sockets::Sockets;
