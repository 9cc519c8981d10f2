//! Two ends joined in virtual time, and owners that do what owners do.

mod world;

mod handshake;
mod hostile;
mod rules;
mod table;
mod weather;
