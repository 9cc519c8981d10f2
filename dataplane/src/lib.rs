//! The dataplane: moves IP packets over InfiniBand without a lock or an allocation per packet.
//!
//! Slow protocols (ARP, ND, CM, SA queries) are in `control`. Read in this order:
//!
//! 1. [`packet_memory`]: buffers for packets, registered with adapters;
//! 2. [`neighbor`]: the adjacency of each next hop, written by control and looked up per packet;
//! 3. [`ipoib`]: the netdev, which has the queue pairs of an interface on one adapter;
//! 4. [`headers`]: the headers of a received packet, parsed once and kept with its buffer;
//! 5. [`verdict`]: whether a received packet is local, in transit or punted to control;
//! 6. [`flow`]: flow steering, which chooses the worker that handles a flow;
//! 7. [`reason`]: counters of dropped and refused packets;
//! 8. [`port`] and [`forward`]: forwarding of packets in transit, from the port of arrival to the
//!    port of the next hop; [`null_port`]: a source and sink of such packets;
//! 9. [`fib`]: the routes that forwarding looks up, published in versions; [`acl`]: access control
//!    lists, which decide which packets pass a port;
//! 10. [`offload`]: checksums and TCP segmentation that the kernel leaves to a port;
//! 11. [`engine`]: the poll loop of a worker, and how it idles;
//! 12. [`capture`] and [`filter`]: copies of packets for an operator, and the choice of packets.
#![forbid(unsafe_code)]

pub mod acl;
pub mod capture;
pub mod engine;
pub mod fib;
pub mod filter;
pub mod flow;
pub mod forward;
pub mod headers;
pub mod ipoib;
pub mod neighbor;
pub mod null_port;
pub mod offload;
pub mod packet_memory;
pub mod port;
pub mod reason;
pub mod verdict;
