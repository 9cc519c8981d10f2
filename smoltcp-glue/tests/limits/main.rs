//! Sockets at their limits, in virtual time: lossy links, slow readers, full queues and tables.
//! Operations are counted, not timed.
//!
//! `POLLUX_CONNECTIONS=N` sets the number of short connections.

#[path = "../load/device.rs"]
mod device;
mod full;
mod loss;
mod many;
#[path = "../../../dataplane/fabric/tests/common/net_world.rs"]
#[allow(dead_code, reason = "time is virtual, and all processes run")]
mod net_world;
mod progress;
mod readers;
#[path = "../load/traffic.rs"]
#[allow(dead_code, reason = "groups and echoes are for mixed traffic")]
mod traffic;
#[path = "../load/world.rs"]
#[allow(dead_code, reason = "hosts are killed in mixed traffic only")]
mod world;
