//! A software InfiniBand subnet that carries data as well as management.
//!
//! So far: the channel adapter ([`hca`]), and links between two of them, or to adapters of other
//! makes on Ethernet ([`link`]).
//!
//! Read in this order:
//!
//! 1. [`hca`]: the adapter as a state machine: packets and moments in, packets out;
//! 2. [`frame`]: what travels, packets or whole messages that take a shortcut;
//! 3. [`link`]: where it travels, with faults by rule, and captures;
//! 4. [`device`]: an adapter at a link, behind the contract of `pollux-verbs`.
#![forbid(unsafe_code)]

pub mod device;
pub mod frame;
pub mod hca;
mod head;
mod lend;
pub mod link;
mod table;
pub mod time;

pub use device::SoftDevice;
pub use frame::Frame;
pub use hca::Adapter;
pub use hca::port::{Drop, Port};
pub use lend::Lender;
pub use time::Time;
