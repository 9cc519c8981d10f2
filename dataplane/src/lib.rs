//! What moves IP packets over InfiniBand: no slow protocol, no lock, no allocation on the way.
//!
//! Read in this order:
//!
//! 1. [`packet_memory`]: where packets lie, and how adapters get to know it;
//! 2. [`neighbor`]: how to send to whom, written by control and read once a packet;
//! 3. [`ipoib`]: the netdev, which is an interface's queue pairs at one adapter;
//! 4. [`verdict`]: whose a received packet is;
//! 5. [`flow`]: which of several workers it is for;
//! 6. [`reason`]: what is counted when a packet is not moved;
//! 7. [`engine`]: the loop of a worker that does all that, and rests.
#![forbid(unsafe_code)]

pub mod engine;
pub mod flow;
pub mod ipoib;
pub mod neighbor;
pub mod packet_memory;
pub mod reason;
pub mod verdict;
