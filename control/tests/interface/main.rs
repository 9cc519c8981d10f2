//! Interfaces against each other and against an administrator that does not know them: the
//! fabric's own, in virtual time.

mod connections;
mod datagrams;
mod echoes;
mod groups;
mod leases;
mod mover;
mod sizes;
mod workers;
mod world;
