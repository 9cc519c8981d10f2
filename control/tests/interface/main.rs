//! Interfaces against each other and against an administrator that does not know them: the
//! fabric's own, in virtual time.

mod alone;
mod connections;
mod datagrams;
mod groups;
mod leases;
mod life;
mod limits;
mod mover;
mod requests;
mod sizes;
mod workers;
mod world;
