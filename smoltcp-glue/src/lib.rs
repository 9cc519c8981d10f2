//! UDP and TCP sockets over InfiniBand, served in the application's own process.
//!
//! The example exchanges a request and a response between two hosts on a software fabric inside
//! this process. Replace `soft:` with `mlx5_0:1` to use a hardware adapter:
//!
//! ```
//! use pollux::{Mode, Node};
//! use std::io::{self, Read, Write};
//! use std::sync::mpsc::{Sender, channel};
//!
//! const SERVER: &str = "10.0.0.1:7000";
//!
//! fn serve(ready: Sender<()>) -> io::Result<()> {
//!     let ib0 = Node::open("soft:")?.interface("ib0").address("10.0.0.1/24").mode(Mode::Rc).up()?;
//!     let listener = ib0.tcp_listen(SERVER, 128)?;
//!     ready.send(()).map_err(io::Error::other)?;
//!     let (mut stream, _) = listener.accept()?;
//!     let mut request = String::new();
//!     stream.read_to_string(&mut request)?;
//!     stream.write_all(request.to_uppercase().as_bytes())
//! }
//!
//! fn main() -> Result<(), Box<dyn std::error::Error>> {
//!     let (ready, is_ready) = channel();
//!     let serving = std::thread::spawn(move || serve(ready));
//!     let ib0 = Node::open("soft:")?.interface("ib0").address("10.0.0.2/24").mode(Mode::Rc).up()?;
//!     is_ready.recv()?;
//!     let mut stream = ib0.tcp_connect(SERVER)?;
//!     stream.write_all(b"hello")?;
//!     stream.shutdown(std::net::Shutdown::Write)?;
//!     let mut response = String::new();
//!     stream.read_to_string(&mut response)?;
//!     assert_eq!(response, "HELLO");
//!     drop(stream);
//!     serving.join().expect("it does not panic")?;
//!     Ok(())
//! }
//! ```
//!
//! An interface has one of two modes. In *inline* mode, as above, the thread that opens the
//! interface is its worker: its calls on one socket serve all sockets of the interface. This mode
//! has the lowest latency, because no data crosses threads; use it where one thread does
//! everything. In *pinned* mode ([`Setup::up_pinned`]), the interface has worker threads, and its
//! sockets can be used by any thread and by tasks of any executor; use it where several threads
//! hold sockets, where the application computes while peers wait, or where it is `async`.
//!
//! In both modes, a control thread runs the protocols of the link: neighbor resolution, multicast
//! groups and connected-mode connections. While an inline application makes no calls, the control
//! thread also serves its sockets, so that peers do not time out.
//!
//! Sockets have the methods, types and error kinds of `std::net`; an interface opens them
//! (`ib0.tcp_connect`, `ib0.tcp_listen`, `ib0.udp_bind`). [`guide::from_std`] lists the differences
//! from kernel sockets, and all defaults; [`guide`] has a page for each kind of program.
//!
//! [`TcpStream::info`] returns the measurements and counters of a connection, and
//! [`Interface::statistics`] the counters of an interface. `pollux show sockets` lists the sockets
//! of an interface that has an admin socket ([`Setup::admin_socket`]).
//!
//! [`Setup::up`] returns when the addresses of the interface are usable. The interface probes them
//! first: if another host has one, `up` returns [`UpError::AddressInUse`] with the link address of
//! that host. When a program dies, its addresses are free at once.
//!
//! When the process of a peer dies, connections to it end with `ConnectionReset` within five
//! seconds if the port of the peer leaves the subnet, as on the software fabric. If the port stays,
//! keep-alive or the user timeout ends them ([`stack::TcpConfig`]). If the peer restarts, they end
//! at once. Connections to a stopped process last until keep-alive or the user timeout ends them.
//!
//! | feature | adds |
//! |---|---|
//! | `tokio` | tokio's traits on pinned connections ([`guide::tasks`]) |
//! | `futures-io` | the traits of the crate `futures-io` on pinned connections |
//! | `hca` | hardware adapters; needs rdma-core's headers |
//!
//! 1. [`node`]: opens a device and an interface; [`interface`]: the inline driver; [`host`]: an
//!    interface with its sockets, without a clock;
//! 2. [`udp`], [`tcp`]: sockets with the API of `std::net`; `timeout`: the timeouts of their calls;
//!    `std_calls`: methods that inline and pinned sockets share; [`error`]: error types;
//!    [`statistics`]: the counters of an interface;
//! 3. `control_thread`: runs the protocols of the link; `control_requests`: requests of sockets to
//!    it; `clock`: the system clock; `yields`: yields the core in calls that wait; `stand_in`:
//!    serves the sockets of an inline application that makes no calls; `admin`: answers
//!    `pollux show sockets`;
//! 4. [`pinned`]: sockets for any thread, and several workers for one interface; `hand_off`:
//!    packets steered between workers; `promise`: a value from a thread to a task; `wake_count`: a
//!    waker for tests;
//! 5. [`smoltcp`]: an interface as a device of smoltcp; `arrivals`: the received packets of that
//!    device;
//! 6. [`stack`]: the protocol logic, without I/O;
//! 7. [`guide`]: pages for programs, without code.
#![forbid(unsafe_code)]
#![warn(missing_docs)]

mod admin;
mod arrivals;
mod clock;
mod control_requests;
mod control_thread;
pub mod error;
pub mod guide;
mod hand_off;
pub mod host;
pub mod interface;
pub mod node;
pub mod pinned;
mod promise;
pub mod smoltcp;
pub mod stack;
mod stand_in;
pub mod statistics;
mod std_calls;
pub mod tcp;
mod timeout;
pub mod udp;
#[cfg(test)]
mod wake_count;
mod yields;

pub use control_requests::NeighborRoute;
pub use error::UpError;
pub use hand_off::HandOffCounts;
pub use interface::Interface;
pub use node::{Node, Setup};
pub use pollux_node::Opened;
pub use pollux_node::config::Mode;
pub use pollux_wire::keys::PKey;
pub use stack::{TcpInfo, TcpState};
pub use statistics::InterfaceStatistics;
pub use tcp::{TcpListener, TcpStream};
pub use udp::{UdpSlot, UdpSocket};
