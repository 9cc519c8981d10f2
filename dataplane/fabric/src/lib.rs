//! A software InfiniBand subnet that carries data as well as management.
//!
//! So far: the channel adapter ([`hca`]); links between two of them ([`link`]); subnets of many
//! nodes ([`mod@subnet`]), and data on their way through them ([`net`]).
//!
//! Read in this order:
//!
//! 1. [`hca`]: the adapter as a state machine: packets and moments in, packets out;
//! 2. [`frame`]: what travels, packets or whole messages that take a shortcut;
//! 3. [`link`]: where it travels, with faults by rule, and captures;
//! 4. [`device`]: an adapter at a link, behind the contract of `pollux-verbs`;
//! 5. [`topology`]: what a fabric of many nodes consists of;
//! 6. [`node`]: what subnet management knows of each, with its agents [`sma`] and [`pma`];
//! 7. [`switch`]: by which ports a switch forwards; [`mod@subnet`]: datagrams that hop through it;
//! 8. [`sm`] and [`sa`]: the manager of a subnet, and the administrator that belongs to it;
//! 9. [`net`]: data on its way through all of it;
//! 10. [`umad`]: unmodified programs at a subnet, OpenSM above all;
//! 11. [`wire_io`]: wires to nodes that are not ours;
//! 12. [`process`]: adapters in processes of their own, at one fabric;
//! 13. [`null`]: an adapter at none, for measuring what is above it.
#![forbid(unsafe_code)]

pub mod device;
pub mod frame;
pub mod hca;
mod head;
mod lend;
pub mod link;
mod listen;
pub mod net;
pub mod node;
pub mod null;
pub mod pma;
pub mod process;
pub mod sa;
pub mod sm;
pub mod sma;
pub mod subnet;
pub mod switch;
pub mod topology;
pub mod umad;
pub mod wire_io;

pub use device::SoftDevice;
pub use frame::Frame;
pub use hca::Adapter;
pub use hca::port::{Drop, Port};
pub use lend::Lender;
pub use pollux_verbs::time::{self, Time};
