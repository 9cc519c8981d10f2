//! Netdevs on the software fabric, in virtual time.
#![forbid(unsafe_code)]

mod capture;
mod connections;
mod hostile;
mod limits;
mod pair;
#[path = "../../fabric/tests/common/pair_world.rs"]
mod pair_world;
mod switch;
mod traffic;
