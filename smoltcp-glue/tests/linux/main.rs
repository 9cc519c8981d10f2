//! Sockets of Pollux and of Linux in a guest, in connected and datagram mode.

#[allow(dead_code, reason = "the tests of nodes use the rest")]
#[path = "../../../control/node/tests/node/fabric.rs"]
mod fabric;
#[allow(dead_code, reason = "the tests of nodes use the rest")]
#[path = "../../../control/node/tests/node/guest.rs"]
mod guest;
mod iperf3;
mod sockets;
mod testbed;

#[path = "../../examples/iperf3/client.rs"]
mod client;
#[path = "../../examples/iperf3/control.rs"]
mod control;
#[path = "../../examples/iperf3/report.rs"]
mod report;
#[path = "../../examples/iperf3/server.rs"]
mod server;
#[path = "../../examples/iperf3/stream.rs"]
mod stream;
#[path = "../../examples/iperf3/wire.rs"]
mod wire;
