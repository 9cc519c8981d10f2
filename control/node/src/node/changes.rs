//! Changes of a configuration while the node runs, and at its start.
//!
//! ```text
//!   file --read, rules--> configuration --diff with the present one--> changes --> interfaces
//!              \-- error: nothing changes                                  \-- one fails: all back
//! ```
//!
//! A reload with a timeout is kept as [`Unconfirmed`]: after a change that cuts an administrator
//! off, the node is reachable again once the change is taken back.
//!
//! ```text
//!   confirmed --reload with a timeout--> Unconfirmed --confirm--> confirmed, the new one
//!       ^                                    |
//!       +---------- timeout, or undo --------+
//! ```
//!
//! An interface that is removed or restarted first leaves its link. Its successor of the same name
//! starts when it has left, or after [`LEAVE_MAX`].

use super::LEAVE_MAX;
use super::notice::NodeNotice;
use super::opening::{ConfiguredInterface, Interfaces, Leaving};
use super::worker_handle::{Assignment, WorkerHandle};
use crate::config::diff::{Change, Setting};
use crate::config::{InterfaceSettings, NodeConfig};
use crate::service::notify_socket::NotifySocket;
use pollux_verbs::time::Time;
use std::path::{Path, PathBuf};
use std::sync::Arc;

pub(super) struct Running {
    /// The file that is read again; none if the configuration is not from a file.
    pub(super) file: Option<PathBuf>,
    pub(super) config: NodeConfig,
    unconfirmed: Option<Unconfirmed>,
    /// Notices that are not reported yet.
    pub(super) notices: Vec<NodeNotice>,
    /// The service manager, which is notified of reloads.
    pub(super) manager: Arc<NotifySocket>,
    pub(super) reloads: Reloads,
}

/// Reloads since the start, without trials.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Reloads {
    pub(super) succeeded: u64,
    pub(super) failed: u64,
    pub(super) has_failed_last: bool,
    pub(super) succeeded_at: Option<Time>,
}

impl Reloads {
    const fn count(&mut self, now: Time, is_success: bool) {
        self.has_failed_last = !is_success;
        match is_success {
            true => {
                self.succeeded += 1;
                self.succeeded_at = Some(now);
            }
            false => self.failed += 1,
        }
    }
}

/// A reload that is taken back unless it is confirmed.
struct Unconfirmed {
    before: NodeConfig,
    changes: Vec<Change>,
    until: Time,
}

/// The parts of a node that changes affect.
pub(super) struct Changed<'a> {
    pub(super) interfaces: &'a mut Interfaces,
    pub(super) assignment: &'a mut Assignment,
    pub(super) handles: &'a mut [WorkerHandle],
}

impl Running {
    /// Has the workers of a configuration, but no interfaces yet: [`Self::start`] adds them.
    pub(super) fn new(file: Option<PathBuf>, config: &NodeConfig) -> Self {
        let config = NodeConfig { workers: config.workers.clone(), ..NodeConfig::default() };
        let (unconfirmed, notices, reloads) = (None, Vec::new(), Reloads::default());
        Self { file, config, unconfirmed, notices, manager: Arc::default(), reloads }
    }

    /// The changes from the running configuration to the file, or why the file cannot be used.
    fn read_changes(&self) -> Result<Vec<Change>, String> {
        let file = self.file.as_ref();
        let file = file.ok_or("the node was not started with a configuration file")?;
        let new = NodeConfig::open(file).map_err(|error| error.to_string())?;
        Ok(self.config.diff(&new))
    }

    /// Makes the changes of a start. A change that fails becomes a notice; the others are still
    /// made.
    pub(super) fn start(&mut self, now: Time, config: &NodeConfig, changed: &mut Changed<'_>) {
        let failed = self.make_all(now, &self.config.diff(config), changed);
        self.notices.extend(failed.map(|change| NodeNotice::warning("change", no_space(&change))));
    }

    /// Makes all changes, even if one fails. Returns the first that failed.
    fn make_all(
        &mut self,
        now: Time,
        changes: &[Change],
        changed: &mut Changed<'_>,
    ) -> Option<Change> {
        let mut failed = None;
        for change in changes {
            if !self.make(now, change, changed) {
                failed = failed.or_else(|| Some(change.clone()));
            }
        }
        changed.rename_workers(&self.config);
        failed
    }

    /// Makes a change. `false` if there is no space for it.
    fn make(&mut self, now: Time, change: &Change, changed: &mut Changed<'_>) -> bool {
        // A change of cores is not applied, so that the next diff has it again.
        if !change.needs_start() {
            self.config.apply(change);
        }
        changed.make(now, change)
    }

    /// Makes all changes or none: if one fails, the changes before it are taken back.
    fn make_or_undo(
        &mut self,
        now: Time,
        changes: &[Change],
        changed: &mut Changed<'_>,
    ) -> Result<(), String> {
        let before = self.config.clone();
        let failed = changes.iter().position(|change| !self.make(now, change, changed));
        let result = failed.map_or(Ok(()), |nth| {
            let undone = self.config.diff(&before);
            for change in &undone {
                self.make(now, change, changed);
            }
            let failed = no_space(&changes[nth]);
            let undone: Vec<_> = undone.iter().map(ToString::to_string).collect();
            Err(format!("{failed}; taken back: {}", undone.join("; ")))
        });
        changed.rename_workers(&self.config);
        result
    }

    /// Reads the file again, and makes the changes unless this is a trial. With a timeout, the
    /// changes are taken back then, unless [`Self::confirm`] is called before.
    pub(super) fn reload(
        &mut self,
        now: Time,
        kind: ReloadKind,
        changed: &mut Changed<'_>,
    ) -> Result<Vec<Change>, String> {
        if kind == ReloadKind::Trial {
            return self.read_changes();
        }
        self.manager.reloading();
        let reloaded = self.reload_now(now, kind, changed);
        self.reloads.count(now, reloaded.is_ok());
        // The node is ready again, even if the file has errors.
        let _ = self.manager.ready(&match &reloaded {
            Ok(changes) => format!("reloaded, changes: {}", changes.len()),
            Err(why) => format!("reload: nothing was changed: {why}"),
        });
        reloaded
    }

    fn reload_now(
        &mut self,
        now: Time,
        kind: ReloadKind,
        changed: &mut Changed<'_>,
    ) -> Result<Vec<Change>, String> {
        let changes = self.read_changes()?;
        if let Some(unconfirmed) = &self.unconfirmed {
            let left = seconds_between(now, unconfirmed.until);
            return Err(format!(
                "the last reload is not confirmed; run `pollux confirm`, or `pollux confirm \
                 --undo`, or wait {left} s until it is taken back"
            ));
        }
        let before = self.config.clone();
        self.make_or_undo(now, &changes, changed)?;
        self.notices
            .extend(changes.iter().map(|change| NodeNotice::info("reload", change.to_string())));
        if let (ReloadKind::Until(until), false) = (kind, changes.is_empty()) {
            let left = seconds_between(now, until);
            let message = format!("taken back in {left} s unless confirmed");
            self.notices.push(NodeNotice::info("reload", message));
            self.unconfirmed = Some(Unconfirmed { before, changes: changes.clone(), until });
        }
        Ok(changes)
    }

    /// Confirms the changes of an unconfirmed reload, and returns them.
    pub(super) fn confirm(&mut self) -> Result<Vec<Change>, String> {
        let unconfirmed = self.unconfirmed.take().ok_or(NOTHING_TO_CONFIRM)?;
        self.notices.push(NodeNotice::info("reload", "confirmed"));
        Ok(unconfirmed.changes)
    }

    /// Takes back an unconfirmed reload. Returns the changes that this makes.
    pub(super) fn undo(
        &mut self,
        now: Time,
        changed: &mut Changed<'_>,
    ) -> Result<Vec<Change>, String> {
        let unconfirmed = self.unconfirmed.take().ok_or(NOTHING_TO_CONFIRM)?;
        let changes = self.config.diff(&unconfirmed.before);
        let failed = self.make_all(now, &changes, changed);
        self.notices.extend(
            changes
                .iter()
                .map(|change| NodeNotice::warning("reload taken back", change.to_string())),
        );
        self.notices.extend(failed.map(|change| NodeNotice::warning("change", no_space(&change))));
        Ok(changes)
    }

    /// Takes back a reload that was not confirmed in time.
    pub(super) fn handle_timeout(&mut self, now: Time, changed: &mut Changed<'_>) {
        if self.poll_timeout().is_some_and(|until| until <= now) {
            let file = self.file.as_deref().unwrap_or(Path::new("")).display();
            let message = format!("not confirmed in time; {file} still has the changes");
            self.notices.push(NodeNotice::warning("reload", message));
            let _ = self.undo(now, changed);
        }
    }

    /// When a reload is taken back.
    pub(super) fn poll_timeout(&self) -> Option<Time> {
        self.unconfirmed.as_ref().map(|one| one.until)
    }
}

const NOTHING_TO_CONFIRM: &str =
    "no reload waits for confirmation; start one with `pollux reload --timeout SECONDS`";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ReloadKind {
    /// The changes are only listed.
    Trial,
    Final,
    /// The changes are taken back at this time, unless they are confirmed before.
    Until(Time),
}

fn no_space(change: &Change) -> String {
    format!("{change}: no space for it")
}

/// Whole seconds, rounded up.
fn seconds_between(now: Time, until: Time) -> u64 {
    until.since(now).as_millis().div_ceil(1000) as u64
}

impl Changed<'_> {
    /// Makes a change. `false` if there is no space for it.
    fn make(&mut self, now: Time, change: &Change) -> bool {
        if let Change::Add(name, settings) | Change::Restart(name, settings, _) = change {
            self.assignment.add(name, settings);
        }
        match change {
            Change::Idle(idle) => {
                self.handles.iter().for_each(|handle| handle.set_idle(*idle));
                true
            }
            Change::Cores(_) => true,
            _ => self.interfaces.make(now, change),
        }
    }

    /// Sets the names of the interfaces of each worker, for reports.
    fn rename_workers(&mut self, config: &NodeConfig) {
        for (thread, handle) in self.handles.iter_mut().enumerate() {
            handle.interfaces = self.assignment.interfaces(thread, &config.interfaces);
        }
    }
}

impl Interfaces {
    /// Makes a change of an interface. `false` if there is no space for it.
    pub(super) fn make(&mut self, now: Time, change: &Change) -> bool {
        match change {
            Change::Add(name, settings) | Change::Restart(name, settings, _) => {
                match self.all.get_mut(name) {
                    Some(named) => named.leave(now, Some((**settings).clone())),
                    None => self.add(now, name, (**settings).clone()),
                }
            }
            Change::Remove(name) => {
                self.all.get_mut(name).into_iter().for_each(|named| named.leave(now, None));
            }
            Change::Set(name, setting) => {
                return self.all.get_mut(name).is_none_or(|named| named.set(now, setting));
            }
            // The next turn rebuilds the routing table.
            Change::Router(_)
            | Change::SetDomain(..)
            | Change::RemoveDomain(_)
            | Change::SetAcl(..)
            | Change::RemoveAcl(_)
            | Change::RemoveRoute(..)
            | Change::SetRoute(_)
            | Change::RemoveMulticast(_)
            | Change::SetMulticast(_) => {}
            // The next turn opens and closes the listener.
            Change::Telemetry(_) => {}
            Change::Idle(_) | Change::Cores(_) => {}
        }
        true
    }

    fn add(&mut self, now: Time, name: &str, settings: InterfaceSettings) {
        self.register_device(now, &settings);
        self.all.insert(name.into(), ConfiguredInterface::new(now, settings));
    }

    /// Removes interfaces that have left, and adds their successors. Returns whether any had left.
    pub(super) fn finish_leaving(&mut self, now: Time) -> bool {
        let gone = self.all.iter().filter(|(_, named)| named.has_left(now));
        let gone: Vec<_> = gone.map(|(name, _)| name.clone()).collect();
        for name in &gone {
            let next = self.all.remove(name).and_then(|named| named.leaving?.next);
            if let Some(settings) = next {
                self.add(now, name, settings);
            }
        }
        if !gone.is_empty() {
            self.drop_unused_devices();
        }
        !gone.is_empty()
    }
}

impl ConfiguredInterface {
    fn leave(&mut self, now: Time, next: Option<InterfaceSettings>) {
        match &mut self.leaving {
            Some(leaving) => leaving.next = next,
            None => {
                self.interface.iter_mut().for_each(|interface| interface.leave(now));
                self.leaving = Some(Leaving { until: now + LEAVE_MAX, next });
            }
        }
    }

    /// Changes a setting of the interface, or of its successor. `false` if there is no space for
    /// it.
    fn set(&mut self, now: Time, setting: &Setting) -> bool {
        if let Some(leaving) = &mut self.leaving {
            leaving.next.iter_mut().for_each(|next| next.apply(setting));
            return true;
        }
        self.settings.apply(setting);
        self.interface.as_mut().map_or(true, |interface| interface.apply(now, setting))
    }

    fn has_left(&self, now: Time) -> bool {
        let Some(leaving) = &self.leaving else { return false };
        leaving.until <= now
            || self.interface.as_ref().map_or(true, |interface| interface.has_left())
    }

    /// When the interface is removed, even if it has not left.
    pub(super) fn leaving_until(&self) -> Option<Time> {
        self.leaving.as_ref().map(|leaving| leaving.until)
    }
}
