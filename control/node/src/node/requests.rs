//! Requests to a node. Control answers them from its own state and from counters that workers
//! publish. It asks no worker, so a worker that hangs blocks no response, and its counters show
//! that.

use super::NodeRunner;
use super::changes::{Changed, ReloadKind, Running};
use super::report::{Report, Response};
use super::trace::trace;
use super::worker_handle::WorkerHandle;
use crate::admin::page::{Cursor, Page};
use crate::admin::reply::{AdminAnswer, AdminReply, ConfigText};
use crate::admin::request::{AdminRequest, AdminTable, RouteRequest};
use crate::admin::route::RouteDecision;
use crate::admin::rows::{ChangeStatus, WorkerStatus};
use crate::config::diff::Change;
use pollux_dataplane::engine::counts::{CountsSegment, WorkerCounts};
use pollux_dataplane::engine::idle::Idle;
use pollux_verbs::time::Time;
use std::os::fd::{AsFd, AsRawFd};
use std::time::Duration;

impl NodeRunner {
    /// Responds to a request; `None` if there is no response yet. A cursor asks for the page that
    /// begins there.
    pub(super) fn respond(
        &mut self,
        now: Time,
        number: u64,
        request: &AdminRequest,
        from: Option<&Cursor>,
    ) -> Option<Page> {
        let Self {
            interfaces, pings, captures, assignment, handles, routing, kernel, counts, ..
        } = self;
        let response = match request {
            AdminRequest::BeginCapture(request) => {
                reply(captures.begin(now, request, interfaces).map(AdminAnswer::Capture))
            }
            AdminRequest::ReadCapture(number) => {
                reply(captures.read(now, *number, interfaces).map(AdminAnswer::Captured))
            }
            AdminRequest::EndCapture(number) => {
                reply(captures.end(*number).map(|()| AdminAnswer::Done))
            }
            AdminRequest::Trace(request) => {
                let lists = &self.running.config.acls;
                let steps = trace(now, request, interfaces, (routing, lists));
                reply(steps.map(AdminAnswer::Trace))
            }
            AdminRequest::Reload { is_trial, timeout_ms } => {
                let kind = match (is_trial, timeout_ms) {
                    (true, _) => ReloadKind::Trial,
                    (false, None) => ReloadKind::Final,
                    (false, Some(ms)) => ReloadKind::Until(now + Duration::from_millis(*ms)),
                };
                self.change(now, |running, changed| running.reload(now, kind, changed))
            }
            AdminRequest::Confirm { is_undo: false } => {
                self.change(now, |running, _| running.confirm())
            }
            AdminRequest::Confirm { is_undo: true } => {
                self.change(now, |running, changed| running.undo(now, changed))
            }
            AdminRequest::Config { has_defaults } => self.config(*has_defaults),
            AdminRequest::Route(request) => self.change_route(now, request),
            AdminRequest::RouteTo { address, domain } => {
                let decision = routing.decide(now, *address, domain.as_deref());
                let answer = |decision: RouteDecision| AdminAnswer::Route(decision.into());
                reply(decision.map(answer))
            }
            AdminRequest::Show(AdminTable::Workers) => {
                AdminReply::Ok(AdminAnswer::Workers(workers(handles, counts)))
            }
            AdminRequest::Show(AdminTable::Acl) => {
                AdminReply::Ok(AdminAnswer::Acl(routing.acl_rows()))
            }
            AdminRequest::Show(AdminTable::Multicast) => {
                AdminReply::Ok(AdminAnswer::Multicast(routing.multicast_rows()))
            }
            AdminRequest::Show(AdminTable::Routes) => return Some(routing.page(now, from)),
            AdminRequest::Show(AdminTable::Kernel) => {
                AdminReply::Ok(AdminAnswer::Kernel(kernel.routes.status()))
            }
            AdminRequest::Idle { strategy, worker } => set_idle(strategy, *worker, handles),
            _ => {
                return Report { interfaces: &mut interfaces.all, pings, assignment }
                    .respond(now, number, request, from);
            }
        };
        Some(response.into())
    }

    fn change(
        &mut self,
        now: Time,
        make: impl FnOnce(&mut Running, &mut Changed<'_>) -> Result<Vec<Change>, String>,
    ) -> Response {
        let Self { interfaces, assignment, handles, running, .. } = self;
        let made = make(running, &mut Changed { interfaces, assignment, handles });
        self.update_routes(now);
        let rows = |changes: Vec<Change>| changes.iter().map(change_status).collect();
        reply(made.map(|changes| AdminAnswer::Changes(rows(changes))))
    }

    fn config(&self, has_defaults: bool) -> Response {
        let file = self.running.file.as_ref().map(|file| file.display().to_string());
        let toml = self.running.config.to_toml(has_defaults);
        AdminReply::Ok(AdminAnswer::Config(ConfigText { file, toml }))
    }

    fn change_route(&mut self, now: Time, request: &RouteRequest) -> Response {
        let changed = self.routing.by_admin.change(request, &self.running.config);
        self.update_routes(now);
        let row = |change| ChangeStatus { interface: None, change, needs_start: false };
        let rows = |changes: Vec<String>| changes.into_iter().map(row).collect();
        reply(changed.map(|changes| AdminAnswer::Changes(rows(changes))))
    }

    /// Updates the routes of workers before the reply, so that the change is in effect by then.
    fn update_routes(&mut self, now: Time) {
        let Self { routing, running, interfaces, kernel, .. } = self;
        routing.update(now, &running.config, interfaces, kernel);
    }
}

fn reply(result: Result<AdminAnswer, String>) -> Response {
    result.map_or_else(AdminReply::Error, AdminReply::Ok)
}

fn change_status(change: &Change) -> ChangeStatus {
    ChangeStatus {
        interface: change.interface().map(String::from),
        change: change.to_string(),
        needs_start: change.needs_start(),
    }
}

/// Sets the idle strategy of all workers, or of the one of this number.
fn set_idle(name: &str, worker: Option<usize>, handles: &[WorkerHandle]) -> Response {
    let Some(idle) = Idle::named(name) else {
        let why = format!("{name:?} is not an idle strategy; write poll, pause or adaptive");
        return AdminReply::Error(why);
    };
    let chosen = worker.map_or(Some(handles), |number| handles.get(number..=number));
    let Some(chosen) = chosen else {
        let number = worker.unwrap_or_default();
        let why = format!("there is no worker {number}; list them with `pollux show workers`");
        return AdminReply::Error(why);
    };
    chosen.iter().for_each(|handle| handle.set_idle(idle));
    AdminReply::Ok(AdminAnswer::Done)
}

/// The rows of workers, from shared counters: a worker that hangs has one, too.
fn workers(handles: &[WorkerHandle], counts: &CountsSegment) -> Vec<WorkerStatus> {
    let fd = counts.as_fd().as_raw_fd();
    let memory = format!("/proc/{}/fd/{fd}", std::process::id());
    let row = |(number, (handle, counts)): (usize, (&WorkerHandle, Option<WorkerCounts>))| {
        let counts = counts.unwrap_or_default();
        let WorkerCounts { busy_nanos, running_nanos, packets, .. } = counts;
        WorkerStatus {
            worker: number,
            core: handle.core,
            idle: handle.idle().name().into(),
            interfaces: handle.interfaces.clone(),
            breaths: counts.breaths,
            busy_breaths: counts.busy_breaths,
            packets,
            sleeps: counts.sleeps,
            asleep_ms: counts.asleep_nanos / 1_000_000,
            busy_ms: busy_nanos / 1_000_000,
            running_ms: running_nanos / 1_000_000,
            ns_per_packet: ratio(busy_nanos, packets),
            batch_size: ratio(packets, counts.busy_breaths),
            idle_percent: ratio(running_nanos.saturating_sub(busy_nanos), running_nanos)
                .map(|share| 100.0 * share),
            memory: memory.clone(),
        }
    };
    handles.iter().zip(counts.read()).enumerate().map(row).collect()
}

fn ratio(part: u64, of: u64) -> Option<f64> {
    (of > 0).then(|| part as f64 / of as f64)
}
