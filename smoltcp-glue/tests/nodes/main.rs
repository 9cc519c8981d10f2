//! Applications at a software fabric, each with its own thread and its own interface.

mod absence;
mod info;
mod sockets;
mod starts;
mod statistics;
