//! Stacks that talk to each other over a link that loses and reorders, in virtual time.

mod hostile;
mod loss;
mod many;
mod tcp;
mod udp;
mod world;
