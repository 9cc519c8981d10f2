//! Many interfaces on a managed subnet, in virtual time and from seeds: whatever happens to them,
//! what they promise each other holds once it is over.
//!
//! `world` moves time and `network` frames and datagrams; `faults` says what befalls a world;
//! `seeds` runs worlds and says what has to hold; `health` looks at one flow and one trouble.

mod faults;
mod health;
mod network;
#[path = "../interface/port_driver.rs"]
mod port_driver;
mod seeds;
mod world;
