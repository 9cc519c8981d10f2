//! Sockets of ours, and those of Linux in a guest, over connections and by datagram.

#[allow(dead_code, reason = "the tests of nodes need more of it")]
#[path = "../../../control/node/tests/node/fabric.rs"]
mod fabric;
#[allow(dead_code, reason = "the tests of nodes need more of it")]
#[path = "../../../control/node/tests/node/guest.rs"]
mod guest;
mod sockets;
