//! Samples of a node's tables, and the changes between two of them.

use super::View;
use crate::asking::{Wait, rows};
use pollux_node::admin::client::AskError;
use pollux_node::admin::rows::{
    ConnectionStatus, DropCount, InterfaceStatus, NeighborStatus, RouteStatus, WorkerStatus,
};
use std::path::Path;
use std::time::Instant;

/// The rows of tables at one time. Neighbors, connections and routes are empty unless the view
/// shows them.
#[derive(Clone, Debug)]
pub struct Sample {
    pub at: Instant,
    pub interfaces: Vec<InterfaceStatus>,
    pub workers: Vec<WorkerStatus>,
    pub drops: Vec<DropCount>,
    pub neighbors: Vec<NeighborStatus>,
    pub connections: Vec<ConnectionStatus>,
    pub routes: Vec<RouteStatus>,
}

/// A sample and the one before it, for rates.
#[derive(Clone, Debug)]
pub struct SampleChange {
    pub now: Sample,
    before: Option<Sample>,
    /// The time between the two, or 0 if there is only one.
    pub seconds: f64,
}

impl Sample {
    /// Asks a node for the tables of a view. Warnings always need the first three tables.
    #[expect(clippy::disallowed_methods, reason = "rates are between two moments")]
    pub fn take(socket: &Path, wait: Wait, view: View) -> Result<Self, AskError> {
        let mut sample = Self {
            at: Instant::now(),
            interfaces: rows(socket, wait)?,
            workers: rows(socket, wait)?,
            drops: rows(socket, wait)?,
            neighbors: Vec::new(),
            connections: Vec::new(),
            routes: Vec::new(),
        };
        match view {
            View::Neighbors => sample.neighbors = rows(socket, wait)?,
            View::Connections => sample.connections = rows(socket, wait)?,
            View::Routes => sample.routes = rows(socket, wait)?,
            View::Overview | View::Interfaces | View::Workers | View::Drops => {}
        }
        Ok(sample)
    }
}

impl SampleChange {
    pub fn between(before: Option<&Sample>, now: Sample) -> Self {
        let seconds = before.map_or(0.0, |before| (now.at - before.at).as_secs_f64());
        Self { before: before.cloned(), now, seconds }
    }

    /// The increase of a counter per second; 0 for a new row, and for a counter that was reset.
    pub fn rate<R>(
        &self,
        rows: impl Fn(&Sample) -> &Vec<R>,
        is_same: impl Fn(&R) -> bool,
        count: impl Fn(&R) -> u64,
        now: &R,
    ) -> f64 {
        let before = self.before.as_ref().and_then(|it| rows(it).iter().find(|row| is_same(row)));
        let increase = before.map_or(0, |before| count(now).saturating_sub(count(before)));
        if self.seconds > 0.0 { increase as f64 / self.seconds } else { 0.0 }
    }

    pub fn drop_rate(&self, row: &DropCount) -> f64 {
        let is_same = |before: &DropCount| {
            (&before.interface, &before.of, &before.why) == (&row.interface, &row.of, &row.why)
        };
        self.rate(|sample| &sample.drops, is_same, |row| row.count, row)
    }

    pub fn interface_rate(
        &self,
        row: &InterfaceStatus,
        count: impl Fn(&InterfaceStatus) -> Option<u64>,
    ) -> f64 {
        let is_same = |before: &InterfaceStatus| before.interface == row.interface;
        self.rate(|sample| &sample.interfaces, is_same, |row| count(row).unwrap_or(0), row)
    }

    pub fn worker_rate(&self, row: &WorkerStatus, count: impl Fn(&WorkerStatus) -> u64) -> f64 {
        self.rate(|sample| &sample.workers, |before| before.worker == row.worker, count, row)
    }

    pub fn connection_rate(
        &self,
        row: &ConnectionStatus,
        count: impl Fn(&ConnectionStatus) -> u64,
    ) -> f64 {
        let is_same = |before: &ConnectionStatus| {
            (&before.interface, before.worker, before.qpn) == (&row.interface, row.worker, row.qpn)
        };
        self.rate(|sample| &sample.connections, is_same, count, row)
    }

    /// The busy share of a worker's time, in percent.
    pub fn busy_percent(&self, row: &WorkerStatus) -> f64 {
        let busy = self.worker_rate(row, |row| row.busy_ms);
        let running = self.worker_rate(row, |row| row.running_ms);
        if running > 0.0 { (100.0 * busy / running).min(100.0) } else { 0.0 }
    }

    /// The number of routes of an origin in the sample before; `None` if that has no routes.
    pub fn routes_before(&self, is_of: impl Fn(&RouteStatus) -> bool) -> Option<u64> {
        let before = self.before.as_ref().filter(|before| !before.routes.is_empty())?;
        Some(before.routes.iter().filter(|row| is_of(row)).count() as u64)
    }
}
