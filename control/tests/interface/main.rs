//! Interfaces against each other and against an administrator that does not know them: the
//! fabric's own, in virtual time.

mod addresses;
mod alone;
mod connections;
mod datagrams;
mod groups;
mod leases;
mod limits;
mod out_of_service;
mod port_driver;
mod requests;
mod sizes;
mod state;
mod workers;
mod world;
