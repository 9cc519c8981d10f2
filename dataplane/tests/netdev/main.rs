//! Netdevs on the software fabric, in virtual time.
#![forbid(unsafe_code)]

mod capture;
mod connections;
mod hostile;
mod limits;
#[path = "../../fabric/tests/common/net_world.rs"]
#[allow(dead_code, reason = "no manager runs, and time is virtual")]
mod net_world;
mod pair;
#[path = "../../fabric/tests/common/pair_world.rs"]
mod pair_world;
mod switch;
mod traffic;
