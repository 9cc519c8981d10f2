//! Two stacks over a link with losses and reordering, in virtual time.

mod hostile;
mod icmp;
mod info;
mod isn;
mod loss;
mod many;
mod peers;
mod rfc;
mod segment;
mod tcp;
mod udp;
mod user_timeout;
mod world;
