//! One fabric, several processes: a server that has the subnet, and clients that have adapters.
//!
//! A client attaches to a port by the server's socket, and gets memory that it shares with the
//! server: the state of its port, and a lane each way ([`board`]). By these lanes everything can
//! go: the server takes it hop by hop through the net. Datagrams of management always do, since
//! agents and managers stand at the ports there. What goes from client to client, and would
//! only be handed on, soon gets a [`direct`] lane past the server.
//!
//! ```text
//!             socket: who, where, descriptors
//!   client A ================================ server ================================ client B
//!      |  \---- up: anything, SWITCH, CLOSED ---> | net | --- down: anything, OPEN, CLOSE ---/  |
//!      |                                                                                        |
//!      +----------------------- direct: messages of one route, one way -------------------------+
//! ```
//!
//! # Several at one port
//!
//! An adapter that is opened once more ([`open_shared`](pollux_verbs::Device::open_shared)) is a
//! client more, with a board and lanes of its own, at another [seat](crate::net::seats) of the
//! same port: the number of a queue pair says the seat that it is of. Who does not know the secret
//! of those who are at a port gets no seat there. They are equals: each may go, or die, without the
//! others; the cable comes out with the last. Only what is for the first goes with the first.
//!
//! # How a direct lane begins and ends
//!
//! A lane has one sender, one receiver and one route (DLID, seat, P_Key, SL); answers go by
//! another one. The server finds the [`Way`](crate::net::ways::Way) and sends the memory to both.
//! The sender says SWITCH behind the last message that it gives to the server, and the server,
//! having delivered that, says OPEN: only then does the receiver look at the lane. So nothing
//! overtakes.
//!
//! It ends when its way is another one or none, when anything on it wants packets, when one of the
//! two is gone, or when it is the least used one and another is wanted. The server writes so into
//! the sender's board, which that reads before every message; the sender says CLOSED behind
//! the last one, and the server says CLOSE to the receiver, which takes what is left. Where traffic
//! is no longer allowed, the server does not wait for the sender.
//!
//! # Who trusts whom
//!
//! Clients trust the server, and nobody trusts a client. It may write anything into all that it
//! maps for writing, at any instant, and may stop or die:
//!
//! - An entry's shape and head are copied once and judged by the copy; its bytes are copied into
//!   the receiver's memory and not looked at. A receiver takes nothing from a direct lane but
//!   messages of the route that was granted, and none for management.
//! - Rings have turns, so whoever fills one keeps nobody from the others, and nothing that comes
//!   waits for anything: what cannot be taken is dropped and counted.
//! - Memory is lent by its owner, segment by segment, to the receiver of a lane that it sends by,
//!   and to nobody else. The segment is sealed, so that nobody but its owner writes to it; so is
//!   the table of leases. A message is lent only when its receiver has mapped all that it takes,
//!   and goes by copy else. A receiver can read all of the segments that were lent to it, not just
//!   the messages in them, until the lane ends; one that keeps the mapping can read them for as
//!   long as their owner uses them. So what must not be read by any peer that long messages are
//!   sent to does not belong into [`Memory::shared`](pollux_mem::Memory::shared).
//! - A sender has one question at a time about its segments to each receiver, and 64 segments a
//!   lane, of 128 GiB in all; more, and what comes unasked, ends it or is not passed on.
//!
//! - Whether a lane may be used, and what went by it, stands where its receiver cannot write. What
//!   a sender counts of its own is its own to say.
//!
//! What is left to two clients that share a lane: either may spoil what goes by it for the other. A
//! client that dies leaves whole entries and a closed socket; the server takes its cable out, and
//! the place is free. It is a host and no administrator: what it sends has its own port's address,
//! and sets nothing of the subnet unless the fabric was started so
//! ([`Net::grant_management`](crate::net::Net::grant_management)).
//!
//! # What a client can cost the server
//!
//! | what | at most | beyond that |
//! |---|---|---|
//! | connections that wait to be accepted | 4096, or `net.core.somaxconn` | it tries again, 5 s |
//! | connections that have said nothing | [`STRANGERS_MAX`] | the oldest silent one is closed |
//! | clients | [`CLIENTS_MAX`] | refused, with the reason |
//! | frames for it that it has not taken | [`ARRIVED_FRAMES_MAX`] | dropped, `full` |
//! | bytes of those | [`ARRIVED_BYTES_MAX`] | dropped, `full` |
//! | control messages that it has not taken | [`SAID_MAX`] | detached, `overrun` |
//! | answers at the socket that it has not read | what the socket holds | detached |
//! | descriptors of this process | its limit | refused; what is passed on is lost |
//! | direct lanes each way | [`LANES_MAX`] | the least used one is taken back |
//!
//! The server keeps no segments: what a sender lets its receiver map is passed on, one question at
//! a time for each lane. A receiver maps [`SEGMENTS_MAX`] for each lane.
//!
//! [`STRANGERS_MAX`]: server::STRANGERS_MAX
//! [`CLIENTS_MAX`]: server::CLIENTS_MAX
//! [`ARRIVED_FRAMES_MAX`]: crate::net::seats::ARRIVED_FRAMES_MAX
//! [`ARRIVED_BYTES_MAX`]: crate::net::seats::ARRIVED_BYTES_MAX
//! [`SAID_MAX`]: server::SAID_MAX
//! [`LANES_MAX`]: grants::LANES_MAX
//! [`SEGMENTS_MAX`]: loans::SEGMENTS_MAX
//!
//! Read in this order: [`note`], [`socket`] (what is said by the socket), [`board`], [`direct`],
//! [`loans`] and `exposure` (memory that others may reach), [`link`], `chair` and `session` (the
//! client), [`grants`], [`server`].

pub mod address;
pub mod board;
mod chair;
pub mod direct;
mod exposure;
pub mod grants;
pub mod link;
pub mod loans;
pub mod note;
pub mod server;
mod session;
pub mod socket;

pub use address::Address;
pub use link::{OpenError, ProcessLink, open};
pub use server::Server;

/// What an entry of a lane is.
pub(crate) mod tag {
    /// A message by the shortcut: its head, and what it carries.
    pub(crate) const MESSAGE: u8 = 0;
    /// A packet, LRH to VCRC.
    pub(crate) const PACKET: u8 = 1;
    /// Up: from here on, what goes the lane's route goes by the lane of this number.
    pub(crate) const SWITCH: u8 = 2;
    /// Up: nothing more comes by the lane of this number.
    pub(crate) const CLOSED: u8 = 3;
    /// Down: the lane of this number goes on from here.
    pub(crate) const OPEN: u8 = 4;
    /// Down: the lane of this number ends with what is in it.
    pub(crate) const CLOSE: u8 = 5;
    /// Down: there is something at the socket.
    pub(crate) const MAIL: u8 = 6;
    /// Up: a key did not match; which trap says so, and what it says.
    pub(crate) const VIOLATION: u8 = 7;
}
