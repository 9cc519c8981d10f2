//! The dataplane: moves IP packets over InfiniBand with no lock and no allocation per packet.
//!
//! Slow protocols (ARP, ND, CM, SA queries) are in `control`. Read in this order:
//!
//! 1. [`packet_memory`]: buffers for packets, registered with adapters;
//! 2. [`neighbor`]: the adjacency of each next hop, written by control and looked up per packet;
//! 3. [`ipoib`]: the netdev, which has an interface's queue pairs at one adapter;
//! 4. [`verdict`]: whether a received packet is local, in transit or punted to control;
//! 5. [`flow`]: flow steering, which chooses one of several workers;
//! 6. [`reason`]: counters of dropped and refused packets;
//! 7. [`engine`]: the poll loop of a worker, and how it idles.
#![forbid(unsafe_code)]

pub mod engine;
pub mod flow;
pub mod ipoib;
pub mod neighbor;
pub mod packet_memory;
pub mod reason;
pub mod verdict;
