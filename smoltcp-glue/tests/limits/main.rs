//! Sockets at their limits, in virtual time: links that lose, readers that do not read, more of
//! everything than there is room for. What counts is counted, not timed.
//!
//! `POLLUX_CONNECTIONS=N` says how many short connections there are.

#[path = "../load/device.rs"]
mod device;
mod full;
mod loss;
mod many;
mod progress;
mod readers;
#[path = "../load/traffic.rs"]
#[allow(dead_code, reason = "groups and echoes are for mixed traffic")]
mod traffic;
#[path = "../load/world.rs"]
#[allow(dead_code, reason = "nobody dies here")]
mod world;
