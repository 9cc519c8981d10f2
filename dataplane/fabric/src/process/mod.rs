//! One fabric, several processes: a server that has the subnet, and clients that have adapters.
//!
//! A client attaches to a port by the server's socket, and gets a page of shared memory with the
//! state of its port and a ring in each direction ([`port_page`]). All traffic can use these two
//! rings: the server forwards it hop by hop through the net. Management datagrams always use them,
//! because agents and managers are at the ports of the net. Client-to-client traffic that the
//! server would only forward uses a [`direct`] ring that bypasses the server.
//!
//! ```text
//!             socket: control messages, descriptors
//!   client A ================================ server ================================ client B
//!      |  \---- up: anything, SWITCH, CLOSED ---> | net | --- down: anything, OPEN, CLOSE ---/  |
//!      |                                                                                        |
//!      +----------------------- direct: messages of one route, one way -------------------------+
//! ```
//!
//! # Shared ports
//!
//! A port can have several clients, each in a [shared-port context](crate::net::shared_port) with a
//! vHCA index, a shared port page and rings of its own
//! ([`open_shared`](pollux_verbs::Device::open_shared)). A QPN contains the index. Clients of one
//! port have a common secret; the server refuses others. A client can exit or die without effect on
//! the other clients of the port. When the last one ends, the server unplugs the cable. If the
//! adapter with index 0 dies, traffic that only it receives (management, GSI) is lost.
//!
//! Clients with management agents ([`agents`]) can share the port, too. A MAD is delivered to the
//! agent that it is for; the adapter with index 0 gets the rest.
//!
//! # How a direct ring begins and ends
//!
//! A ring has one sender, one receiver and one route (SLID, DLID, context, P_Key, SL); answers use
//! another ring. The server finds the [`BypassPath`](crate::net::bypass::BypassPath) and sends the
//! memory to both clients. The sender writes SWITCH behind its last message to the server. When the
//! server has delivered that message, it writes OPEN, and only then does the receiver poll the
//! ring. So messages stay in order.
//!
//! A ring ends when its path changes, when anything on the path needs packets, when one of its
//! clients ends, or when it is the least used ring and another one is needed. The server writes the
//! end into the sender's page, which the sender reads before every message. The sender writes
//! CLOSED behind its last message, and the server writes CLOSE to the receiver. The receiver then
//! takes the remaining entries of the ring. If traffic is no longer allowed, the server does not
//! wait for CLOSED.
//!
//! # Sleeping clients
//!
//! An idle client sleeps at one descriptor. Before it sleeps, it sets a word in its page and in
//! each ring that it receives from, makes a barrier on all processors if the rings need it
//! ([`sleep_word`](pollux_mem::sleep_word)), and polls all rings once more. A sender that reads the
//! word wakes the client, once for each sleep: the server by its socket, the sender of a ring by
//! the ring's wake socket. A client without a descriptor for a wake socket sleeps for a millisecond
//! at most.
//!
//! # Trust
//!
//! Clients trust the server, and no process trusts a client. A client may write anything, at any
//! time, to memory that it has mapped for writing, and it may stop or die:
//!
//! - The receiver copies an entry's lengths and head once, and checks the copy. It copies the
//!   payload into its own memory without a check. From a direct ring, a receiver takes only
//!   messages of the route that was granted, and no management.
//! - Receivers poll their rings in turn, so a sender that fills one ring does not block the others.
//!   No entry waits in a ring: an invalid message is dropped and counted.
//! - A sender leases its memory, segment by segment, only to the receivers of its rings. Segments
//!   and the table of leases are sealed: only their owner can write to them. A message is leased
//!   only if its receiver has mapped all segments that the message needs; otherwise, it is copied.
//!   A receiver can read all of a leased segment, not just the messages in it, until the ring ends.
//!   A receiver that keeps the mapping can read it for as long as its owner uses it. So data that a
//!   peer must not read must not be in [`Memory::shared`](pollux_mem::Memory::shared), and IP
//!   packets are not ([`Pool::registered`](pollux_mem::Pool::registered)).
//! - A sender has at most one outstanding request about its segments for each ring; a second one
//!   detaches it. A receiver maps at most 64 segments for a ring, and 128 GiB in total. Messages in
//!   other segments are copied.
//! - The receiver of a ring cannot write to the state and the counters of the ring. The sender
//!   counts the traffic of the ring, and can falsify only these counts.
//!
//! Two clients that share a ring can still damage each other's traffic on that ring. A client that
//! dies leaves complete entries and a closed socket; the server unplugs its cable and frees the
//! slot. A client is a host and not an administrator: its frames must have its own port's address,
//! and its Sets are dropped unless the fabric was started with the management grant
//! ([`Net::grant_management`](crate::net::Net::grant_management)).
//!
//! # What a client can cost the server
//!
//! | resource | at most | beyond that |
//! |---|---|---|
//! | connections that wait to be accepted | 4096, or `net.core.somaxconn` | retried for 5 s |
//! | connections without a message | [`UNATTACHED_MAX`] | the oldest one is closed |
//! | clients with adapters; with agents | [`CLIENTS_MAX`] each | refused, with the reason |
//! | agents of a client | 32 | refused |
//! | MADs that its agents have not read | 4096, and those in the socket | dropped, `full` |
//! | replies to these agents | the same 4096 | detached |
//! | frames for its adapter that it has not taken | [`ARRIVED_FRAMES_MAX`] | dropped, `full` |
//! | bytes of these frames | [`ARRIVED_BYTES_MAX`] | dropped, `full` |
//! | notifications that it has not taken | [`NOTIFICATIONS_MAX`] | detached, `overrun` |
//! | control messages that it has not read | the socket's buffer | their rings end |
//! | descriptors of the server | its limit | clients are refused, requests to map a segment fail |
//! | direct rings each way | [`DIRECT_RINGS_MAX`] | the sender with most loses its least used one |
//!
//! The server keeps no segments: it forwards the descriptor of a segment from the sender to the
//! receiver, one at a time for each ring. A receiver maps [`SEGMENTS_MAX`] for each ring.
//!
//! [`UNATTACHED_MAX`]: server::UNATTACHED_MAX
//! [`CLIENTS_MAX`]: server::CLIENTS_MAX
//! [`ARRIVED_FRAMES_MAX`]: crate::net::shared_port::ARRIVED_FRAMES_MAX
//! [`ARRIVED_BYTES_MAX`]: crate::net::shared_port::ARRIVED_BYTES_MAX
//! [`NOTIFICATIONS_MAX`]: server::NOTIFICATIONS_MAX
//! [`DIRECT_RINGS_MAX`]: grants::DIRECT_RINGS_MAX
//! [`SEGMENTS_MAX`]: shared_leases::SEGMENTS_MAX
//!
//! Read in this order: [`control_message`], [`socket`], [`port_page`], [`direct`],
//! `wake_socket`, [`shared_leases`] and `exposure` (leased memory), [`link`], `vhca_index` and
//! `session` (the client), [`grants`], [`server`]; [`agents`] and [`agent_message`] are about the
//! management agents of a process.

pub mod address;
pub mod agent_message;
pub mod agents;
pub mod control_message;
pub mod direct;
mod exposure;
pub mod grants;
pub mod link;
pub mod port_page;
pub mod server;
mod session;
pub mod shared_leases;
mod sleep_rate;
pub mod socket;
mod vhca_index;
mod wake_socket;

pub use address::PortAddress;
pub use agents::AgentPort;
pub use link::{OpenError, ProcessLink, open, open_in_group};
pub use server::Server;

/// The largest page size in bytes. The length of a segment may be rounded up to it.
pub(crate) const PAGE_BYTES_MAX: usize = 1 << 16;

/// The kinds of entries of a ring, up to the server or down from it.
pub(crate) mod tag {
    /// A bypass message: its head and its payload.
    pub(crate) const MESSAGE: u8 = 0;
    /// A packet, LRH to VCRC.
    pub(crate) const PACKET: u8 = 1;
    /// Up: from here on, traffic of the route uses the ring with this number.
    pub(crate) const SWITCH: u8 = 2;
    /// Up: the sender has stopped using the ring with this number.
    pub(crate) const CLOSED: u8 = 3;
    /// Down: from here on, the receiver polls the ring with this number.
    pub(crate) const OPEN: u8 = 4;
    /// Down: the ring with this number ends after the entries that it has now.
    pub(crate) const CLOSE: u8 = 5;
    /// Down: there is a control message at the socket.
    pub(crate) const NOTIFY: u8 = 6;
    /// Up: a P_Key or Q_Key violation: trap number and details.
    pub(crate) const VIOLATION: u8 = 7;
}
