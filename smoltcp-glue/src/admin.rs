//! The admin socket of a program, for `pollux show sockets`.
//!
//! ```text
//!   command --request--> control thread --SocketsRequest--> worker, between two steps
//!           <---rows---                 <---some rows---
//! ```
//!
//! The control thread serves the socket. It asks one worker at a time for at most
//! [`SOCKETS_PER_REQUEST`] sockets, so that a request takes little of a worker's time even with
//! many sockets.

use crate::error::UpError;
use crate::stack::{SocketId, Stack, TcpInfo};
use pollux_node::admin::Admin;
use pollux_node::admin::page::Page;
use pollux_node::admin::reply::{AdminAnswer, AdminReply};
use pollux_node::admin::request::{AdminRequest, AdminTable};
use pollux_node::admin::rows::{SocketStatus, TcpStatus};
use pollux_node::node::waker::Waker;
use pollux_verbs::time::Time;
use rustix::event::PollFd;
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::mpsc::{Receiver, SyncSender, TryRecvError, sync_channel};
use std::time::Duration;

const SOCKETS_PER_REQUEST: usize = 256;
/// Maximum number of collections at a time. Beyond it, the oldest one is discarded and starts
/// again.
const COLLECTIONS_MAX: usize = 16;

/// The admin socket of an interface.
pub(crate) struct ProgramAdmin {
    admin: Admin,
    interface: String,
    waker: Option<Waker>,
    /// Keyed by the number of the request.
    collections: BTreeMap<u64, Collection>,
}

/// The rows that workers have returned so far, and the pending request to the next worker.
struct Collection {
    rows: Vec<SocketStatus>,
    worker: usize,
    part: Receiver<SocketRows>,
}

type SocketRows = Vec<(SocketId, SocketStatus)>;

/// A request to a worker for some of its sockets. Dropping it wakes the control thread.
pub(crate) struct SocketsRequest {
    after: Option<SocketId>,
    sender: SyncSender<SocketRows>,
    _waker: Option<Waker>,
}

impl SocketsRequest {
    /// Answers with a row for each socket. `queued` returns the bytes of a socket that are outside
    /// of the stack: those to send, and those received.
    pub(crate) fn answer(
        self,
        now: Time,
        stack: &Stack,
        mut queued: impl FnMut(SocketId) -> (usize, usize),
    ) {
        let ids = stack.sockets_after(self.after, SOCKETS_PER_REQUEST);
        let row = |id| Some((id, row(now, stack, id, queued(id))?));
        // The control thread may have discarded the collection.
        let _ = self.sender.try_send(ids.into_iter().filter_map(row).collect());
    }
}

impl ProgramAdmin {
    pub(crate) fn open(interface: &str, path: &Path) -> Result<Self, UpError> {
        let failed = |why| UpError::Socket(path.display().to_string(), why);
        let admin = Admin::listen(path).map_err(failed)?;
        let (interface, collections) = (interface.into(), BTreeMap::new());
        Ok(Self { admin, interface, waker: None, collections })
    }

    /// Sets the waker of the control thread.
    pub(crate) fn wake_by(&mut self, waker: Waker) {
        self.waker = Some(waker);
    }

    pub(crate) fn poll_fds(&self) -> impl Iterator<Item = PollFd<'_>> {
        self.admin.poll_fds()
    }

    /// The longest sleep of the control thread until the admin socket has to be served.
    pub(crate) fn sleep_max(&self, now: Time) -> Duration {
        self.admin.due().map_or(Duration::MAX, |due| due.since(now))
    }

    /// Serves the admin socket. `ask` passes a request to a worker, and returns `false` if there is
    /// no worker with this number.
    pub(crate) fn turn(&mut self, now: Time, mut ask: impl FnMut(usize, SocketsRequest) -> bool) {
        let Self { admin, interface, waker, collections } = self;
        admin.turn(now, &mut |number, request, _| match request {
            AdminRequest::Show(AdminTable::Sockets) => {
                let mut ask = |worker, after| {
                    let (sender, part) = sync_channel(1);
                    let waker = waker.as_ref().map(Waker::share);
                    let request = SocketsRequest { after, sender, _waker: waker };
                    ask(worker, request).then_some(part)
                };
                let rows = collect(collections, number, &mut ask)?;
                let named = |row| SocketStatus { interface: interface.clone(), ..row };
                let rows = rows.into_iter().map(named).collect();
                Some(AdminReply::Ok(AdminAnswer::Sockets(rows)).into())
            }
            _ => {
                let why = "this is a program with sockets, which has `pollux show sockets` only";
                Some(Page::from(AdminReply::Error(why.into())))
            }
        });
    }
}

/// Continues a collection; returns all rows once it is complete. `ask` sends a request to a worker,
/// and returns `None` if there is no worker with this number.
fn collect(
    collections: &mut BTreeMap<u64, Collection>,
    number: u64,
    ask: &mut impl FnMut(usize, Option<SocketId>) -> Option<Receiver<SocketRows>>,
) -> Option<Vec<SocketStatus>> {
    let mut one = match collections.remove(&number) {
        Some(one) => one,
        None => Collection { rows: Vec::new(), worker: 0, part: ask(0, None)? },
    };
    loop {
        let part = match one.part.try_recv() {
            Ok(part) => part,
            Err(TryRecvError::Empty) => break,
            // The worker has ended, and its sockets with it.
            Err(TryRecvError::Disconnected) => Vec::new(),
        };
        let last = part.last().map(|(id, _)| *id);
        let worker = one.worker;
        one.rows.extend(part.into_iter().map(|(_, row)| SocketStatus { worker, ..row }));
        one.worker += usize::from(last.is_none());
        match ask(one.worker, last) {
            Some(part) => one.part = part,
            None => return Some(one.rows),
        }
    }
    if collections.len() == COLLECTIONS_MAX {
        collections.pop_first();
    }
    collections.insert(number, one);
    None
}

fn row(
    now: Time,
    stack: &Stack,
    id: SocketId,
    (unsent, unread): (usize, usize),
) -> Option<SocketStatus> {
    let row = |protocol: &str, local: SocketAddr, state: Option<&str>| SocketStatus {
        protocol: protocol.into(),
        local: local.to_string(),
        state: state.map(String::from),
        receive_queue: unread,
        send_queue: unsent,
        ..SocketStatus::default()
    };
    Some(match id {
        SocketId::Udp(id) => {
            let row = row("udp", stack.udp_local(id)?, None);
            SocketStatus {
                peer: stack.udp_peer(id).map(|peer| peer.to_string()),
                receive_queue: unread + stack.udp_unread(id),
                ..row
            }
        }
        SocketId::Tcp(id) => {
            let (local, peer) = stack.tcp_addresses(id)?;
            let info = stack.tcp_info(now, id).ok()?;
            SocketStatus {
                peer: Some(peer.to_string()),
                receive_queue: unread + info.receive_queue,
                send_queue: unsent + info.send_queue,
                tcp: Some(tcp_status(&info)),
                ..row("tcp", local, Some(&info.state.to_string()))
            }
        }
        SocketId::Listener(id) => {
            let (waiting, backlog) = stack.tcp_backlog(id)?;
            SocketStatus {
                receive_queue: waiting,
                send_queue: backlog,
                ..row("tcp", stack.tcp_listener_local(id)?, Some("LISTEN"))
            }
        }
    })
}

fn tcp_status(info: &TcpInfo) -> TcpStatus {
    let us = |time: Duration| time.as_nanos() as f64 / 1e3;
    TcpStatus {
        rtt_us: info.rtt.map(us),
        rtt_variation_us: us(info.rtt_variation),
        rto_us: us(info.rto),
        congestion_window: info.congestion_window,
        slow_start_threshold: info.slow_start_threshold,
        is_in_loss_recovery: info.is_in_loss_recovery,
        send_window: info.send_window,
        receive_window: info.receive_window,
        mss: info.mss,
        path_mtu: info.path_mtu,
        bytes_in_flight: info.bytes_in_flight,
        bytes_sent: info.bytes_sent,
        bytes_acknowledged: info.bytes_acknowledged,
        bytes_received: info.bytes_received,
        bytes_retransmitted: info.bytes_retransmitted,
        retransmissions: info.retransmissions,
    }
}
