//! An InfiniBand subnet in software: the state of its nodes, their agents, and the subnet manager.
//!
//! This crate only decides: it has no I/O, no clock and no threads, and the caller passes the time.
//! The fabric above moves data packets, by the tables of the nodes here.
//!
//! Read in this order:
//!
//! 1. [`topology`]: nodes and links of a subnet, read from a file or generated;
//! 2. [`node`]: the state of a node: ports, LFT and MFT, P_Keys, counters;
//! 3. [`sma`] and [`pma`]: the agents of a node, for subnet and performance management;
//! 4. [`switch`]: the forwarding decision of a switch;
//! 5. [`mod@subnet`]: nodes and links, and management datagrams that hop from node to node;
//! 6. [`config`] and [`partitions`]: the settings of a subnet manager; `view`: the subnet as its
//!    manager has discovered it, which is the input of routing and subnet administration;
//! 7. [`sa`]: the subnet administrator: path records, groups, services, subscriptions, RMPP;
//! 8. [`sm`]: the subnet manager: discovery, Up*/Down* routing, partitions, election.
#![forbid(unsafe_code)]

pub mod config;
pub mod node;
pub mod partitions;
pub mod pma;
pub mod sa;
pub mod sm;
pub mod sma;
pub mod subnet;
pub mod switch;
pub mod topology;
mod view;

pub use pollux_verbs::time::{self, Time};
