//! The task of a worker thread: it polls the ports that control sends to it, and forwards packets
//! between them.

use super::notice::NodeNotice;
use super::routing::table::RoutingTable;
use super::waker::{Waker, Woken};
use super::worker_port::WorkerPort;
use pollux_dataplane::engine::Work;
use pollux_dataplane::forward::Forwarder;
use pollux_dataplane::port::PacketPort;
use pollux_mem::snapshot::Snapshot;
use pollux_verbs::time::Time;
use std::sync::mpsc::SyncSender;
use std::time::Duration;

pub(super) struct WorkerTask {
    ports: Vec<WorkerPort>,
    forwarder: Forwarder,
    routes: Snapshot<RoutingTable>,
    number: usize,
    /// The version of the routing tables whose rules the ports have.
    rules_of: Option<u64>,
    /// The packet count of ports that have ended.
    packets_before: u64,
    notices: SyncSender<NodeNotice>,
    control: Waker,
    woken: Woken,
}

impl WorkerTask {
    pub(super) fn new(
        notices: SyncSender<NodeNotice>,
        control: Waker,
        woken: Woken,
        routes: Snapshot<RoutingTable>,
        number: usize,
        seed: u64,
    ) -> Self {
        let forwarder = Forwarder::new(seed);
        Self {
            ports: Vec::new(),
            forwarder,
            routes,
            number,
            rules_of: None,
            packets_before: 0,
            notices,
            control,
            woken,
        }
    }

    fn update_ports(&mut self) {
        self.forwarder.set_ports(self.ports.iter().map(WorkerPort::port));
        self.rules_of = None;
    }

    /// Sets the access control lists of the current tables at the ports and the forwarder.
    #[cold]
    fn set_rules(&mut self) {
        let Self { ports, forwarder, routes, number, rules_of, .. } = self;
        let tables = routes.refresh();
        for port in ports {
            port.set_filter(tables.filter_in(port.port(), *number));
        }
        forwarder.set_filters(tables.filters_out(*number));
        *rules_of = Some(tables.version);
    }

    pub(super) fn notify(&self, notice: NodeNotice) {
        let _ = self.notices.try_send(notice);
        self.control.wake();
    }
}

impl Work for WorkerTask {
    type Command = Box<WorkerPort>;

    fn breathe(&mut self, now: Time) -> bool {
        if self.rules_of != Some(self.routes.refresh().version) {
            self.set_rules();
        }
        let Self { ports, forwarder, routes, .. } = self;
        let routes = routes.refresh();
        let busy = match routes.forwards {
            true => forwarder.breathe(now, ports, routes),
            false => ports.iter_mut().fold(false, |busy, port| port.breathe(now) | busy),
        };
        let has_events = ports.iter_mut().fold(false, |has, port| port.take_has_events() | has);
        if busy && self.ports.iter().any(WorkerPort::has_failed) {
            let gone = self.ports.extract_if(.., |port| port.has_failed());
            self.packets_before += gone.map(|port| port.packets()).sum::<u64>();
            self.update_ports();
        }
        if has_events {
            self.control.wake_if_asleep();
        }
        busy
    }

    fn housekeeping(&mut self, _: Time) {}

    fn packets(&mut self) -> u64 {
        self.packets_before + self.ports.iter().map(PacketPort::packets).sum::<u64>()
    }

    fn poll_timeout(&self) -> Option<Time> {
        self.ports.iter().filter_map(PacketPort::poll_timeout).min()
    }

    fn handle_command(&mut self, _: Time, port: Box<WorkerPort>) {
        self.ports.push(*port);
        self.update_ports();
    }

    fn arm(&mut self) -> bool {
        self.woken.fall_asleep();
        // No short circuit: every port has to be armed.
        self.ports.iter_mut().fold(true, |can_sleep, port| port.arm() & can_sleep)
    }

    fn wait(&mut self, longest: Duration) {
        let sources: Vec<_> = self.ports.iter_mut().filter_map(PacketPort::wake_source).collect();
        let longest = sources.iter().map(|source| source.longest).chain([longest]).min();
        self.woken.sleep_at(sources.iter().map(|source| source.fd), longest.unwrap_or_default());
        self.woken.clear();
        self.ports.iter_mut().for_each(PacketPort::woken);
    }

    /// The task ends after all ports have ended, which they do when their interfaces have left.
    fn end(&mut self, _: Time) -> bool {
        self.ports.is_empty()
    }
}
