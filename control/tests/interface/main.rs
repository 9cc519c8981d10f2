//! Interfaces against each other and against an administrator that does not know them: the
//! fabric's own, in virtual time.

mod alone;
mod connections;
mod datagrams;
mod groups;
mod leases;
mod limits;
mod mover;
mod requests;
mod sizes;
mod state;
mod workers;
mod world;
