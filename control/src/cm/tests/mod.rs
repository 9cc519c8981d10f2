//! Two ends joined in virtual time, and consumers that do what consumers do.

mod world;

mod handshake;
mod hostile;
mod rules;
mod table;
mod weather;
